/* One rank's passes: what run_forward.c and run_backward.c share. */
#ifndef HD_CLI_RUN_PASS_H
#define HD_CLI_RUN_PASS_H

#include "run.h"

typedef struct run_pass {
    const run_job *job;
    heddle_comm *comm;
    heddle_session *session;
    int nblocks;          /* stages of all layers */
    heddle_block **block; /* [nblocks] layer after layer; weights are set anew for each layer, unless going backward */
    char *is_shared;      /* [nblocks] the block of an earlier layer */
    char *joins;          /* [nblocks] it communicates: ranks without rows call it, too */
    float *vector, *text;
    int64_t *text_lengths;
    void *first; /* this rank's part of the input */
    heddle_tensor x;
    run_step *step;
    struct run_back *back;        /* run_backward.h; NULL: forward only */
    char (*path)[RUN_PATH_BYTES]; /* the result's */
    int entered;                  /* over all passes: the number of the next session record */
    int progress;
} run_pass;

/* run_blocks.c */
/* Collective: stages that run by a method are bound to it. run_release_blocks in any case. */
heddle_status run_make_blocks(run_pass *f, const heddle_schedule *schedule);
void run_release_blocks(run_pass *f);
heddle_block *run_block(const run_pass *f, int repetition, int stage);
int run_takes_part(const run_pass *f, int repetition, int stage, const heddle_box *box);
/* What the block's attention has sent so far, and what that of a call adds to a step. */
int64_t run_block_sent(const heddle_block *block);
void run_add_block_traffic(run_step *step, const heddle_block *block, int64_t sent_before, int backward);

/* run_forward.c */
int64_t run_now_ns(void);
heddle_status run_no_memory(const char *what, int64_t bytes);
/* The sentence says where it happened. */
heddle_status run_at_stage(heddle_status st, const char *stage, int repetition);
/* The whole tensor, row-major, from any layout, in memory of its own (free). Collective. */
heddle_status run_gather(void **out, const run_pass *f, const heddle_tensor *x, const heddle_mesh *mesh);
void run_show_progress(const run_pass *f, int pass, int repetition, const char *stage);

#endif
