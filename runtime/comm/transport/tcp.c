/* The table of a message transport over TCP (heddle/sys/transport.h). All that goes between two ranks is a letter of
 * their one connection: a header and its bytes, in order. */
#include "runtime/comm/transport/tcp.h"
#include "runtime/base/base.h"
#include "runtime/comm/transport/tcp_post.h"

#include <stdio.h>
#include <string.h>

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static heddle_status has_closed(int rank)
{
    return hd_fail(HEDDLE_ERR_PEER, "rank %d has closed its communicator", rank);
}

static heddle_status look_for_end(const hd_tcp *tcp)
{
    if (tcp->aborted_by == tcp->rank) {
        return hd_fail(HEDDLE_ERR_NOMEM, "%s", tcp->why);
    }
    return tcp->aborted_by < 0 ? HEDDLE_OK : hd_fail(HEDDLE_ERR_PEER, "rank %d gave up: %s", tcp->aborted_by, tcp->why);
}

/* Between two looks at what rank `peer` has sent, or takes: is there anything to wait for? */
static heddle_status wait_more(hd_tcp *tcp, int peer, int64_t deadline_ns)
{
    heddle_status st;
    HD_TRY(look_for_end(tcp));
    if (tcp->peer[peer].fd < 0 && peer != tcp->rank) {
        return has_closed(peer);
    }
    if (hd_interrupted(&tcp->patience.interrupt)) {
        return hd_fail(HEDDLE_ERR_INTERRUPTED, "rank %d was interrupted while it waited for rank %d", tcp->rank, peer);
    }
    if (hd_now_ns() > deadline_ns) {
        return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come before the deadline", tcp->rank, peer);
    }
    hd_tcp_sleep(tcp);
out:
    return st;
}

static heddle_status wait_letter(hd_tcp *tcp, hd_letter **out, int from, int kind, int64_t deadline_ns)
{
    heddle_status st;
    for (;;) {
        hd_tcp_turn(tcp);
        *out = hd_tcp_take(tcp, from, kind, 0); /* one that has come counts, whoever has gone since */
        if (*out != NULL) {
            return HEDDLE_OK;
        }
        HD_TRY(wait_more(tcp, from, deadline_ns));
    }
out:
    return st;
}

/* --- small data --------------------------------------------------------------------------------------------------- */

/* Sent copies are the transport's own: a send never waits, and after a failure nothing of the caller's is touched. */
static heddle_status allgather(void *ctx, const void *send, void *recv, size_t bytes, int64_t deadline_ns)
{
    hd_tcp *tcp = ctx;
    heddle_status st = HEDDLE_OK;
    for (int r = 0; r < tcp->size; r++) {
        HD_TRY(r == tcp->rank ? HEDDLE_OK : hd_tcp_send(tcp, r, HD_LETTER_GATHER, send, bytes));
    }
    memcpy((char *)recv + (size_t)tcp->rank * bytes, send, bytes);
    for (int r = 0; r < tcp->size; r++) {
        hd_letter *l = NULL;
        HD_TRY(r == tcp->rank ? HEDDLE_OK : wait_letter(tcp, &l, r, HD_LETTER_GATHER, deadline_ns));
        if (l != NULL) {
            memcpy((char *)recv + (size_t)r * bytes, l->data, bytes < l->head.bytes ? bytes : l->head.bytes);
            hd_free(l);
        }
    }
    while (!hd_tcp_all_out(tcp) && tcp->aborted_by < 0 && hd_now_ns() < deadline_ns) {
        hd_tcp_turn(tcp); /* the others are here until they have it, and this rank may not come back for long */
        hd_tcp_sleep(tcp);
    }
out:
    return st;
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

typedef struct exchange {
    int n, tag;
    heddle_message *message;
    char *done;          /* of receives */
    hd_parcel **parcel;  /* of sends */
    hd_landing *landing; /* of receives */
} exchange;

static void exchange_destroy(void *ctx, void *made)
{
    exchange *x = made;
    for (int i = 0; x != NULL && x->parcel != NULL && i < x->n; i++) {
        hd_tcp_forget(ctx, x->parcel[i]);
        hd_tcp_expect_not(ctx, x->message[i].peer, &x->landing[i]);
    }
    if (x != NULL) {
        HD_FREE_ALL(x->parcel, x->landing, x->message, x->done, x);
    }
}

static heddle_status exchange_create(void *ctx, void **out, const heddle_message *messages, int n, int tag)
{
    static const char what[] = "an exchange over TCP";
    heddle_status st;
    exchange *x = NULL;
    const size_t count = (size_t)n + 1;
    HD_TRY(hd_alloc((void **)&x, 1, sizeof *x, what));
    x->tag = tag;
    HD_TRY(hd_alloc((void **)&x->message, count, sizeof *x->message, what));
    HD_TRY(hd_alloc((void **)&x->done, count, sizeof *x->done, what));
    HD_TRY(hd_alloc((void **)&x->landing, count, sizeof *x->landing, what));
    HD_TRY(hd_alloc((void **)&x->parcel, count, sizeof *x->parcel, what));
    for (x->n = 0; x->n < n; x->n++) {
        heddle_message *m = &x->message[x->n];
        *m = messages[x->n];
        x->landing[x->n] = (hd_landing){.tag = tag, .message = m, .done = &x->done[x->n]};
        if (m->is_send && hd_message_bytes(m) > 0) {
            HD_TRY(hd_parcel_make_message(&x->parcel[x->n], ctx, m));
        }
    }
    *out = x;
    x = NULL;
out:
    exchange_destroy(ctx, x);
    return st;
}

static heddle_status exchange_start(void *ctx, void *made, const void *src, void *dst)
{
    hd_tcp *tcp = ctx;
    exchange *x = made;
    for (int i = 0; i < x->n; i++) {
        const heddle_message *m = &x->message[i];
        x->done[i] = m->is_send || hd_message_bytes(m) == 0;
        if (!x->done[i]) {
            x->landing[i].dst = dst;
            hd_tcp_expect(tcp, m->peer, &x->landing[i]);
        } else if (x->parcel[i] != NULL) {
            x->parcel[i]->src = src;
            hd_tcp_post(tcp, m->peer, HD_LETTER_EXCHANGE, x->tag, x->parcel[i]);
        }
    }
    hd_tcp_turn(tcp);
    return HEDDLE_OK;
}

static int is_out(const hd_parcel *parcel)
{
    return parcel != NULL && parcel->to >= 0;
}

/* One turn of the post first, so that no letter can come between two messages of one peer: they match in order. */
static heddle_status exchange_test(void *ctx, void *made, int *done)
{
    hd_tcp *tcp = ctx;
    exchange *x = made;
    hd_tcp_turn(tcp);
    *done = 1;
    for (int i = 0; i < x->n; i++) {
        const heddle_message *m = &x->message[i];
        hd_letter *l = x->done[i] ? NULL : hd_tcp_take(tcp, m->peer, HD_LETTER_EXCHANGE, x->tag);
        if (l != NULL) {
            const size_t wanted = hd_message_bytes(m), found = l->head.bytes;
            hd_tcp_expect_not(tcp, m->peer, &x->landing[i]);
            if (found == wanted) {
                hd_message_unpack(m, x->landing[i].dst, 0, l->data, wanted);
            }
            hd_free(l);
            if (found != wanted) {
                return hd_fail(HEDDLE_ERR_TRANSPORT, "rank %d: %zu bytes came from rank %d, wanted %zu", tcp->rank,
                               found, m->peer, wanted);
            }
            x->done[i] = 1;
        } else if (!x->done[i] && tcp->peer[m->peer].fd < 0 && m->peer != tcp->rank && tcp->aborted_by < 0) {
            return has_closed(m->peer);
        }
        *done = *done && x->done[i] && !is_out(x->parcel[i]);
    }
    return HEDDLE_OK;
}

static int exchange_missing(void *ctx, void *made, int *peers, int capacity)
{
    const exchange *x = made;
    int n = 0;
    (void)ctx;
    for (int i = 0; i < x->n && n < capacity; i++) {
        if (!x->done[i] || is_out(x->parcel[i])) {
            peers[n++] = x->message[i].peer;
        }
    }
    return n;
}

/* --- between two ranks -------------------------------------------------------------------------------------------- */

/* What is large goes from its place, and to it, as an exchange of the two ranks; the rest is a letter, for which its
 * sender does not wait. */
static int is_large(const hd_tcp *tcp, int peer, size_t bytes)
{
    return peer >= 0 && peer != tcp->rank && bytes >= HD_TCP_PIECE_BYTES;
}

static heddle_status pass_large(hd_tcp *tcp, const heddle_message *messages, int n, const void *send, void *recv,
                                int64_t deadline_ns)
{
    heddle_status st;
    void *x = NULL;
    int done = 0;
    HD_TRY(exchange_create(tcp, &x, messages, n, HD_TCP_PAIR_TAG));
    HD_TRY(exchange_start(tcp, x, send, recv));
    HD_TRY(exchange_test(tcp, x, &done));
    while (!done) {
        int peer = messages[0].peer;
        (void)exchange_missing(tcp, x, &peer, 1);
        HD_TRY(wait_more(tcp, peer, deadline_ns));
        HD_TRY(exchange_test(tcp, x, &done));
    }
out:
    exchange_destroy(tcp, x);
    return st;
}

static heddle_status sendrecv(void *ctx, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes,
                              int from, int64_t deadline_ns)
{
    hd_tcp *tcp = ctx;
    heddle_status st = HEDDLE_OK;
    heddle_message large[2];
    hd_letter *l = NULL;
    int n = 0;
    const int sends_large = is_large(tcp, to, send_bytes), receives_large = is_large(tcp, from, recv_bytes);
    if (sends_large) {
        large[n++] = (heddle_message){.peer = to, .is_send = 1, .run_bytes = (int64_t)send_bytes};
    }
    if (receives_large) {
        large[n++] = (heddle_message){.peer = from, .run_bytes = (int64_t)recv_bytes};
    }
    HD_TRY(to < 0 || sends_large ? HEDDLE_OK : hd_tcp_send(tcp, to, HD_LETTER_PAIR, send, send_bytes));
    HD_TRY(n > 0 ? pass_large(tcp, large, n, send, recv, deadline_ns) : HEDDLE_OK);
    if (from >= 0 && !receives_large) {
        HD_TRY(wait_letter(tcp, &l, from, HD_LETTER_PAIR, deadline_ns));
        memcpy(recv, l->data, recv_bytes < l->head.bytes ? recv_bytes : l->head.bytes); /* heddle has compared them */
        hd_free(l);
    }
out:
    return st;
}

/* --- giving up ---------------------------------------------------------------------------------------------------- */

static heddle_status abort_send(void *ctx, const char *why)
{
    hd_tcp *tcp = ctx;
    const heddle_status st = hd_tcp_tell_end(tcp, tcp->rank, why);
    hd_tcp_turn(tcp);
    return st;
}

static heddle_status abort_poll(void *ctx, int *aborted_by, char *why, size_t why_bytes)
{
    hd_tcp *tcp = ctx;
    hd_tcp_turn(tcp);
    *aborted_by = tcp->aborted_by;
    snprintf(why, why_bytes, "%s", tcp->why);
    return tcp->aborted_by == tcp->rank ? look_for_end(tcp) : HEDDLE_OK;
}

static void destroy(void *ctx)
{
    hd_tcp_close(ctx);
}

heddle_transport hd_tcp_table(const hd_tcp *tcp)
{
    return (heddle_transport){
        .struct_bytes = sizeof(heddle_transport),
        .name = "tcp",
        .rank = tcp->rank,
        .size = tcp->size,
        .allgather = allgather,
        .exchange_create = exchange_create,
        .exchange_start = exchange_start,
        .exchange_test = exchange_test,
        .exchange_destroy = exchange_destroy,
        .sendrecv = sendrecv,
        .abort_send = abort_send,
        .abort_poll = abort_poll,
        .destroy = destroy,
        .exchange_missing = exchange_missing,
        .link = HEDDLE_LINK_NETWORK,
    };
}
