/* Rank 0 while the others come to tell where they listen: it hears them beside whoever else calls, and tells all. */
#include "runtime/base/base.h"
#include "runtime/comm/ground/door.h"
#include "runtime/comm/transport/tcp_gather.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const int64_t conflict_ns = 1000000000; /* those who come meanwhile hear of it, too */

/* A rank that has come. */
typedef struct guest {
    hd_handshake shake;
    unsigned char caller[HD_TCP_NONCE_BYTES];
} guest;

typedef struct first {
    hd_tcp_gathering *g;
    hd_tcp_place *place;
    guest *guest;        /* [size] */
    struct pollfd *line; /* [size] of the gathering's star, to each of them; fd -1: it has not come */
    int came;            /* and itself */
    int has_stranger;    /* somebody called and did not show that it knows the secret */
    hd_door door;
    hd_tcp_hello hello[HD_DOOR_VISITORS]; /* of each visitor, as far as it has come */
    int64_t end_ns;                       /* of a conflict; 0: there is none */
    char conflict[HD_TCP_NOTICE_BYTES];
} first;

/* --- what is told ------------------------------------------------------------------------------------------------- */

static void refuse(first *f, int fd, const hd_handshake *shake, heddle_status status, const char *text)
{
    hd_tcp_notice n = {.status = (int)status, .size = f->g->size};
    snprintf(n.text, sizeof n.text, "%s", text);
    hd_seal(n.seal, &f->g->secret, shake, HD_CALLEE, &n, offsetof(hd_tcp_notice, seal));
    (void)!send(fd, &n, sizeof n, MSG_DONTWAIT | MSG_NOSIGNAL); /* a line with nothing on it has room for it */
}

static void refuse_all(first *f, int from, heddle_status status)
{
    for (int r = from; r < f->g->size; r++) {
        if (f->line[r].fd >= 0) {
            refuse(f, f->line[r].fd, &f->guest[r].shake, status, heddle_last_error());
        }
    }
}

static heddle_status has_left(const first *f, int r)
{
    int missing = 0;
    for (int i = f->g->size - 1; i > 0; i--) {
        missing = f->line[i].fd < 0 ? i : missing;
    }
    return missing == 0 ? hd_fail(HEDDLE_ERR_PEER, "rank %d left while it was told where the others are", r)
                        : hd_fail(HEDDLE_ERR_PEER, "rank %d came and left again; rank %d had not come yet", r, missing);
}

/* To each where all are. */
static heddle_status tell_all(first *f, hd_tcp_notice *n)
{
    heddle_status st = HEDDLE_OK;
    hd_tcp_gathering *g = f->g;
    hd_tcp_patience *p = &g->patience;
    int r = 1;
    *n = (hd_tcp_notice){.status = HEDDLE_OK, .size = g->size};
    if (hd_random_bytes(n->salt, sizeof n->salt) != 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no random bytes: %s", strerror(errno));
    }
    hd_tcp_hash_places(n->places, f->place, g->size);
    for (; r < g->size && st == HEDDLE_OK; r++) {
        hd_seal(n->seal, &g->secret, &f->guest[r].shake, HD_CALLEE, n, offsetof(hd_tcp_notice, seal));
        const int is_told =
            hd_tcp_pass(p, f->line[r].fd, n, sizeof *n, POLLOUT, p->deadline_ns) &&
            hd_tcp_pass(p, f->line[r].fd, f->place, (size_t)g->size * sizeof *f->place, POLLOUT, p->deadline_ns);
        st = is_told ? HEDDLE_OK : hd_tcp_waits(p, 0);
        st = st == HEDDLE_ERR_TIMEOUT || (st == HEDDLE_OK && !is_told) ? has_left(f, r) : st;
    }
    if (st != HEDDLE_OK) {
        refuse_all(f, r, st);
    }
    return st;
}

/* --- who comes ---------------------------------------------------------------------------------------------------- */

static void note_conflict(first *f, int from, const hd_tcp_hello *h)
{
    const int size = f->g->size;
    if (f->end_ns != 0) {
        return;
    }
    f->end_ns = hd_now_ns() + conflict_ns;
    if (h->size != size || from < 1 || from >= size) {
        snprintf(f->conflict, sizeof f->conflict, "a process came as rank %d of %d, but rank 0 is one of %d", from,
                 (int)h->size, size);
    } else {
        snprintf(f->conflict, sizeof f->conflict, "two processes came as rank %d of %d", from, size);
    }
}

/* hd_door's: it has had the answer, and says who it is. */
static heddle_status admit(void *ctx, hd_visitor *v, int *is_over)
{
    static const char word = 1;
    first *f = ctx;
    hd_tcp_hello *h = &f->hello[v - f->door.visitor];
    const int size = f->g->size, from = v->shake.knock.from, heard = hd_door_hear(v, h, sizeof *h);
    if (heard == 0) {
        return HEDDLE_OK;
    }
    *is_over = 1;
    if (heard < 0 || !hd_tcp_read_hello(h, &f->g->secret, &v->shake)) {
        f->has_stranger = 1;
        return HEDDLE_OK;
    }
    const int fits = h->size == size && from > 0 && from < size;
    const int is_there = fits && f->line[from].fd >= 0;
    const int is_again = is_there && memcmp(f->guest[from].caller, h->caller, sizeof h->caller) == 0;
    if (!fits || (is_there && !is_again)) {
        note_conflict(f, from, h);
    }
    const int is_told = hd_tcp_set_up(v->fd) == 0 && send(v->fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
    if (is_told && f->end_ns != 0) {
        refuse(f, v->fd, &v->shake, HEDDLE_ERR_MISMATCH, f->conflict);
    } else if (is_told) {
        (void)hd_tcp_drop(f->line[from].fd);
        f->line[from] = (struct pollfd){.fd = v->fd, .events = POLLIN};
        f->guest[from].shake = v->shake;
        memcpy(f->guest[from].caller, h->caller, sizeof h->caller);
        f->place[from] = h->place;
        f->came += !is_there;
        v->fd = -1;
    }
    return HEDDLE_OK;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* Who has come has nothing to say: when it stirs it is gone. */
static heddle_status look_at_guests(const first *f)
{
    heddle_status st = HEDDLE_OK;
    const int any = poll(f->line, (nfds_t)f->g->size, 0);
    for (int r = 1; any > 0 && r < f->g->size && st == HEDDLE_OK; r++) {
        st = f->line[r].fd >= 0 && f->line[r].revents != 0 ? has_left(f, r) : HEDDLE_OK;
    }
    return st;
}

static heddle_status look_at_time(const first *f)
{
    hd_tcp_gathering *g = f->g;
    const heddle_status st = hd_tcp_waits(&g->patience, 0);
    int missing = 1;
    while (missing < g->size && f->line[missing].fd >= 0) {
        missing++;
    }
    return st != HEDDLE_ERR_TIMEOUT
               ? st
               : hd_fail(st, "%d of %d ranks came to rank 0 at port %d before the deadline, rank %d did not%s", f->came,
                         g->size, g->port, missing,
                         f->has_stranger ? "; somebody called who did not show that it knows HEDDLE_KEY" : "");
}

static heddle_status await_all(first *f)
{
    heddle_status st = HEDDLE_OK;
    while (f->came < f->g->size) {
        HD_TRY(look_at_time(f));
        if (f->end_ns != 0 && hd_now_ns() > f->end_ns) {
            return hd_fail(HEDDLE_ERR_MISMATCH, "%s", f->conflict);
        }
        HD_TRY(f->end_ns == 0 ? look_at_guests(f) : HEDDLE_OK);
        HD_TRY(hd_door_turn(&f->door, HD_TCP_STEP_MS));
        if (f->door.error != 0) {
            return hd_fail(HEDDLE_ERR_TRANSPORT, "rank 0 of %d cannot take the calls of other ranks: %s", f->g->size,
                           strerror(f->door.error));
        }
    }
out:
    return st;
}

heddle_status hd_tcp_receive_all(hd_tcp_place *place, hd_tcp_notice *notice, hd_tcp_gathering *g)
{
    static const char what[] = "the meeting of ranks";
    heddle_status st;
    first *f = NULL;
    HD_TRY(hd_alloc((void **)&f, 1, sizeof *f, what));
    f->g = g;
    f->place = place;
    f->came = 1;
    f->door = (hd_door){.listener = g->listener, .secret = &g->secret, .me = 0, .enter = admit, .ctx = f};
    hd_door_open(&f->door);
    HD_TRY(hd_alloc((void **)&f->guest, (size_t)g->size, sizeof *f->guest, what));
    HD_TRY(hd_tcp_star_make(&g->star, 0, g->size));
    f->line = g->star.line;
    st = await_all(f);
    if (st != HEDDLE_OK) {
        refuse_all(f, 1, st);
    }
    HD_TRY(st);
    st = tell_all(f, notice);
out:
    if (f != NULL) {
        hd_door_close(&f->door);
        HD_FREE_ALL(f->guest, f);
    }
    return st;
}
