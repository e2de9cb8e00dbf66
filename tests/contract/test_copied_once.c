/* States of linear attention go from rank to rank by one copy each: no byte is staged on the way. Blocks of a ring and
 * sums of their gradients are lent, so they are not copied at all. Counted where copies are carried out, beside the
 * library's own counters. */
#include "case.h"

#include "runtime/move/move.h"

#include <heddle/heddle.h>

#include <stdlib.h>

enum { RANKS = 4, ARRAYS = 8 /* q k v o do dq dk dv */ };

/* Each rank's own, whether it is a thread or a process. */
static _Thread_local int64_t copied_bytes;
static _Thread_local int rank_of_thread;

static void count(const hd_lanes *lanes, int first, int end)
{
    for (int g = first; g < end; g++) {
        const hd_lane_group *group = &lanes->group[g];
        for (int i = group->first; i < group->first + group->nlanes; i++) {
            copied_bytes += lanes->load[i].peer != rank_of_thread ? lanes->load[i].bytes : 0;
        }
    }
}

void __real_hd_lanes_run(const hd_lanes *lanes, const hd_bases *bases);
void __wrap_hd_lanes_run(const hd_lanes *lanes, const hd_bases *bases);
void __wrap_hd_lanes_run(const hd_lanes *lanes, const hd_bases *bases)
{
    count(lanes, 0, lanes->ngroups);
    __real_hd_lanes_run(lanes, bases);
}

void __real_hd_lanes_run_groups(const hd_lanes *lanes, const hd_bases *bases, int first, int end);
void __wrap_hd_lanes_run_groups(const hd_lanes *lanes, const hd_bases *bases, int first, int end);
void __wrap_hd_lanes_run_groups(const hd_lanes *lanes, const hd_bases *bases, int first, int end)
{
    count(lanes, first, end);
    __real_hd_lanes_run_groups(lanes, bases, first, end);
}

heddle_status __real_hd_channel_fetch(hd_channel *channel, int peer, void *dst, int64_t *bytes);
heddle_status __wrap_hd_channel_fetch(hd_channel *channel, int peer, void *dst, int64_t *bytes);
heddle_status __wrap_hd_channel_fetch(hd_channel *channel, int peer, void *dst, int64_t *bytes)
{
    heddle_status st = __real_hd_channel_fetch(channel, peer, dst, bytes);
    copied_bytes += *bytes;
    return st;
}

typedef struct arrays {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention_array array[ARRAYS];
} arrays;

/* Uneven rows; the callers' arrays are memory that peers of other processes cannot reach. */
static void make_arrays(arrays *out, int rank)
{
    heddle_box box;
    HD_OK(heddle_shape_parse(&out->shape, "f32[b=2 s=37 h=4 d=16]"));
    HD_OK(heddle_mesh_parse(&out->mesh, "[sp=4]"));
    HD_OK(heddle_layout_parse(&out->layout, "s@sp", &out->shape, &out->mesh));
    HD_OK(heddle_layout_box(&box, &out->shape, &out->mesh, &out->layout, rank));
    for (int i = 0; i < ARRAYS; i++) {
        out->array[i] =
            (heddle_attention_array){.data = calloc((size_t)(box.len[0] * box.len[1] * box.len[2] * box.len[3]), 4)};
    }
}

static void free_arrays(arrays *x)
{
    for (int i = 0; i < ARRAYS; i++) {
        free(x->array[i].data);
    }
}

/* What all ranks copied is what all ranks had to send, but for what they have lent. */
static heddle_status compare(heddle_comm *comm, const char *method, int64_t planned_bytes, int64_t lent_bytes)
{
    int64_t sum[3] = {copied_bytes, planned_bytes, lent_bytes};
    heddle_status st = heddle_comm_allreduce_sum(comm, sum, 3, HEDDLE_I64);
    if (st == HEDDLE_OK && (sum[0] != sum[1] - sum[2] || sum[1] == 0)) {
        return heddle_set_error(HEDDLE_ERR_INTERNAL,
                                "%s: %lld bytes were copied, %lld had to go to other ranks, %lld of them lent", method,
                                (long long)sum[0], (long long)sum[1], (long long)sum[2]);
    }
    return st;
}

static heddle_status states_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    heddle_linear_attention_options options;
    heddle_linear_attention *attention = NULL;
    heddle_linear_attention_info info = HEDDLE_EMPTY(heddle_linear_attention_info);
    arrays x;
    const heddle_attention_array *a = x.array;
    rank_of_thread = heddle_comm_rank(comm);
    make_arrays(&x, rank_of_thread);
    heddle_linear_attention_options_init(&options);
    options.method = *(const heddle_linear_method *)arg;
    HD_OK(heddle_linear_attention_create(&attention, comm, &x.shape, &x.mesh, &x.layout, &options));
    HD_OK(heddle_linear_attention_get_info(&info, attention));
    copied_bytes = 0;
    HD_OK(heddle_linear_attention_forward(attention, &a[0], &a[1], &a[2], &a[3], HEDDLE_NO_STREAM));
    st = compare(comm, info.method, info.planned.forward_bytes, 0);
    copied_bytes = 0;
    HD_OK(
        heddle_linear_attention_backward(attention, &a[0], &a[1], &a[2], &a[4], &a[5], &a[6], &a[7], HEDDLE_NO_STREAM));
    st = st == HEDDLE_OK ? compare(comm, info.method, info.planned.backward_bytes, 0) : st;
    heddle_linear_attention_destroy(attention);
    free_arrays(&x);
    return st;
}

static heddle_status blocks_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    heddle_attention_options options;
    heddle_attention *attention = NULL;
    heddle_attention_info info = HEDDLE_EMPTY(heddle_attention_info);
    arrays x;
    const heddle_attention_array *a = x.array;
    rank_of_thread = heddle_comm_rank(comm);
    make_arrays(&x, rank_of_thread);
    heddle_attention_options_init(&options);
    options.method = *(const heddle_attention_method *)arg;
    HD_OK(heddle_attention_create(&attention, comm, &x.shape, &x.mesh, &x.layout, &options));
    HD_OK(heddle_attention_get_info(&info, attention));
    copied_bytes = 0;
    HD_OK(heddle_attention_forward(attention, &a[0], &a[1], &a[2], &a[3], NULL, HEDDLE_NO_STREAM));
    st = compare(comm, info.method, info.planned.forward_bytes, info.planned.forward_bytes);
    copied_bytes = 0;
    HD_OK(heddle_attention_backward(attention, &a[4], &a[5], &a[6], &a[7], HEDDLE_NO_STREAM));
    st = st == HEDDLE_OK ? compare(comm, info.method, info.planned.backward_bytes, info.planned.backward_bytes) : st;
    heddle_attention_destroy(attention);
    free_arrays(&x);
    return st;
}

static const char *const transports[] = {"threads", "shm"};

HD_CASE(states)
{
    heddle_linear_method methods[] = {HEDDLE_LINEAR_LASP, HEDDLE_LINEAR_LASP2, HEDDLE_LINEAR_SCAN};
    for (int i = 0; i < 3 * 2; i++) {
        HD_OK(heddle_run_ranks(RANKS, transports[i % 2], states_rank, &methods[i / 2]));
    }
}

HD_CASE(blocks)
{
    heddle_attention_method methods[] = {HEDDLE_ATTENTION_RING, HEDDLE_ATTENTION_RSA};
    for (int i = 0; i < 2 * 2; i++) {
        HD_OK(heddle_run_ranks(RANKS, transports[i % 2], blocks_rank, &methods[i / 2]));
    }
}
