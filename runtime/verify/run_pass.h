/* One rank's passes and their checks: what the files of a run share. */
#ifndef HD_VERIFY_RUN_PASS_H
#define HD_VERIFY_RUN_PASS_H

#include "runtime/verify/run.h"

#include <heddle/train/bucket.h>
#include <heddle/train/tape.h>

/* What one rank has for the way back. */
typedef struct run_back {
    heddle_bucket_part *part;
    int nparts; /* parameters of all blocks, then the conditioning's vector and text */
    heddle_bucket *bucket;
    float *dvector, *dtext; /* gradients of the conditioning */
    void *loss;             /* this rank's part of the output's gradient */
    int64_t loss_bytes;
    /* Where blocks are on a device: */
    void **grad_there; /* [nparts - 2] of the blocks' */
    void *dvector_there, *dtext_there, *loss_there;
    heddle_tensor dx;
} run_back;

typedef struct run_pass {
    const run_task *task;
    heddle_comm *comm;
    heddle_stream stream; /* of switches on a device */
    heddle_executor *executor;
    heddle_conditioning conditioning; /* of memory in the next three */
    float *vector, *text;
    int64_t *text_lengths;
    void *first; /* this rank's part of the input */
    int64_t first_bytes;
    void *vector_there, *text_there, *first_there; /* where blocks are on a device */
    heddle_tensor x;
    run_back *back; /* NULL: forward only */
    run_how how;
    run_how hows;          /* how many of them there are */
    void *graph[2];        /* of the way forward, and back */
    heddle_tensor left[2]; /* what comes out of these */
    int pass;
    int is_watched;
} run_pass;

/* run_forward.c */
heddle_status run_no_memory(const char *what, int64_t bytes);
/* The whole tensor, row-major, from any layout, in memory of its own (free). Collective. */
heddle_status run_gather(void **out, const run_pass *f, const heddle_tensor *x, const heddle_mesh *mesh);
/* What the executor noted of the last pass. */
heddle_status run_take_steps(run_step *step, char (*path)[RUN_PATH_BYTES], const run_pass *f, int nsteps, int backward);

/* run_memory.c */
heddle_status run_take_memory(run_result *out, const run_pass *f);

heddle_status run_forward(run_result *out, const run_task *task, heddle_comm *comm, const heddle_schedule *schedule,
                          int want_output);
void run_release(run_result *result);

/* run_there.c: blocks on a device. */
int run_is_there(const run_pass *f);
/* Copies of the host's bytes; memory is made the first time, before the executor is. */
heddle_status run_place(void **there, const run_pass *f, const void *host, size_t bytes);
heddle_status run_place_tensor(heddle_tensor *x, void **there, const run_pass *f);
/* The first bytes of x, in memory of the host (free). */
heddle_status run_bring(void **host, const run_pass *f, const heddle_tensor *x, size_t bytes);
/* All gradients to the device, before the way back, or from it. */
heddle_status run_back_there(run_pass *f, int is_before);

/* run_way.c */
/* Collective, before the passes: f->hows. run_way_release in any case, before the executor ends. */
heddle_status run_way_prepare(run_pass *f);
void run_way_release(run_pass *f);
/* f->x through all stages, or f->back->dx back, as f->how says. *ms: by steps the executor's own, else from a barrier
 * to the device's end. Collective. */
heddle_status run_way(double *ms, run_pass *f, int back);
/* Of a rank that has failed, before its arrays go, with st and its sentence: all ranks hear of it, and what is enqueued
 * here has ended. */
heddle_status run_give_up(const run_pass *f, heddle_status st);

/* run_backward.c */
/* Collective, after the executor was made. run_backward_release in any case. */
heddle_status run_backward_prepare(run_pass *f, const heddle_schedule *schedule, run_result *out);
void run_backward_release(run_pass *f);
/* All the way from the output's gradient to the sum over the ranks. */
heddle_status run_backward_pass(double *ms, run_pass *f, const heddle_schedule *schedule, run_reduction *reduction);
/* The input's gradient, whole, on every rank, and the parameters' on rank 0. Collective. */
heddle_status run_backward_result(run_result *out, run_pass *f, const heddle_mesh *mesh);

/* Largest difference of two arrays, where it is, and the largest of the second. A NaN must stand where the other has
 * one. */
typedef struct run_span {
    double worst, largest;
    int64_t at;
} run_span;

void run_span_take(run_span *s, double mine, double theirs, int64_t at);

/* run_check.c and run_check_step.c: sentences, and 1 where something differs. */
/* The first step where some rank sent other bytes than planned. */
int run_check_bytes(char *sentence, size_t sentence_bytes, const run_task *task, int nranks, int nsteps,
                    const run_step *steps);
int run_check_values(char *sentence, size_t sentence_bytes, const run_task *task, const void *output,
                     const void *reference);
/* Has every rank the bytes that rank 0 has? Where it has, the sentence stays. */
int run_check_copies(char *sentence, size_t sentence_bytes, const run_report *r, int whole);
uint64_t run_hash(uint64_t hash, const void *data, size_t bytes); /* goes on from `hash`, at first 0 */
int run_check_backward_bytes(char *sentence, size_t sentence_bytes, const run_report *r);
int run_check_input_gradient(char *sentence, size_t sentence_bytes, const run_task *task, const void *dx,
                             const void *reference);
int run_check_gradients(char *sentence, size_t sentence_bytes, double *error, const run_task *task,
                        const run_result *mine, const run_result *reference);

#endif
