/* Memory of a session.
 *
 * A result stays the caller's until the second next switch. So switch n may write to a buffer that was last written by
 * switch n-2 or earlier, unless the caller hands exactly that one in again; three buffers are always enough, and two
 * are in the usual case where every result is the next source. Results that the caller wants in memory of its own are
 * written there by the peers, or by one copy where they cannot reach it.
 */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/device_list.h"
#include "runtime/reshard/compile.h"
#include "session_internal.h"

#include <string.h>

enum { SMALLEST_BUFFER = 4096 }; /* ranks with an empty box have a valid address too */

/* What is enqueued on a device may still use it, and so may peers: it stays until the session ends. */
static heddle_status keep_outgrown(heddle_session *session, void *memory)
{
    heddle_status st = hd_grow((void **)&session->outgrown, &session->outgrown_capacity, session->noutgrown,
                               sizeof *session->outgrown, "a session's memory");
    if (st == HEDDLE_OK) {
        session->outgrown[session->noutgrown++] = memory;
    }
    return st;
}

static heddle_status grow(heddle_session *session, hd_session_buffer *buffer, size_t bytes)
{
    if (buffer->bytes >= bytes) {
        return HEDDLE_OK;
    }
    void *memory = NULL;
    const int is_kept = session->space == HEDDLE_SPACE_DEVICE && buffer->memory != NULL;
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_buffer_alloc(&memory, session->comm, bytes, session->space));
    HD_TRY(is_kept ? keep_outgrown(session, buffer->memory) : HEDDLE_OK);
    heddle_buffer_free(session->comm, is_kept ? NULL : buffer->memory);
    const int64_t more_bytes = (int64_t)bytes - (is_kept ? 0 : (int64_t)buffer->bytes);
    session->counters.workspace_bytes += more_bytes;
    session->counters.buffer_bytes += more_bytes;
    buffer->memory = memory;
    buffer->bytes = bytes;
    memory = NULL;
out:
    heddle_buffer_free(session->comm, memory);
    return st;
}

heddle_status hd_session_buffer_grow(heddle_session *session, hd_session_buffer *buffer, size_t bytes)
{
    if (bytes < session->largest_bytes) {
        bytes = session->largest_bytes;
    }
    return grow(session, buffer, bytes < SMALLEST_BUFFER ? SMALLEST_BUFFER : bytes);
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

int hd_session_is_direct(const heddle_session *session, const heddle_tensor *x, const hd_session_side *side)
{
    return side->bytes > 0 && is_dense(x, side) && peers_reach(session, x->data, side->bytes);
}

/* Stays as it is while the strides do: to choose a kernel takes longer than to copy a few rows. */
static void make_copy(hd_session_copy *out, const heddle_session *session, const hd_session_side *side,
                      const int64_t *stride_elems, int is_in)
{
    const size_t stride_bytes = (size_t)side->box.ndim * sizeof(*stride_elems);
    if (out->is_made && memcmp(out->stride_elems, stride_elems, stride_bytes) == 0) {
        return;
    }
    const hd_piece whole = {.box = side->box};
    hd_array caller = {.box = side->box}, dense = {.box = side->box};
    memcpy(out->stride_elems, stride_elems, stride_bytes);
    memcpy(caller.stride_elems, stride_elems, stride_bytes);
    memcpy(dense.stride_elems, side->stride_elems, stride_bytes);
    hd_piece_copy(&out->copy, &whole, is_in ? &caller : &dense, is_in ? &dense : &caller, session->elem_bytes);
    out->by = hd_copy_choose(&out->copy, (int64_t)heddle_comm_shared_cache_bytes(session->comm));
    out->is_made = 1;
}

/* In a device's memory in the order of the stream. */
static heddle_status run_copy(const heddle_session *session, const hd_session_copy *copy, void *dst, const void *src,
                              heddle_stream stream)
{
    if (session->space == HEDDLE_SPACE_DEVICE) {
        return hd_device_copy(hd_comm_device(session->comm), &copy->copy, dst, src, stream);
    }
    hd_copy_execute(&copy->copy, &copy->by, dst, src);
    return HEDDLE_OK;
}

heddle_status hd_session_result(void **out, heddle_session *session, const hd_session_side *to,
                                const heddle_tensor *dst, const void *source)
{
    if (dst != NULL && hd_session_is_direct(session, dst, to)) {
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

heddle_status hd_session_deliver(const heddle_session *session, hd_session_edge *edge, const heddle_tensor *dst,
                                 const void *result, heddle_stream stream)
{
    if (edge->to.bytes == 0 || result == dst->data) {
        return HEDDLE_OK;
    }
    make_copy(&edge->out, session, &edge->to, dst->stride_elems, 0);
    return run_copy(session, &edge->out, dst->data, result, stream);
}

heddle_status hd_session_source(const void **out, heddle_session *session, const heddle_tensor *x,
                                hd_session_edge *edge, heddle_stream stream)
{
    if (hd_session_is_direct(session, x, &edge->from)) {
        *out = x->data;
        return HEDDLE_OK;
    }
    heddle_status st = HEDDLE_OK;
    HD_TRY(edge->from.bytes > 0 ? hd_session_buffer_grow(session, &session->source, edge->from.bytes)
                                : grow(session, &session->source, SMALLEST_BUFFER));
    if (edge->from.bytes > 0) {
        make_copy(&edge->in, session, &edge->from, x->stride_elems, 1);
        HD_TRY(run_copy(session, &edge->in, session->source.memory, x->data, stream));
    }
    *out = session->source.memory;
out:
    return st;
}
