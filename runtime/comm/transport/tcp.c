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

static heddle_status wait_letter(hd_tcp *tcp, hd_letter **out, int from, int kind, int64_t deadline_ns)
{
    for (;;) {
        hd_tcp_turn(tcp);
        *out = hd_tcp_take(tcp, from, kind, 0); /* one that has come counts, whoever has gone since */
        if (*out != NULL) {
            return HEDDLE_OK;
        }
        if (tcp->aborted_by >= 0) {
            return hd_fail(HEDDLE_ERR_PEER, "rank %d gave up: %s", tcp->aborted_by, tcp->why);
        }
        if (tcp->peer[from].fd < 0 && from != tcp->rank) {
            return has_closed(from);
        }
        if (hd_interrupted(&tcp->patience.interrupt)) {
            return hd_fail(HEDDLE_ERR_INTERRUPTED, "rank %d was interrupted while it waited for rank %d", tcp->rank,
                           from);
        }
        if (hd_now_ns() > deadline_ns) {
            return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come before the deadline", tcp->rank, from);
        }
        hd_tcp_sleep(tcp);
    }
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
out:
    return st;
}

static heddle_status sendrecv(void *ctx, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes,
                              int from, int64_t deadline_ns)
{
    hd_tcp *tcp = ctx;
    hd_letter *l = NULL;
    heddle_status st = to < 0 ? HEDDLE_OK : hd_tcp_send(tcp, to, HD_LETTER_PAIR, send, send_bytes);
    if (st != HEDDLE_OK || from < 0) {
        return st;
    }
    st = wait_letter(tcp, &l, from, HD_LETTER_PAIR, deadline_ns);
    if (st == HEDDLE_OK) { /* heddle has compared the sizes */
        memcpy(recv, l->data, recv_bytes < l->head.bytes ? recv_bytes : l->head.bytes);
        hd_free(l);
    }
    return st;
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

typedef struct exchange {
    int n, tag;
    heddle_message *message;
    char *done;         /* of receives */
    hd_parcel **parcel; /* of sends: room for the packed bytes */
    unsigned char *dst;
} exchange;

static int64_t turns_of(const heddle_message *m)
{
    int64_t turns = 1;
    for (int l = 0; l < m->nloops; l++) {
        turns *= m->count[l];
    }
    return turns;
}

/* Every run of the message, in order, to `packed` or from there. */
static void walk(const heddle_message *m, unsigned char *buffer, unsigned char *packed, int pack)
{
    const int64_t turns = turns_of(m);
    for (int64_t k = 0; k < turns; k++) {
        int64_t rest = k, at = m->offset_bytes;
        for (int l = m->nloops - 1; l >= 0; l--) {
            at += rest % m->count[l] * m->stride_bytes[l];
            rest /= m->count[l];
        }
        memcpy(pack ? packed : buffer + at, pack ? buffer + at : packed, (size_t)m->run_bytes);
        packed += m->run_bytes;
    }
}

static void exchange_destroy(void *ctx, void *made)
{
    exchange *x = made;
    for (int i = 0; x != NULL && x->parcel != NULL && i < x->n; i++) {
        hd_tcp_forget(ctx, x->parcel[i]);
    }
    if (x != NULL) {
        HD_FREE_ALL(x->parcel, x->message, x->done, x);
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
    HD_TRY(hd_alloc((void **)&x->parcel, count, sizeof *x->parcel, what));
    for (x->n = 0; x->n < n; x->n++) {
        const heddle_message *m = &messages[x->n];
        const int64_t bytes = turns_of(m) * m->run_bytes;
        x->message[x->n] = *m;
        if (m->is_send && bytes > 0) {
            HD_TRY(hd_parcel_make(&x->parcel[x->n], ctx, m->peer, (size_t)bytes));
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
    x->dst = dst;
    for (int i = 0; i < x->n; i++) {
        const heddle_message *m = &x->message[i];
        x->done[i] = m->is_send || turns_of(m) * m->run_bytes == 0;
        if (x->parcel[i] != NULL) {
            walk(m, (unsigned char *)src, x->parcel[i]->data, 1);
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
            const int64_t wanted = turns_of(m) * m->run_bytes;
            const uint64_t found = l->head.bytes;
            if (found == (uint64_t)wanted) {
                walk(m, x->dst, l->data, 0);
            }
            hd_free(l);
            if (found != (uint64_t)wanted) {
                return hd_fail(HEDDLE_ERR_TRANSPORT, "rank %d: %llu bytes came from rank %d, wanted %lld", tcp->rank,
                               (unsigned long long)found, m->peer, (long long)wanted);
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

/* --- giving up ---------------------------------------------------------------------------------------------------- */

static heddle_status abort_send(void *ctx, const char *why)
{
    hd_tcp *tcp = ctx;
    heddle_status st = HEDDLE_OK;
    for (int r = 0; r < tcp->size; r++) {
        const heddle_status sent =
            r == tcp->rank ? HEDDLE_OK : hd_tcp_send(tcp, r, HD_LETTER_ABORT, why, strlen(why) + 1);
        st = st == HEDDLE_OK ? sent : st;
    }
    hd_tcp_turn(tcp);
    return st;
}

static heddle_status abort_poll(void *ctx, int *aborted_by, char *why, size_t why_bytes)
{
    hd_tcp *tcp = ctx;
    hd_tcp_turn(tcp);
    *aborted_by = tcp->aborted_by;
    snprintf(why, why_bytes, "%s", tcp->why);
    return HEDDLE_OK;
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
