/* Over TCP: what ranks hear of one that gave up or died, when one that has heard it closes first. */
#include "tcp_world.h"

#include <sys/socket.h>

/* Rank 1 gives up, or its connection ends, and rank 0 alone hears it: the word of it is late for the others. */
static heddle_status closes_first(heddle_comm *launched, void *arg)
{
    const int gives_up = *(const int *)arg;
    heddle_status st;
    world w;
    unsigned char own = 1, all[RANKS];
    HD_TRY(listen_all(&w, launched, long_ms()));
    HD_TRY(hd_tcp_open(&w.tcp, &w.meeting, w.listener));
    const heddle_transport table = hd_tcp_table(w.tcp);
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(10);
    if (w.meeting.rank == 1) {
        HD_TRY(gives_up ? hd_tcp_send(w.tcp, 0, HD_LETTER_ABORT, "enough", 7) : HEDDLE_OK);
        hd_tcp_turn(w.tcp);
        CHECK(gives_up || shutdown(w.tcp->peer[0].fd, SHUT_RDWR) == 0);
    } else if (w.meeting.rank == 0) {
        while (w.tcp->aborted_by < 0 && hd_now_ns() < until_ns) {
            hd_tcp_turn(w.tcp);
            hd_tcp_sleep(w.tcp);
        }
        CHECK(w.tcp->aborted_by == 1);
        hd_tcp_close(w.tcp);
        w.tcp = NULL;
    }
    HD_TRY(heddle_comm_barrier(launched));
    if (w.meeting.rank >= 2) {
        CHECK(table.allgather(w.tcp, &own, all, 1, until_ns) == HEDDLE_ERR_PEER);
        CHECK(says(gives_up ? "rank 1 gave up: enough" : "rank 1 gave up: its connection ended"));
    }
    HD_TRY(heddle_comm_barrier(launched));
out:
    hd_tcp_close(w.tcp);
    close_world(&w);
    return st;
}

HD_CASE(who_gave_up_is_told_by_one_that_closes)
{
    for (int gives_up = 0; gives_up < 2; gives_up++) {
        HD_OK(heddle_run_ranks(RANKS, "shm", closes_first, &gives_up));
    }
}
