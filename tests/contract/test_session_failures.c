/* Sessions in which a rank fails, comes late or dies: who says what, and nobody waits. */
#include "case.h"
#include "session_fixture.h"
#include "time_limit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The n-th allocation of rank 1 fails: it says so, and nobody waits for it. */
static heddle_status starved(heddle_comm *comm, void *arg)
{
    fixture f = {0};
    heddle_tensor x = {0};
    float bias = 0;
    const int rank = heddle_comm_rank(comm);
    heddle_session_options options;
    heddle_status st = make_schedule(&f, heddle_comm_size(comm), "t=5");
    fixture_options(&options, &f, comm);
    if (st == HEDDLE_OK && rank == 1) {
        hd_alloc_fail_at(*(const long *)arg);
    }
    HD_TRY(heddle_session_create(&f.session, comm, f.schedule, &options));
    HD_TRY(make_x(&x, &f, "*", rank));
    HD_TRY(enter_all(&f, &x, rank, &bias));
out:
    hd_alloc_fail_at(0);
    if (f.session != NULL || st == HEDDLE_OK) {
        placed_free(comm, bias == 0 ? x.data : NULL);
    }
    tear_down(&f);
    return st;
}

HD_CASE(survives_failed_allocations)
{
    int failed = 0;
    for (long n = 1; n < 200 && run_starved(starved, n) != HEDDLE_OK; n += n < 12 ? 1 : 7) {
        failed++;
    }
    assert_true(failed > 5);
}

static _Atomic int overdue; /* ranks whose wait has ended */

/* The reshard and the rank; NCCL does not know whose messages do not come. */
static int says_what_is_missing(const heddle_comm *comm)
{
    const char *why = heddle_last_error();
    if (strstr(heddle_comm_describe(comm), "wire nccl") != NULL) {
        return strstr(why, "messages between devices") != NULL;
    }
    return strstr(why, "; reshard ") != NULL &&
           (strstr(why, "missing: rank 1;") != NULL || strstr(why, "under way with rank 1;") != NULL);
}

/* Rank 1 enters only when the others have given up: their sentences name the stage, the reshard and the rank. */
static heddle_status comes_late(heddle_comm *comm, void *arg)
{
    fixture f = {0};
    heddle_tensor x = {0};
    void *mine = NULL;
    float bias = 0;
    const int rank = heddle_comm_rank(comm);
    heddle_status st;
    (void)arg;
    HD_TRY(set_up_x(&f, &x, comm, 0, "t@sp"));
    mine = x.data;
    HD_TRY(enter_all(&f, &x, rank, &bias));
    HD_TRY(heddle_session_rewind(f.session));
    while (rank == 1 && overdue < heddle_comm_size(comm) - 1) {
        usleep(1000);
    }
    st = enter_all(&f, &x, rank, &bias);
    overdue++;
    CHECK(st == (rank == 1 ? HEDDLE_ERR_PEER : st) && (st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_PEER));
    /* A device finds out after enter has returned, and knows the reshard only. */
    CHECK(strstr(heddle_last_error(), "entering '") != NULL || placed_on_device(comm));
    CHECK(says_what_is_missing(comm));
    st = HEDDLE_OK;
out:
    tear_down(&f);
    placed_free(comm, mine);
    return st;
}

HD_CASE(an_overdue_switch_says_which)
{
    for (int messages = 0; messages < 2; messages++) {
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.deadline_ms = hd_test_missed_ns(2) / 1000000;
        options.force_messages = messages;
        overdue = 0;
        HD_OK(heddle_run_ranks_with(3, "threads", &options, comes_late, NULL));
    }
}

/* A rank that dies between two switches is named by the others. */
static heddle_status dies(heddle_comm *comm, void *arg)
{
    fixture f = {0};
    heddle_tensor x = {0};
    float bias = 0;
    const int rank = heddle_comm_rank(comm);
    heddle_status st;
    (void)arg;
    HD_TRY(set_up_x(&f, &x, comm, 0, "t@sp"));
    for (int pass = 0; pass < 1000; pass++) {
        if (rank == 1 && pass == 3) {
            _exit(9);
        }
        HD_TRY(heddle_session_rewind(f.session));
        HD_TRY(enter_all(&f, &x, rank, &bias));
    }
out:
    tear_down(&f);
    return st;
}

HD_CASE(names_the_dead)
{
    const int64_t start_ns = hd_now_ns();
    heddle_status st = heddle_run_ranks(3, "shm", dies, NULL);
    assert_int_equal(st, HEDDLE_ERR_PEER);
    assert_non_null(strstr(heddle_last_error(), "rank 1"));
    assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(4));
}
