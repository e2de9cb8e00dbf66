/* heddle run --backward: one training step without the optimiser. */
#ifndef HD_CLI_RUN_BACKWARD_H
#define HD_CLI_RUN_BACKWARD_H

#include "run_pass.h"

#include <heddle/train/bucket.h>
#include <heddle/train/tape.h>

/* What one rank has for the way back. Arrays of blocks and steps are indexed as those of run_pass. */
struct run_back {
    heddle_tape **tape; /* [nblocks] */
    heddle_bucket_part *part;
    int nparts; /* parameters of all blocks, then the conditioning's vector and text */
    heddle_bucket *bucket;
    float *dvector, *dtext; /* gradients of the conditioning */
    void *loss;             /* this rank's part of the output's gradient */
    heddle_tensor dx;
    run_step *step;               /* the way back through each stage, and its edge; the last is the epilogue's */
    char (*path)[RUN_PATH_BYTES]; /* the result's */
};

/* Collective, after the blocks were made. run_backward_release in any case. */
heddle_status run_backward_prepare(run_pass *f, const heddle_schedule *schedule, run_result *out);
void run_backward_release(run_pass *f);
/* heddle_block_forward that keeps what the way back needs. */
heddle_status run_forward_keeping(run_pass *f, int step, void *x, const heddle_box *box,
                                  const heddle_conditioning *conditioning);
/* All the way from the output's gradient to the sum over the ranks. */
heddle_status run_backward_pass(run_pass *f, const heddle_schedule *schedule, int pass, run_reduction *reduction,
                                int64_t *backward_ns);
/* The input's gradient, whole, on every rank, and the parameters' on rank 0. Collective. */
heddle_status run_backward_result(run_result *out, run_pass *f, const heddle_mesh *mesh);

#endif
