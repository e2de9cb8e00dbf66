/* Group operations of ranks that share memory: everybody arrives at a counter, data lie in the ranks' outboxes. */
#include "runtime/comm/comm_private.h"

#include <string.h>

static hd_hub_memory *own_memory(const heddle_comm *comm)
{
    return comm->hub.of[comm->rank];
}

static uint64_t arrived(const heddle_comm *comm, int rank)
{
    return atomic_load_explicit(&comm->hub.of[rank]->arrived, memory_order_acquire);
}

/* The first rank that has not entered `round`; -1: all have. */
static int missing_rank(const heddle_comm *comm, uint64_t round)
{
    for (int r = 0; r < comm->size; r++) {
        if (arrived(comm, r) / 2 < round) {
            return r;
        }
    }
    return -1;
}

static hd_outbox *outbox(const heddle_comm *comm, int rank, uint64_t round)
{
    return &comm->hub.of[rank]->outbox[round & 1];
}

static uint64_t call_of(const heddle_comm *comm, int rank, uint64_t round)
{
    return arrived(comm, rank) % 2 != 0 ? outbox(comm, rank, round)->call : hd_call_word(HD_CALL_BARRIER, 0, 0);
}

/* Ranks that are in this round with a barrier and with a gather wait for each other in vain. Every rank finds the same
 * two: none of them goes on to another round. */
static heddle_status check_kinds(heddle_comm *comm, uint64_t round)
{
    int first = -1;
    for (int r = 0; r < comm->size; r++) {
        if (arrived(comm, r) / 2 != round) {
            continue;
        }
        first = first < 0 ? r : first;
        if (arrived(comm, r) != arrived(comm, first)) {
            return hd_calls_differ(comm, r, call_of(comm, r, round), first, call_of(comm, first, round));
        }
    }
    return HEDDLE_OK;
}

static heddle_status check_missing(heddle_comm *comm, uint64_t round, const char *what, int late)
{
    int first = missing_rank(comm, round);
    heddle_status st = check_kinds(comm, round);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (late) {
        char standing[HD_SENTENCE_BYTES] = "";
        if (first >= 0) {
            hd_comm_say_standing(standing, sizeof standing, comm, first);
        }
        return first >= 0 ? hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come in time (%s)%s",
                                    hd_comm_root_rank(comm, comm->rank), hd_comm_root_rank(comm, first), what, standing)
                          : hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: a rank that was about to come did not in time (%s)",
                                    hd_comm_root_rank(comm, comm->rank), what);
    }
    for (int r = first < 0 ? comm->size : first; r < comm->size; r++) {
        if (hd_group_left(comm->group, comm->member[r]) && arrived(comm, r) / 2 < round) {
            return hd_group_closed(comm->group, comm->member[r], what);
        }
    }
    return HEDDLE_OK;
}

/* One of those that are missing: a rank that waits itself, if there is one. */
static heddle_status stand(heddle_comm *comm)
{
    const uint64_t round = comm->hub.round;
    char text[HD_STAND_BYTES];
    hd_wait wait = {.key = round, .call = comm->root->makes};
    int stands = 0;
    for (int r = 0; r < comm->size && !stands; r++) {
        if (arrived(comm, r) / 2 < round) {
            stands = hd_group_stands(comm->group, comm->member[r]);
            wait.peer[0] = stands || wait.npeers == 0 ? r : wait.peer[0];
            wait.npeers = 1;
        }
    }
    wait.key = round << 20 | (uint64_t)wait.peer[0];
    if (comm->root->makes[0] == '\0') {
        hd_call_say(text, sizeof text, call_of(comm, comm->rank, round));
        wait.call = text;
    }
    return hd_comm_stand(comm, &wait);
}

static void ring_all(heddle_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        if (r != comm->rank) {
            hd_group_ring(comm->group, comm->member[r]);
        }
    }
}

/* A round that failed half way leaves a counter between rounds: the communicator is of no use any more. */
static heddle_status wait_round(heddle_comm *comm, _Atomic uint64_t *counter, uint64_t target, const char *what)
{
    heddle_status st = HEDDLE_OK;
    hd_group *group = comm->group;
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
        if (hd_group_looks(group, round)) {
            int late = 0;
            st = hd_group_look(group, hd_comm_deadline_ms(comm), &deadline_ns, &late);
            if (st == HEDDLE_OK && (late || group->armed || (round & 15) == 0)) {
                st = check_missing(comm, comm->hub.round, what, late);
            }
            if (st == HEDDLE_OK && group->armed) {
                st = stand(comm);
            }
        }
        if (st == HEDDLE_OK) {
            hd_group_relax(group, round);
        }
    }
    hd_group_disarm(group);
    if (st == HEDDLE_ERR_MISMATCH) {
        hd_group_raise(group, st, heddle_last_error()); /* some may wait elsewhere for those that are here */
    }
    return st;
}

/* is_gather: which of the counters. */
static heddle_status arrive(heddle_comm *comm, int is_gather, const char *what)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_comm_enter(comm)); /* first: it says who gave up, and why */
    if (comm->broken) {
        return hd_fail((heddle_status)comm->broken,
                       "rank %d: an earlier group operation failed half way, no other is possible (%s)",
                       hd_comm_root_rank(comm, comm->rank), what);
    }
    _Atomic uint64_t *counter = &comm->hub.of[0]->counter[is_gather];
    uint64_t round = ++comm->hub.round;
    uint64_t target = ++comm->hub.rounds[is_gather] * (uint64_t)comm->size;
    atomic_store_explicit(&own_memory(comm)->arrived, 2 * round + (uint64_t)is_gather, memory_order_release);
    if (atomic_fetch_add(counter, 1) + 1 < target) {
        return wait_round(comm, counter, target, what);
    }
    ring_all(comm);
out:
    return st;
}

static heddle_status hub_barrier(heddle_comm *comm)
{
    return arrive(comm, 0, "barrier");
}

/* All are there: do they all mean the same? Nothing is broken by it if not. */
static heddle_status check_calls(const heddle_comm *comm)
{
    uint64_t first = outbox(comm, 0, comm->hub.round)->call;
    for (int r = 1; r < comm->size; r++) {
        uint64_t call = outbox(comm, r, comm->hub.round)->call;
        if (call != first) {
            return hd_calls_differ(comm, r, call, 0, first);
        }
    }
    return HEDDLE_OK;
}

/* One round with at most an outbox of data. */
static heddle_status swap_outboxes(heddle_comm *comm, uint64_t call, const void *send, size_t bytes, const char *what)
{
    heddle_status st = HEDDLE_OK;
    if (!comm->broken) { /* broken: others may still read what was sent before */
        hd_outbox *own = outbox(comm, comm->rank, comm->hub.round + 1);
        own->call = call;
        if (bytes > 0) {
            memcpy(own->data, send, bytes);
        }
    }
    HD_TRY(arrive(comm, 1, what));
    HD_TRY(check_calls(comm));
out:
    return st;
}

static heddle_status hub_gather(heddle_comm *comm, hd_call call, const void *send, void *recv, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    const unsigned char *from = send;
    unsigned char *to = recv;
    for (size_t at = 0; at < bytes || at == 0; at += HD_OUTBOX_BYTES) {
        size_t part = bytes - at < HD_OUTBOX_BYTES ? bytes - at : HD_OUTBOX_BYTES;
        HD_TRY(swap_outboxes(comm, hd_call_word(call, 0, bytes), from + at, part, "allgather"));
        for (int r = 0; r < comm->size && part > 0; r++) {
            memcpy(to + (size_t)r * bytes + at, outbox(comm, r, comm->hub.round)->data, part);
        }
    }
out:
    return st;
}

static heddle_status hub_swap(heddle_comm *comm, uint64_t call, const void *send, size_t bytes)
{
    return swap_outboxes(comm, call, send, bytes, "allreduce");
}

static const void *hub_part(const heddle_comm *comm, int rank)
{
    return outbox(comm, rank, comm->hub.round)->data;
}

/* All counters begin again. */
static void renew(void *arg)
{
    heddle_comm *comm = arg;
    atomic_store(&own_memory(comm)->counter[0], 0);
    atomic_store(&own_memory(comm)->counter[1], 0);
    atomic_store(&own_memory(comm)->arrived, 0);
    comm->hub.round = comm->hub.rounds[0] = comm->hub.rounds[1] = 0;
    comm->broken = HEDDLE_OK;
    comm->in_flight = NULL;
}

void hd_hub_renew_with(heddle_comm *comm)
{
    comm->renewal = (hd_renewal){.renew = renew, .arg = comm};
    hd_comm_renewal_add(comm, &comm->renewal);
}

const hd_comm_calls hd_hub_calls = {
    .barrier = hub_barrier,
    .gather = hub_gather,
    .part_bytes = HD_OUTBOX_BYTES,
    .swap = hub_swap,
    .part = hub_part,
};

/* --- communicators whose ranks all share memory: nothing else carries anything ----------------------------------- */

static heddle_status local_allgather(heddle_comm *comm, const void *send, void *recv, size_t bytes)
{
    return hub_gather(comm, HD_CALL_ALLGATHER, send, recv, bytes);
}

static heddle_status local_withdraw(heddle_comm *comm)
{
    (void)comm; /* there are no exchanges */
    return HEDDLE_OK;
}

static heddle_status local_abort(heddle_comm *comm, const char *why)
{
    (void)comm;
    (void)why; /* the group has been told */
    return HEDDLE_OK;
}

const hd_comm_ops hd_local_ops = {
    .name = "local",
    .allgather = local_allgather,
    .withdraw = local_withdraw,
    .abort = local_abort,
};
