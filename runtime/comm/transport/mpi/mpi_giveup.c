/* Giving up over MPI: what ranks tell one another, and how the caller's memory is taken back from MPI.
 *
 * A note is one small message, of the size MPI sends without the receiver's help. One receive for notes is always
 * posted, so whatever makes MPI move also brings them in. There are two kinds: "I give up, because", and "I am quiet":
 * this rank has none of the caller's memory in a receive any more and will not have again, so nobody will ever take
 * what is still addressed to it. docs/decisions/0010-memory-after-a-failure.md has the reasons. */
#include "mpi_transport.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PUSH_NS = 50000000, LATE_NS = 50000000, LATE_LOOKS = 16 };
/* A message that its receiver has begun to take goes on as long as both sides drive it; a sender does so for a moment
 * longer than a rank needs that is about to hear of the end. */
enum { RECEIVES_NS = 2000000000, SENDS_NS = 250000000 };

int64_t mpi_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

heddle_status mpi_fail(const mpi_transport *t, int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS || length <= 0) {
        snprintf(text, sizeof(text), "code %d", code);
    }
    return heddle_set_error(HEDDLE_ERR_TRANSPORT, "rank %d: %s failed: %s", t->rank, call, text);
}

/* --- notes -------------------------------------------------------------------------------------------------------- */

heddle_status mpi_listen(mpi_transport *t)
{
    t->inbox = (mpi_note){0};
    int code =
        MPI_Irecv(&t->inbox, (int)sizeof(t->inbox), MPI_BYTE, MPI_ANY_SOURCE, MPI_TAG_NOTE, t->control, &t->listening);
    return code == MPI_SUCCESS ? HEDDLE_OK : mpi_fail(t, code, "listening for notes");
}

/* Nobody waits for the notes: they stay allocated as long as the transport, which is left standing when it is broken.
 */
static heddle_status tell_all(mpi_transport *t, mpi_note *note, MPI_Request *requests)
{
    int code = MPI_SUCCESS;
    note->rank = t->rank;
    for (int i = 0; i < t->size; i++) {
        int peer = (t->rank + i) % t->size;
        requests[i] = MPI_REQUEST_NULL;
        if (peer != t->rank) {
            int sent = MPI_Isend(note, (int)sizeof(*note), MPI_BYTE, peer, MPI_TAG_NOTE, t->control, &requests[i]);
            code = sent != MPI_SUCCESS ? sent : code; /* the others are told all the same */
        }
    }
    int64_t end_ns = mpi_now_ns() + PUSH_NS;
    for (int done = 0; !done && mpi_now_ns() < end_ns;) {
        if (MPI_Testall(t->size, requests, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
            break;
        }
    }
    return code == MPI_SUCCESS ? HEDDLE_OK : mpi_fail(t, code, "telling the others to give up");
}

static void say_quiet(mpi_transport *t)
{
    if (!t->said_quiet) {
        t->said_quiet = 1;
        t->told[MPI_NOTE_QUIET].kind = MPI_NOTE_QUIET;
        (void)tell_all(t, &t->told[MPI_NOTE_QUIET], t->note_requests + t->size); /* best effort */
    }
}

heddle_status mpi_look(mpi_transport *t)
{
    int here = 1;
    int code = MPI_SUCCESS;
    heddle_status st = HEDDLE_OK;
    while (here && code == MPI_SUCCESS && st == HEDDLE_OK && t->listening != MPI_REQUEST_NULL) {
        code = MPI_Test(&t->listening, &here, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && here) {
            mpi_note *note = &t->inbox;
            note->why[MPI_WHY_BYTES - 1] = '\0';
            if (note->rank >= 0 && note->rank < t->size && note->kind == MPI_NOTE_QUIET) {
                t->quiet[note->rank] = 1;
            } else if (note->kind == MPI_NOTE_ABORT && t->heard.kind == 0) {
                t->heard = *note;
                t->broken = 1;
            }
            st = mpi_listen(t);
        }
    }
    if (t->broken && t->flights == NULL) {
        say_quiet(t);
    }
    return code == MPI_SUCCESS ? st : mpi_fail(t, code, "looking for an abort");
}

heddle_status mpi_heard(const mpi_transport *t)
{
    return t->heard.kind == 0 ? HEDDLE_OK
                              : heddle_set_error(HEDDLE_ERR_PEER, "rank %d gave up: %s", t->heard.rank, t->heard.why);
}

heddle_status mpi_enter(mpi_transport *t)
{
    int64_t now_ns = mpi_now_ns();
    int looks = now_ns - t->entered_ns > LATE_NS ? LATE_LOOKS : 1;
    heddle_status st = HEDDLE_OK;
    t->entered_ns = now_ns;
    for (int i = 0; i < looks && st == HEDDLE_OK && !t->broken; i++) {
        st = mpi_look(t);
    }
    st = st == HEDDLE_OK ? mpi_heard(t) : st;
    if (st == HEDDLE_OK && t->broken) {
        st =
            heddle_set_error(HEDDLE_ERR_TRANSPORT, "rank %d: an earlier failure has broken this communicator", t->rank);
    }
    return st;
}

heddle_status mpi_abort_poll(void *ctx, int *aborted_by, char *why, size_t why_bytes)
{
    mpi_transport *t = ctx;
    heddle_status st = mpi_look(t);
    *aborted_by = t->heard.kind != 0 ? t->heard.rank : -1;
    if (t->heard.kind != 0 && why_bytes > 0) {
        snprintf(why, why_bytes, "%s", t->heard.why);
    }
    return st;
}

heddle_status mpi_abort_send(void *ctx, const char *why)
{
    mpi_transport *t = ctx;
    mpi_note *note = &t->told[MPI_NOTE_ABORT];
    if (note->kind != 0) {
        return HEDDLE_OK;
    }
    t->broken = 1;
    note->kind = MPI_NOTE_ABORT;
    if (snprintf(note->why, sizeof(note->why), "%s", why) >= (int)sizeof(note->why)) {
        memcpy(note->why + sizeof(note->why) - sizeof("..."), "...", sizeof("..."));
    }
    heddle_status st = tell_all(t, note, t->note_requests);
    if (t->flights == NULL) {
        say_quiet(t);
    }
    return st;
}

/* --- taking memory back ------------------------------------------------------------------------------------------- */

void mpi_flight_begin(mpi_transport *t, mpi_flight *flight)
{
    flight->next = t->flights;
    t->flights = flight;
}

void mpi_flight_end(mpi_transport *t, mpi_flight *flight)
{
    mpi_flight **at = &t->flights;
    while (*at != NULL && *at != flight) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = flight->next;
    }
    flight->count = 0;
}

/* A receive that nothing has come for is withdrawn by this, for good. One that MPI has begun to fill is not. */
static void cancel_receives(mpi_transport *t)
{
    for (mpi_flight *f = t->flights; f != NULL; f = f->next) {
        for (int i = 0; i < f->count; i++) {
            if (!f->end[i].is_send && f->requests[i] != MPI_REQUEST_NULL) {
                MPI_Cancel(&f->requests[i]);
            }
        }
    }
}

typedef struct leftover {
    int receives, sends;
    int from, to; /* one of their peers each */
} leftover;

/* Had not even begun: the receive from it could be cancelled, so it has not posted its receives either, and will not.
 */
static int has_not_come(const mpi_flight *f, int peer)
{
    for (int i = 0; i < f->count; i++) {
        if (f->end[i].peer == peer && f->end[i].was_cancelled) {
            return 1;
        }
    }
    return 0;
}

static leftover drive(mpi_transport *t)
{
    leftover left = {0, 0, -1, -1};
    for (mpi_flight *f = t->flights; f != NULL; f = f->next) {
        for (int i = 0; i < f->count; i++) {
            mpi_end *end = &f->end[i];
            MPI_Status status;
            int done = 1;
            int cancelled = 0;
            if (f->requests[i] == MPI_REQUEST_NULL) {
                continue;
            }
            if (MPI_Test(&f->requests[i], &done, &status) != MPI_SUCCESS) {
                continue; /* ended in its own way */
            }
            if (done && !end->is_send && MPI_Test_cancelled(&status, &cancelled) == MPI_SUCCESS) {
                end->was_cancelled = cancelled;
            } else if (!done && !end->is_send) {
                left.receives++;
                left.from = end->peer;
            } else if (!done && !t->quiet[end->peer]) {
                left.sends++;
                left.to = end->peer;
            }
        }
    }
    return left;
}

/* What cannot be finished is let go; MPI keeps the types it needs. Returns a peer that may be in the middle of taking
 * what was sent to it, -1: none. */
static int let_go(mpi_transport *t)
{
    int taking = -1;
    for (mpi_flight *f = t->flights, *next = NULL; f != NULL; f = next) {
        next = f->next;
        for (int i = 0; i < f->count; i++) {
            if (f->requests[i] != MPI_REQUEST_NULL) {
                int peer = f->end[i].peer;
                taking = f->end[i].is_send && !t->quiet[peer] && !has_not_come(f, peer) ? peer : taking;
                MPI_Request_free(&f->requests[i]);
            }
        }
        f->count = 0;
        f->next = NULL;
    }
    t->flights = NULL;
    return taking;
}

heddle_status mpi_withdraw(void *ctx)
{
    mpi_transport *t = ctx;
    int64_t begin_ns = mpi_now_ns();
    leftover left = {0, 0, -1, -1};
    if (t->flights == NULL) {
        return HEDDLE_OK;
    }
    t->broken = 1;
    cancel_receives(t);
    for (;;) {
        left = drive(t);
        (void)mpi_look(t); /* MPI's own failures end the loop by the clock */
        if (left.receives == 0) {
            say_quiet(t);
        }
        int64_t limit_ns = left.receives > 0 ? RECEIVES_NS : left.sends > 0 ? SENDS_NS : 0;
        if (mpi_now_ns() - begin_ns >= limit_ns) {
            break;
        }
        sched_yield();
    }
    t->said_quiet |= left.receives > 0; /* never */
    int taking = let_go(t);
    if (left.receives > 0 || taking >= 0) {
        return heddle_set_error(HEDDLE_ERR_TRANSPORT,
                                "a message %s rank %d stopped half way and cannot be withdrawn: leave src and dst "
                                "alone as long as that rank lives",
                                left.receives > 0 ? "from" : "to", left.receives > 0 ? left.from : taking);
    }
    return HEDDLE_OK;
}
