/* The wire peer between threads where CUDA waits as long as its guide allows: who allocates or frees waits for all that
 * devices were given to do, and keeps other threads from launching meanwhile (HEDDLE_CUDASIM_ALLOC_WAITS). */
#include "own_stream.h"
#include "time_limit.h"

#include <unistd.h>

enum { DEADLINE_S = 5, ROUNDS = 3 };

__attribute__((constructor)) static void wait_to_allocate(void)
{
    setenv("HEDDLE_CUDASIM_ALLOC_WAITS", "1", 1);
}

static heddle_status execute(own_stream *o, int round)
{
    device_fill(&o->f, round);
    heddle_status st = device_copy_now(o->f.comm, o->f.src, o->f.sent, sizeof o->f.sent);
    return st == HEDDLE_OK ? heddle_reshard_execute(o->f.reshard, o->f.src, o->f.dst, o->stream) : st;
}

static heddle_status check(own_stream *o, int round)
{
    heddle_status st = device_settle(o->f.comm, o->stream);
    st = st == HEDDLE_OK ? device_copy_now(o->f.comm, o->f.got, o->f.dst, sizeof o->f.got) : st;
    return st == HEDDLE_OK ? check_got(&o->f, round) : st;
}

/* A launch of rank 1 waits for rank 0 while that one lets memory and a plan go: on its own device or on another one. */
HD_RANK_CASE(to_free_waits_for_nobody, "2 threads cuda:0 peer", "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    device_fixture other = {0};
    const int is_first = heddle_comm_rank(comm) == 0;
    HD_TRY(own_set_up(&o, comm, hd_test_limit_ns(DEADLINE_S) / 1000000));
    HD_TRY(device_set_up(&other, comm, hd_test_limit_ns(DEADLINE_S) / 1000000));
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(is_first ? HEDDLE_OK : execute(&o, 1));
    HD_TRY(heddle_comm_barrier(comm));
    device_tear_down(&other);
    HD_TRY(is_first ? execute(&o, 1) : HEDDLE_OK);
    HD_TRY(check(&o, 1));
    st = heddle_comm_barrier(comm);
out:
    own_tear_down(&o);
    return st;
}

/* Rank 1 is about to launch what rank 0's launch waits for, when rank 0 makes the next plan. */
HD_RANK_CASE(plans_are_made_when_all_is_quiet, "2 threads cuda:0 peer", "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    device_fixture other = {0};
    HD_TRY(own_set_up(&o, comm, hd_test_limit_ns(DEADLINE_S) / 1000000));
    for (int round = 0; round < ROUNDS; round++) {
        HD_TRY(heddle_comm_barrier(comm));
        if (heddle_comm_rank(comm) == 1) {
            usleep(30000);
        }
        HD_TRY(execute(&o, round));
        HD_TRY(device_set_up(&other, comm, hd_test_limit_ns(DEADLINE_S) / 1000000));
        HD_TRY(check(&o, round));
        device_tear_down(&other);
        other = (device_fixture){0};
    }
    st = heddle_comm_barrier(comm);
out:
    device_tear_down(&other);
    own_tear_down(&o);
    return st;
}
