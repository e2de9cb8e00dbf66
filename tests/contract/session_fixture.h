/* A small model with a session on it, and tensors whose elements carry their global index. */
#ifndef SESSION_FIXTURE_H
#define SESSION_FIXTURE_H

#include "check.h"
#include "placed.h"
#include "small_model.h"
#include "time_limit.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model_text[] = MODEL_OF_DIMS("6", "tensors:\n"
                                                    "  x: [b, t, s, c]\n"
                                                    "repeat: 3\n"
                                                    "stages:\n"
                                                    "  - {name: s.attn, kind: attention, over: s, heads: 2}\n"
                                                    "  - {name: s.mlp, kind: mlp, ratio: 2}\n"
                                                    "  - {name: t.attn, kind: attention, over: t, heads: 2}\n"
                                                    "  - {name: t.mlp, kind: mlp, ratio: 2}\n");
static const char *const stages[] = {"s.attn", "s.mlp", "t.attn", "t.mlp"};
enum { STAGES = 4, REPEAT = 3 };

typedef struct fixture {
    heddle_comm *comm; /* NULL: arrays lie on the host */
    heddle_model *model;
    heddle_schedule *schedule;
    heddle_schedule_info info;
    heddle_session *session;
} fixture;

static inline heddle_status make_schedule(fixture *f, int ranks, const char *sizes)
{
    char text[32];
    heddle_mesh mesh;
    heddle_status st;
    memset(f, 0, sizeof(*f));
    f->info.struct_bytes = sizeof(f->info);
    snprintf(text, sizeof(text), "[sp=%d]", ranks);
    HD_TRY(heddle_model_parse(&f->model, model_text, strlen(model_text), "small.yaml"));
    HD_TRY(heddle_model_resize(f->model, sizes, 0));
    HD_TRY(heddle_mesh_parse(&mesh, text));
    HD_TRY(heddle_plan(&f->schedule, f->model, &mesh, NULL));
    HD_TRY(heddle_schedule_get_info(&f->info, f->schedule));
out:
    return st;
}

/* A session's arrays lie where the fixture's do. */
static inline void fixture_options(heddle_session_options *options, fixture *f, heddle_comm *comm)
{
    heddle_session_options_init(options);
    f->comm = comm;
    options->space = placed_space(comm);
    options->device = placed_device(comm);
}

static inline heddle_status set_up(fixture *f, heddle_comm *comm, int dry_run, int backward)
{
    heddle_session_options options;
    heddle_status st = make_schedule(f, heddle_comm_size(comm), "t=5");
    fixture_options(&options, f, comm);
    options.dry_run = dry_run;
    options.backward = backward;
    return st != HEDDLE_OK ? st : heddle_session_create(&f->session, comm, f->schedule, &options);
}

static inline void tear_down(fixture *f)
{
    heddle_session_destroy(f->session);
    heddle_schedule_destroy(f->schedule);
    heddle_model_destroy(f->model);
}

/* Element i of the box, in row-major order: its index in memory by the tensor's strides, and in the global tensor. */
static inline void locate(int64_t *at, int64_t *global, const heddle_tensor *x, const heddle_box *box, int64_t i)
{
    int64_t step = 1;
    *at = 0;
    *global = 0;
    for (int d = box->ndim - 1; d >= 0; d--) {
        const int64_t coord = i % box->len[d];
        i /= box->len[d];
        *at += coord * x->stride_elems[d];
        *global += (box->lo[d] + coord) * step;
        step *= x->shape.dim[d].extent;
    }
}

/* As a tensor on the host, until look_away: what the test may read and write. */
static inline heddle_tensor look_at(const heddle_tensor *x, const fixture *f)
{
    heddle_tensor image = *x;
    image.data = placed_borrow(f->comm, x->data, x->capacity_bytes);
    return image;
}

static inline void look_away(const heddle_tensor *x, const heddle_tensor *image, const fixture *f)
{
    placed_return(f->comm, x->data, image->data, x->capacity_bytes);
}

static inline void stamp(heddle_tensor *x, const heddle_box *box, const fixture *f)
{
    const heddle_tensor image = look_at(x, f);
    for (int64_t i = 0; i < heddle_box_elems(box); i++) {
        int64_t at = 0, global = 0;
        locate(&at, &global, x, box, i);
        ((float *)image.data)[at] = (float)global + 0.5F;
    }
    look_away(x, &image, f);
}

static inline heddle_status check_stamps(const heddle_tensor *x, const fixture *f, int rank, float bias)
{
    heddle_box box;
    heddle_status st = heddle_layout_box(&box, &f->info.shape, &f->info.mesh, &x->layout, rank);
    CHECK_OR_RETURN(st == HEDDLE_OK);
    CHECK_OR_RETURN(x->capacity_bytes >= (size_t)heddle_box_elems(&box) * sizeof(float));
    const heddle_tensor image = look_at(x, f);
    st = placed_on_device(f->comm) ? heddle_comm_poll(f->comm) : HEDDLE_OK;
    if (st != HEDDLE_OK) { /* what a stream did meanwhile is not said by enter */
        look_away(x, &image, f);
        return st;
    }
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        int64_t at = 0, global = 0;
        locate(&at, &global, x, &box, i);
        CHECK_OR_RETURN(((const float *)image.data)[at] == (float)global + 0.5F + bias);
    }
    look_away(x, &image, f);
    return HEDDLE_OK;
}

/* Its memory is of the fixture's space. */
static inline void place(heddle_tensor *x, const fixture *f)
{
    x->space = placed_space(f->comm);
    x->device = placed_device(f->comm);
}

/* x in the layout `text`, in private memory. */
static inline heddle_status make_x(heddle_tensor *x, const fixture *f, const char *text, int rank)
{
    heddle_layout layout;
    heddle_box box;
    heddle_status st;
    HD_TRY(heddle_layout_parse(&layout, text, &f->info.shape, &f->info.mesh));
    HD_TRY(heddle_layout_box(&box, &f->info.shape, &f->info.mesh, &layout, rank));
    HD_TRY(heddle_tensor_init(x, placed_alloc(f->comm, (size_t)heddle_box_elems(&box) * sizeof(float)), &f->info.shape,
                              &f->info.mesh, &layout, NULL, rank));
    place(x, f);
    stamp(x, &box, f);
out:
    return st;
}

/* A session that is no dry run, and x in the layout `text`. */
static inline heddle_status set_up_x(fixture *f, heddle_tensor *x, heddle_comm *comm, int backward, const char *text)
{
    heddle_status st = set_up(f, comm, 0, backward);
    return st == HEDDLE_OK ? make_x(x, f, text, heddle_comm_rank(comm)) : st;
}

/* Ranks in one of which the n-th allocation fails: all went well or somebody says so, and nobody waited. */
static inline heddle_status run_starved(heddle_rank_main starved, long n)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = 4 * hd_test_limit_ns(4) / 1000000;
    const int64_t start_ns = hd_now_ns();
    heddle_status st = heddle_run_ranks_with(3, "shm", &options, starved, &n);
    assert_true(st == HEDDLE_OK || st == HEDDLE_ERR_NOMEM || st == HEDDLE_ERR_PEER);
    assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(4));
    return st;
}

/* After a pass that only plans: what would move is what the schedule says, and nothing is held. */
static inline heddle_status check_dry(const fixture *f, heddle_comm *comm)
{
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    heddle_status st;
    HD_TRY(heddle_session_get_counters(&counters, f->session));
    CHECK(counters.bytes_sent == counters.bytes_planned && counters.workspace_bytes == 0);
    HD_TRY(heddle_comm_allreduce_sum(comm, &counters.bytes_planned, 1, HEDDLE_I64));
    CHECK(counters.bytes_planned == f->info.bytes_total && f->info.bytes_total > 0);
out:
    return st;
}

/* Every stage of a pass: where the schedule says, and a module that adds 1, which *bias counts. */
static inline heddle_status enter_all(fixture *f, heddle_tensor *x, int rank, float *bias)
{
    for (int r = 0; r < REPEAT; r++) {
        for (int i = 0; i < STAGES; i++) {
            heddle_schedule_stage wanted = HEDDLE_EMPTY(heddle_schedule_stage);
            heddle_box box;
            heddle_status st = heddle_session_enter(f->session, stages[i], x, NULL, placed_stream);
            if (st != HEDDLE_OK) {
                return st;
            }
            CHECK_OR_RETURN(heddle_schedule_stage_at(&wanted, f->schedule, r * STAGES + i) == HEDDLE_OK);
            CHECK_OR_RETURN(heddle_layout_equal(&x->layout, &wanted.layout, &f->info.mesh));
            st = check_stamps(x, f, rank, *bias);
            if (st != HEDDLE_OK) {
                return st;
            }
            heddle_ignore(heddle_layout_box(&box, &f->info.shape, &f->info.mesh, &x->layout, rank));
            const heddle_tensor image = look_at(x, f);
            for (int64_t e = 0; e < heddle_box_elems(&box); e++) { /* a module that works in place */
                ((float *)image.data)[e] += 1.0F;
            }
            look_away(x, &image, f);
            *bias += 1.0F;
        }
    }
    return HEDDLE_OK;
}

#endif
