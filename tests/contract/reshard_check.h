/* One reshard line, run on every rank of a communicator and compared bitwise with the single-process oracle: canaries
 * around both buffers, counters against the plan, several executions with alternating buffers. */
#ifndef HD_TEST_RESHARD_CHECK_H
#define HD_TEST_RESHARD_CHECK_H

#include "case.h"
#include "placed.h"
#include "reshard_world.h"
#include "runtime/base/base.h"
#include "runtime/reshard/compile.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RC_MARGIN_BYTES = 128 };

typedef struct rc_mode {
    heddle_memory memory;
    int private_src, private_dst; /* malloc instead of heddle_buffer_alloc */
    int split_phase;
    int padded; /* strided arrays: gaps between rows */
    heddle_tuning tuning;
    const char *kernel;
    const char *path; /* expected info.path, NULL: any */
} rc_mode;

/* One rank's array: dense bytes for the oracle, and where it really lies. */
typedef struct rc_array {
    heddle_box box;
    int64_t dense_stride[HEDDLE_MAX_DIMS], stride[HEDDLE_MAX_DIMS];
    int64_t elems, bytes; /* bytes: of the strided buffer */
    unsigned char *memory, *data;
    int private_memory;
    unsigned char *on_device; /* where it lies in truth; `memory` is filled and read by the test. NULL: there */
} rc_array;

static inline void rc_strides(rc_array *a, const heddle_order *order, int padded, size_t elem_bytes)
{
    int64_t next = 1;
    a->bytes = 0;
    heddle_box_strides(a->dense_stride, &a->box, order->ndim > 0 ? order : NULL);
    for (int i = a->box.ndim - 1; i >= 0; i--) {
        int d = order->ndim > 0 ? order->dim[i] : i;
        a->stride[d] = padded ? next : a->dense_stride[d];
        next = next * (a->box.len[d] > 0 ? a->box.len[d] : 1) + (i % 2 == 0 ? 3 : 0);
    }
    if (a->elems > 0) {
        int64_t last = 0;
        for (int d = 0; d < a->box.ndim; d++) {
            last += a->stride[d] * (a->box.len[d] - 1);
        }
        a->bytes = (last + 1) * (int64_t)elem_bytes;
    }
}

static inline heddle_status rc_array_make(rc_array *a, heddle_comm *comm, const heddle_reshard_line *line, int is_dst,
                                          int padded, int private_memory)
{
    const heddle_order *order = is_dst ? &line->to_order : &line->from_order;
    heddle_status st =
        heddle_layout_box(&a->box, &line->shape, &line->mesh, is_dst ? &line->to : &line->from, heddle_comm_rank(comm));
    if (st != HEDDLE_OK) {
        return st;
    }
    a->elems = heddle_box_elems(&a->box);
    rc_strides(a, order, padded, heddle_dtype_bytes(line->shape.dtype));
    size_t bytes = (size_t)a->bytes + 2 * RC_MARGIN_BYTES;
    a->private_memory = private_memory;
    if (private_memory) {
        a->memory = malloc(bytes);
        st = a->memory == NULL ? hd_fail(HEDDLE_ERR_NOMEM, "test memory") : HEDDLE_OK;
    } else {
        st = heddle_buffer_alloc((void **)&a->memory, comm, bytes, HEDDLE_SPACE_HOST);
    }
    if (st == HEDDLE_OK) {
        memset(a->memory, 0xa5, bytes);
        a->data = a->memory + RC_MARGIN_BYTES;
    }
    return st;
}

static inline heddle_status rc_array_move_to_device(rc_array *a, heddle_comm *comm)
{
    return heddle_buffer_alloc((void **)&a->on_device, comm, (size_t)a->bytes + 2 * RC_MARGIN_BYTES,
                               HEDDLE_SPACE_DEVICE);
}

/* Between the test's memory and the device's, margins included. */
static inline heddle_status rc_array_copy(rc_array *a, heddle_comm *comm, int to_device)
{
    void *to = to_device ? a->on_device : a->memory, *from = to_device ? a->memory : a->on_device;
    return a->on_device == NULL ? HEDDLE_OK : placed_copy(comm, to, from, (size_t)a->bytes + 2 * RC_MARGIN_BYTES);
}

static inline void *rc_array_data(const rc_array *a)
{
    return a->on_device != NULL ? a->on_device + RC_MARGIN_BYTES : a->data;
}

static inline void rc_array_free(rc_array *a, heddle_comm *comm)
{
    if (a->private_memory) {
        free(a->memory);
    } else if (a->memory != NULL) {
        heddle_buffer_free(comm, a->memory);
    }
    heddle_buffer_free(comm, a->on_device);
    a->memory = a->on_device = NULL;
}

/* Copy between the dense image and the strided buffer (to_dense 0), or compare (1); returns 0 when equal. */
static inline int rc_walk(const rc_array *a, unsigned char *dense, size_t elem_bytes, int compare)
{
    for (int64_t i = 0; i < a->elems; i++) {
        int64_t from = 0, at = 0, rest = i;
        for (int d = a->box.ndim - 1; d >= 0; d--) {
            int64_t c = rest % a->box.len[d];
            rest /= a->box.len[d];
            from += c * a->dense_stride[d];
            at += c * a->stride[d];
        }
        unsigned char *x = dense + (size_t)from * elem_bytes, *y = a->data + (size_t)at * elem_bytes;
        if (!compare) {
            memcpy(y, x, elem_bytes);
        } else if (memcmp(x, y, elem_bytes) != 0) {
            return 1 + (int)(i < 1000000 ? i : 1000000);
        }
    }
    return 0;
}

/* Everything outside the elements still holds the canary. */
static inline int rc_canary_broken(const rc_array *a, size_t elem_bytes)
{
    size_t bytes = (size_t)a->bytes + 2 * RC_MARGIN_BYTES;
    unsigned char *copy = malloc(bytes);
    memcpy(copy, a->memory, bytes);
    for (int64_t i = 0; i < a->elems; i++) {
        int64_t at = 0, rest = i;
        for (int d = a->box.ndim - 1; d >= 0; d--) {
            at += rest % a->box.len[d] * a->stride[d];
            rest /= a->box.len[d];
        }
        memset(copy + RC_MARGIN_BYTES + (size_t)at * elem_bytes, 0xa5, elem_bytes);
    }
    int broken = 0;
    for (size_t i = 0; i < bytes; i++) {
        broken |= copy[i] != 0xa5;
    }
    free(copy);
    return broken;
}

static inline heddle_status rc_execute(heddle_reshard *reshard, const void *src, void *dst, int split_phase)
{
    if (!split_phase) {
        return heddle_reshard_execute(reshard, src, dst, placed_stream);
    }
    int done = 0;
    heddle_status st = heddle_reshard_start(reshard, src, dst, placed_stream);
    for (int i = 0; i < 50 && st == HEDDLE_OK && !done; i++) {
        st = heddle_reshard_test(reshard, &done);
    }
    return st == HEDDLE_OK ? heddle_reshard_wait(reshard) : st;
}

static inline heddle_status rc_counters(const heddle_reshard *reshard, const char *text,
                                        const heddle_reshard_line *line, int rank, int64_t executions)
{
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_peer_bytes sends[64];
    int count = 0;
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_reshard_get_info(&info, reshard));
    HD_TRY(heddle_reshard_sends(sends, 64, &count, line, rank));
    for (int r = 0; r < info.nranks; r++) {
        int64_t planned = 0;
        for (int i = 0; i < count; i++) {
            planned += sends[i].peer == r ? sends[i].bytes : 0;
        }
        if (info.bytes_to[r] != planned || info.measured_bytes_to[r] != planned * executions) {
            st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: rank %d to %d: planned %lld, info %lld, measured %lld in %lld", text,
                         rank, r, (long long)planned, (long long)info.bytes_to[r], (long long)info.measured_bytes_to[r],
                         (long long)executions);
            goto out;
        }
    }
    if (info.executions != executions || info.bytes_peer_path + info.bytes_messages != info.bytes_sent) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: %lld executions, %lld + %lld bytes of %lld", text,
                     (long long)info.executions, (long long)info.bytes_peer_path, (long long)info.bytes_messages,
                     (long long)info.bytes_sent);
    }
out:
    return st;
}

static inline heddle_status rc_one(heddle_reshard *reshard, heddle_comm *comm, const char *text,
                                   const heddle_reshard_line *line, rc_array *src, rc_array *dst, int round,
                                   int split_phase)
{
    size_t elem_bytes = heddle_dtype_bytes(line->shape.dtype);
    int rank = heddle_comm_rank(comm), wrong;
    rc_world world, own = {0, NULL, NULL};
    const rc_world *known = rc_find(text, round);
    heddle_status st = known != NULL ? HEDDLE_OK : rc_world_make(&own, line, rc_seed(round));
    world = known != NULL ? *known : own;
    if (st == HEDDLE_OK) {
        rc_walk(src, world.src[rank], elem_bytes, 0);
        st = rc_array_copy(src, comm, 1);
        st = st == HEDDLE_OK ? rc_array_copy(dst, comm, 1) : st;
        st = st == HEDDLE_OK ? rc_execute(reshard, rc_array_data(src), rc_array_data(dst), split_phase) : st;
        st = st == HEDDLE_OK ? rc_array_copy(src, comm, 0) : st;
        st = st == HEDDLE_OK ? rc_array_copy(dst, comm, 0) : st;
    }
    if (st == HEDDLE_OK && (wrong = rc_walk(dst, world.dst[rank], elem_bytes, 1)) != 0) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: rank %d, execution %d: element %d of dst is wrong", text, rank, round,
                     wrong - 1);
    }
    if (st == HEDDLE_OK && rc_walk(src, world.src[rank], elem_bytes, 1) != 0) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: rank %d, execution %d: src was changed", text, rank, round);
    }
    if (st == HEDDLE_OK && (rc_canary_broken(src, elem_bytes) || rc_canary_broken(dst, elem_bytes))) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: rank %d, execution %d: written outside the arrays", text, rank, round);
    }
    rc_world_free(&own);
    return st;
}

static inline void rc_options(heddle_reshard_options *options, const rc_mode *mode, const rc_array *src,
                              const rc_array *dst)
{
    heddle_reshard_options_init(options);
    options->memory = mode->memory;
    options->tuning = mode->tuning;
    options->kernel = mode->kernel;
    if (mode->padded) {
        options->src_stride_elems = src->stride;
        options->dst_stride_elems = dst->stride;
    }
}

/* Collective. */
static inline heddle_status rc_check(heddle_comm *comm, const char *text, const rc_mode *mode)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    heddle_reshard *reshard = NULL;
    heddle_reshard_options options;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    rc_array src[2], dst[2];
    memset(src, 0, sizeof src);
    memset(dst, 0, sizeof dst);
    HD_TRY(heddle_reshard_parse(&line, text));
    for (int i = 0; i < 2; i++) {
        HD_TRY(rc_array_make(&src[i], comm, &line, 0, mode->padded, mode->private_src && i == 0));
        HD_TRY(rc_array_make(&dst[i], comm, &line, 1, mode->padded, mode->private_dst && i == 0));
    }
    for (int i = 0; i < 2 && placed_on_device(comm); i++) {
        HD_TRY(rc_array_move_to_device(&src[i], comm));
        HD_TRY(rc_array_move_to_device(&dst[i], comm));
    }
    rc_options(&options, mode, &src[0], &dst[0]);
    options.space = placed_space(comm);
    options.device = placed_device(comm);
    HD_TRY(heddle_reshard_create_line(&reshard, comm, &line, &options));
    HD_TRY(heddle_reshard_get_info(&info, reshard));
    if (mode->path != NULL && strcmp(info.path, mode->path) != 0) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: path '%s' instead of '%s'", text, info.path, mode->path);
        goto out;
    }
    if (info.src_bytes != (size_t)src[0].bytes || info.dst_bytes != (size_t)dst[0].bytes) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: buffers of %zu and %zu bytes instead of %lld and %lld", text,
                     info.src_bytes, info.dst_bytes, (long long)src[0].bytes, (long long)dst[0].bytes);
        goto out;
    }
    for (int i = 0; i < RC_EXECUTIONS; i++) {
        HD_TRY(rc_one(reshard, comm, text, &line, &src[i % 2], &dst[i % 2], i, mode->split_phase));
    }
    HD_TRY(rc_counters(reshard, text, &line, heddle_comm_rank(comm), RC_EXECUTIONS));
out:
    if (st == HEDDLE_OK) { /* nobody may still be executing */
        st = heddle_comm_barrier(comm);
    }
    heddle_reshard_destroy(reshard);
    for (int i = 0; i < 2; i++) {
        rc_array_free(&src[i], comm);
        rc_array_free(&dst[i], comm);
    }
    return st;
}

#endif
