/* One rank's passes: what run_forward.c and run_backward.c share. */
#ifndef HD_CLI_RUN_PASS_H
#define HD_CLI_RUN_PASS_H

#include "run.h"

typedef struct run_pass {
    const run_job *job;
    heddle_comm *comm;
    heddle_session *session;
    int layers; /* that have blocks of their own: one, whose weights are set anew for each; all when going backward */
    int nblocks;
    heddle_block **block; /* [nblocks] layer after layer */
    float *vector, *text;
    int64_t *text_lengths;
    void *first; /* this rank's part of the input */
    heddle_tensor x;
    run_step *step;
    char (*path)[RUN_PATH_BYTES]; /* the result's */
    int entered;                  /* over all passes: the number of the next session record */
    int progress;
} run_pass;

/* run_forward.c */
heddle_block *run_block(const run_pass *f, int repetition, int stage);
int64_t run_now_ns(void);
heddle_status run_no_memory(const char *what, int64_t bytes);
/* The sentence says where it happened. */
heddle_status run_at_stage(heddle_status st, const char *stage, int repetition);
/* The whole tensor, row-major, from any layout, in memory of its own (free). Collective. */
heddle_status run_gather(void **out, const run_pass *f, const heddle_tensor *x, const heddle_mesh *mesh);
void run_show_progress(const run_pass *f, int pass, int repetition, const char *stage);

#endif
