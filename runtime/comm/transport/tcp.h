/* Messages over TCP, between ranks that have told one another where they listen: through something that can carry a
 * word once and nothing after (a borrowed communicator of NCCL), or through rank 0, whose place all know
 * (tcp_gather.h). */
#ifndef HD_TCP_H
#define HD_TCP_H

#include "runtime/comm/ground/ground.h"

#include <heddle/sys/transport.h>

enum { HD_TCP_ADDRESSES = 16 }; /* a host of eight network cards has more than eight */

typedef struct hd_tcp_address {
    uint8_t version; /* 4, 6 or 0: none */
    uint8_t bytes[16];
} hd_tcp_address;

/* Where a rank listens: what the others have to be told. */
typedef struct hd_tcp_place {
    uint64_t host[2]; /* equal on ranks of one running kernel and network namespace; 0: cannot be told */
    uint8_t port[2];  /* high byte first; 0: nowhere */
    hd_tcp_address address[HD_TCP_ADDRESSES];
} hd_tcp_place;

typedef struct hd_tcp hd_tcp;

/* What all ranks have of one another before they meet. */
typedef struct hd_tcp_meeting {
    int rank, size;
    const hd_tcp_place *place; /* [size] */
    uint64_t key[2]; /* random, the same on all ranks, told to nobody else: who does not know it is nobody's rank */
    int64_t deadline_ns;
    hd_interrupt interrupt;
    const _Atomic int *dead;  /* 1 + rank that is known to have ended; NULL: nobody looks */
    struct hd_tcp_star *star; /* by which ranks hear of such a one (tcp_star.h); NULL: they do not */
} hd_tcp_meeting;

/* On all addresses of this host; is_local: where other hosts cannot call. The listener is the caller's to close. */
heddle_status hd_tcp_listen(int *listener, hd_tcp_place *place, int is_local);
/* Collective: every two ranks connect, and show each other that they know the key without telling it (tcp_meet.c says
 * what that promises, and what it does not). Addresses that this host has as well are called only for ranks of this
 * host. Strangers' connections cost no time, however many; from 64 on those that have said nothing are closed, the
 * oldest first. HEDDLE_ERR_TIMEOUT names the rank that was not reached, and where; HEDDLE_ERR_TRANSPORT: no files or
 * memory left. */
heddle_status hd_tcp_open(hd_tcp **out, const hd_tcp_meeting *meeting, int listener);
/* For heddle_comm_from_callbacks, with the hd_tcp as ctx, which its destroy frees. */
heddle_transport hd_tcp_table(const hd_tcp *tcp);
/* Where no communicator has it. NULL is legal. */
void hd_tcp_close(hd_tcp *tcp);

#endif
