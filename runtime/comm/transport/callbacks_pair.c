/* Send and receive between ranks of a transport: sizes are compared before a message travels. */
#include "runtime/comm/comm_private.h"
#include "runtime/comm/transport/callbacks.h"

#include <string.h>

enum { SHORT_BYTES = 512 };

/* What goes ahead of a message: its size, and all of a small one. */
typedef struct short_message {
    uint64_t bytes;
    unsigned char data[SHORT_BYTES];
} short_message;

static heddle_status sizes_differ(const heddle_comm *comm, const char *verb, size_t bytes, const char *peer_verb,
                                  int peer, uint64_t theirs)
{
    return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d %s %zu bytes, rank %d %s %llu", comm->rank, verb, bytes, peer,
                   peer_verb, (unsigned long long)theirs);
}

/* The sender's size goes ahead, the receiver's comes back; then both know whether the message itself may follow. */
heddle_status hd_callbacks_sendrecv(heddle_comm *comm, const heddle_transport *t, void *ctx, const hd_two_way *way)
{
    heddle_status st = HEDDLE_OK;
    const size_t send_bytes = way->send_bytes, recv_bytes = way->recv_bytes;
    const int to = way->to, from = way->from;
    int64_t deadline_ns = hd_comm_deadline_ns(comm, 0);
    short_message out = {.bytes = send_bytes}, in = {.bytes = 0};
    uint64_t wanted = recv_bytes, theirs = 0;
    if (to >= 0 && send_bytes > 0 && send_bytes <= SHORT_BYTES) {
        memcpy(out.data, way->send, send_bytes);
    }
    HD_TRY(t->sendrecv(ctx, &out, to >= 0 ? sizeof out : 0, to, &in, from >= 0 ? sizeof in : 0, from, deadline_ns));
    HD_TRY(t->sendrecv(ctx, &wanted, from >= 0 ? sizeof wanted : 0, from, &theirs, to >= 0 ? sizeof theirs : 0, to,
                       deadline_ns));
    int sends = to >= 0 && theirs == send_bytes, receives = from >= 0 && in.bytes == recv_bytes;
    int far_to = sends && send_bytes > SHORT_BYTES ? to : -1;
    int far_from = receives && recv_bytes > SHORT_BYTES ? from : -1;
    if (far_to >= 0 || far_from >= 0) {
        HD_TRY(t->sendrecv(ctx, way->send, far_to >= 0 ? send_bytes : 0, far_to, way->recv,
                           far_from >= 0 ? recv_bytes : 0, far_from, deadline_ns));
    }
    if (receives && far_from < 0 && recv_bytes > 0) {
        memcpy(way->recv, in.data, recv_bytes);
    }
    if (from >= 0 && !receives) {
        st = sizes_differ(comm, "expects", recv_bytes, "sends it", from, in.bytes);
    } else if (to >= 0 && !sends) {
        st = sizes_differ(comm, "sends", send_bytes, "expects", to, theirs);
    }
out:
    return st;
}
