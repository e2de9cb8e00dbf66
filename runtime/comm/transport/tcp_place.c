/* Where a rank listens, and what of it the others are told. */
#include "runtime/base/base.h"
#include "runtime/base/hash.h"
#include "runtime/comm/transport/callbacks.h"
#include "runtime/comm/transport/tcp_line.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>

enum { BACKLOG = 4096 };

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

static const hd_tcp_address this_host_alone = {.version = 4, .bytes = {127, 0, 0, 1}};

/* -1: errno. A port that is asked for may be that of connections which are dying. */
static int bind_to(const hd_tcp_address_of_system *at, int is_asked_for)
{
    const int no = 0, is_six = at->any.sa_family == AF_INET6;
    const int fd = hd_fd_aside(socket(at->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int may = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &is_asked_for, sizeof is_asked_for) == 0 &&
                    (!is_six || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0);
    return may && bind(fd, &at->any, is_six ? sizeof at->six : sizeof at->four) == 0 && listen(fd, BACKLOG) == 0
               ? fd
               : hd_tcp_drop(fd);
}

/* Of both versions where the machine has both. */
int hd_tcp_bind(int port, int is_local)
{
    hd_tcp_address_of_system at = {.six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)}};
    int fd = is_local ? -1 : bind_to(&at, port != 0);
    if (fd < 0 && (is_local || errno != EADDRINUSE)) {
        at = (hd_tcp_address_of_system){.four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)}};
        if (is_local) {
            memcpy(&at.four.sin_addr, this_host_alone.bytes, sizeof at.four.sin_addr);
        }
        fd = bind_to(&at, port != 0);
    }
    return fd;
}

int hd_tcp_port(int listener, uint8_t port[2])
{
    hd_tcp_address_of_system bound;
    socklen_t bytes = sizeof bound;
    if (getsockname(listener, &bound.any, &bytes) != 0) {
        return -1;
    }
    memcpy(port, &bound.six.sin6_port, 2); /* it lies at one place in both versions */
    return 0;
}

heddle_status hd_tcp_listen(int *listener, hd_tcp_place *place, int is_local)
{
    static const char *const space[] = {"/proc/self/ns/net"};
    heddle_status st = HEDDLE_OK;
    memset(place, 0, sizeof *place);
    (void)hd_host_hash(place->host, space, 1);
    if (is_local) {
        place->address[0] = this_host_alone;
    } else {
        HD_TRY(list_addresses(place));
    }
    *listener = hd_tcp_bind(0, is_local);
    if (*listener < 0 || hd_tcp_port(*listener, place->port) != 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no port to listen at: %s", strerror(errno));
    }
out:
    return st;
}
