/* How ranks that know where the others listen come to have a connection for every two: each calls those below it, and
 * is called by those above. An address may be of another machine here than there, and anybody may listen or call. So
 * both show that they know the key and are the rank that is meant, at the address that was called (proof.h): the key is
 * told to nobody, and what one says is of no use to who passes it on. Letters behind it are neither signed nor
 * encrypted, as those of MPI and NCCL: who can change packets on their way (root on a machine or a switch between) can
 * read and change them. */
#include "runtime/base/base.h"
#include "runtime/comm/ground/door.h"
#include "runtime/comm/transport/tcp_post.h"
#include "runtime/comm/transport/tcp_star.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- one connection ----------------------------------------------------------------------------------------------- */

static int dial(const hd_tcp_place *place, const hd_tcp_address *address)
{
    hd_tcp_address_of_system at = {.six = {.sin6_family = AF_INET6}}; /* the port lies at one place in both versions */
    memcpy(&at.six.sin6_port, place->port, sizeof place->port);
    if (address->version == 4) {
        at.any.sa_family = AF_INET;
        memcpy(&at.four.sin_addr, address->bytes, 4);
    } else {
        memcpy(&at.six.sin6_addr, address->bytes, 16);
    }
    return hd_tcp_dial(&at);
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
static int are_friends(hd_tcp *tcp, int r, int fd, int64_t until_ns)
{
    hd_handshake shake;
    hd_tcp_patience *p = &tcp->patience;
    unsigned char proof[HD_PROOF_BYTES];
    char word;
    if (!hd_tcp_greet(&shake, p, fd, &tcp->secret, tcp->rank, r, until_ns)) {
        return 0;
    }
    hd_prove(proof, &tcp->secret, &shake, HD_CALLER);
    return hd_tcp_set_up(fd) == 0 && hd_tcp_pass(p, fd, proof, sizeof proof, POLLOUT, until_ns) &&
           hd_tcp_pass(p, fd, &word, 1, POLLIN, until_ns);
}

/* -1: errno says why not. */
static int call_at(hd_tcp *tcp, const hd_tcp_meeting *m, int r, const hd_tcp_address *address)
{
    const int64_t until_ns = hd_tcp_until(&tcp->patience);
    const int fd = dial(&m->place[r], address);
    return fd >= 0 && are_friends(tcp, r, fd, until_ns) ? fd : hd_tcp_drop(fd);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* *lucky: the number of the address that was right for the rank before; machines of a network are alike. */
static heddle_status call_rank(hd_tcp *tcp, const hd_tcp_meeting *m, int r, int *lucky)
{
    const hd_tcp_place *place = &m->place[r];
    char text[INET6_ADDRSTRLEN] = "no address", why[160] = "it has none that is not this machine's own as well";
    for (int turn = 0;; turn++) {
        for (int i = 0; i < HD_TCP_ADDRESSES; i++) {
            const int at = (*lucky + i) % HD_TCP_ADDRESSES;
            const hd_tcp_address *address = &place->address[at];
            heddle_status st = hd_tcp_waits(&tcp->patience, m->rank);
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
                snprintf(why, sizeof why, "%s", hd_tcp_why(errno));
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
               from >= tcp->size || hd_tcp_set_up(v->fd) != 0 ||
               send(v->fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1;
    if (!*is_over) {
        (void)hd_tcp_drop(tcp->peer[from].fd);
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
        st = hd_tcp_waits(&tcp->patience, m->rank);
        if (st == HEDDLE_ERR_TIMEOUT) {
            st = hd_fail(st, "rank %d of %d: %d ranks did not call before the deadline, rank %d is the first of them",
                         m->rank, m->size, left, missing);
        }
        HD_TRY(st);
        HD_TRY(hd_door_turn(&door, HD_TCP_STEP_MS));
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

/* Rank 0 is the one that sees who dies: it stays until nobody waits for anybody. */
static heddle_status leave_star(hd_tcp *tcp, hd_tcp_star *star)
{
    heddle_status st = HEDDLE_OK;
    if (star == NULL || tcp->rank > 0) {
        if (star != NULL) {
            hd_tcp_star_leave(star);
        }
        return HEDDLE_OK;
    }
    for (int missing = hd_tcp_star_missing(star); missing > 0; missing = hd_tcp_star_missing(star)) {
        st = hd_tcp_waits(&tcp->patience, 0);
        if (st == HEDDLE_ERR_TIMEOUT) {
            st = hd_fail(st, "rank 0 of %d: rank %d was not connected with all others before the deadline", tcp->size,
                         missing);
        }
        HD_TRY(st);
        poll(star->line, (nfds_t)tcp->size, HD_TCP_STEP_MS);
    }
out:
    return st;
}

static heddle_status meet(hd_tcp *tcp, const hd_tcp_meeting *m, int listener)
{
    heddle_status st = HEDDLE_OK;
    int lucky = 0;
    for (int r = 0; r < m->rank; r++) {
        HD_TRY(call_rank(tcp, m, r, &lucky));
    }
    HD_TRY(await_calls(tcp, m, listener));
    st = leave_star(tcp, m->star);
out:
    tcp->patience.star = NULL; /* it ends with the meeting */
    return st;
}

heddle_status hd_tcp_open(hd_tcp **out, const hd_tcp_meeting *meeting, int listener)
{
    heddle_status st;
    hd_tcp *tcp = NULL;
    HD_TRY(hd_alloc((void **)&tcp, 1, sizeof *tcp, "connections between ranks"));
    tcp->rank = meeting->rank;
    tcp->size = meeting->size;
    tcp->patience = (hd_tcp_patience){.deadline_ns = meeting->deadline_ns,
                                      .interrupt = meeting->interrupt,
                                      .dead = meeting->dead,
                                      .star = meeting->star};
    tcp->aborted_by = -1;
    hd_secret_of(&tcp->secret, meeting->key, sizeof meeting->key);
    HD_TRY(hd_alloc((void **)&tcp->peer, (size_t)meeting->size, sizeof *tcp->peer, "connections between ranks"));
    for (int r = 0; r < meeting->size; r++) {
        tcp->peer[r] = (hd_tcp_peer){.fd = -1, .out_end = &tcp->peer[r].out, .in_end = &tcp->peer[r].in};
    }
    HD_TRY(hd_alloc((void **)&tcp->fds, (size_t)meeting->size, sizeof *tcp->fds, "connections between ranks"));
    HD_TRY(hd_alloc((void **)&tcp->window, 1, HD_TCP_WINDOW_BYTES, "connections between ranks"));
    HD_TRY(meet(tcp, meeting, listener));
    *out = tcp;
    tcp = NULL;
out:
    if (tcp != NULL) {
        tcp->aborted_by = tcp->rank; /* no goodbyes, no word: who met it already hears that its connection ended */
    }
    hd_tcp_close(tcp);
    return st;
}
