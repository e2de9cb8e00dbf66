/* How ranks that know where the others listen come to have a connection for every two: each calls those below it, and
 * is called by those above. Whoever answers has to know the key, and to be the rank that was called: an address may be
 * of another machine here than there. */
#include "runtime/base/base.h"
#include "runtime/comm/transport/tcp_post.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STEP_MS = 20, BACKLOG = 4096, CALLERS = 64 /* at once; more wait until one has said who it is */ };
static const int64_t try_ns = 2500000000; /* for an address that does not answer: the next one may */

/* -1, and errno stays. */
static int drop(int fd)
{
    const int why = errno;
    if (fd >= 0) {
        close(fd);
    }
    errno = why;
    return -1;
}

/* --- places ------------------------------------------------------------------------------------------------------- */

static int add_address(hd_tcp_place *place, int n, const struct sockaddr *found)
{
    if (n < HD_TCP_ADDRESSES && found->sa_family == AF_INET) {
        place->address[n].version = 4;
        memcpy(place->address[n].bytes, &((const struct sockaddr_in *)found)->sin_addr, 4);
        return n + 1;
    }
    if (n < HD_TCP_ADDRESSES && found->sa_family == AF_INET6) {
        const struct in6_addr *address = &((const struct sockaddr_in6 *)found)->sin6_addr;
        if (!IN6_IS_ADDR_LINKLOCAL(address)) { /* means nothing without the name of a cable here */
            place->address[n].version = 6;
            memcpy(place->address[n].bytes, address, 16);
            return n + 1;
        }
    }
    return n;
}

/* That of cables before that of this machine alone. */
static heddle_status list_addresses(hd_tcp_place *place)
{
    struct ifaddrs *all = NULL;
    int n = 0;
    if (getifaddrs(&all) != 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no list of this machine's addresses: %s", strerror(errno));
    }
    for (int loops = 0; loops < 2; loops++) {
        for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
            const int is_loop = (one->ifa_flags & IFF_LOOPBACK) != 0;
            if (one->ifa_addr != NULL && (one->ifa_flags & IFF_UP) != 0 && is_loop == loops) {
                n = add_address(place, n, one->ifa_addr);
            }
        }
    }
    freeifaddrs(all);
    return n > 0 ? HEDDLE_OK : hd_fail(HEDDLE_ERR_TRANSPORT, "this machine has no address that TCP could use");
}

/* Of both versions where the machine has both. */
static int bind_listener(struct sockaddr_in6 *bound)
{
    const struct sockaddr_in six_less = {.sin_family = AF_INET};
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    const int no = 0;
    socklen_t bytes = sizeof *bound;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0 ||
        bind(fd, (const struct sockaddr *)&any, sizeof any) != 0) {
        (void)drop(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, (const struct sockaddr *)&six_less, sizeof six_less) != 0) {
            return drop(fd);
        }
    }
    fd = hd_fd_aside(fd);
    return fd >= 0 && listen(fd, BACKLOG) == 0 && getsockname(fd, (struct sockaddr *)bound, &bytes) == 0 ? fd
                                                                                                         : drop(fd);
}

heddle_status hd_tcp_listen(int *listener, hd_tcp_place *place)
{
    struct sockaddr_in6 bound; /* the port lies at one place in both versions */
    heddle_status st;
    memset(place, 0, sizeof *place);
    HD_TRY(list_addresses(place));
    *listener = bind_listener(&bound);
    if (*listener < 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no port to listen at: %s", strerror(errno));
    }
    memcpy(place->port, &bound.sin6_port, sizeof place->port);
out:
    return st;
}

/* --- one connection ----------------------------------------------------------------------------------------------- */

typedef struct hello {
    uint64_t key[2];
    int32_t from, to;
} hello;

static int was_interrupted(hd_tcp *tcp)
{
    tcp->is_interrupted = tcp->is_interrupted || hd_interrupted(&tcp->interrupt);
    return tcp->is_interrupted;
}

static int64_t patience_until(const hd_tcp_meeting *m)
{
    const int64_t until_ns = hd_now_ns() + try_ns;
    return until_ns < m->deadline_ns ? until_ns : m->deadline_ns;
}

/* All of it within the time, or 0. */
static int pass_on(hd_tcp *tcp, int fd, void *bytes, size_t n, short event, int64_t until_ns)
{
    struct pollfd ready = {.fd = fd, .events = event};
    size_t at = 0;
    while (at < n && hd_now_ns() < until_ns && !was_interrupted(tcp)) {
        if (poll(&ready, 1, STEP_MS) != 1) {
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

static int set_up(int fd)
{
    const int yes = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static int dial(const hd_tcp_place *place, const hd_tcp_address *address)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    const int is_four = address->version == 4;
    memcpy(&four.sin_port, place->port, sizeof place->port);
    memcpy(&six.sin6_port, place->port, sizeof place->port);
    memcpy(is_four ? (void *)&four.sin_addr : (void *)&six.sin6_addr, address->bytes, is_four ? 4 : 16);
    const int fd = hd_fd_aside(socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int rc = fd < 0    ? -1
                   : is_four ? connect(fd, (const struct sockaddr *)&four, sizeof four)
                             : connect(fd, (const struct sockaddr *)&six, sizeof six);
    return rc == 0 || errno == EINPROGRESS ? fd : drop(fd);
}

/* It is the rank that was called, and it knows that it has been. -1: errno says why not. */
static int call_at(hd_tcp *tcp, const hd_tcp_meeting *m, int r, const hd_tcp_address *address)
{
    hello mine = {{m->key[0], m->key[1]}, m->rank, r}, theirs = {{0, 0}, -1, -1};
    const int64_t until_ns = patience_until(m);
    const int fd = dial(&m->place[r], address);
    char word = 1;
    if (fd < 0) {
        return -1;
    }
    int goes = pass_on(tcp, fd, &mine, sizeof mine, POLLOUT, until_ns) &&
               pass_on(tcp, fd, &theirs, sizeof theirs, POLLIN, until_ns);
    if (goes && (memcmp(theirs.key, m->key, sizeof theirs.key) != 0 || theirs.from != r || theirs.to != m->rank)) {
        errno = EREMOTE;
        goes = 0;
    }
    goes = goes && set_up(fd) == 0 && pass_on(tcp, fd, &word, 1, POLLOUT, until_ns);
    return goes ? fd : drop(fd);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static heddle_status look_at_time(hd_tcp *tcp, const hd_tcp_meeting *m)
{
    if (was_interrupted(tcp)) {
        return hd_fail(HEDDLE_ERR_INTERRUPTED, "rank %d: interrupted while ranks met", m->rank);
    }
    return hd_now_ns() <= m->deadline_ns ? HEDDLE_OK : HEDDLE_ERR_TIMEOUT;
}

/* *lucky: the number of the address that was right for the rank before; machines of a network are alike. */
static heddle_status call_rank(hd_tcp *tcp, const hd_tcp_meeting *m, int r, int *lucky)
{
    const hd_tcp_place *place = &m->place[r];
    char text[INET6_ADDRSTRLEN] = "no address", why[160] = "it listens nowhere";
    for (int turn = 0;; turn++) {
        for (int i = 0; i < HD_TCP_ADDRESSES; i++) {
            const int at = (*lucky + i) % HD_TCP_ADDRESSES;
            const hd_tcp_address *address = &place->address[at];
            heddle_status st = look_at_time(tcp, m);
            if (st != HEDDLE_OK) {
                return st != HEDDLE_ERR_TIMEOUT
                           ? st
                           : hd_fail(st,
                                     "rank %d of %d did not get through to rank %d before the deadline, at last at "
                                     "%s port %d: %s",
                                     m->rank, m->size, r, text, place->port[0] * 256 + place->port[1], why);
            }
            if (address->version != 0) {
                tcp->peer[r].fd = call_at(tcp, m, r, address);
                snprintf(why, sizeof why, "%s", strerror(errno));
                inet_ntop(address->version == 4 ? AF_INET : AF_INET6, address->bytes, text, sizeof text);
            }
            if (tcp->peer[r].fd >= 0) {
                *lucky = at;
                return HEDDLE_OK;
            }
        }
        hd_nap(turn + 1000);
    }
}

/* Who has called, and has not said all that a rank says. */
typedef struct caller {
    int fd; /* -1: nobody */
    int64_t until_ns;
    size_t filled;
    struct {
        hello who;
        char word;
    } said;
} caller;

static int is_awaited(const hd_tcp *tcp, const hd_tcp_meeting *m, const hello *who)
{
    return memcmp(who->key, m->key, sizeof who->key) == 0 && who->to == m->rank && who->from > m->rank &&
           who->from < m->size && tcp->peer[who->from].fd < 0;
}

/* 1: it has said so many bytes; 0: not yet; -1: it is gone. */
static int hear(caller *c, size_t wanted)
{
    while (c->filled < wanted) {
        const ssize_t got = recv(c->fd, (char *)&c->said + c->filled, wanted - c->filled, MSG_DONTWAIT);
        if (got <= 0) {
            return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
        }
        c->filled += (size_t)got;
    }
    return 1;
}

/* 1: it is the rank it says, and has heard that this is the one it wanted; 0: not yet; -1: nobody's rank. */
static int answer(const hd_tcp *tcp, const hd_tcp_meeting *m, caller *c)
{
    if (c->filled < sizeof c->said.who) {
        const int heard = hear(c, sizeof c->said.who);
        if (heard != 1) {
            return heard;
        }
        const hello mine = {{m->key[0], m->key[1]}, m->rank, c->said.who.from};
        if (!is_awaited(tcp, m, &c->said.who) || set_up(c->fd) != 0 ||
            send(c->fd, &mine, sizeof mine, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof mine) {
            return -1; /* a new connection has room for all of it */
        }
    }
    return hear(c, sizeof c->said.who + 1);
}

static heddle_status take_call(const hd_tcp_meeting *m, int listener, caller *c)
{
    *c = (caller){.fd = hd_fd_aside(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)),
                  .until_ns = patience_until(m)};
    const int is_full = c->fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
    return is_full ? hd_fail(HEDDLE_ERR_TRANSPORT, "rank %d of %d cannot take the calls of other ranks: %s", m->rank,
                             m->size, strerror(errno))
                   : HEDDLE_OK; /* else: who called is gone */
}

/* One look at all of them: who says nothing keeps nobody waiting. *left: how many ranks have not come. */
static heddle_status be_called(hd_tcp *tcp, const hd_tcp_meeting *m, int listener, caller open[CALLERS], int *left)
{
    struct pollfd ready[CALLERS + 1];
    int room = CALLERS;
    for (int i = 0; i < CALLERS; i++) {
        ready[i] = (struct pollfd){.fd = open[i].fd, .events = POLLIN};
        room = open[i].fd < 0 ? i : room;
    }
    ready[CALLERS] = (struct pollfd){.fd = room < CALLERS ? listener : -1, .events = POLLIN};
    const int any = poll(ready, CALLERS + 1, STEP_MS);
    for (int i = 0; i < CALLERS; i++) {
        caller *c = &open[i];
        if (c->fd < 0) {
            continue;
        }
        const int said = any > 0 && ready[i].revents != 0 ? answer(tcp, m, c) : 0;
        if (said == 1 && tcp->peer[c->said.who.from].fd < 0) {
            tcp->peer[c->said.who.from].fd = c->fd;
            c->fd = -1;
            *left -= 1;
        } else if (said != 0 || hd_now_ns() > c->until_ns) {
            c->fd = drop(c->fd);
        }
    }
    return any > 0 && ready[CALLERS].revents != 0 ? take_call(m, listener, &open[room]) : HEDDLE_OK;
}

static heddle_status await_calls(hd_tcp *tcp, const hd_tcp_meeting *m, int listener)
{
    heddle_status st = HEDDLE_OK;
    caller open[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        open[i].fd = -1;
    }
    for (int left = m->size - 1 - m->rank; left > 0;) {
        HD_TRY(be_called(tcp, m, listener, open, &left));
        st = left > 0 ? look_at_time(tcp, m) : HEDDLE_OK;
        if (st == HEDDLE_ERR_TIMEOUT) {
            int missing = m->rank + 1;
            while (tcp->peer[missing].fd >= 0) {
                missing++;
            }
            st = hd_fail(st, "rank %d of %d: %d ranks did not call before the deadline, rank %d is the first of them",
                         m->rank, m->size, left, missing);
        }
        HD_TRY(st);
    }
out:
    for (int i = 0; i < CALLERS; i++) {
        (void)drop(open[i].fd);
    }
    return st;
}

static heddle_status meet(hd_tcp *tcp, const hd_tcp_meeting *m, int listener)
{
    heddle_status st = HEDDLE_OK;
    int lucky = 0;
    for (int r = 0; r < m->rank; r++) {
        HD_TRY(call_rank(tcp, m, r, &lucky));
    }
    st = await_calls(tcp, m, listener);
out:
    return st;
}

heddle_status hd_tcp_open(hd_tcp **out, const hd_tcp_meeting *meeting, int listener)
{
    heddle_status st;
    hd_tcp *tcp = NULL;
    HD_TRY(hd_alloc((void **)&tcp, 1, sizeof *tcp, "connections between ranks"));
    tcp->rank = meeting->rank;
    tcp->size = meeting->size;
    tcp->interrupt = meeting->interrupt;
    tcp->aborted_by = -1;
    HD_TRY(hd_alloc((void **)&tcp->peer, (size_t)meeting->size, sizeof *tcp->peer, "connections between ranks"));
    for (int r = 0; r < meeting->size; r++) {
        tcp->peer[r] = (hd_tcp_peer){.fd = -1, .out_end = &tcp->peer[r].out, .in_end = &tcp->peer[r].in};
    }
    HD_TRY(hd_alloc((void **)&tcp->fds, (size_t)meeting->size, sizeof *tcp->fds, "connections between ranks"));
    HD_TRY(meet(tcp, meeting, listener));
    *out = tcp;
    tcp = NULL;
out:
    if (tcp != NULL) {
        tcp->aborted_by = tcp->rank; /* no goodbyes: who met this rank already hears that its connection ended */
    }
    hd_tcp_close(tcp);
    return st;
}
