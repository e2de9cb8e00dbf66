/* A fixed series of transfers to one neighbour and from one.
 *
 * A neighbour that can be reached reads the sender's buffer directly (link: READY with the buffer's name, then DONE);
 * others get messages. Every rank starts and waits for the transfers of all its hops in the same order, so the rank
 * that is furthest behind can always go on.
 */
#include "runtime/attention/attention_internal.h"

#include <string.h>

enum { SLOT_READY = 0, SLOT_DONE = 1 };

struct hd_hop {
    heddle_comm *comm;
    int64_t deadline_ms;
    int to, from, ntransfers;
    int to_near, from_near;
    int64_t *send_bytes, *recv_bytes;
    hd_link *link;
    hd_exchange **exchange; /* [ntransfers] */

    int index; /* in flight; -1 */
    void *dst;
    uint64_t sent, received; /* sequences */
    int awaits_ready, awaits_done, awaits_messages;
};

static heddle_status create_exchanges(hd_hop *hop)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_comm_agree(hop->comm, hd_alloc((void **)&hop->exchange, (size_t)hop->ntransfers, sizeof(hd_exchange *),
                                             "transfers of a ring")));
    for (int i = 0; i < hop->ntransfers; i++) {
        heddle_message message[2];
        int n = 0;
        memset(message, 0, sizeof message);
        if (!hop->to_near && hop->send_bytes[i] > 0) {
            message[n++] = (heddle_message){.peer = hop->to, .is_send = 1, .run_bytes = hop->send_bytes[i]};
        }
        if (!hop->from_near && hop->recv_bytes[i] > 0) {
            message[n++] = (heddle_message){.peer = hop->from, .run_bytes = hop->recv_bytes[i]};
        }
        HD_TRY(hd_exchange_create(&hop->exchange[i], hop->comm, message, n));
    }
out:
    return st;
}

/* What can be done without the others. */
static heddle_status create_alone(hd_hop **out, heddle_comm *comm, const hd_hop_plan *plan, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = NULL;
    size_t n = (size_t)plan->ntransfers;
    HD_TRY(hd_alloc((void **)&hop, 1, sizeof *hop, "a ring"));
    *out = hop;
    hop->comm = comm;
    hop->deadline_ms = deadline_ms;
    hop->to = plan->to;
    hop->from = plan->from;
    hop->to_near = heddle_comm_reaches(comm, plan->to);
    hop->from_near = heddle_comm_reaches(comm, plan->from);
    hop->ntransfers = plan->ntransfers;
    hop->index = -1;
    HD_TRY(hd_alloc((void **)&hop->send_bytes, n, sizeof(int64_t), "a ring"));
    HD_TRY(hd_alloc((void **)&hop->recv_bytes, n, sizeof(int64_t), "a ring"));
    memcpy(hop->send_bytes, plan->send_bytes, n * sizeof(int64_t));
    memcpy(hop->recv_bytes, plan->recv_bytes, n * sizeof(int64_t));
out:
    return st;
}

heddle_status hd_hop_create(hd_hop **out, heddle_comm *comm, const hd_hop_plan *plan, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = NULL;
    unsigned char own = 0, *all = NULL;
    int near = 0, far = 0;
    heddle_status mine = create_alone(&hop, comm, plan, deadline_ms);
    if (mine == HEDDLE_OK) {
        mine = hd_alloc((void **)&all, (size_t)heddle_comm_size(comm), 1, "a ring");
    }
    HD_TRY(hd_comm_agree(comm, mine));
    own = (unsigned char)((hop->to_near || hop->from_near ? 1 : 0) | (hop->to_near && hop->from_near ? 0 : 2));
    HD_TRY(heddle_comm_allgather(comm, &own, all, 1));
    for (int r = 0; r < heddle_comm_size(comm); r++) {
        near |= all[r] & 1;
        far |= all[r] & 2;
    }
    if (near) {
        HD_TRY(hd_link_create(&hop->link, comm));
    }
    if (far) {
        HD_TRY(create_exchanges(hop));
    }
    *out = hop;
    hop = NULL;
out:
    hd_free(all);
    hd_hop_destroy(hop);
    return st;
}

void hd_hop_destroy(hd_hop *hop)
{
    if (hop == NULL) {
        return;
    }
    for (int i = 0; hop->exchange != NULL && i < hop->ntransfers; i++) {
        hd_exchange_destroy(hop->exchange[i]);
    }
    hd_free(hop->exchange);
    hd_link_destroy(hop->link);
    hd_free(hop->send_bytes);
    hd_free(hop->recv_bytes);
    hd_free(hop);
}

heddle_status hd_hop_start(hd_hop *hop, int index, const void *src, void *dst)
{
    heddle_status st = HEDDLE_OK;
    int64_t send = hop->send_bytes[index], recv = hop->recv_bytes[index];
    hop->index = index;
    hop->dst = dst;
    if (hop->to_near && send > 0) {
        uint64_t words[2] = {hd_comm_export(hop->comm, src, (size_t)send), (uint64_t)send};
        if (words[0] == 0) {
            return hd_fail(HEDDLE_ERR_INTERNAL, "rank %d: a block that travels is out of its peers' reach",
                           heddle_comm_rank(hop->comm));
        }
        hop->sent++;
        HD_TRY(hd_link_post(hop->link, hop->to, SLOT_READY, hop->sent, words, 2));
        hop->awaits_done = 1;
    }
    if (hop->from_near && recv > 0) {
        hop->received++;
        hop->awaits_ready = 1;
    }
    if ((!hop->to_near && send > 0) || (!hop->from_near && recv > 0)) {
        HD_TRY(hd_exchange_start(hop->exchange[index], src, dst));
        hop->awaits_messages = 1;
    }
out:
    return st;
}

static heddle_status take(hd_hop *hop, const uint64_t *words)
{
    int64_t wanted = hop->recv_bytes[hop->index];
    if (words[1] != (uint64_t)wanted) {
        return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d expects %lld bytes from rank %d, which sends %llu",
                       heddle_comm_rank(hop->comm), (long long)wanted, hop->from, (unsigned long long)words[1]);
    }
    memcpy(hop->dst, hd_comm_import(hop->comm, hop->from, words[0]), (size_t)wanted);
    hop->awaits_ready = 0;
    return hd_link_post(hop->link, hop->from, SLOT_DONE, hop->received, NULL, 0);
}

heddle_status hd_hop_progress(hd_hop *hop)
{
    heddle_status st = HEDDLE_OK;
    uint64_t words[2];
    int here = 0;
    if (hop == NULL || hop->index < 0) {
        return HEDDLE_OK;
    }
    if (hop->awaits_ready) {
        HD_TRY(hd_link_poll(hop->link, hop->from, SLOT_READY, hop->received, words, 2, &here));
        if (here) {
            HD_TRY(take(hop, words));
        }
    }
    if (hop->awaits_messages) {
        HD_TRY(hd_exchange_test(hop->exchange[hop->index], &here));
        hop->awaits_messages = !here;
    }
out:
    return st;
}

static heddle_status wait_for_messages(hd_hop *hop, int64_t deadline_ns)
{
    heddle_status st = HEDDLE_OK;
    for (int round = 0; hop->awaits_messages; round++) {
        HD_TRY(hd_hop_progress(hop));
        if (!hop->awaits_messages) {
            break;
        }
        HD_TRY(hd_comm_check(hop->comm));
        if (hd_now_ns() > deadline_ns) {
            st = hd_fail(HEDDLE_ERR_TIMEOUT,
                         "rank %d: messages to rank %d and from rank %d did not go through in time (ring transfer %d)",
                         heddle_comm_rank(hop->comm), hop->to, hop->from, hop->index);
            goto out;
        }
        hd_comm_relax(hop->comm, round);
    }
out:
    return st;
}

heddle_status hd_hop_wait(hd_hop *hop, hd_moved *moved)
{
    heddle_status st = HEDDLE_OK;
    uint64_t words[2];
    int64_t deadline_ns = hd_comm_deadline_ns(hop->comm, hop->deadline_ms);
    if (hop->awaits_ready) {
        HD_TRY(hd_link_wait(hop->link, hop->from, SLOT_READY, hop->received, words, 2, deadline_ns,
                            "attention: block of the ring"));
        HD_TRY(take(hop, words));
    }
    HD_TRY(wait_for_messages(hop, deadline_ns));
    if (hop->awaits_done) {
        HD_TRY(hd_link_wait(hop->link, hop->to, SLOT_DONE, hop->sent, NULL, 0, deadline_ns,
                            "attention: block taken by the next of the ring"));
        hop->awaits_done = 0;
    }
    moved->bytes += hop->send_bytes[hop->index];
    moved->messages += hop->send_bytes[hop->index] > 0;
    hop->index = -1;
out:
    return st;
}
