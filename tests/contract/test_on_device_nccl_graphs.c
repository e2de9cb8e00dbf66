/* The wire nccl and graphs of CUDA: what heddle asks of the device meanwhile does no harm to a capture. */
#include "graphs.h"
#include "nccl_sim.h"

enum { RANKS = 2, MODES = 3 };

/* A first execution in the stream, then at once one that is captured: what is asked of the first one's events, by this
 * thread or by the watch, is not forbidden. */
static heddle_status warm_then_captured(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    device_sim sim;
    void *stream = NULL, *graph = NULL, *exec = NULL;
    const int *mode = arg;
    HD_TRY(device_sim_get(&sim));
    graphs g = get_graphs(&sim);
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(sim.stream_create(&stream));
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, stream));
    HD_TRY(device_settle(comm, stream));
    HD_TRY(heddle_comm_barrier(comm));
    CHECK(g.begin(stream, *mode) == 0);
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, stream));
    CHECK(g.end(stream, &graph) == 0 && g.instantiate(&exec, graph, 0) == 0 && g.graph_destroy(graph) == 0);
    HD_TRY(heddle_comm_barrier(comm));
    device_fill(&f, 3);
    HD_TRY(device_copy(comm, f.src, f.sent, sizeof f.sent, stream));
    CHECK(g.launch(exec, stream) == 0);
    HD_TRY(device_copy(comm, f.got, f.dst, sizeof f.got, stream));
    HD_TRY(device_settle(comm, stream));
    st = check_got(&f, 3);
out:
    if (exec != NULL) {
        (void)g.exec_destroy(exec);
    }
    if (stream != NULL) {
        sim.stream_destroy(stream);
    }
    device_tear_down(&f);
    return st;
}

static void a_capture_may_follow_at_once(void **state)
{
    (void)state;
    heddle_comm_options options = by_nccl(10000);
    for (int mode = 0; mode < MODES; mode++) {
        HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, warm_then_captured, &mode));
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
    graphs g = get_graphs(&sim);
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(sim.stream_create(&stream));
    HD_TRY(sim.stream_create(&other));
    HD_TRY(heddle_comm_barrier(comm));
    sim.hold(stream);
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, f.dst, stream));
    HD_TRY(heddle_comm_barrier(comm));
    CHECK(g.begin(other, 0) == 0);
    usleep(100000);
    CHECK(g.end(other, &graph) == 0 && g.graph_destroy(graph) == 0);
    HD_TRY(heddle_comm_barrier(comm));
    sim.release();
    st = heddle_reshard_wait(f.reshard);
out:
    sim.release();
    for (int i = 0; i < 2; i++) {
        if ((i == 0 ? stream : other) != NULL) {
            sim.stream_destroy(i == 0 ? stream : other);
        }
    }
    device_tear_down(&f);
    return st;
}

static void the_watch_harms_no_capture(void **state)
{
    (void)state;
    heddle_comm_options options = by_nccl(10000);
    HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, captured_meanwhile, NULL));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(a_capture_may_follow_at_once),
        cmocka_unit_test(the_watch_harms_no_capture),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
