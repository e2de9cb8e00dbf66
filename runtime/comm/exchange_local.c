/* Exchanges between ranks of one host, through staging memory (messages forced, hosts pretended), and the operations of
 * communicators whose ranks all share memory. */
#include "runtime/comm/comm_private.h"

#include <string.h>

enum { SLOT_DATA = 0, SLOT_ACK = 1, STAGE_STEP = 1 << 16 };

/* All messages between this rank and one peer, in one direction: one staged piece. */
typedef struct flow {
    int peer;
    size_t bytes;
    unsigned char *stage; /* sends */
    int busy;             /* still to be packed, or to be unpacked, in this execution */
    int unread;           /* sends: packed, the peer has not read it */
} flow;

typedef struct local_exchange {
    hd_link *link;
    heddle_message *messages;
    int nmessages;
    flow *send; /* by rank */
    flow *recv;
    hd_block *stage;
    uint64_t execution;
    const unsigned char *src;
    unsigned char *dst;
} local_exchange;

static size_t message_bytes(const heddle_message *m)
{
    size_t bytes = (size_t)m->run_bytes;
    for (int l = 0; l < m->nloops; l++) {
        bytes *= (size_t)m->count[l];
    }
    return bytes;
}

/* Rows of one message to or from a packed piece; returns the piece's next byte. */
static unsigned char *walk(const heddle_message *m, unsigned char *buffer, unsigned char *packed, int pack)
{
    int64_t at[HEDDLE_MAX_LOOPS] = {0};
    size_t run = (size_t)m->run_bytes;
    if (message_bytes(m) == 0) {
        return packed;
    }
    for (;;) {
        int64_t offset = m->offset_bytes;
        for (int l = 0; l < m->nloops; l++) {
            offset += at[l] * m->stride_bytes[l];
        }
        if (pack) {
            memcpy(packed, buffer + offset, run);
        } else {
            memcpy(buffer + offset, packed, run);
        }
        packed += run;
        int l = m->nloops - 1;
        while (l >= 0 && ++at[l] == m->count[l]) {
            at[l--] = 0;
        }
        if (l < 0) {
            return packed;
        }
    }
}

static void walk_flow(const local_exchange *x, int peer, int is_send, unsigned char *packed)
{
    for (int i = 0; i < x->nmessages; i++) {
        const heddle_message *m = &x->messages[i];
        if (m->peer == peer && m->is_send == is_send) {
            unsigned char *buffer = is_send ? (unsigned char *)(uintptr_t)x->src : x->dst;
            packed = walk(m, buffer, packed, is_send);
        }
    }
}

static void local_exchange_destroy(heddle_comm *comm, void *exchange)
{
    local_exchange *x = exchange;
    hd_link_destroy(x->link);
    hd_group_keep(comm->group, x->stage); /* after a failure a peer may still be reading */
    hd_free(x->send);
    hd_free(x->recv);
    hd_free(x->messages);
    hd_free(x);
}

static heddle_status local_parts(local_exchange *x, heddle_comm *comm, const heddle_message *messages, int nmessages)
{
    heddle_status st = HEDDLE_OK;
    size_t total = 0;
    HD_TRY(hd_alloc((void **)&x->send, (size_t)comm->size, sizeof(flow), "an exchange"));
    HD_TRY(hd_alloc((void **)&x->recv, (size_t)comm->size, sizeof(flow), "an exchange"));
    HD_TRY(hd_alloc((void **)&x->messages, (size_t)nmessages, sizeof *messages, "an exchange"));
    if (nmessages > 0) {
        memcpy(x->messages, messages, (size_t)nmessages * sizeof *messages);
    }
    x->nmessages = nmessages;
    for (int i = 0; i < nmessages; i++) {
        flow *f = messages[i].is_send ? &x->send[messages[i].peer] : &x->recv[messages[i].peer];
        f->bytes += message_bytes(&messages[i]);
        total += messages[i].is_send ? message_bytes(&messages[i]) : 0;
    }
    int fresh = 0;
    HD_TRY(hd_group_take(comm->group, &x->stage, (total + STAGE_STEP - 1) / STAGE_STEP * STAGE_STEP, &fresh));
    unsigned char *at = x->stage->memory;
    for (int r = 0; r < comm->size; r++) {
        x->send[r].stage = at;
        at += x->send[r].bytes;
    }
out:
    return st;
}

static heddle_status local_exchange_create(heddle_comm *comm, void **out, const heddle_message *messages, int nmessages,
                                           int tag)
{
    (void)tag; /* every exchange has its own link */
    heddle_status st = HEDDLE_OK;
    local_exchange *x = NULL;
    heddle_status mine = hd_alloc((void **)&x, 1, sizeof *x, "an exchange");
    if (mine == HEDDLE_OK) {
        mine = local_parts(x, comm, messages, nmessages);
    }
    HD_TRY(hd_comm_agree(comm, mine));
    HD_TRY(hd_link_create_all(&x->link, comm));
    *out = x;
    x = NULL;
out:
    if (x != NULL) {
        local_exchange_destroy(comm, x);
    }
    return st;
}

/* Done when everything was read, so that the next execution finds an empty stage. */
static heddle_status progress_sends(heddle_comm *comm, local_exchange *x, int *left)
{
    heddle_status st = HEDDLE_OK;
    for (int r = 0; r < comm->size; r++) {
        flow *f = &x->send[r];
        if (f->busy) {
            walk_flow(x, r, 1, f->stage);
            uint64_t words[2] = {hd_window_name(comm->group->window[comm->group->me], f->stage, f->bytes), f->bytes};
            HD_TRY(hd_link_post(x->link, r, SLOT_DATA, x->execution, words, 2));
            f->busy = 0;
            f->unread = 1;
        }
        if (f->unread) {
            int was_read = 0;
            HD_TRY(hd_link_poll(x->link, r, SLOT_ACK, x->execution, NULL, 0, &was_read));
            f->unread = !was_read;
            *left += f->unread;
        }
    }
out:
    return st;
}

static heddle_status progress_receives(heddle_comm *comm, local_exchange *x, int *left)
{
    heddle_status st = HEDDLE_OK;
    for (int r = 0; r < comm->size; r++) {
        flow *f = &x->recv[r];
        uint64_t words[2];
        int arrived = 0;
        if (!f->busy) {
            continue;
        }
        HD_TRY(hd_link_poll(x->link, r, SLOT_DATA, x->execution, words, 2, &arrived));
        if (!arrived) {
            ++*left;
            continue;
        }
        if (words[1] != f->bytes) {
            st = hd_fail(HEDDLE_ERR_MISMATCH, "rank %d expects %zu bytes from rank %d, which sends %llu",
                         hd_comm_root_rank(comm, comm->rank), f->bytes, hd_comm_root_rank(comm, r),
                         (unsigned long long)words[1]);
            goto out;
        }
        walk_flow(x, r, 0, hd_window_at(comm->group->window[comm->member[r]], words[0]));
        f->busy = 0;
        HD_TRY(hd_link_post(x->link, r, SLOT_ACK, x->execution, NULL, 0));
    }
out:
    return st;
}

/* A peer that closed its communicator will neither send nor read any more. */
static heddle_status check_left(heddle_comm *comm, local_exchange *x)
{
    for (int r = 0; r < comm->size; r++) {
        int arrived = 0;
        if ((!x->recv[r].busy && !x->send[r].unread) || !hd_group_left(comm->group, comm->member[r])) {
            continue;
        }
        heddle_status st = HEDDLE_OK;
        if (x->recv[r].busy) { /* what it posted before it left counts */
            st = hd_link_poll(x->link, r, SLOT_DATA, x->execution, NULL, 0, &arrived);
        } else {
            st = hd_link_poll(x->link, r, SLOT_ACK, x->execution, NULL, 0, &arrived);
        }
        if (st != HEDDLE_OK || !arrived) {
            return hd_group_closed(comm->group, comm->member[r], "messages");
        }
    }
    return HEDDLE_OK;
}

static heddle_status local_exchange_test(heddle_comm *comm, void *exchange, int *done)
{
    heddle_status st = HEDDLE_OK;
    local_exchange *x = exchange;
    int left = 0;
    HD_TRY(progress_sends(comm, x, &left));
    HD_TRY(progress_receives(comm, x, &left));
    *done = left == 0;
    if (left > 0) {
        HD_TRY(hd_comm_check(comm));
        HD_TRY(check_left(comm, x));
    }
out:
    return st;
}

static int local_exchange_missing(heddle_comm *comm, void *exchange, int *peers, int capacity)
{
    const local_exchange *x = exchange;
    int n = 0;
    for (int r = 0; r < comm->size && n < capacity; r++) {
        if (x->recv[r].busy || x->send[r].unread || x->send[r].busy) {
            peers[n++] = r;
        }
    }
    return n;
}

/* Only this rank itself touches its arrays. */
static heddle_status local_withdraw(heddle_comm *comm)
{
    (void)comm;
    return HEDDLE_OK;
}

static heddle_status local_exchange_start(heddle_comm *comm, void *exchange, const void *src, void *dst)
{
    local_exchange *x = exchange;
    int left = 0;
    x->execution++;
    x->src = src;
    x->dst = dst;
    for (int r = 0; r < comm->size; r++) {
        x->send[r].busy = x->send[r].bytes > 0;
        x->recv[r].busy = x->recv[r].bytes > 0;
    }
    return progress_sends(comm, x, &left);
}

static heddle_status local_allgather(heddle_comm *comm, const void *send, void *recv, size_t bytes)
{
    return hd_hub_gather(comm, HD_CALL_ALLGATHER, send, recv, bytes);
}

static heddle_status local_abort(heddle_comm *comm, const char *why)
{
    (void)comm;
    (void)why; /* the group has been told */
    return HEDDLE_OK;
}

static void local_destroy(heddle_comm *comm)
{
    (void)comm;
}

const hd_comm_ops hd_local_ops = {
    .name = "local",
    .allgather = local_allgather,
    .exchange_create = local_exchange_create,
    .exchange_start = local_exchange_start,
    .exchange_test = local_exchange_test,
    .exchange_destroy = local_exchange_destroy,
    .exchange_missing = local_exchange_missing,
    .withdraw = local_withdraw,
    .abort = local_abort,
    .destroy = local_destroy,
};
