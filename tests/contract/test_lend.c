/* Transfers that lend: others read a rank's array where it lies, for as long as they have not returned it. */
#include "case.h"
#include "check.h"
#include "time_limit.h"

#include "runtime/move/move.h"

#include <heddle/heddle.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RANKS = 4, ROUNDS = 6, SHORT_BYTES = 3000, LATE_US = 20000, MOST_TURNS = 5000 };

/* Of different sizes; one rank has none. */
static int64_t bytes_of(int rank)
{
    return rank == 2 ? 0 : (rank + 1) * SHORT_BYTES;
}

typedef struct lender {
    heddle_comm *comm;
    int rank, n;
    hd_channel *channel;
    hd_transfer *transfer;
    unsigned char *own;
} lender;

static heddle_status open_lender(lender *l, heddle_comm *comm, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    hd_item send[MAX_RANKS], recv[MAX_RANKS];
    hd_transfer_spec spec = {.lends = 1, .send = {send, 0}, .recv = {recv, 0}};
    memset(l, 0, sizeof *l);
    l->comm = comm;
    l->rank = heddle_comm_rank(comm);
    l->n = heddle_comm_size(comm);
    for (int peer = 0; peer < l->n; peer++) {
        if (peer != l->rank && bytes_of(l->rank) > 0) {
            send[spec.send.count++] = (hd_item){peer, {.run_bytes = bytes_of(l->rank)}};
        }
        if (peer != l->rank && bytes_of(peer) > 0) {
            recv[spec.recv.count++] = (hd_item){peer, {.run_bytes = bytes_of(peer)}};
        }
    }
    spec.src_bytes = (size_t)bytes_of(l->rank);
    CHECK(hd_can_lend(comm));
    HD_TRY(heddle_buffer_alloc((void **)&l->own, comm, 1 + spec.src_bytes, HEDDLE_SPACE_HOST));
    HD_TRY(hd_channel_create(&l->channel, comm, &(hd_channel_options){.deadline_ms = deadline_ms, .what = "loan"}));
    HD_TRY(hd_transfers_create(&l->transfer, l->channel, &spec, 1, HEDDLE_OK));
out:
    return st;
}

static void close_lender(lender *l)
{
    hd_transfer_destroy(l->transfer);
    hd_channel_destroy(l->channel);
    heddle_buffer_free(l->comm, l->own);
}

static unsigned char stamp(int rank, int round)
{
    return (unsigned char)(17 * rank + round + 1);
}

static heddle_status lend(lender *l, int round)
{
    memset(l->own, stamp(l->rank, round), (size_t)bytes_of(l->rank));
    return hd_channel_lend(l->channel, &(hd_leg){.transfer = l->transfer, .src = l->own});
}

static heddle_status check(const lender *l, const unsigned char *at, int owner, int round)
{
    for (int64_t i = 0; i < bytes_of(owner); i++) {
        if (at[i] != stamp(owner, round)) {
            return hd_fail(HEDDLE_ERR_INTERNAL, "round %d: rank %d reads %d at byte %lld of rank %d", round, l->rank,
                           at[i], (long long)i, owner);
        }
    }
    return HEDDLE_OK;
}

/* In some rounds a rank lends late, in others it reads for long; each writes over its array as soon as it may. */
HD_RANK_CASE(lends, "2 threads", "2 shm", "4 threads", "4 shm")
{
    heddle_status st = HEDDLE_OK;
    lender l;
    HD_TRY(open_lender(&l, comm, 0));
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 3 == 1 && l.rank == round % 2) {
            usleep(LATE_US);
        }
        HD_TRY(lend(&l, round));
        for (int i = 1; i < l.n; i++) {
            int owner = (l.rank - i + l.n) % l.n;
            const void *at = NULL;
            if (bytes_of(owner) == 0) {
                continue;
            }
            HD_TRY(hd_channel_borrow(l.channel, owner, &at));
            if (round % 3 == 2 && l.rank == round % 2) {
                usleep(LATE_US);
            }
            HD_TRY(check(&l, at, owner, round));
            HD_TRY(hd_channel_return(l.channel, owner));
        }
        HD_TRY(hd_channel_regain(l.channel));
        int is_idle = 0;
        HD_TRY(hd_channel_test(l.channel, &is_idle));
        CHECK(is_idle);
    }
    for (int peer = 0; peer < l.n; peer++) {
        CHECK(hd_channel_sent(l.channel)[peer] == (peer == l.rank ? 0 : ROUNDS * bytes_of(l.rank)));
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    close_lender(&l);
    return st;
}

HD_RANK_CASE(only_where_all_are_reached, "3 threads forced", "3 shm hosts=2")
{
    CHECK_OR_RETURN(!hd_can_lend(comm));
    return HEDDLE_OK;
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* The one rank does not lend, the other does not return: both are named at the deadline. */
HD_RANK_CASES(deadlines, 2, "2 threads", "2 shm")
{
    heddle_status st = HEDDLE_OK, told;
    lender l;
    int is_lent = nth;
    const void *at;
    HD_TRY(open_lender(&l, comm, hd_test_missed_ns(0.2) / 1000000));
    if (l.rank == 1 && is_lent) {
        HD_TRY(lend(&l, 0));
        HD_TRY(hd_channel_borrow(l.channel, 0, &at));
    }
    if (l.rank == 1) {
        while (hd_comm_check(comm) == HEDDLE_OK) {
            usleep(1000);
        }
        goto out;
    }
    HD_TRY(lend(&l, 0));
    told = hd_channel_borrow(l.channel, 1, &at);
    if (told == HEDDLE_OK) {
        HD_TRY(hd_channel_return(l.channel, 1));
        told = hd_channel_regain(l.channel);
    }
    CHECK(told == HEDDLE_ERR_TIMEOUT && strstr(heddle_last_error(), "missing: rank 1; loan") != NULL);
    CHECK(strstr(heddle_last_error(), is_lent ? "has moved its part" : "until it is ready") != NULL);
    CHECK(hd_channel_lend(l.channel, &(hd_leg){.transfer = l.transfer, .src = l.own}) == HEDDLE_ERR_TIMEOUT);
out:
    close_lender(&l);
    return st;
}

/* Whoever hears of the end before it reads has borrowed nothing: nobody waits for it. */
HD_RANK_CASE(heeds_an_alarm, "2 threads", "3 shm")
{
    heddle_status st = HEDDLE_OK;
    lender l;
    hd_comm_view view;
    const void *at;
    int64_t bytes = 0;
    static char to[SHORT_BYTES];
    HD_TRY(open_lender(&l, comm, 0));
    hd_comm_get_view(&view, comm);
    HD_TRY(lend(&l, 0));
    HD_TRY(heddle_comm_barrier(comm)); /* all have lent */
    if (l.rank == 0) {
        heddle_ignore(heddle_comm_abort(comm, "the soup is cold"));
        goto out;
    }
    while (hd_comm_heed(comm) == HEDDLE_OK) {
        usleep(1000);
    }
    CHECK((l.rank == 1 ? hd_channel_borrow(l.channel, 0, &at) : hd_channel_fetch(l.channel, 0, to, &bytes)) ==
          HEDDLE_ERR_PEER);
    CHECK(strstr(heddle_last_error(), "the soup is cold") != NULL);
    CHECK(atomic_load(view.moving) == 0 && bytes == 0);
out:
    close_lender(&l);
    return st;
}

/* Rank 1 reads what rank 0 has lent while that one fails, or is taken apart: neither returns before rank 1 has stopped.
 * What fails on rank 1 meanwhile returns at once, so that it can stop. */
typedef struct reading {
    int is_destroyed;
    _Atomic int has_borrowed, has_stopped, has_returned;
} reading;

static heddle_status reads_on(lender *l, reading *r)
{
    heddle_status st = HEDDLE_OK;
    const void *at;
    HD_TRY(hd_channel_borrow(l->channel, 0, &at));
    r->has_borrowed = 1;
    while ((st = hd_comm_heed(l->comm)) == HEDDLE_OK) {
        usleep(1000);
    }
    CHECK(st == HEDDLE_ERR_PEER);
    usleep(LATE_US * 5);
    st = check(l, at, 0, 0);
    CHECK(st == HEDDLE_OK && !r->has_returned);
    r->has_stopped = 1;
    CHECK(hd_channel_forgo(l->channel, hd_fail(HEDDLE_ERR_PEER, "it stops")) == HEDDLE_ERR_PEER);
out:
    return st;
}

static heddle_status fails_amid_a_loan(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    reading *r = arg;
    lender l;
    HD_TRY(open_lender(&l, comm, 0));
    HD_TRY(lend(&l, 0));
    if (l.rank == 1) {
        HD_TRY(reads_on(&l, r));
        goto out;
    }
    while (!r->has_borrowed) {
        usleep(1000);
    }
    if (r->is_destroyed) {
        hd_transfer_destroy(l.transfer);
        hd_channel_destroy(l.channel);
        l.transfer = NULL;
        l.channel = NULL;
    } else {
        CHECK(hd_channel_forgo(l.channel, hd_fail(HEDDLE_ERR_NOMEM, "it fails")) == HEDDLE_ERR_NOMEM);
    }
    r->has_returned = 1;
    CHECK(r->has_stopped);
    memset(l.own, 0xff, (size_t)bytes_of(0));
out:
    close_lender(&l);
    return st;
}

HD_CASE(memory_stays_until_it_is_returned)
{
    for (int is_destroyed = 0; is_destroyed < 2; is_destroyed++) {
        reading r = {.is_destroyed = is_destroyed};
        HD_OK(heddle_run_ranks(2, "threads", fails_amid_a_loan, &r));
    }
}

/* Both read what the other has lent when one gives up: neither waits for the other before it has stopped itself. */
HD_RANK_CASE(both_stop, "2 threads")
{
    heddle_status st = HEDDLE_OK;
    lender l;
    const void *at;
    HD_TRY(open_lender(&l, comm, 0));
    HD_TRY(lend(&l, 0));
    HD_TRY(hd_channel_borrow(l.channel, 1 - l.rank, &at));
    HD_TRY(heddle_comm_barrier(comm));
    if (l.rank == 0) {
        HD_TRY(heddle_comm_abort(comm, "it stops"));
    }
    do {
        st = hd_comm_heed(comm);
    } while (st == HEDDLE_OK);
    CHECK(st == HEDDLE_ERR_PEER);
    CHECK(hd_channel_forgo(l.channel, st) == HEDDLE_ERR_PEER);
    st = HEDDLE_OK;
out:
    close_lender(&l);
    return st;
}

/* Two loans, as of a ring's blocks and of its sums. Rank 1 reads the first when the second fails, at its deadline or
 * while that is read, too: it hears of it at once, and so it does when it gives back one of two. Giving back the last
 * waits until rank 0 reads neither. */
typedef struct two_loans {
    int is_late; /* rank 0 does not lend the second */
    _Atomic int has_failed, has_stopped;
} two_loans;

static heddle_status second_fails(const lender *second, two_loans *both)
{
    const void *at;
    heddle_status st = both->is_late ? hd_channel_borrow(second->channel, 0, &at)
                                     : hd_channel_forgo(second->channel, hd_fail(HEDDLE_ERR_NOMEM, "it fails"));
    CHECK_OR_RETURN(st == (both->is_late ? HEDDLE_ERR_TIMEOUT : HEDDLE_ERR_NOMEM) && !both->has_stopped);
    both->has_failed = 1;
    return st;
}

static heddle_status reads_until_told(const lender *first, two_loans *both)
{
    for (int turn = 0; !both->has_failed && turn < MOST_TURNS; turn++) {
        usleep(1000);
    }
    CHECK_OR_RETURN(both->has_failed && hd_comm_heed(first->comm) == HEDDLE_ERR_PEER);
    usleep(LATE_US);
    both->has_stopped = 1;
    return HEDDLE_ERR_PEER;
}

static heddle_status one_of_two_fails(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK, told;
    two_loans *both = arg;
    lender first, second = {.comm = comm};
    const void *at;
    HD_TRY(open_lender(&first, comm, 0));
    HD_TRY(open_lender(&second, comm, both->is_late ? hd_test_missed_ns(0.2) / 1000000 : 0));
    HD_TRY(lend(&first, 0));
    HD_TRY(hd_channel_borrow(first.channel, 1 - first.rank, &at));
    if (!both->is_late || first.rank == 1) {
        HD_TRY(lend(&second, 1));
    }
    if (!both->is_late) {
        HD_TRY(hd_channel_borrow(second.channel, 1 - first.rank, &at));
    }
    HD_TRY(heddle_comm_barrier(comm));
    told = first.rank == 1 ? second_fails(&second, both) : reads_until_told(&first, both);
    CHECK(told != HEDDLE_ERR_INTERNAL);
    CHECK(hd_channel_forgo(second.channel, told) == told);
    CHECK(hd_channel_forgo(first.channel, told) == told && both->has_stopped);
out:
    close_lender(&second);
    close_lender(&first);
    return st;
}

HD_CASE(two_loans_of_which_one_fails)
{
    for (int is_late = 0; is_late < 2; is_late++) {
        two_loans both = {.is_late = is_late};
        HD_OK(heddle_run_ranks(2, "threads", one_of_two_fails, &both));
    }
}

/* A lender is killed while another process reads: that one reads on, and is told afterwards. */
static heddle_status dies_amid_a_loan(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    lender l;
    const void *at;
    HD_TRY(open_lender(&l, comm, 0));
    HD_TRY(lend(&l, 0));
    HD_TRY(hd_channel_borrow(l.channel, 1 - l.rank, &at));
    HD_TRY(heddle_comm_barrier(comm));
    if (l.rank == 0) {
        _exit(3);
    }
    usleep(LATE_US);
    HD_TRY(check(&l, at, 0, 0));
    HD_TRY(hd_channel_return(l.channel, 0));
    CHECK(hd_channel_regain(l.channel) == HEDDLE_ERR_PEER && strstr(heddle_last_error(), "rank 0") != NULL);
    st = heddle_set_error(HEDDLE_ERR_PEER, "told of rank 0");
out:
    close_lender(&l);
    return st;
}

HD_CASE(a_lender_dies)
{
    HD_FAILS(HEDDLE_ERR_PEER, heddle_run_ranks(2, "shm", dies_amid_a_loan, NULL));
}
