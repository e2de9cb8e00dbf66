/* heddle run --backward: one training step without the optimiser. */
#ifndef HD_CLI_RUN_BACKWARD_H
#define HD_CLI_RUN_BACKWARD_H

#include "run_pass.h"

#include <heddle/train/bucket.h>
#include <heddle/train/tape.h>

/* What one rank has for the way back. */
struct run_back {
    heddle_bucket_part *part;
    int nparts; /* parameters of all blocks, then the conditioning's vector and text */
    heddle_bucket *bucket;
    float *dvector, *dtext; /* gradients of the conditioning */
    void *loss;             /* this rank's part of the output's gradient */
    heddle_tensor dx;
};

/* Collective, after the executor was made. run_backward_release in any case. */
heddle_status run_backward_prepare(run_pass *f, const heddle_schedule *schedule, run_result *out);
void run_backward_release(run_pass *f);
/* All the way from the output's gradient to the sum over the ranks. */
heddle_status run_backward_pass(run_pass *f, const heddle_schedule *schedule, run_reduction *reduction);
/* The input's gradient, whole, on every rank, and the parameters' on rank 0. Collective. */
heddle_status run_backward_result(run_result *out, run_pass *f, const heddle_mesh *mesh);

#endif
