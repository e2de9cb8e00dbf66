/* Tests under mpirun: the program starts mpirun on itself and is, in there, the ranks.
 *
 *     int main(int argc, char **argv) {
 *         if (mpirun_inside(argc, argv)) return rank_main(argv[2]);
 *         ... cases that call mpirun_self(4, "what", &options) ...
 *     }
 */
#ifndef MPIRUN_H
#define MPIRUN_H

/* 1: this process is a rank; argv[2] is what it shall do. */
int mpirun_inside(int argc, char **argv);

typedef struct mpirun_options {
    const char *preload; /* a library of the build folder for LD_PRELOAD, or NULL */
    const char *words;   /* further mpirun words, blank separated, or NULL */
    int seconds;         /* 0: 60 */
} mpirun_options;

enum { MPIRUN_ABSENT = -1, MPIRUN_TIME_OUT = -2 };

/* Run `nranks` ranks of this program doing `what`; standard input is /dev/null. Returns mpirun's exit code, or one of
 * the above. What was started is gone on return. */
int mpirun_self(int nranks, const char *what, const mpirun_options *options);

/* The same as a case, in 50 seconds: skipped where there is no mpirun, failed when the exit code is not `wanted`. */
void mpirun_case(int nranks, const char *what, int wanted, const char *preload);

/* Processes of this user that carry `mark` in their command line, this one not counted. */
int mpirun_left_over(const char *mark);

/* Folder of this program (the build folder), and the CLI in it. */
const char *mpirun_build_folder(void);

#endif
