/* How processes of one host meet: member 0 listens on an abstract Unix socket (no name in any file system), the others
 * connect and send their shared memory and a descriptor of their own process; member 0 hands everybody everything.
 * Afterwards the sockets are closed and nobody talks to anybody except through memory.
 */
#include "runtime/comm/comm_private.h"
#include "runtime/comm/join_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x6864646c, BATCH = HD_MEETING_FDS / 2, STEP_MS = 20, BACKLOG = 1024 };

/* Two descriptors per member: arena, process (if the kernel gives one). */
typedef struct hello {
    uint32_t magic;
    uint32_t control_bytes; /* two versions of the library do not meet */
    int32_t n;
    int32_t index;
    int32_t pid;
    int32_t has_life;
} hello;

/* Member 0's answer, in batches; status != 0: the text says why not. */
typedef struct batch {
    uint32_t magic;
    int32_t status;
    int32_t first;
    int32_t count;
    int32_t pid[BATCH];
    int32_t has_life[BATCH];
    char text[256];
} batch;

typedef struct meeting {
    const hd_join *join;
    hd_group *group;
    int *arena_fd; /* of every member, -1 */
    int *socket;   /* member 0: of every member, -1 */
    int listener;
} meeting;

static int name_of(const hd_join *join, int index)
{
    return join->ranks != NULL ? join->ranks[index] : index;
}

static heddle_status still_waiting(const meeting *m, const char *what)
{
    const hd_join *join = m->join;
    int dead = join->dead != NULL ? atomic_load(join->dead) : 0;
    if (dead != 0) {
        return hd_fail(HEDDLE_ERR_PEER, "rank %d died while the ranks were meeting", name_of(join, dead - 1));
    }
    if (hd_now_ns() > join->deadline_ns) {
        return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: %s before the deadline", name_of(join, join->me), what);
    }
    return HEDDLE_OK;
}

static heddle_status wait_readable(const meeting *m, int fd, const char *what)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, STEP_MS) > 0) {
            return HEDDLE_OK;
        }
        heddle_status st = still_waiting(m, what);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
}

/* --- member 0 -------------------------------------------------------------------------------------------------- */

static heddle_status listen_here(meeting *m)
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
        heddle_status st = still_waiting(m, "another job of this user has the same key");
        if (st != HEDDLE_OK) {
            return st;
        }
        usleep(1000 * STEP_MS / 4);
    }
    if (listen(m->listener, BACKLOG) != 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "listening on a Unix socket: %s", strerror(errno));
    }
    return HEDDLE_OK;
}

static heddle_status too_few_descriptors(const meeting *m, int came)
{
    return hd_fail(HEDDLE_ERR_TRANSPORT, "out of file descriptors (ulimit -n) after %d of %d ranks", came, m->join->n);
}

/* A visitor that is not one of ours (another user, another version) is turned away without harm. */
static heddle_status admit(meeting *m, int fd, int *came)
{
    hello h;
    int fds[HD_MEETING_FDS];
    int nfds = 0;
    if (!hd_same_user(fd)) {
        close(fd);
        return HEDDLE_OK;
    }
    heddle_status st = wait_readable(m, fd, "a rank connected and then said nothing");
    if (st != HEDDLE_OK) {
        close(fd);
        return st;
    }
    ssize_t got = hd_receive_fds(fd, &h, sizeof h, fds, &nfds);
    if (nfds < 0) {
        close(fd);
        return too_few_descriptors(m, *came);
    }
    int good = got == (ssize_t)sizeof h && h.magic == MAGIC && h.control_bytes == sizeof(hd_control) &&
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

static heddle_status gather(meeting *m)
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
                 name_of(m->join, missing));
        HD_TRY(wait_readable(m, m->listener, what));
        int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            HD_TRY(admit(m, fd, &came));
        } else if (errno == EMFILE || errno == ENFILE) {
            st = too_few_descriptors(m, came);
            goto out;
        }
    }
out:
    return st;
}

/* All members' descriptors to one member, which acknowledges every batch: few are under way at a time. */
static heddle_status tell(const meeting *m, int index)
{
    heddle_status st = HEDDLE_OK;
    for (int first = 0; first < m->join->n; first += BATCH) {
        batch b = {.magic = MAGIC, .first = first};
        int fds[HD_MEETING_FDS];
        int nfds = 0;
        for (int i = first; i < m->join->n && i < first + BATCH; i++, b.count++) {
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
            return hd_fail(HEDDLE_ERR_PEER, "rank %d ended while the ranks were meeting: %s", name_of(m->join, index),
                           strerror(errno));
        }
        HD_TRY(wait_readable(m, m->socket[index], "a rank that had come did not answer"));
        if (recv(m->socket[index], &answer, 1, 0) != 1) {
            return hd_fail(HEDDLE_ERR_PEER, "rank %d ended while the ranks were meeting", name_of(m->join, index));
        }
    }
out:
    return st;
}

/* Why not, to those who came. */
static void refuse(const meeting *m, heddle_status why)
{
    batch b = {.magic = MAGIC, .status = (int)why};
    snprintf(b.text, sizeof b.text, "%s", heddle_last_error());
    for (int i = 1; i < m->join->n; i++) {
        if (m->socket[i] >= 0) {
            send(m->socket[i], &b, sizeof b, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
}

static heddle_status meet_as_first(meeting *m)
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

/* --- the others ------------------------------------------------------------------------------------------------ */

static heddle_status connect_there(const meeting *m, int *out)
{
    struct sockaddr_un address;
    socklen_t bytes = hd_meeting_address(&address, m->join->key);
    for (int turn = 0;; turn++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            return hd_fail(HEDDLE_ERR_TRANSPORT, "no Unix socket: %s", strerror(errno));
        }
        if (connect(fd, (struct sockaddr *)&address, bytes) == 0 && hd_same_user(fd)) {
            *out = fd;
            return HEDDLE_OK;
        }
        close(fd);
        char what[96];
        snprintf(what, sizeof what, "rank %d of this host, which the others meet at, did not come",
                 name_of(m->join, 0));
        heddle_status st = still_waiting(m, what);
        if (st != HEDDLE_OK) {
            return st;
        }
        usleep(turn < 20 ? 500 : 1000 * STEP_MS / 4);
    }
}

static heddle_status take(meeting *m, const batch *b, const int *fds, int nfds)
{
    int used = 0;
    int wanted = 0;
    for (int k = 0; k < b->count && b->count <= BATCH; k++) {
        wanted += b->first + k == m->join->me ? 0 : 1 + (b->has_life[k] != 0);
    }
    if (b->count <= 0 || b->count > BATCH || b->first < 0 || b->first + b->count > m->join->n || wanted != nfds) {
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

/* One visit. *again: member 0 hung up without a word (it was still busy with an earlier meeting of the same key). */
static heddle_status visit(meeting *m, int fd, int *again)
{
    heddle_status st = HEDDLE_OK;
    hello h = {.magic = MAGIC,
               .control_bytes = sizeof(hd_control),
               .n = m->join->n,
               .index = m->join->me,
               .pid = m->group->pid[m->join->me]};
    int own[2] = {m->group->arena_fd, m->group->life[m->join->me].fd};
    h.has_life = own[1] >= 0;
    *again = hd_send_fds(fd, &h, sizeof h, own, 1 + h.has_life) != (ssize_t)sizeof h;
    for (int known = 0; known < m->join->n && !*again;) {
        batch b;
        int fds[HD_MEETING_FDS];
        int nfds = 0;
        HD_TRY(wait_readable(m, fd, "not all ranks came"));
        ssize_t got = hd_receive_fds(fd, &b, sizeof b, fds, &nfds);
        if (nfds < 0) {
            st = too_few_descriptors(m, known);
            goto out;
        }
        if (got != (ssize_t)sizeof b || b.magic != MAGIC) {
            hd_close_fds(fds, nfds);
            *again = known == 0;
            st = known == 0
                     ? HEDDLE_OK
                     : hd_fail(HEDDLE_ERR_PEER, "rank %d ended while the ranks were meeting", name_of(m->join, 0));
            goto out;
        }
        if (b.status != 0) {
            hd_close_fds(fds, nfds);
            b.text[sizeof b.text - 1] = 0;
            st = hd_fail((heddle_status)b.status, "rank %d: %s", name_of(m->join, 0), b.text);
            goto out;
        }
        HD_TRY(take(m, &b, fds, nfds));
        known += b.count;
        char answer = 1;
        if (send(fd, &answer, 1, MSG_NOSIGNAL) != 1) {
            st = hd_fail(HEDDLE_ERR_PEER, "rank %d ended while the ranks were meeting", name_of(m->join, 0));
            goto out;
        }
    }
out:
    return st;
}

static heddle_status meet_as_other(meeting *m)
{
    heddle_status st = HEDDLE_OK;
    int fd = -1;
    int again = 1;
    while (again) {
        HD_TRY(connect_there(m, &fd));
        HD_TRY(visit(m, fd, &again));
        close(fd);
        fd = -1;
        if (again) {
            HD_TRY(still_waiting(m, "the rank that the others meet at kept hanging up"));
            usleep(1000);
        }
    }
out:
    if (fd >= 0) {
        close(fd);
    }
    return st;
}

/* --- both
 * ---------------------------------------------------------------------------------------------------------------------
 */

/* Arenas of the others; their descriptors are kept only where they are the sole sign of life. */
static heddle_status map_others(meeting *m)
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

static heddle_status meeting_open(meeting *m)
{
    heddle_status st = HEDDLE_OK;
    const hd_join *join = m->join;
    m->listener = -1;
    HD_TRY(descriptors(&m->arena_fd, join->n));
    HD_TRY(descriptors(&m->socket, join->n));
    HD_TRY(hd_group_new(&m->group, join->n, join->me, join->ranks));
    HD_TRY(hd_arena_create(m->group, join->arena_bytes));
    hd_group *g = m->group;
    g->pid[g->me] = getpid();
    g->life[g->me].fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    sched_getaffinity(0, sizeof g->control[g->me]->cpus, &g->control[g->me]->cpus);
    m->arena_fd[g->me] = g->arena_fd;
out:
    return st;
}

static void meeting_close(meeting *m)
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
    meeting m = {.join = join, .listener = -1};
    HD_TRY(meeting_open(&m));
    if (join->n > 1) {
        HD_TRY(join->me == 0 ? meet_as_first(&m) : meet_as_other(&m));
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
