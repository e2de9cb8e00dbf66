/* One rank's passes: what run_forward.c and run_backward.c share. */
#ifndef HD_CLI_RUN_PASS_H
#define HD_CLI_RUN_PASS_H

#include "run.h"

#include <heddle/train/executor.h>

typedef struct run_pass {
    const run_job *job;
    heddle_comm *comm;
    heddle_executor *executor;
    heddle_conditioning conditioning; /* of memory in the next three */
    float *vector, *text;
    int64_t *text_lengths;
    void *first; /* this rank's part of the input */
    heddle_tensor x;
    struct run_back *back; /* run_backward.h; NULL: forward only */
    int pass;
    int progress;
} run_pass;

/* run_forward.c */
heddle_status run_no_memory(const char *what, int64_t bytes);
/* The whole tensor, row-major, from any layout, in memory of its own (free). Collective. */
heddle_status run_gather(void **out, const run_pass *f, const heddle_tensor *x, const heddle_mesh *mesh);
/* What the executor noted of the last pass. */
heddle_status run_take_steps(run_step *step, char (*path)[RUN_PATH_BYTES], const run_pass *f, int nsteps, int backward);

#endif
