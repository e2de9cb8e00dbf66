/* Over TCP: what ranks hear of one that gave up or died, when one that has heard it closes first. */
#include "slow_clock.h"
#include "tcp_world.h"

#include <sys/socket.h>

static void turn_until_over(const world *w, int64_t until_ns)
{
    while (w->tcp->aborted_by < 0 && hd_now_ns() < until_ns) {
        hd_tcp_turn(w->tcp);
        hd_tcp_sleep(w->tcp);
    }
}

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
    if (w.meeting.rank == 1) { /* a letter of tag 0: its sender gave up */
        HD_TRY(gives_up ? hd_tcp_send(w.tcp, 0, HD_LETTER_ABORT, "enough", 7) : HEDDLE_OK);
        hd_tcp_turn(w.tcp);
        CHECK(gives_up || shutdown(w.tcp->peer[0].fd, SHUT_RDWR) == 0);
    } else if (w.meeting.rank == 0) {
        turn_until_over(&w, until_ns);
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

typedef enum behind { A_LETTER, HALF_A_MESSAGE /* which no word can follow, nor is it waited for */, BEHINDS } behind;
enum { LETTER_BYTES = 1 << 20, MESSAGE_BYTES = 64 << 20, DELAY_US = 100000 };

/* More than rank 2 has room for, before it reads. */
static heddle_status send_much(const world *w, void **exchange, behind what, const void *much)
{
    const heddle_transport table = hd_tcp_table(w->tcp);
    const heddle_message message = {.peer = 2, .is_send = 1, .run_bytes = MESSAGE_BYTES};
    heddle_status st = HEDDLE_OK;
    if (what == A_LETTER) {
        return hd_tcp_send(w->tcp, 2, HD_LETTER_PAIR, much, LETTER_BYTES);
    }
    HD_TRY(table.exchange_create(w->tcp, exchange, &message, 1, 0));
    st = table.exchange_start(w->tcp, *exchange, much, NULL);
out:
    return st;
}

static heddle_status closes_behind(heddle_comm *launched, void *arg)
{
    const behind what = *(const behind *)arg;
    heddle_status st;
    world w;
    heddle_transport table = {0};
    void *exchange = NULL, *much = calloc(1, MESSAGE_BYTES);
    unsigned char own = 1, all[RANKS];
    HD_TRY(listen_all(&w, launched, long_ms()));
    HD_TRY(hd_tcp_open(&w.tcp, &w.meeting, w.listener));
    table = hd_tcp_table(w.tcp);
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(10);
    CHECK(much != NULL);
    HD_TRY(w.meeting.rank == 0 ? send_much(&w, &exchange, what, much) : HEDDLE_OK);
    HD_TRY(heddle_comm_barrier(launched));
    HD_TRY(w.meeting.rank == 1 ? table.abort_send(w.tcp, "enough") : HEDDLE_OK);
    HD_TRY(heddle_comm_barrier(launched));
    if (w.meeting.rank == 0) {
        turn_until_over(&w, until_ns);
        if (exchange != NULL) {
            table.exchange_destroy(w.tcp, exchange);
        }
        exchange = NULL;
        const int64_t began_ns = hd_now_ns();
        hd_tcp_close(w.tcp);
        w.tcp = NULL;
        CHECK(what == A_LETTER || hd_now_ns() - began_ns < 1000000000);
    }
    HD_TRY(what == HALF_A_MESSAGE ? heddle_comm_barrier(launched) : HEDDLE_OK);
    if (w.meeting.rank == 2) {
        int *word = &w.tcp->peer[1].fd;
        usleep(DELAY_US); /* rank 0 has most often gone, and what it is sent then resets the connection */
        *word = what == A_LETTER ? -1 - *word : *word; /* late */
        const heddle_status got = table.allgather(w.tcp, &own, all, 1, until_ns);
        *word = what == A_LETTER ? -1 - *word : *word;
        CHECK(got == HEDDLE_ERR_PEER && says("rank 1 gave up: enough"));
    }
    HD_TRY(heddle_comm_barrier(launched));
out:
    if (exchange != NULL) {
        table.exchange_destroy(w.tcp, exchange);
    }
    free(much);
    hd_tcp_close(w.tcp);
    close_world(&w);
    return st;
}

HD_CASE(what_is_told_of_an_end_arrives)
{
    slowness = 10; /* of the second in which a rank that closes is heard, however late another looks */
    for (behind what = 0; what < BEHINDS; what++) {
        HD_OK(heddle_run_ranks(RANKS, "shm", closes_behind, &what));
    }
}
