/* What `heddle verify`, `heddle verify attention` and `heddle verify linear-attention` do alike. */
#ifndef HD_CLI_VERIFY_SHARE_H
#define HD_CLI_VERIFY_SHARE_H

#include "cli.h"
#include "runtime/verify/judge.h"

/* DIR/NAME.npy in f64 for F64, in f32 for the others; a file that cannot be written becomes the verdict. */
heddle_status cli_save_array(const char *dir, const char *name, heddle_dtype dtype, const double *data, int ndim,
                             const int64_t *extent);
/* Makes the directory of --save unless it is there; NULL: none is wanted. CLI_OK or CLI_BAD_INPUT (complained). */
int cli_make_directory(const char *path);

/* Of every dtype, of which there are `count` errors each, what random problems were off by at most. */
void cli_print_worst(const judge_error *worst, int count);

/* Collective: every rank hears whether any found a problem, one whose sentence is not "". The lowest that did says
 * "mismatch" and `which`, then the sentence. */
heddle_status cli_first_problem(int *failed, heddle_comm *comm, const char *which, const char *problem);

#endif
