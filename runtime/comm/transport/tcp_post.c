/* Letters over the connections: what goes out, what comes in, and one turn of both. */
#include "runtime/comm/transport/tcp_post.h"
#include "runtime/base/base.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLEEP_MS = 5 };

/* --- out ---------------------------------------------------------------------------------------------------------- */

static heddle_status check_length(const hd_tcp *tcp, int to, size_t bytes)
{
    return bytes <= HD_LETTER_BYTES
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_UNSUPPORTED, "rank %d has %zu bytes for rank %d, a message over TCP has at most %d",
                         tcp->rank, bytes, to, (int)HD_LETTER_BYTES);
}

static heddle_status make_parcel(hd_parcel **out, const hd_tcp *tcp, int to, size_t bytes, size_t room)
{
    heddle_status st = check_length(tcp, to, bytes);
    st = st == HEDDLE_OK ? hd_alloc((void **)out, 1, sizeof **out + room, "a message over TCP") : st;
    if (st == HEDDLE_OK) {
        (*out)->to = -1;
        (*out)->head.bytes = bytes;
    }
    return st;
}

heddle_status hd_parcel_make(hd_parcel **out, const hd_tcp *tcp, int to, size_t bytes)
{
    return make_parcel(out, tcp, to, bytes, bytes);
}

heddle_status hd_parcel_make_message(hd_parcel **out, const hd_tcp *tcp, const heddle_message *message)
{
    heddle_status st = make_parcel(out, tcp, message->peer, hd_message_bytes(message), 0);
    if (st == HEDDLE_OK) {
        (*out)->message = message;
    }
    return st;
}

void hd_tcp_post(hd_tcp *tcp, int to, int kind, int tag, hd_parcel *parcel)
{
    hd_tcp_peer *q = &tcp->peer[to];
    parcel->next = NULL;
    parcel->sent = 0;
    parcel->head.kind = kind;
    parcel->head.tag = tag;
    parcel->to = q->fd >= 0 ? to : -1; /* whoever waits for that rank hears of it */
    if (parcel->to >= 0) {
        *q->out_end = parcel;
        q->out_end = &parcel->next;
    }
}

static void deliver(hd_tcp *tcp, int r, hd_letter *l);

static heddle_status send_to_itself(hd_tcp *tcp, int kind, const void *data, size_t bytes)
{
    hd_letter *l = NULL;
    heddle_status st = check_length(tcp, tcp->rank, bytes);
    st = st == HEDDLE_OK ? hd_alloc((void **)&l, 1, sizeof *l + bytes, "a message to itself") : st;
    if (st == HEDDLE_OK) {
        l->head = (hd_letter_head){.bytes = bytes, .kind = kind};
        memcpy(l->data, data, bytes);
        deliver(tcp, tcp->rank, l);
    }
    return st;
}

static heddle_status send_tagged(hd_tcp *tcp, int to, int kind, int tag, const void *data, size_t bytes)
{
    heddle_status st;
    hd_parcel *p = NULL;
    if (to == tcp->rank) {
        return send_to_itself(tcp, kind, data, bytes);
    }
    HD_TRY(hd_parcel_make(&p, tcp, to, bytes));
    if (bytes > 0) {
        memcpy(p->data, data, bytes);
    }
    p->is_for_one = 1;
    hd_tcp_post(tcp, to, kind, tag, p);
    if (p->to < 0) {
        hd_free(p);
    }
out:
    return st;
}

heddle_status hd_tcp_send(hd_tcp *tcp, int to, int kind, const void *data, size_t bytes)
{
    return send_tagged(tcp, to, kind, 0, data, bytes);
}

heddle_status hd_tcp_tell_end(hd_tcp *tcp, int by, const char *why)
{
    heddle_status st = HEDDLE_OK;
    for (int r = 0; r < tcp->size; r++) {
        const int told = r == tcp->rank || r == by;
        const heddle_status sent =
            told ? HEDDLE_OK : send_tagged(tcp, r, HD_LETTER_ABORT, 1 + by, why, strlen(why) + 1);
        st = st == HEDDLE_OK ? sent : st;
    }
    return st;
}

static void unlink_first(hd_tcp_peer *q)
{
    hd_parcel *p = q->out;
    q->out = p->next;
    q->out_end = q->out == NULL ? &q->out : q->out_end;
    p->to = -1;
    if (p->is_for_one) {
        hd_free(p);
    }
}

/* One that is half out takes its connection with it: the other side must not take what follows for the rest. */
void hd_tcp_forget(hd_tcp *tcp, hd_parcel *parcel)
{
    if (parcel != NULL && parcel->to >= 0) {
        hd_tcp_peer *q = &tcp->peer[parcel->to];
        if (parcel->sent > 0) {
            shutdown(q->fd, SHUT_WR);
            q->is_silenced = 1;
        }
        for (hd_parcel **at = &q->out; *at != NULL; at = &(*at)->next) {
            if (*at == parcel) {
                *at = parcel->next;
                q->out_end = *at == NULL ? at : q->out_end;
                break;
            }
        }
    }
    hd_free(parcel);
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

/* The first end that is told stays; one that nobody told, only until the word of who gave up comes. */
static void note_end(hd_tcp *tcp, int by, const char *why)
{
    if (tcp->aborted_by < 0 || tcp->is_guess) {
        tcp->aborted_by = by;
        tcp->is_guess = 0;
        snprintf(tcp->why, sizeof tcp->why, "%s", why);
    }
}

void hd_tcp_hang_up(hd_tcp *tcp, int r, const char *why)
{
    hd_tcp_peer *q = &tcp->peer[r];
    close(q->fd);
    q->fd = -1;
    while (q->out != NULL) {
        unlink_first(q);
    }
    if (!q->said_goodbye && tcp->aborted_by < 0) {
        note_end(tcp, r, why);
        tcp->is_guess = 1;
    }
}

static void deliver(hd_tcp *tcp, int r, hd_letter *l)
{
    hd_tcp_peer *q = &tcp->peer[r];
    if (l->head.kind == HD_LETTER_ABORT || l->head.kind == HD_LETTER_GOODBYE) {
        q->said_goodbye = 1;
        if (l->head.kind == HD_LETTER_ABORT) {
            const int by = l->head.tag - 1; /* not what a damaged header says, nor this rank, which knows better */
            note_end(tcp, by >= 0 && by < tcp->size && by != tcp->rank ? by : r, (const char *)l->data);
        }
        hd_free(l);
        return;
    }
    l->next = NULL;
    *q->in_end = l;
    q->in_end = &l->next;
}

hd_letter *hd_tcp_take(hd_tcp *tcp, int from, int kind, int tag)
{
    hd_tcp_peer *q = &tcp->peer[from];
    for (hd_letter **at = &q->in; *at != NULL; at = &(*at)->next) {
        hd_letter *l = *at;
        if (l->head.kind == kind && l->head.tag == tag) {
            *at = l->next;
            q->in_end = *at == NULL ? at : q->in_end;
            return l;
        }
    }
    return NULL;
}

/* --- a turn ------------------------------------------------------------------------------------------------------- */

/* What is lost must not be followed by anything: the other side sees the end. The reason is read from the other
 * direction, where there is one. */
static void end_writing(hd_tcp_peer *q)
{
    (void)shutdown(q->fd, SHUT_WR);
    q->is_silenced = 1;
    while (q->out != NULL) {
        unlink_first(q);
    }
}

/* 1: more can be done at once. */
static int write_some(hd_tcp *tcp, int r)
{
    hd_tcp_peer *q = &tcp->peer[r];
    hd_parcel *p = q->out;
    const size_t whole = sizeof p->head + p->head.bytes;
    const size_t head = p->sent < sizeof p->head ? sizeof p->head - p->sent : 0;
    struct iovec parts[] = {{(char *)&p->head + sizeof p->head - head, head},
                            hd_parcel_part(tcp, p, head > 0 ? 0 : p->sent - sizeof p->head)};
    const struct msghdr out = {.msg_iov = head > 0 ? parts : parts + 1, .msg_iovlen = head > 0 ? 2 : 1};
    const ssize_t wrote = sendmsg(q->fd, &out, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ENOMEM) {
            end_writing(q);
        }
        return 0;
    }
    p->sent += (size_t)wrote;
    if (p->sent == whole) {
        unlink_first(q);
    }
    return 1;
}

static int begin_letter(hd_tcp *tcp, int r)
{
    char why[128];
    hd_tcp_peer *q = &tcp->peer[r];
    void *made = NULL;
    if (hd_landing_is_to_come(q)) {
        return 0; /* its head stays */
    }
    q->into = hd_landing_take(q);
    q->filled = q->head_filled = 0;
    if (q->into != NULL) {
        return 1;
    }
    if (q->head.bytes > HD_LETTER_BYTES ||
        hd_alloc(&made, 1, sizeof(hd_letter) + q->head.bytes + 1, "a message over TCP") != HEDDLE_OK) {
        snprintf(why, sizeof why, "rank %d has no memory for %llu bytes of rank %d", tcp->rank,
                 (unsigned long long)q->head.bytes, r);
        note_end(tcp, q->head.bytes <= HD_LETTER_BYTES ? tcp->rank : r, why); /* no rank sends more: a damaged letter */
        hd_tcp_hang_up(tcp, r, why);
        return 0;
    }
    q->coming = made; /* with a 0 behind it: it may be a sentence */
    q->coming->head = q->head;
    return 1;
}

/* Of what comes. -1: nothing now. */
static ssize_t take_bytes(hd_tcp *tcp, int r, void *into, size_t room)
{
    const ssize_t got = room > 0 ? recv(tcp->peer[r].fd, into, room, MSG_DONTWAIT) : 0;
    if ((got < 0 && errno != EAGAIN && errno != EINTR) || (got == 0 && room > 0)) {
        hd_tcp_hang_up(tcp, r, "its connection ended");
        return -1;
    }
    return got;
}

static int read_some(hd_tcp *tcp, int r)
{
    hd_tcp_peer *q = &tcp->peer[r];
    hd_letter *l = q->coming;
    if (q->into != NULL) {
        const struct iovec part = hd_landing_part(tcp, q);
        const ssize_t came = take_bytes(tcp, r, part.iov_base, part.iov_len);
        if (came >= 0) {
            hd_landing_fill(tcp, q, (size_t)came);
        }
        return came >= 0;
    }
    char *into = l == NULL ? (char *)&q->head + q->head_filled : (char *)l->data + l->filled;
    const size_t room = l == NULL ? sizeof q->head - q->head_filled : l->head.bytes - l->filled;
    const ssize_t got = take_bytes(tcp, r, into, room);
    if (got < 0) {
        return 0;
    }
    if (l == NULL) {
        q->head_filled += (size_t)got;
        return q->head_filled < sizeof q->head || begin_letter(tcp, r);
    }
    l->filled += (size_t)got;
    if (l->filled == l->head.bytes) {
        q->coming = NULL;
        deliver(tcp, r, l);
    }
    return 1;
}

/* What of the connections is to be looked at, within the time; 0: nothing. */
static int look(hd_tcp *tcp, int timeout_ms)
{
    for (int r = 0; r < tcp->size; r++) {
        const short out = tcp->peer[r].out != NULL ? POLLOUT : 0;
        tcp->fds[r] = (struct pollfd){.fd = tcp->peer[r].fd, .events = POLLIN | out};
    }
    return poll(tcp->fds, (nfds_t)tcp->size, timeout_ms) > 0;
}

void hd_tcp_turn(hd_tcp *tcp)
{
    for (int r = 0, any = look(tcp, 0); any && r < tcp->size; r++) {
        if (tcp->fds[r].revents == 0) {
            continue;
        }
        while (tcp->peer[r].fd >= 0 && tcp->peer[r].out != NULL && write_some(tcp, r)) {
        }
        while (tcp->peer[r].fd >= 0 && read_some(tcp, r)) {
        }
    }
}

void hd_tcp_sleep(hd_tcp *tcp)
{
    (void)look(tcp, SLEEP_MS);
}
