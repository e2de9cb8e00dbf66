/* Ranks that meet on emulated devices: their states, lists and launches. */
#ifndef HD_TEST_DEVICE_WORLD_H
#define HD_TEST_DEVICE_WORLD_H

#include "case.h"
#include "cudasim.h"
#include "draw.h"
#include "kernels/table_device.h"
#include "random_problem.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { MOST_RANKS = 8, BLOCKS = 6 };

static const hd_device_kernels *device;

/* What one rank has on the device. */
typedef struct rank {
    cudaStream_t stream;
    void *src, *dst, *list, *list_on_device;
    size_t src_bytes, dst_bytes;
    hd_device_report *report;
    hd_device_meet meet;
    int64_t planned_to[MOST_RANKS];
    const void *src_at[MOST_RANKS];
    void *dst_at[MOST_RANKS];
} rank;

typedef struct world {
    int nranks;
    rank rank[MOST_RANKS];
    uint64_t *abort_word;
} world;

static inline void *device_new(size_t bytes)
{
    void *memory = NULL;
    OK(cudaMalloc(&memory, bytes > 0 ? bytes : 1));
    return memory;
}

static inline void *pinned_new(size_t bytes)
{
    void *memory = NULL;
    OK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
    memset(memory, 0, bytes);
    return memory;
}

static inline void world_make(world *w, int nranks, int needs_ready, uint64_t deadline_ns)
{
    memset(w, 0, sizeof *w);
    device = &hd_kernels_cuda;
    OK(device->load());
    w->nranks = nranks;
    w->abort_word = pinned_new(8);
    for (int r = 0; r < nranks; r++) {
        rank *me = &w->rank[r];
        OK(cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking));
        me->report = pinned_new(sizeof *me->report);
        me->meet = (hd_device_meet){.rank = r,
                                    .npeers = nranks,
                                    .needs_ready = needs_ready,
                                    .state = device_new(sizeof(hd_device_state)),
                                    .deadline_ns = deadline_ns,
                                    .abort_word = w->abort_word,
                                    .report = me->report};
        OK(cudaMemset(me->meet.state, 0, sizeof(hd_device_state)));
    }
    for (int r = 0; r < nranks; r++) {
        for (int p = 0; p < nranks; p++) {
            w->rank[r].meet.peer_state[p] = w->rank[p].meet.state;
        }
    }
    OK(cudaDeviceSynchronize());
}

static inline void world_free(world *w)
{
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        OK(cudaStreamDestroy(me->stream));
        OK(cudaFreeHost(me->report));
        OK(cudaFree(me->meet.state));
    }
    OK(cudaFreeHost(w->abort_word));
}

static inline void array_of(hd_array *out, const hd_problem *problem, int is_dst, int r)
{
    HD_OK(hd_phase_box(&out->box, problem, 0, is_dst, r));
    heddle_box_strides(out->stride_elems, &out->box,
                       is_dst ? &problem->phase[0].to_order : &problem->phase[0].from_order);
}

static inline hd_device_box box_of(const hd_copy *copy, int peer, int is_pull)
{
    hd_device_box box = {.peer = peer,
                         .src_base = is_pull ? peer : 0,
                         .dst_base = is_pull ? 0 : peer,
                         .src_offset_bytes = copy->src_offset_bytes,
                         .dst_offset_bytes = copy->dst_offset_bytes,
                         .run_bytes = copy->run_bytes,
                         .nloops = copy->nloops};
    memcpy(box.count, copy->count, sizeof box.count);
    memcpy(box.src_stride_bytes, copy->src_stride_bytes, sizeof box.src_stride_bytes);
    memcpy(box.dst_stride_bytes, copy->dst_stride_bytes, sizeof box.dst_stride_bytes);
    return box;
}

/* The boxes that a rank moves, from its successor on, and whom it hears from. */
static inline int boxes_of(hd_device_box *box, world *w, const hd_problem *problem, int r, int is_pull)
{
    rank *me = &w->rank[r];
    size_t elem_bytes = heddle_dtype_bytes(problem->line.shape.dtype);
    hd_pieces mine, theirs;
    HD_OK(hd_compile(&mine, problem, 0, r, is_pull ? HD_RECV : HD_SEND));
    HD_OK(hd_compile(&theirs, problem, 0, r, is_pull ? HD_SEND : HD_RECV));
    me->meet.heard = 0;
    for (int i = 0; i < theirs.count; i++) {
        me->meet.heard |= theirs.piece[i].peer != r ? (uint64_t)1 << theirs.piece[i].peer : 0;
    }
    int n = 0;
    memset(me->planned_to, 0, sizeof me->planned_to);
    for (int step = 1; step <= w->nranks; step++) {
        int peer = (r + step) % w->nranks;
        for (int i = 0; i < mine.count; i++) {
            if (mine.piece[i].peer == peer) {
                hd_array src, dst;
                hd_copy copy;
                array_of(&src, problem, 0, is_pull ? peer : r);
                array_of(&dst, problem, 1, is_pull ? r : peer);
                hd_piece_copy(&copy, &mine.piece[i], &src, &dst, elem_bytes);
                box[n++] = box_of(&copy, peer, is_pull);
                me->planned_to[peer] += hd_copy_bytes(&copy);
            }
        }
    }
    hd_pieces_free(&mine);
    hd_pieces_free(&theirs);
    return n;
}

static inline void bind(world *w, const hd_problem *problem, const all_parts *src, const all_parts *dst, int is_pull)
{
    for (int r = 0; r < w->nranks; r++) {
        w->rank[r].src = device_new(src->bytes[r]);
        w->rank[r].dst = device_new(dst->bytes[r]);
        w->rank[r].src_bytes = src->bytes[r];
        w->rank[r].dst_bytes = dst->bytes[r];
    }
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        hd_device_box box[2 * MOST_RANKS];
        int n = boxes_of(box, w, problem, r, is_pull), blocks = BLOCKS * w->nranks;
        size_t bytes = device->list_bytes(box, n, blocks);
        me->list = malloc(bytes);
        device->list_make(me->list, box, n, blocks);
        me->list_on_device = device_new(bytes);
        OK(cudaMemcpy(me->list_on_device, me->list, bytes, cudaMemcpyHostToDevice));
        for (int p = 0; p < w->nranks; p++) {
            me->src_at[p] = is_pull ? w->rank[p].src : me->src;
            me->dst_at[p] = is_pull ? me->dst : w->rank[p].dst;
        }
    }
}

static inline void unbind(world *w)
{
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        OK(cudaFree(me->src));
        OK(cudaFree(me->dst));
        OK(cudaFree(me->list_on_device));
        free(me->list);
    }
}

/* Nobody is told where a rank's destination lies but by that rank's launch. */
static inline void announce(world *w, int announces)
{
    for (int r = 0; r < w->nranks && announces; r++) {
        rank *me = &w->rank[r];
        me->meet.announces = 1;
        for (int p = 0; p < w->nranks; p++) {
            me->meet.place[p] = (uint64_t)(uintptr_t)me->dst;
            me->dst_at[p] = p == r ? me->dst : NULL;
        }
    }
}

/* More blocks than these do not wait, but one thread in front of all. */
static inline void let_wait(world *w, int most)
{
    for (int r = 0; r < w->nranks; r++) {
        w->rank[r].meet.most_waiting = most;
    }
}

static inline void launch(world *w, int r, int is_pull)
{
    rank *me = &w->rank[r];
    hd_device_move move = {me->list, me->list_on_device, w->nranks, w->nranks, me->src_at, me->dst_at, &me->meet};
    OK((is_pull ? device->pull : device->push)(&move, me->stream));
}

/* Fresh numbers, all ranks at once; every stream is in order by itself, and by the flags with the others. What stands
 * in the reports is nonsense, for the host's memory is far: kernels write there and do not read. */
static inline void execute(world *w, const all_parts *src, const all_parts *dst, int is_pull)
{
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        for (int p = 0; p < w->nranks; p++) {
            me->report->bytes_to[p] = me->planned_to[p] > 0 ? UINT64_MAX / 3 : 0;
        }
        OK(cudaMemcpyAsync(me->src, src->part[r], src->bytes[r], cudaMemcpyHostToDevice, me->stream));
        OK(cudaMemsetAsync(me->dst, 0x5a, dst->bytes[r] > 0 ? dst->bytes[r] : 1, me->stream));
    }
    for (int r = 0; r < w->nranks; r++) {
        launch(w, r, is_pull);
    }
    for (int r = 0; r < w->nranks; r++) {
        rank *me = &w->rank[r];
        OK(cudaMemcpyAsync(dst->part[r], me->dst, dst->bytes[r], cudaMemcpyDeviceToHost, me->stream));
        OK(cudaStreamSynchronize(me->stream));
    }
}

#endif
