/* Ranks that are in different calls and wait for one another are told at once, all of them with the same sentence;
 * programs in which each comes in its own time are never told. */
#include "case.h"
#include "crossed_calls.h"
#include "draw.h"
#include "time_limit.h"

#include "runtime/base/base.h"

#include <unistd.h>

enum { DEADLINE_MS = 100000, AT_ONCE_S = 20, MAX_RANKS = 4, ROUNDS = 24, STEPS = 600, SLEEP_US = 60000 };

typedef struct run {
    crossed_call call[MAX_RANKS];
    int late; /* this rank comes a little later */
    char sentence[MAX_RANKS][HD_SENTENCE_BYTES / 4];
    heddle_status status[MAX_RANKS];
    int64_t took_ns[MAX_RANKS];
} run;

/* A call may be over where all whom this rank waits for came to it; then it waits in a barrier. */
static heddle_status crossed_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    run *r = arg;
    crossed c;
    const int me = heddle_comm_rank(comm);
    HD_TRY(crossed_open(&c, comm));
    HD_TRY(crossed_do(&c, CALL_SENDRECV));
    HD_TRY(heddle_comm_barrier(comm));
    usleep(me == r->late ? SLEEP_US : 0);
    const int64_t start_ns = hd_now_ns();
    r->status[me] = crossed_do(&c, r->call[me]);
    r->status[me] = r->status[me] == HEDDLE_OK ? heddle_comm_barrier(comm) : r->status[me];
    r->took_ns[me] = hd_now_ns() - start_ns;
    snprintf(r->sentence[me], sizeof r->sentence[me], "%s", heddle_last_error());
    usleep(100000); /* whoever leaves is noticed, too */
out:
    crossed_close(&c);
    return st;
}

static void cross(run *r, int n, const char *transport, int forced)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = DEADLINE_MS;
    options.force_messages = forced;
    HD_OK(heddle_run_ranks_with(n, transport, &options, crossed_rank, r));
    for (int i = 0; i < n; i++) {
        if (r->status[i] != HEDDLE_ERR_MISMATCH || r->took_ns[i] > hd_test_limit_ns(AT_ONCE_S)) {
            printf("%d %s%s, calls %d %d %d %d, late %d: rank %d %s after %.1f s: %s\n", n, transport,
                   forced ? " forced" : "", (int)r->call[0], (int)r->call[1], (int)r->call[2], (int)r->call[3], r->late,
                   i, heddle_status_name(r->status[i]), (double)r->took_ns[i] * 1e-9, r->sentence[i]);
        }
        assert_int_equal(r->status[i], HEDDLE_ERR_MISMATCH);
        assert_true(r->took_ns[i] <= hd_test_limit_ns(AT_ONCE_S));
    }
}

static void both_ways(crossed_call a, crossed_call b, const char *first, const char *second)
{
    static const char *const transports[] = {"threads", "shm"};
    run *r = hd_shared(sizeof *r);
    for (int t = 0; t < 4; t++) {
        *r = (run){.call = {a, b}, .late = t / 2};
        cross(r, 2, transports[t % 2], 0);
        for (int i = 0; i < 2; i++) {
            if (strstr(r->sentence[i], first) == NULL || strstr(r->sentence[i], second) == NULL) {
                fail_msg("rank %d: %s", i, r->sentence[i]);
            }
        }
    }
}

#define LINE_0 "f32[t=32 s=16] on [sp=2]: t@sp -> s@sp"

HD_CASE(an_execution_and_a_creation)
{
    both_ways(CALL_EXECUTE, CALL_CREATE,
              "rank 1 is in the creation of a reshard f32[t=6 s=9] on [sp=2]: t@sp -> s@sp, while rank 0 is in ",
              "an execution of a reshard " LINE_0);
}

HD_CASE(executions_of_two_plans)
{
    both_ways(CALL_EXECUTE, CALL_EXECUTE_OTHER, "rank 1 is in an execution of a reshard f32[t=16 s=32] on ",
              "while rank 0 is in an execution of a reshard " LINE_0);
}

HD_CASE(an_execution_and_group_operations)
{
    both_ways(CALL_EXECUTE, CALL_ALLGATHER, "rank 1 is in an allgather of 8 bytes", LINE_0);
    both_ways(CALL_BARRIER, CALL_EXECUTE, "rank 0 is in a barrier", LINE_0);
    both_ways(CALL_ALLREDUCE, CALL_START_WAIT, "rank 0 is in an allreduce of 24 bytes of f64", "f32[t=10 s=7]");
    both_ways(CALL_SENDRECV, CALL_EXECUTE, "rank 0 is in a sendrecv", LINE_0);
}

HD_CASE(attention_and_reshards)
{
    both_ways(CALL_ATTENTION, CALL_EXECUTE, "rank 0 is in ", LINE_0);
    both_ways(CALL_ATTENTION, CALL_CREATE, "rank 0 is in ", "the creation of a reshard");
    both_ways(CALL_CREATE_ATTENTION, CALL_EXECUTE, "the creation of an attention shape f32[b=1 s=16 h=4 d=8]", LINE_0);
}

HD_CASE(creations_of_two_kinds)
{
    both_ways(CALL_CREATE_ATTENTION, CALL_CREATE, "rank 1 is in the creation of a reshard f32[t=6 s=9]",
              ", rank 0 in the creation of an attention shape f32[b=1");
}

static void random_ranks(const char *transport, int forced)
{
    run *r = hd_shared(sizeof *r);
    const int rounds = hd_rounds(ROUNDS);
    for (int i = 0; i < rounds; i++) {
        const int n = 2 + below(MAX_RANKS - 1);
        memset(r, 0, sizeof *r);
        r->late = below(n);
        const crossed_call most = (crossed_call)below(CALLS);
        int differs = 0;
        for (int k = 0; k < n; k++) {
            r->call[k] = below(3) == 0 ? most : (crossed_call)below(CALLS);
            differs |= r->call[k] != r->call[0];
        }
        if (differs) {
            cross(r, n, transport, forced);
        }
    }
}

HD_CASE(random_calls_of_threads)
{
    random_ranks("threads", 0);
}

HD_CASE(random_calls_of_processes)
{
    random_ranks("shm", 0);
}

HD_CASE(random_calls_with_messages)
{
    random_ranks("shm", 1);
}

/* --- no false alarms ---------------------------------------------------------------------------------------------- */

/* All ranks draw the same calls, and how long each sleeps before: long enough that others stand still meanwhile. Of
 * what is started ranks do other things before they wait for it. */
HD_RANK_CASE(ranks_in_their_own_time, "2 threads", "3 shm", "4 threads", "4 shm forced", "2 shm")
{
    heddle_status st = HEDDLE_OK;
    crossed c;
    const int me = heddle_comm_rank(comm), n = heddle_comm_size(comm), steps = hd_rounds(STEPS);
    random_source all = {7};
    HD_TRY(crossed_open(&c, comm));
    for (int step = 0; step < steps; step++) {
        const int sleeper = (int)random_between(&all, 0, 6 * n), us = (int)random_between(&all, 0, SLEEP_US);
        const crossed_call call = (crossed_call)random_between(&all, 0, CALLS);
        usleep(sleeper == me ? (unsigned)us : 0);
        if (call < CALLS) {
            HD_TRY(crossed_do(&c, call));
            continue;
        }
        HD_TRY(heddle_reshard_start(c.plan[0], c.src, c.dst, HEDDLE_NO_STREAM));
        HD_TRY(crossed_do(&c, CALL_CREATE));
        HD_TRY(heddle_reshard_start(c.plan[2], c.src, c.more, HEDDLE_NO_STREAM));
        usleep(sleeper % n == me ? (unsigned)us : 0);
        for (int done = 0, turns = 0; !done && turns < (sleeper % 2 != 0 ? 1000000 : 3); turns++) {
            HD_TRY(heddle_reshard_test(c.plan[me % 2 ? 0 : 2], &done));
        }
        HD_TRY(heddle_reshard_wait(c.plan[me % 2 ? 2 : 0]));
        HD_TRY(heddle_reshard_wait(c.plan[me % 2 ? 0 : 2]));
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    crossed_close(&c);
    return st;
}
