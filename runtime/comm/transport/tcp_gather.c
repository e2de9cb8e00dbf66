/* The places of all ranks by way of rank 0: the ranks that call it, and what both sides have in common. */
#include "runtime/comm/transport/tcp_gather.h"

#include "runtime/base/base.h"
#include "runtime/base/blake2s.h"

#include <errno.h>
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PAUSE_MS = 50, WHY_BYTES = 200 };

_Static_assert(sizeof(hd_tcp_place) == 296 && sizeof(hd_tcp_hello) == 24 + 296 + 32, "sealed as they lie");
_Static_assert(sizeof(hd_tcp_notice) == 8 + 16 + 32 + HD_TCP_NOTICE_BYTES + 32, "sealed as it lies");

/* --- what is read ------------------------------------------------------------------------------------------------- */

int hd_tcp_read_hello(const hd_tcp_hello *h, const hd_secret *secret, const hd_handshake *shake)
{
    return hd_is_sealed(h->seal, secret, shake, HD_CALLER, h, offsetof(hd_tcp_hello, seal)) &&
           h->place_bytes == (int32_t)sizeof h->place;
}

int hd_tcp_read_notice(const hd_tcp_notice *n, const hd_secret *secret, const hd_handshake *shake)
{
    return hd_is_sealed(n->seal, secret, shake, HD_CALLEE, n, offsetof(hd_tcp_notice, seal)) &&
           memchr(n->text, 0, sizeof n->text) != NULL && n->status >= HEDDLE_OK && n->status <= HEDDLE_ERR_INTERRUPTED;
}

void hd_tcp_hash_places(unsigned char hash[HD_PROOF_BYTES], const hd_tcp_place *place, int size)
{
    hd_blake2s(hash, HD_PROOF_BYTES, NULL, 0, place, (size_t)size * sizeof *place);
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

typedef struct visit {
    hd_tcp_gathering *g;
    struct addrinfo *at; /* NULL: not known yet */
    hd_handshake shake;
    hd_tcp_hello hello;
    int fd;
    char why[WHY_BYTES]; /* the last call was in vain */
} visit;

/* A name that nobody knows yet may be one in a moment: where containers start it is made with them. The system's
 * resolver has a deadline of its own. */
static void look_up(visit *v)
{
    char port[16];
    const struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    snprintf(port, sizeof port, "%d", v->g->port);
    const int error = getaddrinfo(v->g->host, port, &wanted, &v->at);
    if (error != 0) {
        v->at = NULL;
        snprintf(v->why, sizeof v->why, "no address is known of it: %s", gai_strerror(error));
    }
}

/* 1: rank 0 knows of this one, and has said so. 0: errno. */
static int say_hello(visit *v, int64_t until_ns)
{
    hd_tcp_gathering *g = v->g;
    char word;
    if (!hd_tcp_greet(&v->shake, &g->patience, v->fd, &g->secret, g->rank, 0, until_ns)) {
        return 0;
    }
    hd_seal(v->hello.seal, &g->secret, &v->shake, HD_CALLER, &v->hello, offsetof(hd_tcp_hello, seal));
    return hd_tcp_set_up(v->fd) == 0 &&
           hd_tcp_pass(&g->patience, v->fd, &v->hello, sizeof v->hello, POLLOUT, until_ns) &&
           hd_tcp_pass(&g->patience, v->fd, &word, 1, POLLIN, until_ns);
}

static void call(visit *v)
{
    for (const struct addrinfo *one = v->at; one != NULL && v->fd < 0; one = one->ai_next) {
        hd_tcp_address_of_system at = {0};
        const int64_t until_ns = hd_tcp_until(&v->g->patience);
        memcpy(&at, one->ai_addr, one->ai_addrlen < sizeof at ? one->ai_addrlen : sizeof at);
        v->fd = hd_tcp_dial(&at);
        v->fd = v->fd >= 0 && say_hello(v, until_ns) ? v->fd : hd_tcp_drop(v->fd);
        if (v->fd < 0) {
            snprintf(v->why, sizeof v->why, "%s", hd_tcp_why(errno));
        }
    }
}

static heddle_status come(visit *v)
{
    hd_tcp_gathering *g = v->g;
    while (v->fd < 0) {
        const heddle_status st = hd_tcp_waits(&g->patience, g->rank);
        if (st != HEDDLE_OK) {
            return st != HEDDLE_ERR_TIMEOUT
                       ? st
                       : hd_fail(st,
                                 "rank %d of %d did not get through to rank 0 at %s port %d before the deadline: %s",
                                 g->rank, g->size, g->host, g->port, v->why);
        }
        if (v->at == NULL) {
            look_up(v);
        }
        call(v);
        if (v->fd < 0) {
            poll(NULL, 0, PAUSE_MS);
        }
    }
    return HEDDLE_OK;
}

/* --- the answer --------------------------------------------------------------------------------------------------- */

static heddle_status hear(visit *v, void *bytes, size_t n)
{
    hd_tcp_gathering *g = v->g;
    if (hd_tcp_pass(&g->patience, v->fd, bytes, n, POLLIN, g->patience.deadline_ns)) {
        return HEDDLE_OK;
    }
    const int why = errno;
    const heddle_status st = hd_tcp_waits(&g->patience, g->rank);
    if (st != HEDDLE_OK && st != HEDDLE_ERR_TIMEOUT) {
        return st;
    }
    return why == ETIMEDOUT
               ? hd_fail(HEDDLE_ERR_TIMEOUT,
                         "rank %d of %d came to rank 0 at %s port %d, and not all ranks came before the deadline",
                         g->rank, g->size, g->host, g->port)
               : hd_fail(HEDDLE_ERR_PEER, "rank 0 ended while rank %d waited for it and the other ranks: %s", g->rank,
                         strerror(why));
}

static heddle_status refused(const visit *v, const hd_tcp_notice *n)
{
    const hd_tcp_gathering *g = v->g;
    if (n->status == HEDDLE_ERR_MISMATCH || n->status == HEDDLE_ERR_TIMEOUT) {
        return hd_fail((heddle_status)n->status, "%s", n->text); /* of all of them */
    }
    return hd_fail(HEDDLE_ERR_PEER, "rank %d: rank 0 gave up while ranks met: %s", g->rank, n->text);
}

static heddle_status hear_all(visit *v, hd_tcp_place *place, hd_tcp_notice *n)
{
    heddle_status st = HEDDLE_OK;
    const hd_tcp_gathering *g = v->g;
    unsigned char hash[HD_PROOF_BYTES];
    HD_TRY(hear(v, n, sizeof *n));
    const int is_read = hd_tcp_read_notice(n, &g->secret, &v->shake);
    if (is_read && n->status != HEDDLE_OK) {
        st = refused(v, n);
        goto out;
    }
    HD_TRY(is_read ? hear(v, place, (size_t)g->size * sizeof *place) : HEDDLE_OK);
    hd_tcp_hash_places(hash, place, g->size);
    if (!is_read || n->size != g->size || memcmp(hash, n->places, sizeof hash) != 0) {
        st = hd_fail(HEDDLE_ERR_TRANSPORT, "rank %d: what came from rank 0 was changed on its way", g->rank);
    }
out:
    return st;
}

heddle_status hd_tcp_visit_first(hd_tcp_place *place, hd_tcp_notice *notice, hd_tcp_gathering *g)
{
    heddle_status st;
    visit v = {.g = g, .fd = -1, .why = "there was no time", .hello = {.size = g->size}};
    v.hello.place_bytes = (int32_t)sizeof v.hello.place;
    v.hello.place = place[g->rank];
    if (hd_random_bytes(v.hello.caller, sizeof v.hello.caller) != 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no random bytes: %s", strerror(errno));
    }
    HD_TRY(hd_tcp_star_make(&g->star, g->rank, g->size));
    HD_TRY(come(&v));
    HD_TRY(hear_all(&v, place, notice));
    g->star.line[0].fd = v.fd;
    v.fd = -1;
out:
    if (v.at != NULL) {
        freeaddrinfo(v.at);
    }
    (void)hd_tcp_drop(v.fd);
    return st;
}

/* --- both --------------------------------------------------------------------------------------------------------- */

heddle_status hd_tcp_gather(hd_tcp_place *place, uint64_t key[2], hd_tcp_gathering *g)
{
    heddle_status st = HEDDLE_OK;
    hd_tcp_notice notice = {0};
    unsigned char text[sizeof notice.salt + sizeof notice.places];
    HD_TRY(g->rank == 0 ? hd_tcp_receive_all(place, &notice, g) : hd_tcp_visit_first(place, &notice, g));
    memcpy(text, notice.salt, sizeof notice.salt);
    memcpy(text + sizeof notice.salt, notice.places, sizeof notice.places);
    hd_blake2s(key, 2 * sizeof *key, g->secret.bytes, sizeof g->secret.bytes, text, sizeof text);
out:
    return st;
}
