/* What `heddle verify`, `heddle verify attention` and `heddle verify linear-attention` do alike. */
#ifndef HD_CLI_VERIFY_SHARE_H
#define HD_CLI_VERIFY_SHARE_H

#include "options.h"
#include "runtime/verify/judge.h"
#include "runtime/verify/random.h"

/* DIR/NAME.npy in f64 for F64, in f32 for the others; a file that cannot be written becomes the verdict. */
heddle_status cli_save_array(const char *dir, const char *name, heddle_dtype dtype, const double *data, int ndim,
                             const int64_t *extent);
/* Makes the directory of --save unless it is there; NULL: none is wanted. CLI_OK or CLI_BAD_INPUT (complained). */
int cli_make_directory(const char *path);

/* Collective: every rank hears whether any found a problem, one whose sentence is not "". The lowest that did says
 * "mismatch" and `which`, then the sentence. */
heddle_status cli_first_problem(int *failed, heddle_comm *comm, const char *which, const char *problem);

enum { CLI_JUDGED_MAX = 16 };

/* What came of one problem. */
typedef struct cli_outcome {
    char line[2048];   /* the problem */
    char problem[512]; /* what is wrong on this rank; "" when nothing is */
    heddle_dtype dtype;
    const judge_error *errors; /* the trial's */
} cli_outcome;

/* A kind of problem whose results are held against a reference. `trial`: one problem and what came of it, a struct of
 * the kind's own, of which every rank has a copy. */
typedef struct cli_trial_kind {
    const char *name; /* "attention": of the problems, in what is printed */
    size_t trial_bytes;
    int judged; /* errors of a trial */
    /* Collective. source: NULL, or what the problem is drawn from; save: NULL, or where rank 0 puts the arrays. */
    heddle_status (*attempt)(cli_outcome *out, void *trial, heddle_comm *comm, random_source *source, const char *save);
    heddle_status (*print_sent)(const void *trial); /* what the ranks sent, as planned */
} cli_trial_kind;

/* Ranks, and on them the problem of `first`, or as many drawn ones as --random says; what was found is printed. The
 * command's exit code. */
int cli_verify_trials(const cli_arguments *a, int ranks, const cli_trial_kind *kind, const void *first);

#endif
