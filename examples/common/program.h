/* What the larger examples have in common, none of it about heddle: a command line, ranks that a launcher or the
 * program itself starts, and whether what was printed arrived. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <heddle/heddle.h>
#include <stdint.h>

typedef struct program_option {
    const char *name;
    const char **text; /* one of these four is what it sets; a flag takes no value */
    int64_t *number;
    double *real;
    int *flag;
    double lo, hi; /* of number and real */
} program_option;

typedef struct program {
    const char *name, *help;
    const program_option *options;
    int noptions;
    const char **operand; /* the argument that is no option; NULL: there is none */
} program;

/* 0, 1: --help was printed, 2: a sentence was. */
int program_options(const program *p, int argc, char **argv);
/* "NAME: OPTION WHAT, not VALUE"; value may be NULL. The exit code, 2. */
int program_complain(const char *name, const char *option, const char *what, const char *value);
/* 0, or 2 with a sentence: threads, shm or auto. */
int program_check_transport(const char *name, const char *transport);

/* fn on so many ranks: of the launcher (mpirun, torchrun) when transport is "auto" and there are several, else
 * processes (shm) or threads of this program's own: threads where the launcher does not say how many there are, and MPI
 * says one. options may be NULL. */
heddle_status program_run(int64_t ranks, const char *transport, const heddle_comm_options *options, heddle_rank_main fn,
                          void *arg);

/* HEDDLE_ERR_IO: not all that was printed arrived (a full disk, say). */
heddle_status program_printed(void);
/* The exit code: `code`, or 1 and a sentence when it was 0 and what was printed did not arrive. */
int program_exit(const char *name, int code);

#endif
