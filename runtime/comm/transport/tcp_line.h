/* One connection while ranks meet: to call somebody, to show each other who one is, to pass bytes within a time. */
#ifndef HD_TCP_LINE_H
#define HD_TCP_LINE_H

#include "runtime/comm/ground/ground.h"
#include "runtime/comm/ground/proof.h"
#include "runtime/comm/transport/tcp.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { HD_TCP_STEP_MS = 20 };

typedef union hd_tcp_address_of_system {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} hd_tcp_address_of_system;

/* What ends a meeting before all have come. */
typedef struct hd_tcp_patience {
    int64_t deadline_ns;
    hd_interrupt interrupt;
    const _Atomic int *dead;  /* 1 + rank that is known to have ended; NULL: nobody looks */
    struct hd_tcp_star *star; /* by which this rank hears of one; NULL: it does not */
    int is_interrupted;       /* it is told once */
} hd_tcp_patience;

/* HEDDLE_ERR_INTERRUPTED, _PEER; HEDDLE_ERR_TIMEOUT: the sentence is the caller's. */
heddle_status hd_tcp_waits(hd_tcp_patience *p, int rank);
/* When one that does not answer is given up, and the next one is asked. */
int64_t hd_tcp_until(const hd_tcp_patience *p);
/* All of the bytes within the time (POLLOUT, POLLIN), or 0 and errno. */
int hd_tcp_pass(hd_tcp_patience *p, int fd, void *bytes, size_t n, short event, int64_t until_ns);
/* -1, and errno stays. */
int hd_tcp_drop(int fd);
/* Begins to connect. -1: errno. */
int hd_tcp_dial(const hd_tcp_address_of_system *at);
int hd_tcp_set_up(int fd); /* -1: errno */
/* The caller's side, up to the proof that `to` has been reached. 0: errno; EKEYREJECTED: it is another. */
int hd_tcp_greet(hd_handshake *shake, hd_tcp_patience *p, int fd, const hd_secret *secret, int from, int to,
                 int64_t until_ns);
/* A listener at this port, 0: any that is free; is_local: of 127.0.0.1 alone, else of all addresses. -1: errno. */
int hd_tcp_bind(int port, int is_local);
int hd_tcp_port(int listener, uint8_t port[2]); /* -1: errno */
/* strerror, and of EKEYREJECTED what it means here. */
const char *hd_tcp_why(int error);

#endif
