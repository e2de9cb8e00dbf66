/* How ranks that know where the others listen come to have a connection for every two: each calls those below it, and
 * is called by those above. An address may be of another machine here than there, and anybody may listen or call. So
 * both show that they know the key and are the rank that is meant, at the address that was called (proof.h): the key is
 * told to nobody, and what one says is of no use to who passes it on. Letters behind it are neither signed nor
 * encrypted, as those of MPI and NCCL: who can change packets on their way (root on a machine or a switch between) can
 * read and change them. */
#include "runtime/base/base.h"
#include "runtime/base/hash.h"
#include "runtime/comm/ground/door.h"
#include "runtime/comm/transport/callbacks.h"
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

enum { STEP_MS = 20, BACKLOG = 4096 };
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
    static const char *const space[] = {"/proc/self/ns/net"};
    struct sockaddr_in6 bound; /* the port lies at one place in both versions */
    heddle_status st;
    memset(place, 0, sizeof *place);
    (void)hd_host_hash(place->host, space, 1);
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

/* 127.0.0.1, or 172.17.0.1 where containers run, is there on every machine: it leads here, and not to another one. */
static int is_own(const hd_tcp_place *own, const hd_tcp_address *address)
{
    static const uint8_t loop[16] = {[15] = 1};
    int is = address->version == 4 ? address->bytes[0] == 127 : memcmp(address->bytes, loop, sizeof loop) == 0;
    for (int i = 0; i < HD_TCP_ADDRESSES && !is; i++) {
        is = memcmp(&own->address[i], address, sizeof *address) == 0;
    }
    return is;
}

static int may_call(const hd_tcp_meeting *m, int r, const hd_tcp_address *address)
{
    const hd_tcp_place *own = &m->place[m->rank];
    const int is_here = memcmp(own->host, m->place[r].host, sizeof own->host) == 0;
    return address->version != 0 && (is_here || !is_own(own, address));
}

/* 1: it is the rank that was called, and has let this one in; 0: errno. */
static int are_friends(hd_tcp *tcp, const hd_tcp_meeting *m, int r, int fd, int64_t until_ns)
{
    hd_handshake shake;
    hd_answer a;
    unsigned char proof[HD_PROOF_BYTES];
    char word;
    if (hd_handshake_begin(&shake, m->rank, r) != 0 ||
        !pass_on(tcp, fd, &shake.knock, sizeof shake.knock, POLLOUT, until_ns) ||
        hd_handshake_where(&shake, fd, HD_CALLER) != 0 || !pass_on(tcp, fd, &a, sizeof a, POLLIN, until_ns)) {
        return 0;
    }
    memcpy(shake.nonce, a.nonce, sizeof shake.nonce);
    if (!hd_proves(a.proof, &tcp->secret, &shake, HD_CALLEE)) {
        errno = EKEYREJECTED;
        return 0;
    }
    hd_prove(proof, &tcp->secret, &shake, HD_CALLER);
    return set_up(fd) == 0 && pass_on(tcp, fd, proof, sizeof proof, POLLOUT, until_ns) &&
           pass_on(tcp, fd, &word, 1, POLLIN, until_ns);
}

/* -1: errno says why not. */
static int call_at(hd_tcp *tcp, const hd_tcp_meeting *m, int r, const hd_tcp_address *address)
{
    const int64_t until_ns = patience_until(m);
    const int fd = dial(&m->place[r], address);
    return fd >= 0 && are_friends(tcp, m, r, fd, until_ns) ? fd : drop(fd);
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
    char text[INET6_ADDRSTRLEN] = "no address", why[160] = "it has none that is not this machine's own as well";
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
            if (may_call(m, r, address)) {
                tcp->peer[r].fd = call_at(tcp, m, r, address);
                snprintf(why, sizeof why, "%s",
                         errno == EKEYREJECTED ? "who answers there is another, or does not know the key"
                                               : strerror(errno));
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

/* hd_door's: it has had the answer. A rank that calls again has given up its earlier call. */
static heddle_status let_in(void *ctx, hd_visitor *v, int *is_over)
{
    hd_tcp *tcp = ctx;
    const int from = v->shake.knock.from, heard = hd_door_hear(v, v->proof, sizeof v->proof);
    char word = 1;
    if (heard == 0) {
        return HEDDLE_OK;
    }
    *is_over = heard < 0 || !hd_proves(v->proof, &tcp->secret, &v->shake, HD_CALLER) || from <= tcp->rank ||
               from >= tcp->size || set_up(v->fd) != 0 || send(v->fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1;
    if (!*is_over) {
        (void)drop(tcp->peer[from].fd);
        tcp->peer[from].fd = v->fd;
        v->fd = -1;
    }
    return HEDDLE_OK;
}

/* How many of the ranks above this one have not called; *first of them. */
static int count_missing(const hd_tcp *tcp, int *first)
{
    int n = 0;
    for (int r = tcp->size - 1; r > tcp->rank; r--) {
        if (tcp->peer[r].fd < 0) {
            *first = r;
            n++;
        }
    }
    return n;
}

static heddle_status await_calls(hd_tcp *tcp, const hd_tcp_meeting *m, int listener)
{
    heddle_status st = HEDDLE_OK;
    hd_door door = {.listener = listener, .secret = &tcp->secret, .me = m->rank, .enter = let_in, .ctx = tcp};
    int missing = 0;
    hd_door_open(&door);
    for (int left = count_missing(tcp, &missing); left > 0; left = count_missing(tcp, &missing)) {
        st = look_at_time(tcp, m);
        if (st == HEDDLE_ERR_TIMEOUT) {
            st = hd_fail(st, "rank %d of %d: %d ranks did not call before the deadline, rank %d is the first of them",
                         m->rank, m->size, left, missing);
        }
        HD_TRY(st);
        HD_TRY(hd_door_turn(&door, STEP_MS));
        if (door.error != 0) {
            st = hd_fail(HEDDLE_ERR_TRANSPORT, "rank %d of %d cannot take the calls of other ranks: %s", m->rank,
                         m->size, strerror(door.error));
            goto out;
        }
    }
out:
    hd_door_close(&door);
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
    hd_secret_of(&tcp->secret, meeting->key, sizeof meeting->key);
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
