/* Send and receive at the same time between ranks that share memory.
 *
 * The sender announces a part: its name in the sender's memory, its bytes, the bytes of the whole message. The receiver
 * copies and acknowledges. Memory that peers can reach is one part, read where it lies; other memory goes through two
 * halves of a stage. Announcements alternate between two slots, because two may be under way.
 */
#include "runtime/comm/comm_private.h"

#include <string.h>

enum { SLOT_ANNOUNCE = 0, SLOT_ACK = 2, UNDER_WAY = 2 };

typedef struct sender {
    const unsigned char *data;
    size_t bytes;
    size_t announced;
    int to; /* -1: nothing to send */
    uint64_t name;
    uint64_t first; /* sequence of the first part */
    uint64_t next;  /* of the next one */
    uint64_t acked;
    int refused; /* the receiver expected another size */
    int done;
} sender;

typedef struct receiver {
    unsigned char *data;
    size_t bytes;
    size_t got;
    size_t announced; /* size of the whole message as the sender sees it */
    int from;
    uint64_t next;
    int done;
} receiver;

static void announce(heddle_comm *comm, sender *s)
{
    size_t left = s->bytes - s->announced;
    uint64_t words[3] = {s->name, left, s->bytes};
    if (s->name == 0) {
        size_t part = left < HD_OUTBOX_BYTES ? left : HD_OUTBOX_BYTES;
        unsigned char *half = comm->pair_stage + (s->next & 1) * HD_OUTBOX_BYTES;
        memcpy(half, s->data + s->announced, part);
        words[0] = hd_group_export(comm->group, half, part);
        words[1] = part;
    }
    hd_link_put(comm->pair, s->to, SLOT_ANNOUNCE + (int)(s->next & 1), s->next, words, 3);
    s->announced += words[1];
    s->next++;
}

static heddle_status step_send(heddle_comm *comm, sender *s, int *moved)
{
    heddle_status st = HEDDLE_OK;
    int arrived = 0;
    uint64_t refused = 0;
    while (s->acked < s->next) {
        HD_TRY(hd_link_poll(comm->pair, s->to, SLOT_ACK, s->acked, &refused, 1, &arrived));
        if (!arrived) {
            break;
        }
        s->refused |= refused == s->first;
        s->acked++;
        *moved = 1;
    }
    int first = s->next == s->first;
    if ((s->announced < s->bytes || first) && s->next - s->acked < UNDER_WAY) {
        announce(comm, s);
        *moved = 1;
    }
    s->done = s->announced == s->bytes && s->acked == s->next;
out:
    return st;
}

/* A message of the wrong size is taken in all the same (its bytes go nowhere), so that both sides learn of it. */
static heddle_status step_receive(heddle_comm *comm, receiver *r, uint64_t first, int *moved)
{
    heddle_status st = HEDDLE_OK;
    int arrived = 0;
    uint64_t words[3];
    HD_TRY(hd_link_poll(comm->pair, r->from, SLOT_ANNOUNCE + (int)(r->next & 1), r->next, words, 3, &arrived));
    if (!arrived) {
        goto out;
    }
    if (comm->group->team != NULL && !hd_link_claim(comm->pair, r->from, r->next)) {
        goto out; /* the sender gave up: its reason is on the way */
    }
    *moved = 1;
    r->announced = words[2];
    int wrong = r->announced != r->bytes;
    if (!wrong && words[1] > 0) {
        memcpy(r->data + r->got, hd_group_import(comm->group, comm->member[r->from], words[0]), words[1]);
    }
    r->got += words[1];
    uint64_t refused = wrong ? first : 0;
    hd_link_put(comm->pair, r->from, SLOT_ACK, r->next, &refused, 1);
    r->next++;
    r->done = r->got == r->announced;
out:
    return st;
}

static heddle_status look(heddle_comm *comm, const sender *s, const receiver *r, int64_t *deadline_ns)
{
    int late = 0;
    int peer = r->done ? s->to : r->from;
    heddle_status st = hd_wait_look(comm, deadline_ns, &late);
    if (late) {
        return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not %s in time (sendrecv)",
                       hd_comm_root_rank(comm, comm->rank), hd_comm_root_rank(comm, peer),
                       r->done ? "receive" : "send");
    }
    for (int side = 0; side < 2 && st == HEDDLE_OK; side++) {
        peer = side == 0 ? (s->done ? -1 : s->to) : (r->done ? -1 : r->from);
        if (peer >= 0 && hd_group_left(comm->group, comm->member[peer])) {
            st = hd_group_closed(comm->group, comm->member[peer], "sendrecv");
        }
    }
    return st;
}

static heddle_status finish(heddle_comm *comm, const sender *s, const receiver *r)
{
    if (r->from >= 0 && r->announced != r->bytes) {
        return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d expects %zu bytes from rank %d, which sends %zu",
                       hd_comm_root_rank(comm, comm->rank), r->bytes, hd_comm_root_rank(comm, r->from), r->announced);
    }
    if (s->refused) {
        return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d sends %zu bytes to rank %d, which expects another number",
                       hd_comm_root_rank(comm, comm->rank), s->bytes, hd_comm_root_rank(comm, s->to));
    }
    return HEDDLE_OK;
}

/* After a failure: when this returns, nobody reads the caller's memory any more. A reader that was faster is copying at
 * this moment. */
static void take_back(heddle_comm *comm, const sender *s)
{
    int64_t deadline_ns = hd_comm_deadline_ns(comm, 0);
    for (uint64_t part = s->acked; part < s->next && comm->group->team != NULL; part++) {
        int arrived = hd_link_revoke(comm->pair, s->to, part);
        while (!arrived && hd_now_ns() < deadline_ns) {
            heddle_status st = hd_link_poll(comm->pair, s->to, SLOT_ACK, part, NULL, 0, &arrived);
            arrived |= st != HEDDLE_OK;
            sched_yield();
        }
    }
}

heddle_status hd_pair_sendrecv(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                               size_t recv_bytes, int from)
{
    heddle_status st = HEDDLE_OK;
    hd_group *group = comm->group;
    sender s = {.data = send, .bytes = send_bytes, .to = to, .done = to < 0};
    receiver r = {.data = recv, .bytes = recv_bytes, .from = from, .done = from < 0};
    uint64_t first = 0;
    int64_t deadline_ns = 0;
    if (to >= 0) {
        s.first = s.next = s.acked = comm->pair_sent[to] + 1;
        s.name = hd_group_export(group, send, send_bytes);
    }
    if (from >= 0) {
        first = r.next = comm->pair_received[from] + 1;
    }
    for (int round = 0; !s.done || !r.done; round++) {
        int moved = 0;
        int late = hd_wait_looks(group, round);
        st = late ? look(comm, &s, &r, &deadline_ns) : HEDDLE_OK; /* after the look, one more try */
        heddle_status seen = st;
        if (!s.done) {
            HD_TRY(step_send(comm, &s, &moved));
        }
        if (!r.done) {
            HD_TRY(step_receive(comm, &r, first, &moved));
        }
        HD_TRY(moved ? HEDDLE_OK : seen);
        round = moved ? -1 : round;
        hd_group_relax(group, moved ? 0 : round);
    }
    st = finish(comm, &s, &r);
out:
    hd_group_disarm(group);
    if (!s.done) {
        take_back(comm, &s);
    }
    if (to >= 0) {
        comm->pair_sent[to] = s.next - 1;
    }
    if (from >= 0) {
        comm->pair_received[from] = r.next - 1;
    }
    return st;
}
