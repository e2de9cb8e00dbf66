#include "runtime/comm/ground/door.h"

#include "runtime/comm/ground/join_socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 256 /* come in at a turn; others are heard in between */ };

void hd_door_open(hd_door *door)
{
    door->error = 0;
    door->silent = 0;
    for (int i = 0; i < HD_DOOR_VISITORS; i++) {
        door->visitor[i] = (hd_visitor){.fd = -1};
    }
}

static void send_away(hd_door *door, hd_visitor *v)
{
    if (v->fd >= 0) {
        close(v->fd);
        v->fd = -1;
        door->silent = v->pid;
    }
}

void hd_door_close(hd_door *door)
{
    for (int i = 0; i < HD_DOOR_VISITORS; i++) {
        send_away(door, &door->visitor[i]);
    }
}

int hd_door_visitors(const hd_door *door, pid_t *silent)
{
    int n = 0;
    pid_t pid = door->silent;
    for (int i = 0; i < HD_DOOR_VISITORS; i++) {
        if (door->visitor[i].fd >= 0) {
            pid = door->visitor[i].pid;
            n++;
        }
    }
    if (silent != NULL) {
        *silent = pid;
    }
    return n;
}

int hd_door_hear(hd_visitor *v, void *into, size_t bytes)
{
    while (v->filled < bytes) {
        const ssize_t got = recv(v->fd, (char *)into + v->filled, bytes - v->filled, MSG_DONTWAIT);
        if (got <= 0) {
            return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
        }
        v->filled += (size_t)got;
    }
    return 1;
}

/* As hd_door_hear. What is no knock at this rank gets no answer. */
static int answer(const hd_door *door, hd_visitor *v)
{
    hd_answer a;
    const int heard = hd_door_hear(v, &v->shake.knock, sizeof v->shake.knock);
    if (heard != 1) {
        return heard;
    }
    if (v->shake.knock.magic != HD_KNOCK_MAGIC || v->shake.knock.to != door->me ||
        hd_handshake_where(&v->shake, v->fd, HD_CALLEE) != 0 ||
        hd_random_bytes(v->shake.nonce, sizeof v->shake.nonce) != 0) {
        return -1;
    }
    memcpy(a.nonce, v->shake.nonce, sizeof a.nonce);
    hd_prove(a.proof, door->secret, &v->shake, HD_CALLEE);
    v->filled = 0;
    v->is_answered = 1;
    /* a new connection has room for all of it */
    return send(v->fd, &a, sizeof a, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof a ? 1 : -1;
}

static heddle_status attend(hd_door *door, hd_visitor *v)
{
    heddle_status st = HEDDLE_OK;
    int is_over = 0;
    if (!v->is_answered) {
        is_over = answer(door, v) < 0;
    } else {
        st = door->enter(door->ctx, v, &is_over);
    }
    if (is_over) {
        send_away(door, v);
    }
    return st;
}

/* A free place: that of the oldest who has not even knocked, else of the oldest. NULL: nobody can go, and none is free.
 */
static hd_visitor *find_place(hd_door *door, int must_go)
{
    hd_visitor *oldest = NULL;
    for (int i = 0; i < HD_DOOR_VISITORS; i++) {
        hd_visitor *v = &door->visitor[i];
        if (v->fd < 0) {
            if (!must_go) {
                return v;
            }
        } else if (oldest == NULL || v->is_answered < oldest->is_answered ||
                   (v->is_answered == oldest->is_answered && v->since_ns < oldest->since_ns)) {
            oldest = v;
        }
    }
    if (oldest != NULL) {
        send_away(door, oldest);
    }
    return oldest;
}

static int is_welcome(const hd_door *door, int fd, pid_t *pid)
{
    struct ucred who;
    *pid = 0;
    if (!door->is_of_host) {
        return 1;
    }
    if (!hd_peer_of(fd, &who) || who.uid != getuid()) {
        return 0;
    }
    *pid = who.pid;
    return 1;
}

static heddle_status let_in(hd_door *door)
{
    heddle_status st = HEDDLE_OK;
    for (int n = 0; n < BATCH && st == HEDDLE_OK; n++) {
        pid_t pid;
        const int fd = hd_fd_aside(accept4(door->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            const int error = errno; /* also when nobody waits */
            if (poll(&(struct pollfd){.fd = door->listener, .events = POLLIN}, 1, 0) <= 0) {
                break;
            }
            if (find_place(door, 1) == NULL) {
                door->error = error;
                break;
            }
        } else if (fd < 0 && errno == EAGAIN) {
            break;
        } else if (fd >= 0 && !is_welcome(door, fd, &pid)) {
            close(fd);
        } else if (fd >= 0) { /* else: who called is gone */
            hd_visitor *v = find_place(door, 0);
            *v = (hd_visitor){.fd = fd, .pid = pid, .since_ns = hd_now_ns()};
            st = attend(door, v);
        }
    }
    return st;
}

heddle_status hd_door_turn(hd_door *door, int wait_ms)
{
    heddle_status st = HEDDLE_OK;
    struct pollfd ready[HD_DOOR_VISITORS + 1] = {{.fd = door->listener, .events = POLLIN}};
    hd_visitor *of[HD_DOOR_VISITORS + 1];
    nfds_t n = 1; /* poll takes no more than this process may have open */
    for (int i = 0; i < HD_DOOR_VISITORS; i++) {
        if (door->visitor[i].fd >= 0) {
            of[n] = &door->visitor[i];
            ready[n++] = (struct pollfd){.fd = door->visitor[i].fd, .events = POLLIN};
        }
    }
    if (poll(ready, n, wait_ms) <= 0) {
        return HEDDLE_OK;
    }
    for (nfds_t i = 1; i < n; i++) {
        HD_TRY(ready[i].revents != 0 ? attend(door, of[i]) : HEDDLE_OK);
    }
    st = ready[0].revents != 0 ? let_in(door) : HEDDLE_OK;
out:
    return st;
}
