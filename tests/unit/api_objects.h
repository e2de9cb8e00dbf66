/* One of every object of the public API, on one rank, and arguments that each function accepts: for tests that spoil
 * one of them at a time. */
#ifndef API_OBJECTS_H
#define API_OBJECTS_H

#include "block_calls.h"
#include "case.h"

#include <heddle/heddle.h>
#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <heddle/train/dense_pair.h>
#include <heddle/train/executor.h>
#include <heddle/train/pipeline.h>
#include <heddle/train/tape.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char api_model_text[] = "model: small\n"
                                     "dtype: f32\n"
                                     "dims:\n"
                                     "  b: {size: 1, role: batch}\n"
                                     "  t: {size: 2, role: seq}\n"
                                     "  s: {size: 3, role: seq}\n"
                                     "  c: {size: 4, role: channel}\n"
                                     "tensors:\n"
                                     "  x: [b, t, s, c]\n"
                                     "stages:\n"
                                     "  - {name: s.attn, kind: attention, over: s, heads: 2}\n";
static const char api_line_text[] = "f32[b=1 t=2 s=3 c=4] on [sp=1]: t@sp -> s@sp";

enum { API_ELEMS = 24, API_VECTOR = 24 /* [b, 6, c] */ };

typedef struct api_objects {
    heddle_reshard_line line; /* shape, mesh, layouts */
    heddle_order order;
    heddle_box box;
    heddle_tensor tensor;
    heddle_comm *comm;
    heddle_pool *pool;
    heddle_model *model;
    heddle_schedule *schedule;
    heddle_session *session;
    heddle_reshard *reshard;
    heddle_attention *attention;
    heddle_linear_attention *linear;
    heddle_dense_pair *pair;
    heddle_block *block;
    heddle_tape *tape;
    heddle_block_options stage; /* of the executor */
    heddle_executor *executor;
    heddle_bucket *bucket;
    heddle_adamw *adamw;
    heddle_pipeline *pipeline;
    heddle_bucket_part part;
    heddle_conditioning conditioning;
    float x[API_ELEMS], y[API_ELEMS], z[API_ELEMS], vector[API_VECTOR];
} api_objects;

/* A machine, and a file of measured times, which no disk has. */
static inline heddle_machine *api_machine(void)
{
    static heddle_machine *machine;
    if (machine == NULL) {
        HD_OK(heddle_machine_load(&machine, "8xh100-nvlink"));
    }
    return machine;
}

static inline const char *api_times(void)
{
    static const char text[] = "{\"all2all_size_2_1MB_time\": 0.1, \"all2all_size_2_4MB_time\": 0.3}";
    static char path[64];
    const int fd = memfd_create("times", 0);
    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)(sizeof text - 1));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

static inline void api_options_of_block(heddle_block_options *options, const api_objects *a)
{
    heddle_block_options_init(options);
    options->kind = HEDDLE_STAGE_LINEAR;
    options->shape = a->line.shape;
    options->mixed_dim = 2;
    options->heads = 2;
}

static inline void api_make_blocks(api_objects *a)
{
    heddle_block_options block;
    heddle_dense_pair_options pair;
    a->part = (heddle_bucket_part){a->x, a->y, API_ELEMS, 1};
    a->conditioning.vector = a->vector;
    api_options_of_block(&block, a);
    HD_OK(heddle_block_create(&a->block, &block));
    HD_OK(heddle_block_seed(a->block, 1));
    HD_OK(heddle_tape_create(&a->tape, a->block, NULL));
    HD_OK(forward_tape_on(a->block, a->x, &a->box, &a->conditioning, a->tape));
    HD_OK(heddle_bucket_create(&a->bucket, a->comm, &a->line.mesh, &a->part, 1, NULL));
    HD_OK(heddle_adamw_create(&a->adamw, a->bucket, NULL));
    HD_OK(heddle_pipeline_create(&a->pipeline, a->comm, &a->line.mesh, 0));
    heddle_dense_pair_options_init(&pair);
    pair.hidden = 2;
    HD_OK(heddle_dense_pair_create(&a->pair, a->comm, &a->line.shape, &a->line.mesh, &a->line.from, 0, &pair));
    HD_OK(heddle_dense_pair_commit(a->pair));
}

static inline void api_make_executor(api_objects *a)
{
    heddle_executor_options options;
    heddle_executor_options_init(&options);
    options.backward = 1;
    api_options_of_block(&a->stage, a);
    a->stage.kind = HEDDLE_STAGE_ATTENTION;
    a->stage.modulate = 0;
    HD_OK(heddle_executor_create(&a->executor, a->comm, a->schedule, &a->stage, &options));
    HD_OK(heddle_executor_forward(a->executor, &a->tensor, &a->conditioning, HEDDLE_NO_STREAM));
}

/* Nothing is destroyed: a case is a process. */
static inline void api_make(api_objects *a)
{
    memset(a, 0, sizeof *a);
    heddle_reshard_line *line = &a->line;
    HD_OK(heddle_reshard_parse(line, api_line_text));
    HD_OK(heddle_layout_box(&a->box, &line->shape, &line->mesh, &line->from, 0));
    HD_OK(heddle_tensor_init(&a->tensor, a->x, &line->shape, &line->mesh, &line->from, NULL, 0));
    HD_OK(heddle_comm_open(&a->comm, "self", NULL));
    HD_OK(heddle_pool_create(&a->pool, a->comm));
    HD_OK(heddle_model_parse(&a->model, api_model_text, strlen(api_model_text), "small.yaml"));
    HD_OK(heddle_plan(&a->schedule, a->model, &line->mesh, NULL));
    HD_OK(heddle_session_create(&a->session, a->comm, a->schedule, NULL));
    HD_OK(heddle_reshard_create_line(&a->reshard, a->comm, line, NULL));
    HD_OK(heddle_attention_create(&a->attention, a->comm, &line->shape, &line->mesh, &line->from, NULL));
    HD_OK(heddle_linear_attention_create(&a->linear, a->comm, &line->shape, &line->mesh, &line->from, NULL));
    api_make_blocks(a);
    api_make_executor(a);
}

#endif
