/* Tests under mpirun: the program starts mpirun on itself and is, in there, the ranks.
 *
 *     MPIRUN_CASE(comes_right, 0, NULL, "2 what", "4 what")
 *
 *     int main(int argc, char **argv) { return mpirun_main(argc, argv, rank_main); }
 */
#ifndef MPIRUN_H
#define MPIRUN_H

#include "case.h"

/* The program: rank_main("what") in a rank, its cases otherwise. */
int mpirun_main(int argc, char **argv, int (*rank_main)(const char *what));

typedef struct mpirun_options {
    const char *preload; /* a library of the build folder for LD_PRELOAD, or NULL */
    const char *words;   /* further mpirun words, blank separated, or NULL */
    int seconds;         /* of a machine of its own (time_limit.h); 0: 60 */
} mpirun_options;

enum { MPIRUN_ABSENT = -1, MPIRUN_TIME_OUT = -2 };

/* Run `nranks` ranks of this program doing `what`; standard input is /dev/null. Returns mpirun's exit code, or one of
 * the above. What was started is gone on return. */
int mpirun_self(int nranks, const char *what, const mpirun_options *options);

/* The same as a case, in 50 seconds: skipped where there is no mpirun, failed when the exit code is not `wanted`. */
void mpirun_case(int nranks, const char *what, int wanted, const char *preload);
/* That with numbers of ranks before the words, one after the other, as a case of case.h. */
void mpirun_each(int wanted, const char *preload, const char *const *words);
#define MPIRUN_CASE(name, wanted, preload, ...)                                                                        \
    HD_CASE(name)                                                                                                      \
    {                                                                                                                  \
        mpirun_each(wanted, preload, (const char *const[]){__VA_ARGS__, NULL});                                        \
    }

/* Of ranks under mpirun that are told "forced" (messages only) or "hosts" (so many pretended ones). */
heddle_comm_options mpirun_comm_options(const char *what, int hosts);

/* Processes of this user that carry `mark` in their command line, this one not counted. */
int mpirun_left_over(const char *mark);

/* Folder of this program (the build folder), and the CLI in it. */
const char *mpirun_build_folder(void);

#endif
