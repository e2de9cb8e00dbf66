/* Group operations of ranks that share memory: everybody arrives at a counter, data lie in the ranks' outboxes. */
#include "runtime/comm/comm_private.h"

#include <string.h>

static hd_hub_memory *own_memory(const heddle_comm *comm)
{
    return comm->hub.of[comm->rank];
}

/* The first rank that has not entered `round`; -1: all have. */
static int missing_rank(const heddle_comm *comm, uint64_t round)
{
    for (int r = 0; r < comm->size; r++) {
        if (atomic_load_explicit(&comm->hub.of[r]->arrived, memory_order_relaxed) < round) {
            return r;
        }
    }
    return -1;
}

static heddle_status check_missing(heddle_comm *comm, uint64_t round, const char *what, int late)
{
    int first = missing_rank(comm, round);
    if (late) {
        return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come in time (%s)",
                       hd_comm_root_rank(comm, comm->rank), first < 0 ? -1 : hd_comm_root_rank(comm, first), what);
    }
    for (int r = first < 0 ? comm->size : first; r < comm->size; r++) {
        if (hd_group_left(comm->group, comm->member[r]) &&
            atomic_load_explicit(&comm->hub.of[r]->arrived, memory_order_relaxed) < round) {
            return hd_fail(HEDDLE_ERR_PEER, "rank %d closed its communicator while rank %d waits for it (%s)",
                           hd_comm_root_rank(comm, r), hd_comm_root_rank(comm, comm->rank), what);
        }
    }
    return HEDDLE_OK;
}

/* A round that failed half way leaves the counter between rounds: the communicator is of no use any more. */
static heddle_status wait_round(heddle_comm *comm, uint64_t target, const char *what)
{
    heddle_status st = HEDDLE_OK;
    hd_group *group = comm->group;
    _Atomic uint64_t *counter = &comm->hub.of[0]->counter;
    int64_t deadline_ns = 0;
    for (int round = 0;; round++) {
        if (atomic_load(counter) >= target) {
            st = HEDDLE_OK;
            break;
        }
        if (st != HEDDLE_OK) {
            comm->broken = (int)st;
            break;
        }
        if (hd_wait_looks(group, round)) {
            int late = 0;
            st = hd_wait_look(comm, &deadline_ns, &late);
            if (st == HEDDLE_OK && (late || (round & 15) == 0)) {
                st = check_missing(comm, comm->hub.round, what, late);
            }
        }
        if (st == HEDDLE_OK) {
            hd_group_relax(group, round);
        }
    }
    hd_group_disarm(group);
    return st;
}

static heddle_status arrive(heddle_comm *comm, const char *what)
{
    if (comm->broken) {
        return hd_fail((heddle_status)comm->broken,
                       "rank %d: an earlier group operation failed half way, no other is possible (%s)",
                       hd_comm_root_rank(comm, comm->rank), what);
    }
    uint64_t round = ++comm->hub.round;
    uint64_t target = round * (uint64_t)comm->size;
    atomic_store_explicit(&own_memory(comm)->arrived, round, memory_order_relaxed);
    if (atomic_fetch_add(&comm->hub.of[0]->counter, 1) + 1 < target) {
        return wait_round(comm, target, what);
    }
    for (int r = 0; r < comm->size; r++) {
        if (r != comm->rank) {
            hd_group_ring(comm->group, comm->member[r]);
        }
    }
    return HEDDLE_OK;
}

heddle_status hd_hub_barrier(heddle_comm *comm, const char *what)
{
    return arrive(comm, what);
}

/* Where the data of the next round go. */
static unsigned char *outbox(const heddle_comm *comm, int rank, uint64_t round)
{
    return comm->hub.of[rank]->outbox[round & 1];
}

heddle_status hd_hub_allgather(heddle_comm *comm, const void *send, void *recv, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    const unsigned char *from = send;
    unsigned char *to = recv;
    if (comm->broken) { /* others may still read what was sent before */
        return arrive(comm, "allgather");
    }
    for (size_t at = 0; at < bytes || at == 0; at += HD_OUTBOX_BYTES) {
        size_t part = bytes - at < HD_OUTBOX_BYTES ? bytes - at : HD_OUTBOX_BYTES;
        if (part > 0) {
            memcpy(outbox(comm, comm->rank, comm->hub.round + 1), from + at, part);
        }
        HD_TRY(arrive(comm, "allgather"));
        for (int r = 0; r < comm->size && part > 0; r++) {
            memcpy(to + (size_t)r * bytes + at, outbox(comm, r, comm->hub.round), part);
        }
    }
out:
    return st;
}

#define SUM(type)                                                                                                      \
    do {                                                                                                               \
        type *sum = (type *)data;                                                                                      \
        for (size_t i = 0; i < n; i++) {                                                                               \
            type value = ((const type *)outbox(comm, 0, comm->hub.round))[i];                                          \
            for (int r = 1; r < comm->size; r++) {                                                                     \
                value += ((const type *)outbox(comm, r, comm->hub.round))[i];                                          \
            }                                                                                                          \
            sum[i] = value;                                                                                            \
        }                                                                                                              \
    } while (0)

static void sum_outboxes(const heddle_comm *comm, unsigned char *data, size_t n, heddle_dtype dtype)
{
    if (dtype == HEDDLE_F64) {
        SUM(double);
    } else if (dtype == HEDDLE_F32) {
        SUM(float);
    } else {
        SUM(uint64_t); /* wraps like two's complement */
    }
}

heddle_status hd_hub_sum(heddle_comm *comm, void *data, int64_t elems, heddle_dtype dtype)
{
    heddle_status st = HEDDLE_OK;
    size_t elem_bytes = dtype == HEDDLE_F32 ? 4 : 8;
    size_t bytes = (size_t)elems * elem_bytes;
    unsigned char *own = data;
    if (comm->broken) {
        return arrive(comm, "allreduce");
    }
    for (size_t at = 0; at < bytes || at == 0; at += HD_OUTBOX_BYTES) {
        size_t part = bytes - at < HD_OUTBOX_BYTES ? bytes - at : HD_OUTBOX_BYTES;
        if (part > 0) {
            memcpy(outbox(comm, comm->rank, comm->hub.round + 1), own + at, part);
        }
        HD_TRY(arrive(comm, "allreduce"));
        sum_outboxes(comm, own + at, part / elem_bytes, dtype);
    }
out:
    return st;
}
