/* Letters over the connections: what goes out, what comes in, and one turn of both. */
#include "sockets.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct parcel {
    parcel *next;
    int to; /* -1: not on its way */
    int is_copy;
    size_t sent;
    header head; /* followed by the bytes: one write for both */
    unsigned char data[];
};

enum { SLEEP_MS = 5, ASK_NS = 10000000 };

int64_t post_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- out ---------------------------------------------------------------------------------------------------------- */

parcel *parcel_make(size_t bytes)
{
    parcel *p = malloc(sizeof *p + bytes);
    if (p != NULL) {
        *p = (parcel){.to = -1, .head = {.bytes = bytes}};
    }
    return p;
}

unsigned char *parcel_data(parcel *p)
{
    return p->data;
}

int parcel_is_out(const parcel *p)
{
    return p != NULL && p->to >= 0;
}

void post_parcel(sockets *s, int to, int kind, int tag, parcel *p)
{
    peer *q = &s->peer[to];
    p->next = NULL;
    p->sent = 0;
    p->head.kind = kind;
    p->head.tag = tag;
    p->to = q->fd >= 0 ? to : -1;
    if (p->to >= 0) {
        *q->out_end = p;
        q->out_end = &p->next;
    }
}

static void deliver(sockets *s, int r, letter *l);

static heddle_status to_itself(sockets *s, int kind, const void *data, size_t bytes)
{
    letter *l = malloc(sizeof *l + bytes);
    if (l == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory to send %zu bytes", bytes);
    }
    l->head = (header){.bytes = bytes, .kind = kind};
    if (bytes > 0) {
        memcpy(l->data, data, bytes);
    }
    deliver(s, s->rank, l);
    return HEDDLE_OK;
}

heddle_status post_check(const sockets *s, int to, size_t bytes)
{
    return bytes <= LETTER_MAX_BYTES
               ? HEDDLE_OK
               : heddle_set_error(HEDDLE_ERR_UNSUPPORTED, "rank %d has %zu bytes for rank %d, a letter has at most %d",
                                  s->rank, bytes, to, (int)LETTER_MAX_BYTES);
}

heddle_status post_copy(sockets *s, int to, int kind, const void *data, size_t bytes)
{
    heddle_status st = post_check(s, to, bytes);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (to == s->rank) {
        return to_itself(s, kind, data, bytes);
    }
    parcel *p = s->peer[to].fd >= 0 ? parcel_make(bytes) : NULL;
    if (s->peer[to].fd < 0) {
        return HEDDLE_OK; /* whoever waits for that rank hears of it */
    }
    if (p == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory to send %zu bytes", bytes);
    }
    if (bytes > 0) {
        memcpy(p->data, data, bytes);
    }
    p->is_copy = 1;
    post_parcel(s, to, kind, 0, p);
    return HEDDLE_OK;
}

static void unlink_first(peer *q)
{
    parcel *p = q->out;
    q->out = p->next;
    q->out_end = q->out == NULL ? &q->out : q->out_end;
    p->to = -1;
    if (p->is_copy) {
        free(p);
    }
}

/* One that is half out takes its connection with it: the other side must not take what follows for the rest. */
void post_forget(sockets *s, parcel *p)
{
    if (p != NULL && p->to >= 0) {
        peer *q = &s->peer[p->to];
        if (p->sent > 0) {
            shutdown(q->fd, SHUT_WR);
        }
        for (parcel **at = &q->out; *at != NULL; at = &(*at)->next) {
            if (*at == p) {
                *at = p->next;
                q->out_end = *at == NULL ? at : q->out_end;
                break;
            }
        }
    }
    free(p);
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

static void note_end(sockets *s, int by, const char *why)
{
    if (s->aborted_by < 0) {
        s->aborted_by = by;
        snprintf(s->why, sizeof s->why, "%s", why);
    }
}

static void hang_up(sockets *s, int r, const char *why)
{
    peer *q = &s->peer[r];
    close(q->fd);
    q->fd = -1;
    while (q->out != NULL) {
        unlink_first(q);
    }
    if (!q->said_goodbye) {
        note_end(s, r, why);
    }
}

static void deliver(sockets *s, int r, letter *l)
{
    peer *q = &s->peer[r];
    if (l->head.kind == KIND_ABORT || l->head.kind == KIND_GOODBYE) {
        q->said_goodbye = 1;
        if (l->head.kind == KIND_ABORT) {
            note_end(s, r, l->head.bytes > 0 ? (const char *)l->data : "");
        }
        free(l);
        return;
    }
    l->next = NULL;
    *q->in_end = l;
    q->in_end = &l->next;
}

letter *post_take(sockets *s, int from, int kind, int tag)
{
    peer *q = &s->peer[from];
    for (letter **at = &q->in; *at != NULL; at = &(*at)->next) {
        letter *l = *at;
        if (l->head.kind == kind && l->head.tag == tag) {
            *at = l->next;
            q->in_end = *at == NULL ? at : q->in_end;
            return l;
        }
    }
    return NULL;
}

/* --- a turn ------------------------------------------------------------------------------------------------------- */

/* 1: more can be done at once. */
static int write_some(sockets *s, int r)
{
    peer *q = &s->peer[r];
    parcel *p = q->out;
    size_t whole = sizeof p->head + p->head.bytes;
    ssize_t wrote = send(q->fd, (const char *)&p->head + p->sent, whole - p->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0) {
        if (errno != EAGAIN && errno != EINTR && q->out == p) {
            while (q->out != NULL) { /* the reason is read from the other direction */
                unlink_first(q);
            }
        }
        return 0;
    }
    p->sent += (size_t)wrote;
    if (p->sent == whole) {
        unlink_first(q);
    }
    return 1;
}

static int begin_letter(sockets *s, int r)
{
    peer *q = &s->peer[r];
    q->coming = q->head.bytes <= LETTER_MAX_BYTES ? malloc(sizeof(letter) + q->head.bytes + 1) : NULL;
    if (q->coming == NULL) {
        char why[128];
        snprintf(why, sizeof why, "rank %d has no memory for %llu bytes of rank %d", s->rank,
                 (unsigned long long)q->head.bytes, r);
        hang_up(s, r, why);
        return 0;
    }
    q->coming->head = q->head;
    q->coming->filled = 0;
    q->coming->data[q->head.bytes] = 0;
    q->head_filled = 0;
    return 1;
}

static int read_some(sockets *s, int r)
{
    peer *q = &s->peer[r];
    letter *l = q->coming;
    char *into = l == NULL ? (char *)&q->head + q->head_filled : (char *)l->data + l->filled;
    size_t room = l == NULL ? sizeof q->head - q->head_filled : l->head.bytes - l->filled;
    ssize_t got = room > 0 ? recv(q->fd, into, room, MSG_DONTWAIT) : 0;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    if (got < 0 || (got == 0 && room > 0)) {
        hang_up(s, r, "its connection ended");
        return 0;
    }
    if (l == NULL) {
        q->head_filled += (size_t)got;
        return q->head_filled < sizeof q->head || begin_letter(s, r);
    }
    l->filled += (size_t)got;
    if (l->filled == l->head.bytes) {
        q->coming = NULL;
        deliver(s, r, l);
    }
    return 1;
}

void post_turn(sockets *s)
{
    for (int r = 0; r < s->size; r++) {
        while (s->peer[r].fd >= 0 && s->peer[r].out != NULL && write_some(s, r)) {
        }
        while (s->peer[r].fd >= 0 && read_some(s, r)) {
        }
    }
}

heddle_status post_interrupted(sockets *s)
{
    int64_t now_ns = post_now_ns();
    if (s->interrupt == NULL || now_ns - s->asked_ns < ASK_NS) {
        return HEDDLE_OK;
    }
    s->asked_ns = now_ns;
    return s->interrupt(s->interrupt_arg) == 0
               ? HEDDLE_OK
               : heddle_set_error(HEDDLE_ERR_INTERRUPTED, "rank %d was interrupted while it waited", s->rank);
}

void post_sleep(sockets *s)
{
    struct pollfd *fds = calloc((size_t)s->size, sizeof *fds);
    for (int r = 0; fds != NULL && r < s->size; r++) {
        fds[r] = (struct pollfd){.fd = s->peer[r].fd, .events = POLLIN};
        fds[r].events |= s->peer[r].out != NULL ? POLLOUT : 0;
    }
    if (fds != NULL) {
        poll(fds, (nfds_t)s->size, SLEEP_MS);
    }
    free(fds);
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

static int all_out(const sockets *s)
{
    for (int r = 0; r < s->size; r++) {
        if (s->peer[r].fd >= 0 && s->peer[r].out != NULL) {
            return 0;
        }
    }
    return 1;
}

void post_close(sockets *s)
{
    int64_t end_ns = post_now_ns() + 1000000000;
    for (int r = 0; s->peer != NULL && r < s->size && s->aborted_by < 0; r++) {
        (void)post_copy(s, r, KIND_GOODBYE, NULL, 0);
    }
    while (s->peer != NULL && !all_out(s) && post_now_ns() < end_ns) {
        post_turn(s);
        post_sleep(s);
    }
    for (int r = 0; s->peer != NULL && r < s->size; r++) {
        peer *q = &s->peer[r];
        if (q->fd >= 0) {
            q->said_goodbye = 1;
            hang_up(s, r, "");
        }
        free(q->coming);
        while (q->in != NULL) {
            letter *l = q->in;
            q->in = l->next;
            free(l);
        }
    }
    free(s->peer);
    free(s);
}
