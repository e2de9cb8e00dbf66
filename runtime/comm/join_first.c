/* The meeting of a host's ranks as member 0 sees it: it listens, admits everybody, and tells everybody about everybody.
 */
#include "runtime/comm/join_meeting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static heddle_status listen_here(hd_meeting *m)
{
    struct sockaddr_un address;
    socklen_t bytes = hd_meeting_address(&address, m->join->key);
    m->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (m->listener < 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no Unix socket: %s", strerror(errno));
    }
    while (bind(m->listener, (struct sockaddr *)&address, bytes) != 0) {
        if (errno != EADDRINUSE) {
            return hd_fail(HEDDLE_ERR_TRANSPORT, "no Unix socket under the key '%s': %s", m->join->key,
                           strerror(errno));
        }
        heddle_status st = hd_meeting_waits(m, "another job of this user has the same key");
        if (st != HEDDLE_OK) {
            return st;
        }
        usleep(1000 * HD_JOIN_STEP_MS / 4);
    }
    if (listen(m->listener, BACKLOG) != 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "listening on a Unix socket: %s", strerror(errno));
    }
    return HEDDLE_OK;
}

/* A visitor that is not one of ours (another user, another version) is turned away without harm. */
static heddle_status admit(hd_meeting *m, int fd, int *came)
{
    hd_hello h;
    int fds[HD_MEETING_FDS];
    int nfds = 0;
    if (!hd_same_user(fd)) {
        close(fd);
        return HEDDLE_OK;
    }
    heddle_status st = hd_meeting_readable(m, fd, "a rank connected and then said nothing");
    if (st != HEDDLE_OK) {
        close(fd);
        return st;
    }
    ssize_t got = hd_receive_fds(fd, &h, sizeof h, fds, &nfds);
    if (nfds < 0) {
        close(fd);
        return hd_meeting_crowded(m, *came);
    }
    int good = got == (ssize_t)sizeof h && h.magic == HD_JOIN_MAGIC && h.control_bytes == sizeof(hd_control) &&
               nfds == 1 + (h.has_life != 0);
    if (good && (h.n != m->join->n || h.index <= 0 || h.index >= h.n || m->socket[h.index] >= 0)) {
        hd_close_fds(fds, nfds);
        close(fd);
        return hd_fail(HEDDLE_ERR_MISMATCH, "a process came as number %d of %d, but %d ranks are expected here",
                       (int)h.index, (int)h.n, m->join->n);
    }
    if (!good) {
        hd_close_fds(fds, nfds);
        close(fd);
        return HEDDLE_OK;
    }
    m->socket[h.index] = fd;
    m->arena_fd[h.index] = fds[0];
    m->group->life[h.index].fd = h.has_life ? fds[1] : -1;
    m->group->pid[h.index] = h.pid;
    ++*came;
    return HEDDLE_OK;
}

static heddle_status gather(hd_meeting *m)
{
    heddle_status st = HEDDLE_OK;
    int came = 1;
    while (came < m->join->n) {
        int missing = 1;
        while (m->socket[missing] >= 0) {
            missing++;
        }
        char what[96];
        snprintf(what, sizeof what, "%d of %d ranks came, rank %d did not", came, m->join->n,
                 hd_meeting_name(m->join, missing));
        HD_TRY(hd_meeting_readable(m, m->listener, what));
        int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            HD_TRY(admit(m, fd, &came));
        } else if (errno == EMFILE || errno == ENFILE) {
            st = hd_meeting_crowded(m, came);
            goto out;
        }
    }
out:
    return st;
}

/* All members' descriptors to one member, which acknowledges every batch: few are under way at a time. */
static heddle_status tell(const hd_meeting *m, int index)
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

/* Why not, to those who came. */
static void refuse(const hd_meeting *m, heddle_status why)
{
    hd_batch b = {.magic = HD_JOIN_MAGIC, .status = (int)why};
    snprintf(b.text, sizeof b.text, "%s", heddle_last_error());
    for (int i = 1; i < m->join->n; i++) {
        if (m->socket[i] >= 0) {
            send(m->socket[i], &b, sizeof b, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
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
    if (st != HEDDLE_OK) {
        refuse(m, st);
    }
    return st;
}
