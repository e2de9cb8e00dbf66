#include "runtime/comm/transport/tcp_line.h"

#include "runtime/base/base.h"
#include "runtime/comm/transport/tcp_star.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

static const int64_t try_ns = 2500000000; /* for an address that does not answer: the next one may */

int hd_tcp_drop(int fd)
{
    const int why = errno;
    if (fd >= 0) {
        close(fd);
    }
    errno = why;
    return -1;
}

const char *hd_tcp_why(int error)
{
    return error == EKEYREJECTED ? "who answers there is another, or does not know the key" : strerror(error);
}

/* --- time --------------------------------------------------------------------------------------------------------- */

static int was_interrupted(hd_tcp_patience *p)
{
    p->is_interrupted = p->is_interrupted || hd_interrupted(&p->interrupt);
    return p->is_interrupted;
}

static int dead_one(const hd_tcp_patience *p)
{
    const int dead = p->dead != NULL ? atomic_load(p->dead) : 0;
    return dead == 0 && p->star != NULL ? hd_tcp_star_dead(p->star) : dead;
}

heddle_status hd_tcp_waits(hd_tcp_patience *p, int rank)
{
    if (was_interrupted(p)) {
        return hd_fail(HEDDLE_ERR_INTERRUPTED, "rank %d: interrupted while ranks met", rank);
    }
    const int dead = dead_one(p);
    if (dead != 0) {
        return hd_fail(HEDDLE_ERR_PEER, "rank %d ended while the ranks were meeting", dead - 1);
    }
    return hd_now_ns() <= p->deadline_ns ? HEDDLE_OK : HEDDLE_ERR_TIMEOUT;
}

int64_t hd_tcp_until(const hd_tcp_patience *p)
{
    const int64_t until_ns = hd_now_ns() + try_ns;
    return until_ns < p->deadline_ns ? until_ns : p->deadline_ns;
}

int hd_tcp_pass(hd_tcp_patience *p, int fd, void *bytes, size_t n, short event, int64_t until_ns)
{
    struct pollfd ready = {.fd = fd, .events = event};
    size_t at = 0;
    while (at < n && hd_now_ns() < until_ns && !was_interrupted(p) && dead_one(p) == 0) {
        if (poll(&ready, 1, HD_TCP_STEP_MS) != 1) {
            continue;
        }
        const ssize_t moved = event == POLLIN ? recv(fd, (char *)bytes + at, n - at, MSG_DONTWAIT)
                                              : send(fd, (char *)bytes + at, n - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) {
            errno = moved == 0 ? ECONNRESET : errno;
            return 0;
        }
        at += moved > 0 ? (size_t)moved : 0;
    }
    errno = at < n ? ETIMEDOUT : 0;
    return at == n;
}

/* --- calling ------------------------------------------------------------------------------------------------------ */

int hd_tcp_set_up(int fd)
{
    const int yes = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

int hd_tcp_dial(const hd_tcp_address_of_system *at)
{
    const socklen_t bytes = at->any.sa_family == AF_INET ? sizeof at->four : sizeof at->six;
    const int fd = hd_fd_aside(socket(at->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int rc = fd < 0 ? -1 : connect(fd, &at->any, bytes);
    return rc == 0 || errno == EINPROGRESS ? fd : hd_tcp_drop(fd);
}

/* Where nobody listens the kernel may give a call the very port that it calls: it has reached itself. */
static int has_reached_itself(const hd_handshake *called, int fd)
{
    hd_handshake own = *called;
    return hd_handshake_where(&own, fd, HD_CALLEE) == 0 && memcmp(&own, called, sizeof own) == 0;
}

int hd_tcp_greet(hd_handshake *shake, hd_tcp_patience *p, int fd, const hd_secret *secret, int from, int to,
                 int64_t until_ns)
{
    hd_answer a;
    if (hd_handshake_begin(shake, from, to) != 0 ||
        !hd_tcp_pass(p, fd, &shake->knock, sizeof shake->knock, POLLOUT, until_ns) ||
        hd_handshake_where(shake, fd, HD_CALLER) != 0) {
        return 0;
    }
    if (has_reached_itself(shake, fd)) {
        errno = ECONNREFUSED;
        return 0;
    }
    if (!hd_tcp_pass(p, fd, &a, sizeof a, POLLIN, until_ns)) {
        return 0;
    }
    memcpy(shake->nonce, a.nonce, sizeof shake->nonce);
    if (!hd_proves(a.proof, secret, shake, HD_CALLEE)) {
        errno = EKEYREJECTED;
        return 0;
    }
    return 1;
}
