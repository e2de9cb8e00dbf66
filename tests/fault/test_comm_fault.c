/* Ranks that give up, come late, run out of memory or lose a transport call: everybody is told, nothing hangs or leaks.
 */
#include "case.h"
#include "ended.h"
#include "left_over.h"
#include "time_limit.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const transports[] = {"threads", "shm", "tcp"};

/* What ranks saw, visible to the test also when they are processes. */
typedef struct seen {
    _Atomic int told; /* ranks that remember */
    heddle_status status[64];
    char sentence[64][256];
} seen;

static seen *all_seen;

static void forget(void)
{
    if (all_seen == NULL) {
        all_seen = hd_shared(sizeof *all_seen);
    }
    memset(all_seen, 0, sizeof *all_seen);
}

static heddle_status remember(heddle_comm *comm, heddle_status status)
{
    int me = heddle_comm_rank(comm);
    all_seen->status[me] = status;
    snprintf(all_seen->sentence[me], sizeof all_seen->sentence[me], "%s",
             status != HEDDLE_OK ? heddle_last_error() : "");
    all_seen->told++;
    return status;
}

/* --- giving up ---------------------------------------------------------------------------------------------------- */

typedef enum wait_kind { IN_BARRIER, IN_ALLGATHER, IN_SENDRECV, IN_LINK, WAIT_KINDS } wait_kind;

/* Wait for rank 1 in some way. */
static heddle_status wait_somehow(heddle_comm *comm, wait_kind kind)
{
    char own[8] = {0};
    char all[64 * 8];
    heddle_status st = HEDDLE_OK;
    hd_link *link = NULL;
    if (kind == IN_ALLGATHER) {
        return heddle_comm_allgather(comm, own, all, sizeof own);
    }
    if (kind == IN_SENDRECV) {
        return heddle_comm_sendrecv(comm, NULL, 0, -1, all, 8, 1, HEDDLE_NO_STREAM);
    }
    if (kind == IN_LINK) {
        st = hd_link_create(&link, comm);
        if (st == HEDDLE_OK) {
            st = hd_link_wait(link, 1, 0, 1, NULL, 0, hd_comm_deadline_ns(comm, 0), "waiting for the test");
        }
        hd_link_destroy(link);
        return st;
    }
    return heddle_comm_barrier(comm);
}

/* What a rank that shall not wait does of that wait: links are made by all. */
static heddle_status takes_no_part(heddle_comm *comm, wait_kind kind)
{
    hd_link *link = NULL;
    heddle_status st = kind == IN_LINK ? hd_link_create(&link, comm) : HEDDLE_OK;
    hd_link_destroy(link);
    return st;
}

static heddle_status aborting_rank(heddle_comm *comm, void *arg)
{
    wait_kind kind = *(wait_kind *)arg;
    if (heddle_comm_rank(comm) == 1) {
        heddle_status st = takes_no_part(comm, kind);
        usleep(30000); /* the others sleep by now */
        heddle_ignore(heddle_comm_abort(comm, "the soup is cold"));
        return remember(comm, st);
    }
    return remember(comm, wait_somehow(comm, kind));
}

/* All ranks hear of it: none misses its deadline, and none has to be ended. */
static void all_hear(int ranks, const char *transport, heddle_rank_main fn, wait_kind kind)
{
    forget();
    HD_FAILS(HEDDLE_ERR_PEER, run_to_their_end(ranks, transport, fn, &kind));
}

HD_CASE(abort_wakes_everyone)
{
    for (size_t t = 0; t < 3; t++) {
        for (wait_kind kind = 0; kind < WAIT_KINDS; kind++) {
            all_hear(4, transports[t], aborting_rank, kind);
            for (int r = 0; r < 4; r++) {
                assert_int_equal(all_seen->status[r], r == 1 ? HEDDLE_OK : HEDDLE_ERR_PEER);
                assert_true(r == 1 || strstr(all_seen->sentence[r], "rank 1") != NULL);
                assert_true(r == 1 || strstr(all_seen->sentence[r], "the soup is cold") != NULL);
            }
        }
    }
}

static heddle_status failing_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    if (heddle_comm_rank(comm) == 2) {
        usleep(5000);
        return hd_fail(HEDDLE_ERR_LAYOUT, "only %d spoons", 3);
    }
    return remember(comm, heddle_comm_barrier(comm));
}

HD_CASE(failing_rank_is_named)
{
    for (size_t t = 0; t < 3; t++) {
        forget();
        HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_run_ranks(4, transports[t], failing_rank, NULL));
        assert_string_equal(heddle_last_error(), "rank 2: only 3 spoons");
        for (int r = 0; r < 4; r++) {
            assert_true(r == 2 || all_seen->status[r] == HEDDLE_ERR_PEER);
            assert_true(r == 2 || strstr(all_seen->sentence[r], "only 3 spoons") != NULL);
        }
    }
}

/* Success without taking part in what the others still wait for. */
static heddle_status leaving_rank(heddle_comm *comm, void *arg)
{
    wait_kind kind = *(wait_kind *)arg;
    if (heddle_comm_rank(comm) == 1) {
        return takes_no_part(comm, kind);
    }
    return remember(comm, wait_somehow(comm, kind));
}

HD_CASE(leaving_rank_is_noticed)
{
    for (size_t t = 0; t < 3; t++) {
        for (wait_kind kind = 0; kind < WAIT_KINDS; kind++) {
            all_hear(3, transports[t], leaving_rank, kind);
            assert_non_null(strstr(heddle_last_error(), "rank 1"));
        }
    }
}

/* --- late --------------------------------------------------------------------------------------------------------- */

static int64_t deadline_ns;

static heddle_status late_rank(heddle_comm *comm, void *arg)
{
    wait_kind kind = *(wait_kind *)arg;
    if (heddle_comm_rank(comm) == 1) {
        heddle_status st = takes_no_part(comm, kind);
        for (int64_t start_ns = hd_now_ns(); all_seen->told == 0;) { /* with rank 0's deadline */
            if (hd_now_ns() - start_ns > 25 * deadline_ns) {
                return hd_fail(HEDDLE_ERR_INTERNAL, "rank 0 waits beyond its deadline");
            }
            usleep(1000);
        }
        return st;
    }
    int64_t start_ns = hd_now_ns();
    heddle_status st = wait_somehow(comm, kind);
    if (st == HEDDLE_ERR_TIMEOUT && hd_now_ns() - start_ns < deadline_ns - 10000000) {
        return remember(comm, hd_fail(HEDDLE_ERR_INTERNAL, "too early"));
    }
    return remember(comm, st);
}

/* 0: within the deadline the ranks did not even come to the wait. */
static int fires(const char *transport, wait_kind kind)
{
    static const char *const stages[] = {"barrier", "allgather", "sendrecv", "waiting for the test"};
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = deadline_ns / 1000000;
    forget();
    HD_FAILS(HEDDLE_ERR_TIMEOUT, heddle_run_ranks_with(2, transport, &options, late_rank, &kind));
    if (strstr(all_seen->sentence[0], stages[kind]) == NULL) {
        return 0;
    }
    assert_int_equal(all_seen->status[0], HEDDLE_ERR_TIMEOUT);
    assert_non_null(strstr(all_seen->sentence[0], "rank 0"));
    assert_non_null(strstr(all_seen->sentence[0], "rank 1"));
    return 1;
}

HD_CASE(deadline_fires)
{
    for (size_t t = 0; t < 2; t++) {
        for (wait_kind kind = 0; kind < WAIT_KINDS; kind++) {
            deadline_ns = hd_test_limit_ns(0.2);
            while (!fires(transports[t], kind)) { /* a machine that stood still for as long? */
                deadline_ns *= 4;
                assert_true(deadline_ns < hd_test_limit_ns(15));
            }
        }
    }
}

static heddle_status sized_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    static char data[100000];
    int me = heddle_comm_rank(comm);
    char *own = data; /* out of peers' reach with shm: through the stage */
    heddle_status st = me == 0 ? heddle_comm_sendrecv(comm, own, sizeof data, 1, NULL, 0, -1, HEDDLE_NO_STREAM)
                               : heddle_comm_sendrecv(comm, NULL, 0, -1, own, 50000, 0, HEDDLE_NO_STREAM);
    heddle_ignore(remember(comm, st));
    return heddle_comm_barrier(comm);
}

HD_CASE(sizes_must_match)
{
    for (size_t t = 0; t < 2; t++) {
        forget();
        HD_OK(heddle_run_ranks(2, transports[t], sized_rank, NULL));
        assert_int_equal(all_seen->status[0], HEDDLE_ERR_MISMATCH);
        assert_int_equal(all_seen->status[1], HEDDLE_ERR_MISMATCH);
        assert_non_null(strstr(all_seen->sentence[1], "50000"));
        assert_non_null(strstr(all_seen->sentence[1], "100000"));
    }
}

/* --- the n-th call, the n-th allocation --------------------------------------------------------------------------- */

/* A little of everything. */
static heddle_status busy_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    long fail_at = *(long *)arg;
    int n = heddle_comm_size(comm);
    int me = heddle_comm_rank(comm);
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"a", n / 2}, {"b", 2}}};
    heddle_comm *group = NULL;
    hd_link *link = NULL;
    void *buffer = NULL;
    char all[64];
    if (fail_at > 0 && me == 1) {
        hd_alloc_fail_at(fail_at);
    }
    HD_TRY(heddle_buffer_alloc(&buffer, comm, 64, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_comm_axis_group(&group, comm, &mesh, 1));
    HD_TRY(heddle_comm_barrier(group));
    HD_TRY(hd_link_create(&link, comm));
    for (uint64_t turn = 1; turn <= 2; turn++) {
        HD_TRY(hd_link_post(link, (me + 1) % n, 0, turn, NULL, 0));
        HD_TRY(hd_link_wait(link, (me + n - 1) % n, 0, turn, NULL, 0, hd_comm_deadline_ns(comm, 0), "busy"));
    }
    HD_TRY(heddle_comm_sendrecv(comm, all, 32, (me + 1) % n, all + 32, 32, (me + n - 1) % n, HEDDLE_NO_STREAM));
    HD_TRY(heddle_comm_allgather(comm, buffer, all, 8));
    HD_TRY(heddle_comm_barrier(comm));
out:
    heddle_ignore(remember(comm, st));
    hd_alloc_fail_at(0);
    hd_link_destroy(link);
    heddle_comm_destroy(group);
    heddle_buffer_free(comm, buffer);
    return st;
}

static void check_outcome(heddle_status st, heddle_status wanted, int culprit)
{
    if (st == HEDDLE_OK) {
        return;
    }
    assert_int_equal(st, wanted);
    for (int r = 0; r < 4; r++) {
        heddle_status one = all_seen->status[r];
        assert_true(one == HEDDLE_OK || one == wanted || one == HEDDLE_ERR_PEER);
        assert_true(r != culprit || one == wanted);
    }
}

HD_CASE(every_call_fails_once)
{
    long none = 0;
    const holdings before = holdings_now();
    for (size_t t = 0; t < 1 + 2 * HD_SEES_PROCESSES; t++) {
        for (int rank = 0; rank < 4; rank += 3) {
            heddle_status st = HEDDLE_ERR_TRANSPORT;
            int n = 1;
            for (; st != HEDDLE_OK && n < 200; n += hd_call_step()) {
                char where[64];
                snprintf(where, sizeof where, "fault(fail=%d@%d):%s", n, rank, transports[t]);
                forget();
                st = run_to_their_end(4, where, busy_rank, &none);
                assert_int_equal(all_seen->told, 4);
                check_outcome(st, HEDDLE_ERR_TRANSPORT, rank);
            }
            assert_int_equal(st, HEDDLE_OK);
            assert_true(n > 8);
        }
    }
    assert_nothing_left(before);
}

HD_CASE(every_allocation_of_a_rank_fails_once)
{
    hd_see_processes();
    const holdings before = holdings_now();
    heddle_status st = HEDDLE_ERR_NOMEM;
    long n = 1;
    for (; st != HEDDLE_OK && n < 500; n++) { /* processes: the counter of threads would be everybody's */
        forget();
        st = heddle_run_ranks(4, "shm", busy_rank, &n);
        check_outcome(st, HEDDLE_ERR_NOMEM, 1);
    }
    assert_int_equal(st, HEDDLE_OK);
    assert_true(n > 20);
    assert_nothing_left(before);
}

/* Also those of the parent and of the meeting. */
HD_CASE(every_allocation_of_a_run_fails_once)
{
    long none = 0;
    const holdings before = holdings_now();
    forget();
    HD_OK(heddle_run_ranks(4, "threads", busy_rank, &none)); /* what is made once per process */
    for (size_t t = 0; t < 1 + 2 * HD_SEES_PROCESSES; t++) {
        heddle_status st = HEDDLE_ERR_NOMEM;
        long n = 1;
        for (; st != HEDDLE_OK && n < 1000; n += hd_call_step()) {
            forget();
            hd_alloc_fail_at(n);
            st = run_to_their_end(4, transports[t], busy_rank, &none);
            hd_alloc_fail_at(0);
            check_outcome(st, HEDDLE_ERR_NOMEM, -1); /* nor did a rank that nobody told wait */
        }
        assert_int_equal(st, HEDDLE_OK);
        assert_true(n > 20);
    }
    assert_nothing_left(before);
}

HD_CASE(overtaking_changes_nothing)
{
    long none = 0;
    for (size_t t = 0; t < 2; t++) {
        for (int seed = 1; seed <= 10; seed++) {
            char where[64];
            snprintf(where, sizeof where, "fault(reorder=%d,delay=0.2ms@%d):%s", seed, seed % 4, transports[t]);
            forget();
            HD_OK(heddle_run_ranks(4, where, busy_rank, &none));
        }
    }
}
