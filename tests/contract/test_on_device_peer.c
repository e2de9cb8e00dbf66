/* The wire peer between threads: what is only enqueued, graphs that are replayed, and ranks that do not come,
 * which may be processes. */
#include "own_stream.h"
#include "time_limit.h"

#include <stdatomic.h>
#include <unistd.h>

enum { REPLAYS = 100 };

/* --- enqueued ----------------------------------------------------------------------------------------------------- */

/* Rank 0's stream does not move; both ranks' calls come back, several of them. */
static heddle_status only_enqueues(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    heddle_reshard_info info = {.struct_bytes = sizeof info};
    int holds = heddle_comm_rank(comm) == 0;
    (void)arg;
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

static void execute_only_enqueues(void **state)
{
    (void)state;
    run_on(2, "threads", "cuda", HEDDLE_WIRE_PEER, only_enqueues);
}

/* Split, with another stream that waits. Both ranks have one device. */
static heddle_status is_split(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    heddle_stream other = NULL;
    int done = 0;
    (void)arg;
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

static void start_and_wait_on(void **state)
{
    (void)state;
    run_on(2, "threads", "cuda:0", HEDDLE_WIRE_PEER, is_split);
    run_on(2, "threads", "cuda", HEDDLE_WIRE_PEER, is_split);
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

/* Captured without having run before; every replay moves what src holds by then. */
static heddle_status is_captured(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    void *graph = NULL;
    heddle_reshard_info info = {.struct_bytes = sizeof info};
    (void)arg;
    HD_TRY(own_set_up(&o, comm, 0));
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
    CHECK(info.executions == REPLAYS && info.measured_bytes_sent == REPLAYS * info.bytes_sent);
    st = heddle_comm_barrier(comm);
out:
    o.sim.graph_free(graph);
    own_tear_down(&o);
    return st;
}

static void graphs_are_replayed(void **state)
{
    (void)state;
    run_on(2, "threads", "cuda", HEDDLE_WIRE_PEER, is_captured);
}

/* --- who does not come -------------------------------------------------------------------------------------------- */

/* Rank 1 does not come. Rank 0's stream ends by itself, and then both hear who was missing. */
static heddle_status is_late(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    (void)arg;
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

static void a_rank_that_does_not_come_is_named(void **state)
{
    (void)state;
    run_on(2, "threads", "cuda", HEDDLE_WIRE_PEER, is_late);
}

static void a_process_that_does_not_come_is_named(void **state)
{
    (void)state;
    run_on(2, "shm", "cuda", HEDDLE_WIRE_PEER, is_late);
}

/* Rank 1 gives up while rank 0's host waits for its stream and asks heddle nothing. */
static atomic_int is_enqueued;

static heddle_status is_aborted(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    (void)arg;
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

static void an_abort_frees_the_stream(void **state)
{
    (void)state;
    run_on(2, "threads", "cuda", HEDDLE_WIRE_PEER, is_aborted);
}

/* What is refused on one rank ends the others' waits. */
static heddle_status is_refused(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    int is_wrong = heddle_comm_rank(comm) == 1;
    (void)arg;
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

static void a_refusal_ends_waits(void **state)
{
    (void)state;
    run_on(2, "threads", "cuda", HEDDLE_WIRE_PEER, is_refused);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static void every_call_can_fail(void **state)
{
    (void)state;
    each_call_fails(HEDDLE_WIRE_PEER, 8192, 8192);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(execute_only_enqueues),
        cmocka_unit_test(start_and_wait_on),
        cmocka_unit_test(graphs_are_replayed),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(a_process_that_does_not_come_is_named),
        cmocka_unit_test(an_abort_frees_the_stream),
        cmocka_unit_test(a_refusal_ends_waits),
        cmocka_unit_test(every_call_can_fail),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
