/* The wire nccl: calls only enqueue and may be captured, communicators of NCCL may be lent; and what goes wrong: every
 * rank is told, what is in streams ends, and nothing is left behind. */
#include "nccl_sim.h"
#include "time_limit.h"

#include <signal.h>

enum { RANKS = 2 };
static heddle_status ended[RANKS]; /* how each rank's work went */
static _Atomic int is_enqueued, given_up;

static heddle_status two_rounds(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    (void)arg;
    HD_TRY(device_set_up(&f, comm, 0));
    for (int round = 0; round < 2; round++) {
        device_fill(&f, round);
        HD_TRY(device_copy_now(comm, f.src, f.sent, sizeof f.sent));
        HD_TRY(heddle_reshard_start(f.reshard, f.src, f.dst, HEDDLE_NO_STREAM));
        HD_TRY(heddle_reshard_wait(f.reshard));
        HD_TRY(device_copy_now(comm, f.got, f.dst, sizeof f.got));
        HD_TRY(check_got(&f, round));
    }
out:
    ended[heddle_comm_rank(comm)] = st;
    device_tear_down(&f);
    return st;
}

/* The n-th call of NCCL fails, whichever it is. */
HD_CASE(every_call_may_fail)
{
    heddle_comm_options options = by_nccl(60);
    nccl_sim sim = get_sim();
    int n = 1, failed = 0;
    for (heddle_status st = HEDDLE_ERR_INTERNAL; st != HEDDLE_OK; n++) {
        memset(ended, -1, sizeof ended);
        int64_t began_ns = hd_now_ns();
        sim.fail_at(n, 3);
        st = heddle_run_ranks_with(RANKS, "threads", &options, two_rounds, NULL);
        sim.fail_at(0, 0);
        assert_true(hd_now_ns() - began_ns < hd_test_limit_ns(20)); /* nobody waited for the deadline */
        assert_int_equal(sim.comms(), 0);
        failed += st != HEDDLE_OK;
        for (int r = 0; r < RANKS; r++) {
            assert_true(st == HEDDLE_OK ? ended[r] == HEDDLE_OK : ended[r] != HEDDLE_OK);
        }
        assert_true(st == HEDDLE_OK || strstr(heddle_last_error(), "NCCL: ") != NULL);
        assert_true(n < 100);
    }
    assert_true(failed > 15);
}

HD_CASE(a_group_may_fail)
{
    heddle_comm_options options = by_nccl(10);
    nccl_sim sim = get_sim();
    for (int n = 1; n <= 6; n++) { /* the first two while attaching */
        sim.fail_group_at(n, 2);
        heddle_status st = heddle_run_ranks_with(RANKS, "threads", &options, two_rounds, NULL);
        assert_true(st == HEDDLE_ERR_TRANSPORT || st == HEDDLE_ERR_PEER);
        assert_true(says("failed with 2, unhandled system error") || says("a remote rank failed"));
        assert_int_equal(sim.comms(), 0);
    }
    HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, two_rounds, NULL));
}

/* Rank 1 does not come. Rank 0's host waits for its stream, as cudaStreamSynchronize does, and asks heddle nothing. */
static heddle_status one_stays_away(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    const int *aborts = arg;
    HD_TRY(device_set_up(&f, comm, 0));
    if (heddle_comm_rank(comm) == 0) {
        int64_t began_ns = hd_now_ns();
        HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, HEDDLE_NO_STREAM));
        is_enqueued = 1;
        HD_TRY(device_settle(comm, HEDDLE_NO_STREAM));
        CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(4));
        st = heddle_comm_poll(comm);
        CHECK(*aborts ? st == HEDDLE_ERR_PEER && says("rank 1 gave up: tired")
                      : st == HEDDLE_ERR_TIMEOUT && says("messages between devices (NCCL 2.28.9)"));
        CHECK(heddle_reshard_execute(f.reshard, f.src, f.dst, HEDDLE_NO_STREAM) == st);
        CHECK(heddle_reshard_wait(f.reshard) == st);
        given_up = 1;
        st = HEDDLE_OK;
    }
    while (heddle_comm_rank(comm) == 1 && !is_enqueued) {
        usleep(1000);
    }
    if (heddle_comm_rank(comm) == 1 && *aborts) {
        HD_TRY(heddle_comm_abort(comm, "tired"));
    }
    while (!given_up) {
        usleep(1000);
    }
out:
    device_tear_down(&f);
    return st;
}

HD_CASE(a_rank_that_does_not_come_ends_at_the_deadline)
{
    nccl_sim sim = get_sim();
    setenv("HEDDLE_NCCLSIM_SILENT", "1", 1);
    for (int aborts = 0; aborts < 2; aborts++) {
        int64_t before = sim.aborts();
        is_enqueued = given_up = 0;
        const heddle_comm_options options = aborts ? by_nccl(60) : by_nccl_missed(1);
        HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, one_stays_away, &aborts));
        assert_true(sim.aborts() > before && sim.aborts() <= before + RANKS); /* once each, at most */
        assert_int_equal(sim.comms(), 0);
    }
}

static heddle_status one_dies(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    (void)arg;
    HD_TRY(device_set_up(&f, comm, 0));
    for (int round = 0; round < 1000; round++) {
        if (round == 3 && heddle_comm_rank(comm) == 1) {
            raise(SIGKILL);
        }
        HD_TRY(heddle_reshard_start(f.reshard, f.src, f.dst, HEDDLE_NO_STREAM));
        HD_TRY(heddle_reshard_wait(f.reshard));
    }
out:
    device_tear_down(&f);
    return st;
}

HD_CASE(a_rank_that_dies_is_named)
{
    heddle_comm_options options = by_nccl(60);
    int64_t began_ns = hd_now_ns();
    assert_int_equal(heddle_run_ranks_with(RANKS, "shm", &options, one_dies, NULL), HEDDLE_ERR_PEER);
    assert_true(says("rank 1 was killed by signal 9"));
    assert_true(hd_now_ns() - began_ns < hd_test_limit_ns(4));
}

static heddle_status nothing(heddle_comm *comm, void *arg)
{
    char *says_wire = arg;
    const char *wire = strstr(heddle_comm_describe(comm), "wire ");
    if (wire != NULL && heddle_comm_rank(comm) == 0) {
        snprintf(says_wire, 300, "%s", wire);
    }
    return HEDDLE_OK;
}

/* Asked for it is an error; `auto` takes the next wire and says why. */
HD_CASE(an_older_nccl_is_refused)
{
    char wire[300] = "";
    heddle_comm_options options = by_nccl(10);
    setenv("HEDDLE_NCCLSIM_VERSION", "21303", 1);
    assert_int_equal(heddle_run_ranks_with(RANKS, "threads", &options, nothing, wire), HEDDLE_ERR_UNSUPPORTED);
    assert_true(says("wire nccl: rank 0: NCCL 2.13.3 was found, wanted 2.14"));
    setenv("HEDDLE_NCCLSIM_VERSION", "21403", 1); /* the first that will do, older than heddle's header */
    HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, nothing, wire));
    assert_true(strstr(wire, "wire nccl") != NULL);
    unsetenv("HEDDLE_NCCLSIM_VERSION");
    options.wire = HEDDLE_WIRE_AUTO;
    nccl_sim sim = get_sim();
    sim.fail_at(3, 5); /* a call of the meeting */
    HD_OK(heddle_run_ranks_with(1, "threads", &options, nothing, wire));
    assert_true(strstr(wire, "wire peer") != NULL || strstr(wire, "wire host") != NULL);
    assert_true(strstr(wire, "wire peer") != NULL || strstr(wire, "not nccl: NCCL: nccl") != NULL);
}

/* While the stream is held execute returns, and nothing is there yet. */
static heddle_status goes_on(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    device_sim sim;
    void *stream = NULL;
    static _Atomic int enqueued;
    (void)arg;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(sim.stream_create(&stream));
    device_fill(&f, 7);
    HD_TRY(device_copy_now(comm, f.src, f.sent, sizeof f.sent));
    sim.hold(stream);
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, stream));
    HD_TRY(heddle_comm_poll(comm));
    for (enqueued++; enqueued < RANKS;) {
        usleep(100);
    }
    sim.release();
    HD_TRY(heddle_reshard_wait(f.reshard));
    HD_TRY(device_copy_now(comm, f.got, f.dst, sizeof f.got));
    HD_TRY(check_got(&f, 7));
out:
    device_stream_free(&sim, stream);
    device_tear_down(&f);
    return st;
}

HD_CASE(execute_only_enqueues)
{
    run_by_nccl(RANKS, goes_on, NULL);
}

/* On rank 1 the first stream is held: the second execution waits for the first, whose memory it uses, on both. */
static heddle_status on_two_streams(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    device_sim sim;
    void *stream[2] = {NULL, NULL}, *src = NULL, *dst = NULL;
    (void)arg;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(heddle_buffer_alloc(&src, comm, sizeof f.sent, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_buffer_alloc(&dst, comm, sizeof f.sent, HEDDLE_SPACE_DEVICE));
    for (int round = 0; round < 2; round++) {
        HD_TRY(sim.stream_create(&stream[round]));
        device_fill(&f, round);
        HD_TRY(device_copy_now(comm, round == 0 ? f.src : src, f.sent, sizeof f.sent));
    }
    if (heddle_comm_rank(comm) == 1) {
        sim.hold(stream[0]);
    }
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, stream[0]));
    HD_TRY(heddle_reshard_execute(f.reshard, src, dst, stream[1]));
    HD_TRY(heddle_comm_barrier(comm));
    usleep(20000);
    sim.release();
    for (int round = 0; round < 2; round++) {
        HD_TRY(device_settle(comm, stream[round]));
        HD_TRY(device_copy_now(comm, f.got, round == 0 ? f.dst : dst, sizeof f.got));
        HD_TRY(check_got(&f, round));
    }
out:
    sim.release();
    for (int i = 0; i < 2; i++) {
        device_stream_free(&sim, stream[i]);
    }
    device_tear_down(&f);
    heddle_buffer_free(comm, src);
    heddle_buffer_free(comm, dst);
    return st;
}

HD_CASE(streams_take_turns)
{
    run_by_nccl(RANKS, on_two_streams, NULL);
}

/* --- captured -------------------- */

/* One capture, replayed with other values each time. */
static heddle_status one_captured(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    device_sim sim;
    void *stream = NULL, *graph = NULL;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(sim.stream_create(&stream));
    HD_TRY(sim.capture(stream, 1));
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, stream));
    HD_TRY(sim.record(stream, &graph));
    for (int round = 0; round < 100; round++) {
        device_fill(&f, round);
        HD_TRY(device_copy(comm, f.src, f.sent, sizeof f.sent, stream));
        HD_TRY(sim.replay(graph, stream));
        HD_TRY(device_copy(comm, f.got, f.dst, sizeof f.got, stream));
        HD_TRY(device_settle(comm, stream));
        HD_TRY(check_got(&f, round));
    }
    HD_TRY(heddle_comm_poll(comm));
    HD_TRY(heddle_reshard_get_info(&info, f.reshard));
    CHECK(info.is_capturable && info.is_captured && strcmp(info.wire, "nccl") == 0 && info.executions == 1);
out:
    device_graph_free(&sim, graph);
    device_stream_free(&sim, stream);
    device_tear_down(&f);
    return st;
}

static heddle_status captured(heddle_comm *comm, void *arg)
{
    (void)arg;
    return one_captured(comm);
}

HD_CASE(a_captured_execution_is_replayed)
{
    run_by_nccl(RANKS, captured, NULL);
}

/* --- a communicator that is the program's --- */

typedef struct lenders {
    nccl_sim sim;
    nccl_id id;
    struct ncclComm *comm[RANKS];
} lenders;

/* Those of NCCL are on device 0, which is the thread's. */
static heddle_status lends(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    lenders *l = arg;
    int rank = heddle_comm_rank(comm);
    CHECK(l->sim.init(&l->comm[rank], RANKS, l->id, rank) == 0);
    CHECK(heddle_comm_lend_nccl(comm, rank == 0 ? "cuda:0" : "cuda:1", l->comm[rank]) ==
          (rank == 1 ? HEDDLE_ERR_MISMATCH : HEDDLE_ERR_PEER));
    CHECK(says("is rank 1 of 2 on cuda:0, heddle's is rank 1 of 2 on cuda:1"));
    CHECK(heddle_comm_device(comm) == -1);
    HD_TRY(heddle_comm_lend_nccl(comm, "cuda:0", l->comm[rank]));
    CHECK(strstr(heddle_comm_describe(comm), "wire nccl (as asked for)") != NULL);
    st = one_captured(comm);
out:
    return st;
}

HD_CASE(a_lent_communicator_is_left_alone)
{
    (void)by_nccl(10);
    lenders l = {.sim = get_sim()};
    assert_int_equal(l.sim.get_id(&l.id), 0);
    HD_OK(heddle_run_ranks(RANKS, "threads", lends, &l));
    assert_int_equal(l.sim.comms(), RANKS);
    assert_int_equal(l.sim.aborts(), 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(l.sim.destroy(l.comm[r]), 0);
    }
    assert_int_equal(l.sim.comms(), 0);
}
