/* The wire peer between threads: what is only enqueued, graphs that are replayed, and ranks that do not come,
 * which may be processes. */
#include "own_stream.h"
#include "time_limit.h"

#include <stdatomic.h>
#include <unistd.h>

enum { REPLAYS = 100 };

/* --- enqueued ----------------------------------------------------------------------------------------------------- */

/* Rank 0's stream does not move; both ranks' calls come back, several of them. */
HD_RANK_CASE(execute_only_enqueues, "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    int holds = heddle_comm_rank(comm) == 0;
    HD_TRY(own_set_up(&o, comm, 0));
    HD_TRY(enqueue_round(&o, 1));
    HD_TRY(device_settle(comm, o.stream));
    HD_TRY(check_got(&o.f, 1));
    HD_TRY(heddle_comm_barrier(comm));
    if (holds) {
        o.sim.hold(o.stream);
    }
    HD_TRY(heddle_comm_barrier(comm));
    for (int i = 0; i < 3; i++) {
        HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
    }
    HD_TRY(heddle_comm_barrier(comm)); /* all are back */
    HD_TRY(heddle_reshard_get_info(&info, o.f.reshard));
    CHECK(info.executions == 1 && strcmp(info.wire, "peer") == 0 && info.is_capturable);
    HD_TRY(heddle_comm_barrier(comm));
    o.sim.release();
    HD_TRY(device_settle(comm, o.stream));
    HD_TRY(heddle_reshard_wait(o.f.reshard));
    HD_TRY(heddle_reshard_get_info(&info, o.f.reshard));
    CHECK(info.executions == 4 && info.measured_bytes_sent == 4 * info.bytes_sent && info.device_ns > 0);
    st = heddle_comm_barrier(comm);
out:
    o.sim.release();
    own_tear_down(&o);
    return st;
}

/* Split, with another stream that waits. Both ranks have one device. */
HD_RANK_CASE(start_and_wait_on, "2 threads cuda:0 peer", "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    heddle_stream other = NULL;
    int done = 0;
    HD_TRY(own_set_up(&o, comm, 0));
    HD_TRY(o.device->library->stream_create(&other, o.device->number));
    for (int round = 0; round < 5; round++) {
        device_fill(&o.f, round);
        HD_TRY(device_copy(comm, o.f.src, o.f.sent, sizeof o.f.sent, o.stream));
        HD_TRY(heddle_reshard_start(o.f.reshard, o.f.src, o.f.dst, o.stream));
        HD_TRY(heddle_reshard_wait_on(o.f.reshard, other));
        HD_TRY(device_copy(comm, o.f.got, o.f.dst, sizeof o.f.got, other));
        HD_TRY(round % 2 == 0 ? heddle_reshard_wait(o.f.reshard) : HEDDLE_OK);
        HD_TRY(device_settle(comm, other));
        HD_TRY(heddle_reshard_test(o.f.reshard, &done));
        CHECK(done);
        HD_TRY(check_got(&o.f, round));
    }
    HD_TRY(whole(&o.f, 9)); /* the default stream, which is both ranks' */
    st = heddle_comm_barrier(comm);
out:
    o.device->library->stream_destroy(other, o.device->number);
    own_tear_down(&o);
    return st;
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

/* Captured without having run before; every replay moves what src holds by then. */
HD_RANK_CASE(graphs_are_replayed, "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    void *graph = NULL;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    HD_TRY(own_set_up(&o, comm, 0));
    HD_TRY(heddle_reshard_get_info(&info, o.f.reshard));
    CHECK(!info.is_captured);
    HD_TRY(o.sim.capture(o.stream, 1));
    HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
    HD_TRY(o.sim.record(o.stream, &graph));
    for (int round = 0; round < REPLAYS; round++) {
        device_fill(&o.f, round);
        HD_TRY(device_copy(comm, o.f.src, o.f.sent, sizeof o.f.sent, o.stream));
        HD_TRY(o.sim.replay(graph, o.stream));
        HD_TRY(device_copy(comm, o.f.got, o.f.dst, sizeof o.f.got, o.stream));
        HD_TRY(device_settle(comm, o.stream));
        HD_TRY(check_got(&o.f, round));
    }
    HD_TRY(heddle_reshard_get_info(&info, o.f.reshard));
    CHECK(info.is_captured && info.executions == REPLAYS && info.measured_bytes_sent == REPLAYS * info.bytes_sent);
    st = heddle_comm_barrier(comm);
out:
    o.sim.graph_free(graph);
    own_tear_down(&o);
    return st;
}

/* --- who does not come -------------------------------------------------------------------------------------------- */

/* Rank 1 does not come. Rank 0's stream ends by itself, and then both hear who was missing. */
HD_RANK_CASE(a_rank_that_does_not_come_is_named, "2 shm cuda peer", "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    HD_TRY(own_set_up(&o, comm, 300));
    if (heddle_comm_rank(comm) == 0) {
        const int64_t began_ns = hd_now_ns();
        HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
        HD_TRY(device_settle(comm, o.stream));
        CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(4));
        CHECK(heddle_comm_poll(comm) == HEDDLE_ERR_TIMEOUT);
        CHECK(says("rank 0: a reshard on device cuda:0 is overdue, missing: rank 1; reshard i32[t=6 s=8]"));
        CHECK(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream) == HEDDLE_ERR_TIMEOUT);
    } else {
        while ((st = heddle_comm_poll(comm)) == HEDDLE_OK) {
            usleep(1000);
        }
        CHECK(st == HEDDLE_ERR_PEER && says("rank 0 gave up: a reshard on device cuda:0 is overdue, missing: rank 1"));
        CHECK(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream) == HEDDLE_ERR_PEER);
    }
    st = HEDDLE_OK;
out:
    own_tear_down(&o);
    return st;
}

/* Rank 1 gives up while rank 0's host waits for its stream and asks heddle nothing. */
static atomic_int is_enqueued;

HD_RANK_CASE(an_abort_frees_the_stream, "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    HD_TRY(own_set_up(&o, comm, 0));
    if (heddle_comm_rank(comm) == 1) {
        while (!atomic_load(&is_enqueued)) {
            usleep(100);
        }
        st = heddle_comm_abort(comm, "enough");
        goto out; /* what rank 0 may still store to is freed when it does not any more */
    }
    int64_t begin_ns = hd_now_ns();
    st = heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream);
    atomic_store(&is_enqueued, 1);
    HD_TRY(st);
    HD_TRY(device_settle(comm, o.stream));
    CHECK(hd_now_ns() - begin_ns < hd_test_limit_ns(8));
    CHECK(heddle_reshard_wait(o.f.reshard) == HEDDLE_ERR_PEER && says("rank 1 gave up: enough"));
    st = HEDDLE_OK;
out:
    own_tear_down(&o);
    return st;
}

/* What is refused on one rank ends the others' waits. */
HD_RANK_CASE(a_refusal_ends_waits, "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    int is_wrong = heddle_comm_rank(comm) == 1;
    HD_TRY(own_set_up(&o, comm, 0));
    st = heddle_reshard_execute(o.f.reshard, is_wrong ? o.f.sent : o.f.src, o.f.dst, o.stream);
    if (is_wrong) {
        CHECK(st == HEDDLE_ERR_ARG && says("rank 1: its src is host memory, and the plan is of a device's"));
    } else {
        CHECK(st == HEDDLE_OK || st == HEDDLE_ERR_PEER);
        CHECK(heddle_reshard_wait(o.f.reshard) == HEDDLE_ERR_PEER && says("rank 1 gave up: its src"));
    }
    st = HEDDLE_OK;
out:
    own_tear_down(&o);
    return st;
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

HD_CASE(every_call_can_fail)
{
    each_call_fails(HEDDLE_WIRE_PEER, 8192, 8192);
}
