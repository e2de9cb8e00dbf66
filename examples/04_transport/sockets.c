/* A transport from outside: messages over Unix sockets between processes. Written against the public headers only and
 * built into libheddle_sockets.so, it is what heddle_comm_open(&comm, "sockets", options) loads. docs/extending.md says
 * what each function owes to heddle.
 *
 * The processes are started by anybody, with HEDDLE_RANK, HEDDLE_SIZE and HEDDLE_KEY, and with SOCKETS_FOLDER, where
 * each of them has its socket. Every two ranks have one connection. Everything that goes over it is a letter: a header
 * and its bytes, in order. */
#include "sockets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* HEDDLE_ERR_PEER when a rank gave up or its connection ended. */
static heddle_status check(sockets *s)
{
    post_turn(s);
    if (s->aborted_by >= 0) {
        return heddle_set_error(HEDDLE_ERR_PEER, "rank %d gave up: %s", s->aborted_by, s->why);
    }
    return HEDDLE_OK;
}

static heddle_status wait_letter(sockets *s, letter **out, int from, int kind, int64_t deadline_ns)
{
    for (;;) {
        heddle_status st = check(s);
        *out = post_take(s, from, kind, 0);
        if (*out != NULL) {
            return HEDDLE_OK;
        }
        if (st == HEDDLE_OK && s->peer[from].fd < 0 && from != s->rank) {
            st = heddle_set_error(HEDDLE_ERR_PEER, "rank %d has closed its communicator", from);
        }
        st = st == HEDDLE_OK ? post_interrupted(s) : st;
        if (st != HEDDLE_OK) {
            return st;
        }
        if (post_now_ns() > deadline_ns) {
            return heddle_set_error(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come in time", s->rank, from);
        }
        post_sleep(s);
    }
}

/* --- small data --------------------------------------------------------------------------------------------------- */

/* Sent copies are the transport's own: a send never waits, and after a failure nothing of the caller's is touched. */
static heddle_status allgather(void *ctx, const void *send, void *recv, size_t bytes, int64_t deadline_ns)
{
    sockets *s = ctx;
    heddle_status st = HEDDLE_OK;
    for (int r = 0; r < s->size && st == HEDDLE_OK; r++) {
        st = r == s->rank ? HEDDLE_OK : post_copy(s, r, KIND_GATHER, send, bytes);
    }
    memcpy((char *)recv + (size_t)s->rank * bytes, send, bytes);
    for (int r = 0; r < s->size && st == HEDDLE_OK; r++) {
        letter *l = NULL;
        st = r == s->rank ? HEDDLE_OK : wait_letter(s, &l, r, KIND_GATHER, deadline_ns);
        if (l != NULL) {
            memcpy((char *)recv + (size_t)r * bytes, l->data, bytes);
            free(l);
        }
    }
    return st;
}

static heddle_status sendrecv(void *ctx, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes,
                              int from, int64_t deadline_ns)
{
    sockets *s = ctx;
    letter *l = NULL;
    heddle_status st = to < 0 ? HEDDLE_OK : post_copy(s, to, KIND_PAIR, send, send_bytes);
    if (st != HEDDLE_OK || from < 0) {
        return st;
    }
    st = wait_letter(s, &l, from, KIND_PAIR, deadline_ns);
    if (st == HEDDLE_OK) {
        memcpy(recv, l->data, recv_bytes); /* heddle has compared the sizes */
        free(l);
    }
    return st;
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

typedef struct exchange {
    int n, tag;
    heddle_message *message;
    int *done;       /* of receives */
    parcel **parcel; /* of sends: room for the packed bytes, made once */
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

/* Every run of the message, in order; packed is written when `pack`, read otherwise. */
static void walk(const heddle_message *m, unsigned char *buffer, unsigned char *packed, int pack)
{
    int64_t turns = turns_of(m);
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
    for (int i = 0; x->parcel != NULL && i < x->n; i++) {
        post_forget(ctx, x->parcel[i]);
    }
    free(x->parcel);
    free(x->message);
    free(x->done);
    free(x);
}

static heddle_status exchange_create(void *ctx, void **out, const heddle_message *messages, int n, int tag)
{
    sockets *s = ctx;
    exchange *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for an exchange of %d messages", n);
    }
    x->n = n;
    x->tag = tag;
    x->message = calloc((size_t)n + 1, sizeof *x->message);
    x->done = calloc((size_t)n + 1, sizeof *x->done);
    x->parcel = calloc((size_t)n + 1, sizeof(parcel *));
    int whole = x->message != NULL && x->done != NULL && x->parcel != NULL;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; st == HEDDLE_OK && whole && i < n; i++) {
        size_t bytes = (size_t)(turns_of(&messages[i]) * messages[i].run_bytes);
        int has_parcel = messages[i].is_send && bytes > 0;
        x->message[i] = messages[i];
        st = post_check(s, messages[i].peer, bytes);
        x->parcel[i] = st == HEDDLE_OK && has_parcel ? parcel_make(bytes) : NULL;
        whole = !has_parcel || x->parcel[i] != NULL;
    }
    if (st != HEDDLE_OK || !whole) {
        exchange_destroy(s, x);
        return st != HEDDLE_OK ? st : heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for an exchange of %d messages", n);
    }
    *out = x;
    return HEDDLE_OK;
}

static heddle_status exchange_start(void *ctx, void *made, const void *src, void *dst)
{
    sockets *s = ctx;
    exchange *x = made;
    x->dst = dst;
    for (int i = 0; i < x->n; i++) {
        const heddle_message *m = &x->message[i];
        x->done[i] = m->is_send || turns_of(m) * m->run_bytes == 0;
        if (x->parcel[i] != NULL) {
            walk(m, (unsigned char *)src, parcel_data(x->parcel[i]), 1);
            post_parcel(s, m->peer, KIND_EXCHANGE, x->tag, x->parcel[i]);
        }
    }
    post_turn(s);
    return HEDDLE_OK;
}

/* One turn of the post first, so that no letter can come between two messages of one peer: they match in order. */
static heddle_status exchange_test(void *ctx, void *made, int *done)
{
    sockets *s = ctx;
    exchange *x = made;
    post_turn(s);
    *done = 1;
    for (int i = 0; i < x->n; i++) {
        const heddle_message *m = &x->message[i];
        letter *l = x->done[i] ? NULL : post_take(s, m->peer, KIND_EXCHANGE, x->tag);
        if (l != NULL) {
            walk(m, x->dst, l->data, 0);
            x->done[i] = 1;
            free(l);
        }
        *done = *done && x->done[i] && !parcel_is_out(x->parcel[i]);
    }
    return HEDDLE_OK;
}

static int exchange_missing(void *ctx, void *made, int *peers, int capacity)
{
    (void)ctx;
    const exchange *x = made;
    int n = 0;
    for (int i = 0; i < x->n && n < capacity; i++) {
        if (!x->done[i] || parcel_is_out(x->parcel[i])) {
            peers[n++] = x->message[i].peer;
        }
    }
    return n;
}

/* --- giving up ---------------------------------------------------------------------------------------------------- */

static heddle_status abort_send(void *ctx, const char *why)
{
    sockets *s = ctx;
    for (int r = 0; r < s->size; r++) {
        if (r != s->rank) {
            post_copy(s, r, KIND_ABORT, why, strlen(why) + 1);
        }
    }
    post_turn(s);
    return HEDDLE_OK;
}

static heddle_status abort_poll(void *ctx, int *aborted_by, char *why, size_t why_bytes)
{
    sockets *s = ctx;
    post_turn(s);
    *aborted_by = s->aborted_by;
    snprintf(why, why_bytes, "%s", s->why);
    return HEDDLE_OK;
}

static void destroy(void *ctx)
{
    post_close(ctx);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

heddle_status heddle_transport_open_v1(heddle_comm **out, const heddle_comm_options *options);

__attribute__((visibility("default"))) heddle_status heddle_transport_open_v1(heddle_comm **out,
                                                                              const heddle_comm_options *options)
{
    sockets *s = NULL;
    heddle_status st = post_open(&s, options);
    if (st != HEDDLE_OK) {
        return st;
    }
    const heddle_transport table = {
        .struct_bytes = sizeof table,
        .name = "sockets",
        .rank = s->rank,
        .size = s->size,
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
        .link = HEDDLE_LINK_MEMORY, /* the kernel copies twice */
    };
    st = heddle_comm_from_callbacks(out, &table, s, options);
    if (st != HEDDLE_OK) {
        destroy(s);
    }
    return st;
}
