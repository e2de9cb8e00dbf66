/* Group operations: who compares what with whom, and how they go where the ranks do not all share memory. */
#include "runtime/comm/comm_private.h"

#include <stdio.h>
#include <string.h>

heddle_status hd_comm_enter(heddle_comm *comm)
{
    hd_group *group = comm->group;
    heddle_comm *root = comm->root;
    if (__builtin_expect(atomic_load_explicit(&group->control[group->me]->alarm, memory_order_acquire) != 0, 0)) {
        return hd_group_check(group);
    }
    return hd_comm_check_outside(root);
}

void hd_call_say(char *text, size_t bytes, uint64_t call)
{
    static const char *const names[] = {"a barrier", "an allgather", "an allreduce", "a collective creation"};
    unsigned long long size = call >> 12;
    switch (call & 15) {
    case HD_CALL_ALLGATHER:
        snprintf(text, bytes, "%s of %llu bytes", names[1], size);
        break;
    case HD_CALL_ALLREDUCE:
        snprintf(text, bytes, "%s of %llu bytes of %s", names[2], size,
                 heddle_dtype_name((heddle_dtype)(call >> 4 & 255)));
        break;
    default:
        snprintf(text, bytes, "%s", names[call & 3]);
    }
}

heddle_status hd_calls_differ(const heddle_comm *comm, int rank, uint64_t call, int first, uint64_t first_call)
{
    char text[2][64];
    hd_call_say(text[0], sizeof text[0], call);
    hd_call_say(text[1], sizeof text[1], first_call);
    return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d comes with %s, rank %d with %s", hd_comm_root_rank(comm, rank),
                   text[0], hd_comm_root_rank(comm, first), text[1]);
}

/* Everybody's call, and the first bytes of what goes with it. */
static heddle_status swap_envelopes(heddle_comm *comm, uint64_t call, const void *send, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    hd_envelope own = {.call = call};
    if (bytes > 0) {
        memcpy(own.data, send, bytes < sizeof own.data ? bytes : sizeof own.data);
    }
    HD_TRY(hd_comm_enter(comm));
    HD_TRY(comm->ops->allgather(comm, &own, comm->envelopes, sizeof own));
    for (int r = 1; r < comm->size; r++) {
        if (comm->envelopes[r].call != comm->envelopes[0].call) {
            st = hd_calls_differ(comm, r, comm->envelopes[r].call, 0, comm->envelopes[0].call);
            goto out;
        }
    }
out:
    return st;
}

static heddle_status envelope_barrier(heddle_comm *comm)
{
    return swap_envelopes(comm, hd_call_word(HD_CALL_BARRIER, 0, 0), NULL, 0);
}

static heddle_status envelope_gather(heddle_comm *comm, hd_call call, const void *send, void *recv, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(swap_envelopes(comm, hd_call_word(call, 0, bytes), send, bytes));
    if (bytes > HD_RECORD_BYTES) {
        return comm->ops->allgather(comm, send, recv, bytes);
    }
    for (int r = 0; r < comm->size && bytes > 0; r++) {
        memcpy((unsigned char *)recv + (size_t)r * bytes, comm->envelopes[r].data, bytes);
    }
out:
    return st;
}

static const void *envelope_part(const heddle_comm *comm, int rank)
{
    return comm->envelopes[rank].data;
}

const hd_comm_calls hd_envelope_calls = {
    .barrier = envelope_barrier,
    .gather = envelope_gather,
    .part_bytes = HD_RECORD_BYTES,
    .swap = swap_envelopes,
    .part = envelope_part,
};

heddle_status hd_comm_sum(heddle_comm *comm, void *data, size_t elems, heddle_dtype dtype, hd_comm_add add)
{
    heddle_status st = HEDDLE_OK;
    const hd_comm_calls *calls = comm->calls;
    const size_t elem_bytes = heddle_dtype_bytes(dtype), bytes = elems * elem_bytes;
    const uint64_t call = hd_call_word(HD_CALL_ALLREDUCE, (int)dtype, bytes);
    for (size_t at = 0; at < bytes || at == 0; at += calls->part_bytes) {
        const size_t part_bytes = bytes - at < calls->part_bytes ? bytes - at : calls->part_bytes;
        unsigned char *own = (unsigned char *)data + at;
        HD_TRY(calls->swap(comm, call, own, part_bytes));
        for (int r = 0; r < comm->size; r++) {
            comm->terms[r] = calls->part(comm, r);
        }
        add(own, comm->terms, comm->size, (int64_t)(part_bytes / elem_bytes));
    }
out:
    return st;
}
