/* The wire nccl and graphs of CUDA: what heddle asks of the device meanwhile does no harm to a capture; and NCCL does
 * not end before the graphs that have work of it, or ranks that it ends with: nobody waits for that for ever. */
#include "nccl_sim.h"
#include "time_limit.h"

enum { RANKS = 2, MODES = 3, DEADLINE_S = 4, LIMIT_S = 9 };

/* A first execution in the stream, then at once one that is captured: what is asked of the first one's events, by this
 * thread or by the watch, is not forbidden. */
static heddle_status warm_then_captured(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    device_sim sim;
    void *stream = NULL, *graph = NULL;
    const int *mode = arg;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(sim.stream_create(&stream));
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, stream));
    HD_TRY(device_settle(comm, stream));
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(sim.capture(stream, *mode));
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, stream));
    HD_TRY(sim.record(stream, &graph));
    HD_TRY(heddle_comm_barrier(comm));
    device_fill(&f, 3);
    HD_TRY(device_copy(comm, f.src, f.sent, sizeof f.sent, stream));
    HD_TRY(sim.replay(graph, stream));
    HD_TRY(device_copy(comm, f.got, f.dst, sizeof f.got, stream));
    HD_TRY(device_settle(comm, stream));
    st = check_got(&f, 3);
out:
    device_graph_free(&sim, graph);
    device_stream_free(&sim, stream);
    device_tear_down(&f);
    return st;
}

HD_CASE(a_capture_may_follow_at_once)
{
    for (int mode = 0; mode < MODES; mode++) {
        run_by_nccl(RANKS, warm_then_captured, &mode);
    }
}

/* Messages of an execution outside are under way, and the watch looks at them, while a stream is captured. */
static heddle_status captured_meanwhile(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    device_sim sim;
    void *stream = NULL, *other = NULL, *graph = NULL;
    (void)arg;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(sim.stream_create(&stream));
    HD_TRY(sim.stream_create(&other));
    HD_TRY(heddle_comm_barrier(comm));
    sim.hold(stream);
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, stream));
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(sim.capture(other, 0));
    usleep(100000);
    HD_TRY(sim.record(other, &graph));
    sim.graph_free(graph);
    HD_TRY(heddle_comm_barrier(comm));
    sim.release();
    st = heddle_reshard_wait(f.reshard);
out:
    sim.release();
    device_stream_free(&sim, stream);
    device_stream_free(&sim, other);
    device_tear_down(&f);
    return st;
}

HD_CASE(the_watch_harms_no_capture)
{
    run_by_nccl(RANKS, captured_meanwhile, NULL);
}

/* --- ends ------------------------- */

typedef struct ends {
    nccl_sim sim;
    heddle_comm_options options; /* made before there are threads, as that sets variables of the environment */
    int gives_up;                /* rank 1, while rank 0 has a replay under way */
    void *graph[RANKS];
    _Atomic int replayed, destroyed;
} ends;

/* A communicator of the ranks that heddle_run_ranks has started, which the test destroys itself. */
static heddle_status join(heddle_comm **out, const heddle_comm *launched, const ends *e)
{
    char key[64];
    snprintf(key, sizeof key, "heddle-test-ends-%d", (int)getpid());
    return heddle_comm_join(out, key, heddle_comm_rank(launched), heddle_comm_size(launched), &e->options);
}

static heddle_status capture(void **graph, const device_fixture *f, const device_sim *sim, void *stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(sim->capture(stream, 1));
    HD_TRY(heddle_reshard_execute(f->reshard, f->src, f->dst, stream));
    HD_TRY(sim->record(stream, graph));
out:
    return st;
}

static heddle_status replay_alone(heddle_comm *comm, ends *e, void *stream)
{
    heddle_status st = HEDDLE_OK;
    int64_t began_ns = hd_now_ns();
    if (heddle_comm_rank(comm) == 1) {
        while (!e->replayed && hd_now_ns() - began_ns < hd_test_limit_ns(LIMIT_S)) {
            usleep(1000);
        }
        return heddle_comm_abort(comm, "tired");
    }
    HD_TRY(heddle_comm_replay(comm, e->graph[0], stream));
    e->replayed = 1;
    HD_TRY(device_settle(comm, stream));
    CHECK(heddle_comm_poll(comm) == HEDDLE_ERR_PEER && says("rank 1 gave up: tired"));
    CHECK(heddle_comm_replay(comm, e->graph[0], stream) == HEDDLE_ERR_PEER && says("tired")); /* nothing is launched */
    CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(2));
out:
    return st;
}

/* The graph outlives the communicator. */
static heddle_status keeps_graph(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    ends *e = arg;
    heddle_comm *comm = NULL;
    device_fixture f = {0};
    device_sim sim;
    void *stream = NULL;
    HD_TRY(join(&comm, launched, e));
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(sim.stream_create(&stream));
    HD_TRY(capture(&e->graph[heddle_comm_rank(launched)], &f, &sim, stream));
    HD_TRY(heddle_comm_barrier(comm));
    st = e->gives_up ? replay_alone(comm, e, stream) : HEDDLE_OK;
out:
    device_tear_down(&f);
    device_stream_free(&sim, stream);
    int64_t began_ns = hd_now_ns();
    heddle_comm_destroy(comm);
    return st == HEDDLE_OK && hd_now_ns() - began_ns > hd_test_limit_ns(LIMIT_S)
               ? heddle_set_error(HEDDLE_ERR_INTERNAL, "it took too long")
               : st;
}

HD_CASE(a_graph_may_outlive_its_communicator)
{
    heddle_comm *comm = NULL;
    const heddle_comm_options options = by_nccl_missed(DEADLINE_S);
    device_sim sim;
    HD_OK(heddle_comm_open(&comm, "self", &options)); /* loads the library */
    HD_OK(device_sim_get(&sim));
    heddle_comm_destroy(comm);
    for (int gives_up = 0; gives_up < 2; gives_up++) {
        ends e = {.sim = get_sim(), .options = options, .gives_up = gives_up};
        HD_OK(heddle_run_ranks(RANKS, "threads", keeps_graph, &e));
        assert_int_equal(e.sim.comms(), RANKS);
        for (int r = 0; r < RANKS; r++) {
            sim.graph_free(e.graph[r]);
        }
        for (int64_t until_ns = hd_now_ns() + hd_test_limit_ns(LIMIT_S); e.sim.comms() > 0 && hd_now_ns() < until_ns;) {
            usleep(1000);
        }
        assert_int_equal(e.sim.comms(), 0);
    }
}

/* Rank 1 stays until rank 0's communicator is gone, which NCCL would rather destroy together with its own. */
static heddle_status leaves_early(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    ends *e = arg;
    heddle_comm *comm = NULL;
    int64_t began_ns = hd_now_ns();
    HD_TRY(join(&comm, launched, e));
    while (heddle_comm_rank(launched) == 1 && !e->destroyed && hd_now_ns() - began_ns < hd_test_limit_ns(LIMIT_S)) {
        usleep(1000);
    }
    CHECK(heddle_comm_rank(launched) == 0 || e->destroyed);
out:
    heddle_comm_destroy(comm);
    e->destroyed = 1;
    return st;
}

HD_CASE(a_rank_may_leave_before_others)
{
    ends e = {.sim = get_sim(), .options = by_nccl_missed(DEADLINE_S)};
    e.sim.end_together(RANKS);
    HD_OK(heddle_run_ranks(RANKS, "threads", leaves_early, &e));
    for (int64_t until_ns = hd_now_ns() + hd_test_limit_ns(LIMIT_S); e.sim.comms() > 0 && hd_now_ns() < until_ns;) {
        usleep(1000);
    }
    assert_int_equal(e.sim.comms(), 0);
}
