/* Training over pipeline, data, sequence and tensor axes against one rank: the example's trainer on many meshes. Losses
 * and every parameter to a tolerance, bits where only data moves, and the bytes of all four axes as planned. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"
#include "trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 2 };

/* Sums over rows and hidden channels are cut elsewhere than on one rank; two steps of AdamW with rate 0.01 later that
 * is what parameters of size 1 may differ by. */
static const double LOSS_TOLERANCE = 1e-6, PARAM_TOLERANCE = 2e-6;

static heddle_status compare_layer(double *most, layer *many, layer *one)
{
    heddle_status st = HEDDLE_OK;
    heddle_param a = HEDDLE_EMPTY(heddle_param), b = HEDDLE_EMPTY(heddle_param);
    int64_t lo, len;
    for (int j = 0; j < 8; j++) {
        HD_TRY(heddle_block_param(&a, many->block[j / 4], j % 4));
        HD_TRY(heddle_block_param(&b, one->block[j / 4], j % 4));
        for (int64_t e = 0; e < a.extent[0] * (a.ndim == 2 ? a.extent[1] : 1); e++) {
            *most = fmax(*most, fabs((double)a.data[e] - (double)b.data[e]));
        }
    }
    heddle_dense_pair_rows(&lo, &len, many->pair);
    for (int j = 0; j < 4; j++) {
        HD_TRY(heddle_dense_pair_param(&a, many->pair, j));
        HD_TRY(heddle_dense_pair_param(&b, one->pair, j));
        int64_t rows = a.extent[0], columns = a.ndim == 2 ? a.extent[1] : 1;
        int64_t whole = b.ndim == 2 ? b.extent[1] : 1;
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t k = 0; k < columns; k++) { /* W1 and b1: own rows; W2: own columns; b2: all */
                int64_t at = j < 2 ? (lo + r) * whole + k : j == 2 ? r * whole + lo + k : r;
                *most = fmax(*most, fabs((double)a.data[r * columns + k] - (double)b.data[at]));
            }
        }
    }
out:
    return st;
}

static heddle_status check_bytes(trainer *t)
{
    heddle_status st = HEDDLE_OK;
    heddle_session_counters moved = HEDDLE_EMPTY(heddle_session_counters);
    heddle_dense_pair_info pair = HEDDLE_EMPTY(heddle_dense_pair_info);
    heddle_bucket_info bucket = HEDDLE_EMPTY(heddle_bucket_info);
    int64_t part = heddle_box_elems(&t->box) * (int64_t)sizeof(float);
    int stage = heddle_pipeline_stage(t->pipeline), stages = heddle_pipeline_stages(t->pipeline);
    HD_TRY(heddle_session_get_counters(&moved, t->session));
    CHECK(moved.bytes_sent == moved.bytes_planned && moved.enters == TURNS * MICRO * (3 * t->nlayers + 1));
    CHECK(moved.backward_enters == moved.enters);
    for (int i = 0; i < t->nlayers; i++) {
        HD_TRY(heddle_dense_pair_get_info(&pair, t->layer[i].pair));
        CHECK(pair.forwards == TURNS * MICRO && pair.backwards == TURNS * MICRO);
        CHECK(pair.measured_bytes == TURNS * MICRO * (pair.planned_forward_bytes + pair.planned_backward_bytes));
    }
    CHECK(heddle_pipeline_bytes_sent(t->pipeline) == TURNS * MICRO * part * ((stage > 0) + (stage + 1 < stages)));
    for (int i = 0; i < 2; i++) {
        HD_TRY(heddle_bucket_get_info(&bucket, t->bucket[i]));
        CHECK(bucket.reduces == TURNS && bucket.gathers == TURNS);
        CHECK(bucket.measured_bytes == TURNS * bucket.planned_bytes);
        CHECK(heddle_adamw_state_bytes(t->adamw[i]) == 8 * bucket.own_elems);
        int64_t least = bucket.elems / t->mesh.axis[DP].size;
        CHECK(bucket.own_elems >= least && bucket.own_elems <= least + 1);
    }
out:
    return st;
}

/* What the ranks of a stage share has the same bits on all of them. */
static heddle_status check_replicas(trainer *t)
{
    heddle_status st = HEDDLE_OK;
    double *all = calloc((size_t)heddle_comm_size(t->inner), sizeof *all), sum = 0;
    for (int i = 0; i < t->nlayers; i++) {
        for (int j = 0; j < 9; j++) {
            heddle_param p = HEDDLE_EMPTY(heddle_param);
            HD_TRY(j < 8 ? heddle_block_param(&p, t->layer[i].block[j / 4], j % 4)
                         : heddle_dense_pair_param(&p, t->layer[i].pair, 3));
            for (int64_t e = 0; e < p.extent[0] * (p.ndim == 2 ? p.extent[1] : 1); e++) {
                sum = sum * 1.0009765625 + (double)p.data[e];
            }
        }
    }
    HD_TRY(heddle_comm_allgather(t->inner, &sum, all, sizeof sum));
    for (int r = 0; r < heddle_comm_size(t->inner); r++) {
        CHECK(memcmp(&all[r], &all[0], sizeof sum) == 0);
    }
out:
    free(all);
    return st;
}

static heddle_status train_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *self = NULL;
    trainer *many = calloc(1, sizeof *many), *one = calloc(1, sizeof *one);
    double loss[2], most = 0;
    HD_TRY(heddle_comm_open(&self, "self", NULL));
    HD_TRY(trainer_make(many, comm, arg));
    HD_TRY(trainer_make(one, self, "[pp=1 dp=1 sp=1 tp=1]"));
    int same = heddle_mesh_size(&many->inner_mesh) == 1; /* a pipeline moves data, that is all */
    for (int turn = 0; turn < TURNS; turn++) {
        HD_TRY(train_step(&loss[0], many, turn));
        HD_TRY(train_step(&loss[1], one, turn));
        CHECK(same ? loss[0] == loss[1] : fabs(loss[0] - loss[1]) <= LOSS_TOLERANCE * loss[1]);
    }
    for (int i = 0; i < many->nlayers; i++) {
        HD_TRY(compare_layer(&most, &many->layer[i], &one->layer[many->first_layer + i]));
    }
    if (most > (same ? 0 : PARAM_TOLERANCE)) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: a parameter differs by %g", (const char *)arg, most);
        goto out;
    }
    HD_TRY(check_bytes(many));
    HD_TRY(check_replicas(many));
out:
    trainer_free(one);
    trainer_free(many);
    heddle_comm_destroy(self);
    free(one);
    free(many);
    return st;
}

static void train(char *mesh_text, const char *transport, int messages)
{
    heddle_mesh mesh;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.force_messages = messages;
    HD_OK(heddle_mesh_parse(&mesh, mesh_text));
    HD_OK(heddle_run_ranks_with(heddle_mesh_size(&mesh), transport, &options, train_rank, mesh_text));
}

static char *const meshes[] = {
    "[pp=1 dp=1 sp=1 tp=1]", "[pp=2 dp=1 sp=1 tp=1]", "[pp=1 dp=2 sp=1 tp=1]", "[pp=1 dp=1 sp=2 tp=1]",
    "[pp=1 dp=1 sp=1 tp=3]", "[pp=4 dp=1 sp=1 tp=1]", "[pp=1 dp=2 sp=3 tp=1]", "[pp=1 dp=1 sp=2 tp=2]",
};

HD_CASE(sixteen_ranks)
{
    train("[pp=2 dp=2 sp=2 tp=2]", "threads", 0);
}

HD_CASE(fewer_axes)
{
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        train(meshes[i], "threads", 0);
    }
}

HD_CASE(processes)
{
    train("[pp=2 dp=2 sp=1 tp=1]", "shm", 0);
    train("[pp=1 dp=1 sp=2 tp=2]", "shm", 0);
    train("[pp=2 dp=1 sp=2 tp=2]", "shm", 1);
}
