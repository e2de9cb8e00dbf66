/* How processes of one host meet: member 0 listens on an abstract Unix socket (no name in any file system), the others
 * connect and send their shared memory and a descriptor of their own process; member 0 hands everybody everything.
 * Afterwards the sockets are closed and nobody talks to anybody except through memory.
 */
#include "runtime/comm/ground/join_meeting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int hd_meeting_name(const hd_join *join, int index)
{
    return join->ranks != NULL ? join->ranks[index] : index;
}

/* Another process of this user that says it is this member, 0: none that is known. */
static pid_t find_twin(const hd_meeting *m)
{
    struct ucred who = {.pid = 0};
    if (m->twin != 0 || m->join->me == 0 || m->listener < 0) {
        return m->twin;
    }
    int fd = hd_fd_aside(accept4(m->listener, NULL, NULL, SOCK_CLOEXEC));
    int known = fd >= 0 && hd_peer_of(fd, &who) && who.uid == getuid();
    if (fd >= 0) {
        close(fd);
    }
    return known ? who.pid : 0;
}

heddle_status hd_meeting_waits(hd_meeting *m, const char *what)
{
    const hd_join *join = m->join;
    int dead = join->dead != NULL ? atomic_load(join->dead) : 0;
    if (dead != 0) {
        return hd_fail(HEDDLE_ERR_PEER, "rank %d died while the ranks were meeting", hd_meeting_name(join, dead - 1));
    }
    int me = hd_meeting_name(join, join->me);
    if (hd_interrupted(&m->interrupt)) {
        return hd_fail(HEDDLE_ERR_INTERRUPTED, "rank %d was interrupted while the ranks were meeting", me);
    }
    if (hd_now_ns() <= join->deadline_ns) {
        return join->look != NULL ? join->look(join->ctx) : HEDDLE_OK;
    }
    pid_t twin = find_twin(m);
    return twin == 0 ? hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: %s before the deadline", me, what)
                     : hd_fail(HEDDLE_ERR_MISMATCH,
                               "two processes came as rank %d: process %d and process %d; and %s before the deadline",
                               me, (int)getpid(), (int)twin, what);
}

heddle_status hd_meeting_readable(hd_meeting *m, int fd, const char *what)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, HD_JOIN_STEP_MS) > 0) {
            return HEDDLE_OK;
        }
        heddle_status st = hd_meeting_waits(m, what);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
}

heddle_status hd_meeting_crowded(const hd_meeting *m, int came)
{
    return hd_fail(HEDDLE_ERR_TRANSPORT, "out of file descriptors (ulimit -n) after %d of %d ranks", came, m->join->n);
}

/* --- the others ------------------------------------------------------------------------------------------------ */

int hd_meeting_held(hd_meeting *m, int fd, const struct sockaddr_un *address, socklen_t bytes)
{
    struct ucred who;
    uid_t owner;
    m->holder_is_stranger = 0;
    if (fd < 0 || !hd_peer_of(fd, &who)) {
        if (m->holder[0] == 0 && hd_meeting_owner(address, bytes, &owner)) {
            snprintf(m->holder, sizeof m->holder, "a process of user %u%s, that lets nobody in (its queue is full)",
                     (unsigned)owner, owner == getuid() ? "" : ", who is another user");
        } else if (m->holder[0] == 0) {
            snprintf(m->holder, sizeof m->holder, "a process that lets nobody in (its queue is full)");
        }
        return 0;
    }
    int ours = who.uid == getuid();
    snprintf(m->holder, sizeof m->holder, "process %d of user %u%s", (int)who.pid, (unsigned)who.uid,
             ours ? "" : ", who is another user");
    return ours;
}

/* Stands by its own name while it waits: another process that says it is this rank would otherwise only see that
 * member 0 does not want it, or that nobody is there. */
static heddle_status stand_by_name(hd_meeting *m)
{
    struct sockaddr_un address;
    struct ucred who;
    socklen_t bytes = hd_meeting_address(&address, &m->secret, m->join->me);
    m->listener = hd_meeting_listen(&address, bytes);
    if (m->listener >= 0 || errno != EADDRINUSE) {
        return m->listener >= 0 ? HEDDLE_OK : hd_fail(HEDDLE_ERR_TRANSPORT, "no Unix socket: %s", strerror(errno));
    }
    int fd = hd_meeting_connect(&address, bytes);
    if (fd >= 0 && hd_peer_of(fd, &who) && who.uid == getuid()) {
        m->twin = who.pid;
    }
    if (fd >= 0) {
        close(fd);
    }
    return HEDDLE_OK;
}

/* Why member 0 cannot be reached. */
static void say_absence(char *text, size_t bytes, const hd_meeting *m)
{
    int first = hd_meeting_name(m->join, 0);
    if (m->holder[0] != 0) {
        snprintf(text, bytes, "rank %d of this host was not reached, because its name was held by %s,", first,
                 m->holder);
    } else {
        snprintf(text, bytes, "rank %d of this host, which the others meet at, did not come, or met another rank %d,",
                 first, hd_meeting_name(m->join, m->join->me));
    }
}

static heddle_status connect_there(hd_meeting *m, int *out)
{
    heddle_status st = HEDDLE_OK;
    struct sockaddr_un address;
    socklen_t bytes = hd_meeting_address(&address, &m->secret, 0);
    for (int turn = 0;; turn++) {
        int fd = hd_meeting_connect(&address, bytes);
        int error = fd < 0 ? errno : 0;
        if (error == ECONNREFUSED) {
            m->holder[0] = 0;
        } else if (error == 0 || error == EAGAIN) {
            if (hd_meeting_held(m, fd, &address, bytes)) {
                *out = fd;
                return HEDDLE_OK;
            }
        } else if (error != EINTR) {
            return hd_fail(HEDDLE_ERR_TRANSPORT, "no Unix socket: %s", strerror(error));
        }
        char what[224];
        say_absence(what, sizeof what, m);
        if (fd >= 0) {
            close(fd);
        }
        HD_TRY(hd_meeting_waits(m, what));
        usleep(turn < 20 ? 500 : 1000 * HD_JOIN_STEP_MS / 4);
    }
out:
    return st;
}

static heddle_status take(hd_meeting *m, const hd_batch *b, const int *fds, int nfds)
{
    int used = 0;
    int wanted = 0;
    for (int k = 0; k < b->count && b->count <= HD_JOIN_BATCH; k++) {
        wanted += b->first + k == m->join->me ? 0 : 1 + (b->has_life[k] != 0);
    }
    if (b->count <= 0 || b->count > HD_JOIN_BATCH || b->first < 0 || b->first + b->count > m->join->n ||
        wanted != nfds) {
        hd_close_fds(fds, nfds);
        return hd_fail(HEDDLE_ERR_TRANSPORT, "%d of %d descriptors of the other ranks arrived (ulimit -n?)", nfds,
                       wanted);
    }
    for (int k = 0; k < b->count; k++) {
        int index = b->first + k;
        if (index != m->join->me) {
            m->arena_fd[index] = fds[used++];
            m->group->life[index].fd = b->has_life[k] ? fds[used++] : -1;
            m->group->pid[index] = b->pid[k];
        }
    }
    return HEDDLE_OK;
}

/* Member 0 shows first that it knows the key: this one's memory goes to nobody else. */
static heddle_status greet(hd_meeting *m, int fd, hd_handshake *shake, int *again)
{
    heddle_status st = HEDDLE_OK;
    hd_answer a;
    char what[224];
    *again = 1;
    if (hd_handshake_begin(shake, m->join->me, 0) != 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no random bytes: %s", strerror(errno));
    }
    if (send(fd, &shake->knock, sizeof shake->knock, MSG_NOSIGNAL) != (ssize_t)sizeof shake->knock) {
        return HEDDLE_OK;
    }
    snprintf(what, sizeof what, "%s, which has the name that the ranks of this key meet under, did not answer",
             m->holder);
    HD_TRY(hd_meeting_readable(m, fd, what));
    if (recv(fd, &a, sizeof a, MSG_DONTWAIT) != (ssize_t)sizeof a) {
        return HEDDLE_OK;
    }
    memcpy(shake->nonce, a.nonce, sizeof shake->nonce);
    m->holder_is_stranger = !hd_proves(a.proof, &m->secret, shake, HD_CALLEE);
    *again = m->holder_is_stranger;
    if (m->holder_is_stranger) {
        hd_add_text(m->holder, sizeof m->holder, ", which does not know the key");
    }
out:
    return st;
}

static void introduce(const hd_meeting *m, int fd, const hd_handshake *shake, int *again)
{
    int own[2] = {m->group->arena_fd, m->group->life[m->join->me].fd};
    hd_hello h = {.control_bytes = sizeof(hd_control),
                  .n = m->join->n,
                  .index = m->join->me,
                  .pid = m->group->pid[m->join->me],
                  .has_life = own[1] >= 0};
    hd_prove(h.proof, &m->secret, shake, HD_CALLER);
    *again = hd_send_fds(fd, &h, sizeof h, own, 1 + h.has_life) != (ssize_t)sizeof h;
}

heddle_status hd_meeting_visit(hd_meeting *m, int fd, int *again)
{
    heddle_status st = HEDDLE_OK;
    hd_handshake shake;
    HD_TRY(greet(m, fd, &shake, again));
    if (!*again) {
        introduce(m, fd, &shake, again);
    }
    for (int known = 0; known < m->join->n && !*again;) {
        hd_batch b;
        int fds[HD_MEETING_FDS];
        int nfds = 0;
        HD_TRY(hd_meeting_readable(m, fd, "not all ranks came"));
        ssize_t got = hd_receive_fds(fd, &b, sizeof b, fds, &nfds);
        if (nfds < 0) {
            st = hd_meeting_crowded(m, known);
            goto out;
        }
        if (got != (ssize_t)sizeof b || b.magic != HD_JOIN_MAGIC) {
            hd_close_fds(fds, nfds);
            *again = known == 0;
            st = known == 0 ? HEDDLE_OK
                            : hd_fail(HEDDLE_ERR_PEER, "rank %d ended while the ranks were meeting",
                                      hd_meeting_name(m->join, 0));
            goto out;
        }
        if (b.status != 0) {
            hd_close_fds(fds, nfds);
            b.text[sizeof b.text - 1] = 0;
            st = hd_fail((heddle_status)b.status, "rank %d: %s", hd_meeting_name(m->join, 0), b.text);
            goto out;
        }
        HD_TRY(take(m, &b, fds, nfds));
        known += b.count;
        char answer = 1;
        if (send(fd, &answer, 1, MSG_NOSIGNAL) != 1) {
            st = hd_fail(HEDDLE_ERR_PEER, "rank %d ended while the ranks were meeting", hd_meeting_name(m->join, 0));
            goto out;
        }
    }
out:
    return st;
}

static heddle_status meet_as_other(hd_meeting *m)
{
    heddle_status st = HEDDLE_OK;
    int fd = -1;
    int again = 1;
    HD_TRY(stand_by_name(m));
    while (again) {
        HD_TRY(connect_there(m, &fd));
        HD_TRY(hd_meeting_visit(m, fd, &again));
        close(fd);
        fd = -1;
        if (again) {
            char what[224] = "the rank that the others meet at kept hanging up";
            if (m->holder_is_stranger) {
                say_absence(what, sizeof what, m);
            }
            HD_TRY(hd_meeting_waits(m, what));
            usleep(1000);
        }
    }
out:
    if (fd >= 0) {
        close(fd);
    }
    return st;
}

/* --- both --------------------------------------------------------------------------------------------------------- */

/* Arenas of the others; their descriptors are kept only where they are the sole sign of life. */
static heddle_status map_others(hd_meeting *m)
{
    hd_group *g = m->group;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < g->n; i++) {
        if (i == g->me) {
            continue;
        }
        HD_TRY(hd_arena_map(g, i, m->arena_fd[i]));
        if (g->life[i].fd < 0) {
            g->lock_fd[i] = m->arena_fd[i];
        } else {
            close(m->arena_fd[i]);
        }
        m->arena_fd[i] = -1;
    }
out:
    return st;
}

/* None so far. */
static heddle_status descriptors(int **out, int n)
{
    heddle_status st = hd_alloc((void **)out, (size_t)n, sizeof(int), "the ranks' meeting");
    for (int i = 0; i < n && st == HEDDLE_OK; i++) {
        (*out)[i] = -1;
    }
    return st;
}

static heddle_status meeting_open(hd_meeting *m)
{
    heddle_status st = HEDDLE_OK;
    const hd_join *join = m->join;
    m->listener = -1;
    hd_secret_of(&m->secret, join->key, strlen(join->key));
    HD_TRY(descriptors(&m->arena_fd, join->n));
    HD_TRY(descriptors(&m->socket, join->n));
    HD_TRY(hd_group_new(&m->group, join->n, join->me, join->ranks));
    HD_TRY(hd_arena_create(m->group, join->arena_bytes));
    hd_group *g = m->group;
    HD_TRY(hd_process_self(&g->control[g->me]->process));
    g->pid[g->me] = getpid();
    g->life[g->me].fd = hd_fd_aside((int)syscall(SYS_pidfd_open, getpid(), 0));
    sched_getaffinity(0, sizeof g->control[g->me]->cpus, &g->control[g->me]->cpus);
    m->arena_fd[g->me] = g->arena_fd;
out:
    return st;
}

static void meeting_close(hd_meeting *m)
{
    for (int i = 0; i < m->join->n; i++) {
        if (m->socket != NULL && m->socket[i] >= 0) {
            close(m->socket[i]);
        }
        if (m->arena_fd != NULL && m->arena_fd[i] >= 0 && i != m->join->me) {
            close(m->arena_fd[i]);
        }
    }
    if (m->listener >= 0) {
        close(m->listener);
    }
    hd_free(m->socket);
    hd_free(m->arena_fd);
}

heddle_status hd_group_join(hd_group **out, const hd_join *join)
{
    heddle_status st = HEDDLE_OK;
    hd_meeting m = {.join = join, .interrupt = join->interrupt, .listener = -1};
    HD_TRY(meeting_open(&m));
    if (join->n > 1) {
        HD_TRY(join->me == 0 ? hd_meet_as_first(&m) : meet_as_other(&m));
    }
    HD_TRY(map_others(&m));
    if (m.group->life[join->me].fd >= 0) {
        close(m.group->life[join->me].fd); /* nobody watches himself */
        m.group->life[join->me].fd = -1;
    }
    hd_group_set_spins(m.group);
    *out = m.group;
    m.group = NULL;
out:
    if (m.group != NULL) {
        if (m.group->control[join->me] != NULL) { /* others may have this rank's memory already */
            atomic_store(&m.group->control[join->me]->state, HD_RANK_LEFT);
        }
        hd_group_free(m.group);
    }
    meeting_close(&m);
    return st;
}
