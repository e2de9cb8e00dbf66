/* A small model planned for the ranks of a communicator, with its stages and its input. */
#ifndef HD_TEST_EXECUTOR_FIXTURE_H
#define HD_TEST_EXECUTOR_FIXTURE_H

#include "case.h"
#include "check.h"
#include "placed.h"
#include "small_model.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <heddle/train/executor.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model_text[] = MODEL_OF_DIMS("12", "  text: {size: 3, role: text}\n"
                                                     "tensors:\n"
                                                     "  x: [b, t, s, c]\n"
                                                     "  y: {dims: [b, text, c], const: true}\n"
                                                     "repeat: 2\n"
                                                     "stages:\n"
                                                     "  - {name: s.attn, kind: attention, over: s, heads: 2}\n"
                                                     "  - {name: cross, kind: cross, reads: y, heads: 2}\n"
                                                     "  - {name: t.attn, kind: attention, over: t, heads: 2}\n"
                                                     "  - {name: mlp, kind: mlp, ratio: 2}\n");
enum { RANKS = 3, STAGES = 4, STEPS = 8, CHANNELS = 12, ELEMS = 5 * 7 * CHANNELS, TEXT = 3 };

typedef struct bench {
    heddle_comm *comm;
    heddle_model *model;
    heddle_schedule *schedule;
    heddle_schedule_info info;
    heddle_block_options stage[STAGES];
    heddle_executor *executor;
    float vector[6 * CHANNELS], text[TEXT * CHANNELS];
    float dvector[6 * CHANNELS], dtext[TEXT * CHANNELS];
    heddle_conditioning conditioning;
    float *data; /* of x */
    heddle_tensor x;
    heddle_layout first;
} bench;

/* An element of any array, by its place in the whole one. */
static inline float value(int64_t at, int salt)
{
    return (float)((at * 37 + salt * 11) % 101) / 101.0F - 0.5F;
}

static inline heddle_status describe_stages(bench *b)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < STAGES; i++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        heddle_block_options *o = &b->stage[i];
        HD_TRY(heddle_model_stage(&stage, b->model, i));
        heddle_block_options_init(o);
        o->kind = stage.kind;
        o->shape = b->info.shape;
        o->mixed_dim = stage.mixed_dim;
        o->heads = stage.heads;
        o->mlp_channels = stage.mlp_channels;
        o->text_tokens = TEXT;
        o->modulate = stage.modulate;
    }
out:
    return st;
}

/* epilogue: as in heddle_plan_options. */
static inline heddle_status make_bench_to(bench *b, heddle_comm *comm, const char *epilogue)
{
    char text[32];
    heddle_mesh mesh;
    heddle_status st;
    heddle_plan_options options;
    heddle_plan_options_init(&options);
    options.epilogue = epilogue;
    memset(b, 0, sizeof *b);
    b->comm = comm;
    b->info.struct_bytes = sizeof b->info;
    snprintf(text, sizeof text, "[sp=%d]", heddle_comm_size(comm));
    HD_TRY(heddle_model_parse(&b->model, model_text, strlen(model_text), "small.yaml"));
    HD_TRY(heddle_mesh_parse(&mesh, text));
    HD_TRY(heddle_plan(&b->schedule, b->model, &mesh, &options));
    HD_TRY(heddle_schedule_get_info(&b->info, b->schedule));
    HD_TRY(describe_stages(b));
    for (int i = 0; i < 6 * CHANNELS; i++) {
        b->vector[i] = value(i, 1);
    }
    for (int i = 0; i < TEXT * CHANNELS; i++) {
        b->text[i] = value(i, 2);
    }
    b->conditioning = (heddle_conditioning){b->vector, b->text, NULL};
    b->data = calloc(ELEMS, sizeof *b->data);
out:
    return st;
}

static inline heddle_status make_bench(bench *b, heddle_comm *comm)
{
    return make_bench_to(b, comm, NULL);
}

static inline heddle_executor_options options_on(const heddle_comm *comm)
{
    heddle_executor_options options;
    heddle_executor_options_init(&options);
    options.space = placed_space(comm);
    options.device = placed_device(comm);
    return options;
}

static inline void free_bench(bench *b)
{
    heddle_executor_destroy(b->executor);
    heddle_schedule_destroy(b->schedule);
    heddle_model_destroy(b->model);
    free(b->data);
}

/* Place in the whole array of element i of the box. */
static inline int64_t place(const bench *b, const heddle_box *box, int64_t i)
{
    int64_t global = 0, step = 1;
    for (int d = box->ndim - 1; d >= 0; d--) {
        global += (box->lo[d] + i % box->len[d]) * step;
        i /= box->len[d];
        step *= b->info.shape.dim[d].extent;
    }
    return global;
}

/* x: this rank's part of an array of values, as the schedule begins. */
static inline heddle_status fill(bench *b)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    heddle_box box;
    heddle_status st;
    const int rank = heddle_comm_rank(b->comm);
    HD_TRY(heddle_schedule_edge_at(&edge, b->schedule, 0));
    HD_TRY(heddle_layout_box(&box, &b->info.shape, &b->info.mesh, &edge.from, rank));
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        b->data[i] = value(place(b, &box, i), 3);
    }
    b->first = edge.from;
    HD_TRY(heddle_tensor_init(&b->x, b->data, &b->info.shape, &b->info.mesh, &edge.from, NULL, rank));
out:
    return st;
}

#endif
