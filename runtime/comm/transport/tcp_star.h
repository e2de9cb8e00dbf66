/* The lines by which ranks have told rank 0 where they listen stay while every two connect. A rank that dies meanwhile
 * may have no other connection that could end: rank 0 sees it, and tells the others. */
#ifndef HD_TCP_STAR_H
#define HD_TCP_STAR_H

#include <heddle/status.h>
#include <poll.h>

typedef struct hd_tcp_star {
    int rank, size;
    struct pollfd *line; /* [size], of rank 0 to the others; of the others line[0] to rank 0. fd -1: there is none, or
                          * that rank is connected with all */
    int dead;            /* 1 + rank that has ended; 0 */
} hd_tcp_star;

heddle_status hd_tcp_star_make(hd_tcp_star *star, int rank, int size);
/* 1 + rank that has ended, as far as is known; 0. */
int hd_tcp_star_dead(hd_tcp_star *star);
/* This rank is connected with all: nobody waits for it any more, and it for nobody. Not for rank 0. */
void hd_tcp_star_leave(hd_tcp_star *star);
/* Of rank 0: one that is not connected with all yet; 0: all are. */
int hd_tcp_star_missing(const hd_tcp_star *star);
void hd_tcp_star_free(hd_tcp_star *star); /* zeros are legal */

#endif
