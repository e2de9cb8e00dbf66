/* The meeting of a host's ranks as member 0 sees it: it listens, admits everybody, and tells everybody about everybody.
 */
#include "runtime/comm/ground/door.h"
#include "runtime/comm/ground/join_meeting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CONFLICT_MS = 1000, LAST_LOOK_MS = 50 };

/* Somebody has the name: a process that says it is rank 0 as well is told so by the one that listens; an earlier
 * meeting of the same key ends soon; anybody else is waited for until the deadline. */
static heddle_status wait_for_name(hd_meeting *m, const struct sockaddr_un *address, socklen_t bytes)
{
    heddle_status st = HEDDLE_OK;
    char what[224];
    int again = 1;
    int fd = hd_meeting_connect(address, bytes);
    if (hd_meeting_held(m, fd, address, bytes)) {
        HD_TRY(hd_meeting_visit(m, fd, &again));
    }
    snprintf(what, sizeof what, "the name that the ranks of this key meet under was held by %s and not given up",
             m->holder);
    HD_TRY(hd_meeting_waits(m, what));
    usleep(1000 * HD_JOIN_STEP_MS / 4);
out:
    if (fd >= 0) {
        close(fd);
    }
    return st;
}

static heddle_status listen_here(hd_meeting *m)
{
    heddle_status st = HEDDLE_OK;
    struct sockaddr_un address;
    socklen_t bytes = hd_meeting_address(&address, &m->secret, 0);
    while ((m->listener = hd_meeting_listen(&address, bytes)) < 0) {
        if (errno != EADDRINUSE) {
            return hd_fail(HEDDLE_ERR_TRANSPORT, "no Unix socket: %s", strerror(errno));
        }
        HD_TRY(wait_for_name(m, &address, bytes));
    }
out:
    return st;
}

/* Why not, to one that came. */
static void refuse(int fd, heddle_status why, const char *text)
{
    hd_batch b = {.magic = HD_JOIN_MAGIC, .status = (int)why};
    snprintf(b.text, sizeof b.text, "%s", text);
    send(fd, &b, sizeof b, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A process that cannot be who it says. Everybody is to hear of it, so the others are still let in for a moment. */
static void note_conflict(hd_meeting *m, const hd_hello *h)
{
    char text[sizeof m->conflict];
    if (h->n != m->join->n || h->index < 0 || h->index >= h->n) {
        snprintf(text, sizeof text, "a process came as number %d of %d, but %d ranks are expected here", (int)h->index,
                 (int)h->n, m->join->n);
    } else {
        snprintf(text, sizeof text, "two processes came as rank %d of %d: process %d and process %d",
                 hd_meeting_name(m->join, h->index), (int)h->n, (int)m->group->pid[h->index], (int)h->pid);
    }
    if (m->conflict_end_ns == 0) {
        m->conflict_end_ns = hd_now_ns() + (int64_t)CONFLICT_MS * 1000000;
        memcpy(m->conflict, text, sizeof text);
    }
}

/* hd_door's: it has had the answer, and says who it is. Who does not know the key, or is of another version, is sent
 * away without harm. */
static heddle_status admit(void *ctx, hd_visitor *v, int *is_over)
{
    hd_meeting *m = ctx;
    hd_hello h;
    int fds[HD_MEETING_FDS];
    int nfds = 0;
    const ssize_t got = hd_receive_fds(v->fd, &h, sizeof h, fds, &nfds);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return HEDDLE_OK;
    }
    *is_over = 1;
    if (nfds < 0) {
        return hd_meeting_crowded(m, m->came);
    }
    int good = got == (ssize_t)sizeof h && hd_proves(h.proof, &m->secret, &v->shake, HD_CALLER) &&
               h.control_bytes == sizeof(hd_control) && h.index == v->shake.knock.from && nfds == 1 + (h.has_life != 0);
    int fits = good && h.n == m->join->n && h.index > 0 && h.index < h.n && m->socket[h.index] < 0;
    if (!fits) {
        hd_close_fds(fds, nfds);
        if (good) {
            note_conflict(m, &h);
            refuse(v->fd, HEDDLE_ERR_MISMATCH, m->conflict);
        }
        return HEDDLE_OK;
    }
    m->socket[h.index] = v->fd;
    v->fd = -1;
    m->arena_fd[h.index] = fds[0];
    m->group->life[h.index].fd = h.has_life ? fds[1] : -1;
    m->group->pid[h.index] = h.pid;
    m->came++;
    return HEDDLE_OK;
}

/* Who is missing, and who stands at the door instead. */
static heddle_status look_at_time(hd_meeting *m, const hd_door *door)
{
    char what[160], who[64] = "";
    int missing = 1;
    pid_t silent = 0;
    while (m->socket[missing] >= 0) {
        missing++;
    }
    (void)hd_door_visitors(door, &silent);
    if (silent != 0) {
        snprintf(who, sizeof who, ", and process %d connected and did not say who it is,", (int)silent);
    }
    snprintf(what, sizeof what, "%d of %d ranks came, rank %d did not%s", m->came, m->join->n,
             hd_meeting_name(m->join, missing), who);
    return hd_meeting_waits(m, what);
}

/* Until all have come; then those that are at the door already get a moment, because one may be one too many. */
static heddle_status gather(hd_meeting *m)
{
    heddle_status st = HEDDLE_OK;
    hd_door door = {.listener = m->listener, .secret = &m->secret, .me = 0, .is_of_host = 1, .enter = admit, .ctx = m};
    int64_t end_ns = 0; /* of that moment, or of the one for those who are to hear of a conflict */
    m->came = 1;
    hd_door_open(&door);
    for (;;) {
        const int all_came = m->came == m->join->n;
        HD_TRY(hd_door_turn(&door, all_came && end_ns == 0 ? 0 : HD_JOIN_STEP_MS));
        if (door.error != 0) {
            HD_TRY(hd_meeting_crowded(m, m->came));
        }
        const int64_t now_ns = hd_now_ns();
        if (m->conflict_end_ns != 0) {
            end_ns = m->conflict_end_ns < m->join->deadline_ns ? m->conflict_end_ns : m->join->deadline_ns;
        } else if (all_came && hd_door_visitors(&door, NULL) == 0) {
            break;
        } else if (all_came && end_ns == 0) {
            end_ns = now_ns + (int64_t)LAST_LOOK_MS * 1000000;
        }
        if (end_ns != 0 && now_ns > end_ns) {
            break;
        }
        HD_TRY(m->came < m->join->n && m->conflict_end_ns == 0 ? look_at_time(m, &door) : HEDDLE_OK);
    }
    if (m->conflict_end_ns != 0) {
        st = hd_fail(HEDDLE_ERR_MISMATCH, "%s", m->conflict);
    }
out:
    hd_door_close(&door);
    return st;
}

/* All members' descriptors to one member, which acknowledges every batch: few are under way at a time. */
static heddle_status tell(hd_meeting *m, int index)
{
    heddle_status st = HEDDLE_OK;
    for (int first = 0; first < m->join->n; first += HD_JOIN_BATCH) {
        hd_batch b = {.magic = HD_JOIN_MAGIC, .first = first};
        int fds[HD_MEETING_FDS];
        int nfds = 0;
        for (int i = first; i < m->join->n && i < first + HD_JOIN_BATCH; i++, b.count++) {
            b.pid[b.count] = m->group->pid[i];
            b.has_life[b.count] = m->group->life[i].fd >= 0;
            if (i == index) { /* closing a copy of its own memory would release the lock on it */
                b.has_life[b.count] = 0;
                continue;
            }
            fds[nfds++] = m->arena_fd[i];
            if (b.has_life[b.count]) {
                fds[nfds++] = m->group->life[i].fd;
            }
        }
        char answer = 0;
        if (hd_send_fds(m->socket[index], &b, sizeof b, fds, nfds) != (ssize_t)sizeof b) {
            return hd_fail(HEDDLE_ERR_PEER, "rank %d ended while the ranks were meeting: %s",
                           hd_meeting_name(m->join, index), strerror(errno));
        }
        HD_TRY(hd_meeting_readable(m, m->socket[index], "a rank that had come did not answer"));
        if (recv(m->socket[index], &answer, 1, 0) != 1) {
            return hd_fail(HEDDLE_ERR_PEER, "rank %d ended while the ranks were meeting",
                           hd_meeting_name(m->join, index));
        }
    }
out:
    return st;
}

heddle_status hd_meet_as_first(hd_meeting *m)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(listen_here(m));
    HD_TRY(gather(m));
    for (int i = 1; i < m->join->n; i++) {
        HD_TRY(tell(m, i));
    }
out:
    for (int i = 1; i < m->join->n && st != HEDDLE_OK; i++) {
        if (m->socket[i] >= 0) {
            refuse(m->socket[i], st == HEDDLE_ERR_INTERRUPTED ? HEDDLE_ERR_PEER : st, heddle_last_error());
        }
    }
    return st;
}
