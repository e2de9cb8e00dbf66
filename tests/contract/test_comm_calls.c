/* Ranks that do not all call the same, and that go on after an abort: on threads, shm, and with messages forced. */
#include "case.h"
#include "check.h"
#include "time_limit.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 3 };

static const char *const transports[] = {"threads", "shm"};

static void on_all(heddle_rank_main fn)
{
    for (int t = 0; t < 4; t++) {
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.force_messages = t >= 2;
        options.deadline_ms = hd_test_limit_ns(30) / 1000000;
        HD_OK(heddle_run_ranks_with(RANKS, transports[t % 2], &options, fn, NULL));
    }
}

/* The sentence is the same on every rank and names both. */
static int says(const char *first, const char *second)
{
    return strstr(heddle_last_error(), first) != NULL && strstr(heddle_last_error(), second) != NULL;
}

static heddle_status sizes_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    static _Thread_local char data[200000];
    static _Thread_local double sums[RANKS];
    int odd = heddle_comm_rank(comm) == 1;
    CHECK(heddle_comm_allgather(comm, data, data + 100000, odd ? 8 : 16) == HEDDLE_ERR_MISMATCH);
    CHECK(says("rank 1 comes with an allgather of 8 bytes", "rank 0 with an allgather of 16 bytes"));
    CHECK(heddle_comm_allgather(comm, data, data + 100000, odd ? 8 : 33000) == HEDDLE_ERR_MISMATCH);
    CHECK(heddle_comm_allgather(comm, data, data + 100000, odd ? 0 : 8) == HEDDLE_ERR_MISMATCH);
    HD_TRY(heddle_comm_barrier(comm)); /* nothing is broken by it */
    CHECK(heddle_comm_allreduce_sum(comm, sums, odd ? 2 : 3, HEDDLE_F64) == HEDDLE_ERR_MISMATCH);
    CHECK(heddle_comm_allreduce_sum(comm, sums, 1, odd ? HEDDLE_I64 : HEDDLE_F64) == HEDDLE_ERR_MISMATCH);
    CHECK(says("i64", "f64"));
    CHECK(heddle_comm_allreduce_sum(comm, sums, odd ? 4 : 2, odd ? HEDDLE_F32 : HEDDLE_F64) == HEDDLE_ERR_MISMATCH);
    CHECK((odd ? heddle_comm_allgather(comm, data, data + 100, 8)
               : heddle_comm_allreduce_sum(comm, sums, 1, HEDDLE_F64)) == HEDDLE_ERR_MISMATCH);
    CHECK(says("allgather", "allreduce"));
    HD_TRY(heddle_comm_allgather(comm, data, data + 100000, 16));
out:
    return st;
}

HD_CASE(gathers_compare_what_is_gathered)
{
    on_all(sizes_rank);
}

static heddle_status kinds_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    char data[8 * (RANKS + 1)] = "";
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(heddle_comm_allgather(comm, data, data + 8, 8));
    int64_t start_ns = hd_now_ns();
    usleep(heddle_comm_rank(comm) == 2 ? 20000 : 0);
    CHECK((heddle_comm_rank(comm) == 2 ? heddle_comm_barrier(comm) : heddle_comm_allgather(comm, data, data + 8, 8)) ==
          HEDDLE_ERR_MISMATCH);
    CHECK(says("rank 2 comes with a barrier", "rank 0 with an allgather of 8 bytes"));
    CHECK(hd_now_ns() - start_ns < hd_test_limit_ns(15));
    CHECK(heddle_comm_barrier(comm) == HEDDLE_ERR_MISMATCH);
out:
    return st;
}

HD_CASE(a_barrier_is_no_gather)
{
    on_all(kinds_rank);
}

/* --- what a rank alone is refused: nobody waits, and the communicator goes on ------------------------------------- */

HD_RANK_CASE(numbers_that_are_no_ranks, "1 self", "2 threads", "2 shm")
{
    static const struct {
        int to, from;
        const char *why;
    } row[] = {{-2, -1, "sendrecv to rank -2 and from rank -1 of "},
               {7, -1, "sendrecv to rank 7 and from rank -1 of "},
               {-1, 7, "sendrecv to rank -1 and from rank 7 of "}};
    char data[16] = "";
    double sum = 0;
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(comm);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        CHECK(heddle_comm_sendrecv(comm, data, 8, row[i].to, data + 8, 8, row[i].from, NULL) == HEDDLE_ERR_ARG);
        CHECK(strstr(heddle_last_error(), row[i].why) != NULL);
    }
    CHECK(heddle_comm_sendrecv(comm, data, 8, rank, data + 8, 7, rank, NULL) == HEDDLE_ERR_MISMATCH);
    CHECK(strstr(heddle_last_error(), "sends itself 8 bytes and expects 7") != NULL);
    CHECK(heddle_comm_allreduce_sum(comm, &sum, 1, HEDDLE_BF16) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "wanted f64, f32 or i64") != NULL);
    CHECK(heddle_comm_allreduce_sum(comm, &sum, -1, HEDDLE_F64) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "allreduce of -1 elements") != NULL);
    st = heddle_comm_barrier(comm);
out:
    return st;
}

/* --- after an abort ----------------------------------------------------------------------------------------------- */

static heddle_status every_operation(heddle_comm *comm, int which)
{
    char data[8 * (RANKS + 1)] = "";
    double sum = 0;
    int me = heddle_comm_rank(comm), n = heddle_comm_size(comm);
    switch (which) {
    case 0:
        return heddle_comm_barrier(comm);
    case 1:
        return heddle_comm_allgather(comm, data, data + 8, 8);
    case 2:
        return heddle_comm_allreduce_sum(comm, &sum, 1, HEDDLE_F64);
    default:
        return heddle_comm_sendrecv(comm, data, 8, (me + 1) % n, data + 8, 8, (me + n - 1) % n, HEDDLE_NO_STREAM);
    }
}

/* Nobody waits here: the operations that come after the alarm could all go through. */
static heddle_status abort_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    _Atomic int *raised = arg; /* a page that processes share, too */
    if (heddle_comm_rank(comm) == 1) {
        heddle_ignore(heddle_comm_abort(comm, "the soup is cold"));
        *raised = 1;
    }
    while (*raised == 0) {
        usleep(1000);
    }
    for (int turn = 0; turn < 3; turn++) {
        for (int which = 0; which < 4; which++) {
            CHECK(every_operation(comm, which) == HEDDLE_ERR_PEER);
            CHECK(says("rank 1 gave up", "the soup is cold"));
        }
    }
out:
    return st;
}

HD_CASE(nothing_begins_after_an_abort)
{
    for (int t = 0; t < 4; t++) {
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.force_messages = t >= 2;
        _Atomic int *raised = hd_shared(sizeof *raised);
        HD_OK(heddle_run_ranks_with(RANKS, transports[t % 2], &options, abort_rank, raised));
    }
}

/* Who waits already when it is raised is told no less by what comes afterwards. */
static heddle_status told_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    _Atomic int *left = arg;
    const int me = heddle_comm_rank(comm);
    if (me == 1) {
        while (*left > 0) { /* the others wait, or are about to */
            usleep(1000);
        }
        usleep(50000);
        heddle_ignore(heddle_comm_abort(comm, "the soup is cold"));
    } else {
        *left -= 1;
    }
    for (int turn = 0; turn < 3; turn++) {
        CHECK(heddle_comm_barrier(comm) == HEDDLE_ERR_PEER);
        CHECK(says("rank 1 gave up", "the soup is cold"));
    }
out:
    return st;
}

HD_CASE(an_abort_is_told_again)
{
    for (int t = 0; t < 2; t++) {
        _Atomic int *left = hd_shared(sizeof *left);
        *left = RANKS - 1;
        HD_OK(heddle_run_ranks(RANKS, transports[t], told_rank, (void *)left));
    }
}

/* --- axis groups -------------------------------------------------------------------------------------------------- */

static heddle_status axes_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"up", 3}, {"on", 1}}};
    const heddle_mesh other = {.naxes = 2, .axis = {{"up", 1}, {"on", 3}}};
    const heddle_mesh small = {.naxes = 1, .axis = {{"up", 2}}};
    heddle_comm *group = NULL;
    int odd = heddle_comm_rank(comm) == 2;
    heddle_status alone = odd ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER;
    int64_t start_ns = hd_now_ns();
    CHECK(heddle_comm_axis_group(&group, comm, &mesh, odd ? 1 : 0) == HEDDLE_ERR_MISMATCH);
    CHECK(says("rank 2 asks for another axis group: its list of axes is 'on of [up=3 on=1]'", "rank 0's is 'up of"));
    CHECK(heddle_comm_axes_group(&group, comm, &mesh, odd ? 3 : 1) == HEDDLE_ERR_MISMATCH);
    CHECK(says("up,on of", "rank 0's is 'up of"));
    CHECK(heddle_comm_axis_group(&group, comm, odd ? &other : &mesh, 0) == HEDDLE_ERR_MISMATCH);
    CHECK(says("[up=1 on=3]", "[up=3 on=1]"));
    CHECK(heddle_comm_axis_group(&group, comm, &mesh, odd ? 2 : 0) == alone);
    CHECK(heddle_comm_axis_group(&group, comm, odd ? &small : &mesh, 0) == alone);
    CHECK(heddle_comm_axes_group(odd ? NULL : &group, comm, &mesh, 1) == alone);
    CHECK(group == NULL && hd_now_ns() - start_ns < hd_test_limit_ns(15));
    HD_TRY(heddle_comm_axis_group(&group, comm, &mesh, 0));
    HD_TRY(heddle_comm_barrier(group));
out:
    heddle_comm_destroy(group);
    return st;
}

HD_CASE(groups_along_other_axes)
{
    on_all(axes_rank);
}
