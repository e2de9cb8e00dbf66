/* Memory of a session.
 *
 * A result stays the caller's until the second next switch. So switch n may write to a buffer that was last written by
 * switch n-2 or earlier, unless the caller hands exactly that one in again; three buffers are always enough, and two
 * are in the usual case where every result is the next source.
 */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/reshard/compile.h"
#include "session_internal.h"

enum { SMALLEST_BUFFER = 4096 }; /* ranks with an empty box have a valid address too */

size_t hd_session_local_bytes(const heddle_session *session, const heddle_layout *layout)
{
    heddle_box box;
    if (heddle_layout_box(&box, &session->info.shape, &session->info.mesh, layout, session->rank) != HEDDLE_OK) {
        return 0;
    }
    return (size_t)heddle_box_elems(&box) * heddle_dtype_bytes(session->info.shape.dtype);
}

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

heddle_status hd_session_result(void **out, heddle_session *session, size_t bytes, const void *source)
{
    const int64_t now = session->switches + 1;
    hd_session_buffer *chosen = NULL;
    for (int i = 0; i < HD_SESSION_BUFFERS && chosen == NULL; i++) {
        hd_session_buffer *candidate = &session->buffer[i];
        if ((candidate->written_at == 0 || candidate->written_at <= now - 2) && !holds(candidate, source)) {
            chosen = candidate;
        }
    }
    if (chosen == NULL) {
        return hd_fail(HEDDLE_ERR_INTERNAL, "no free buffer for switch %lld of a session", (long long)now);
    }
    heddle_status st = hd_session_buffer_grow(session, chosen, bytes);
    if (st == HEDDLE_OK) {
        *out = chosen->memory;
        chosen->written_at = now;
    }
    return st;
}

int hd_tensor_is_dense(const heddle_tensor *x, const heddle_box *box)
{
    int64_t dense[HEDDLE_MAX_DIMS];
    heddle_box_strides(dense, box, NULL);
    for (int d = 0; d < box->ndim; d++) {
        if (box->len[d] > 1 && x->stride_elems[d] != dense[d]) {
            return 0;
        }
    }
    return 1;
}

static void copy_dense(void *dst, const heddle_tensor *x, const heddle_box *box, int64_t cache_bytes)
{
    const size_t elem_bytes = heddle_dtype_bytes(x->shape.dtype);
    hd_piece piece = {.peer = 0, .box = *box};
    hd_array from = {.box = *box}, to = {.box = *box};
    hd_copy copy;
    for (int d = 0; d < box->ndim; d++) {
        from.stride_elems[d] = x->stride_elems[d];
    }
    heddle_box_strides(to.stride_elems, box, NULL);
    hd_piece_copy(&copy, &piece, &from, &to, elem_bytes);
    hd_copy_execute(&copy, dst, x->data, cache_bytes);
}

/* Ranks of a host read one another's memory, so a source must be exported; messages take any memory. */
static int peers_can_read(const heddle_session *session, const void *data, size_t bytes)
{
    const int *ranks = NULL;
    return hd_comm_local_ranks(session->comm, &ranks) < 2 || hd_comm_shares_address_space(session->comm) ||
           hd_comm_export(session->comm, data, bytes) != 0;
}

heddle_status hd_session_source(const void **out, heddle_session *session, const heddle_tensor *x,
                                const heddle_box *box)
{
    const size_t bytes = (size_t)heddle_box_elems(box) * heddle_dtype_bytes(x->shape.dtype);
    if (bytes > 0 && hd_tensor_is_dense(x, box) && peers_can_read(session, x->data, bytes)) {
        *out = x->data;
        return HEDDLE_OK;
    }
    heddle_status st = hd_session_buffer_grow(session, &session->staging, bytes);
    if (st == HEDDLE_OK) {
        if (bytes > 0) {
            copy_dense(session->staging.memory, x, box, (int64_t)heddle_comm_shared_cache_bytes(session->comm));
        }
        *out = session->staging.memory;
    }
    return st;
}
