/* Memory of a session.
 *
 * A result stays the caller's until the second next switch. So switch n may write to a buffer that was last written by
 * switch n-2 or earlier, unless the caller hands exactly that one in again; three buffers are always enough, and two
 * are in the usual case where every result is the next source. Results that the caller wants in memory of its own are
 * written there by the peers, or by one copy where they cannot reach it.
 */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/device_staging.h"
#include "runtime/reshard/compile.h"
#include "session_internal.h"

enum { SMALLEST_BUFFER = 4096 }; /* ranks with an empty box have a valid address too */

heddle_status hd_session_buffer_grow(heddle_session *session, hd_session_buffer *buffer, size_t bytes)
{
    if (bytes < session->largest_bytes) {
        bytes = session->largest_bytes;
    }
    if (bytes < SMALLEST_BUFFER) {
        bytes = SMALLEST_BUFFER;
    }
    if (buffer->bytes >= bytes) {
        return HEDDLE_OK;
    }
    void *memory = NULL;
    heddle_status st = heddle_buffer_alloc(&memory, session->comm, bytes, session->space);
    if (st != HEDDLE_OK) {
        return st;
    }
    heddle_buffer_free(session->comm, buffer->memory);
    session->counters.workspace_bytes += (int64_t)bytes - (int64_t)buffer->bytes;
    buffer->memory = memory;
    buffer->bytes = bytes;
    return HEDDLE_OK;
}

static int holds(const hd_session_buffer *buffer, const void *address)
{
    uintptr_t first = (uintptr_t)buffer->memory, at = (uintptr_t)address;
    return buffer->memory != NULL && at >= first && at < first + buffer->bytes;
}

static hd_session_buffer *free_buffer(heddle_session *session, const void *source)
{
    const int64_t now = session->switches + 1;
    for (int i = 0; i < HD_SESSION_BUFFERS; i++) {
        hd_session_buffer *candidate = &session->buffer[i];
        if ((candidate->written_at == 0 || candidate->written_at <= now - 2) && !holds(candidate, source)) {
            return candidate;
        }
    }
    return NULL;
}

static int is_dense(const heddle_tensor *x, const hd_session_side *side)
{
    for (int d = 0; d < side->box.ndim; d++) {
        if (side->box.len[d] > 1 && x->stride_elems[d] != side->stride_elems[d]) {
            return 0;
        }
    }
    return 1;
}

/* Ranks of a host read and write one another's memory, so theirs must be exported; messages take any memory. */
static int peers_reach(const heddle_session *session, const void *data, size_t bytes)
{
    if (session->any_memory) {
        return 1;
    }
    for (int i = 0; i < HD_SESSION_BUFFERS; i++) {
        if (holds(&session->buffer[i], data)) {
            return 1;
        }
    }
    return hd_comm_export(session->comm, data, bytes) != 0;
}

static int is_direct(const heddle_session *session, const heddle_tensor *x, const hd_session_side *side)
{
    return side->bytes > 0 && is_dense(x, side) && peers_reach(session, x->data, side->bytes);
}

/* Between strided memory and dense memory of the same part; of a device's in the order of the stream. */
static heddle_status copy_part(const heddle_session *session, const hd_session_side *side, void *dst,
                               const int64_t *dst_stride, const void *src, const int64_t *src_stride,
                               heddle_stream stream)
{
    hd_piece piece = {.peer = 0, .box = side->box};
    hd_array from = {.box = side->box}, to = {.box = side->box};
    hd_copy copy;
    for (int d = 0; d < side->box.ndim; d++) {
        from.stride_elems[d] = src_stride[d];
        to.stride_elems[d] = dst_stride[d];
    }
    hd_piece_copy(&copy, &piece, &from, &to, session->elem_bytes);
    if (session->space == HEDDLE_SPACE_DEVICE) {
        return hd_device_copy(hd_comm_device(session->comm), &copy, dst, src, stream);
    }
    const hd_copy_by by = hd_copy_choose(&copy, (int64_t)heddle_comm_shared_cache_bytes(session->comm));
    hd_copy_execute(&copy, &by, dst, src);
    return HEDDLE_OK;
}

heddle_status hd_session_result(void **out, heddle_session *session, const hd_session_side *to,
                                const heddle_tensor *dst, const void *source)
{
    if (dst != NULL && is_direct(session, dst, to)) {
        *out = dst->data;
        return HEDDLE_OK;
    }
    hd_session_buffer *chosen = dst != NULL ? &session->landing : free_buffer(session, source);
    if (chosen == NULL) {
        return hd_fail(HEDDLE_ERR_INTERNAL, "no free buffer for switch %lld of a session",
                       (long long)session->switches + 1);
    }
    heddle_status st = hd_session_buffer_grow(session, chosen, to->bytes);
    if (st == HEDDLE_OK) {
        *out = chosen->memory;
        chosen->written_at = session->switches + 1;
    }
    return st;
}

heddle_status hd_session_deliver(const heddle_session *session, const hd_session_side *to, const heddle_tensor *dst,
                                 const void *result, heddle_stream stream)
{
    return to->bytes > 0 && result != dst->data
               ? copy_part(session, to, dst->data, dst->stride_elems, result, to->stride_elems, stream)
               : HEDDLE_OK;
}

heddle_status hd_session_source(const void **out, heddle_session *session, const heddle_tensor *x,
                                const hd_session_side *from, heddle_stream stream)
{
    if (is_direct(session, x, from)) {
        *out = x->data;
        return HEDDLE_OK;
    }
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_session_buffer_grow(session, &session->staging, from->bytes));
    if (from->bytes > 0) {
        HD_TRY(copy_part(session, from, session->staging.memory, from->stride_elems, x->data, x->stride_elems, stream));
    }
    *out = session->staging.memory;
out:
    return st;
}
