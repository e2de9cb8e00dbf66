/* Graphs that heddle launches for the caller: they move what calls move, and while one is under way, or may come yet, a
 * peer that ends frees nothing that it stores to. */
#include "on_device.h"
#include "time_limit.h"

#include <pthread.h>

enum { RANKS = 2, REPLAYS = 3, MS = 1000 };

typedef struct captured {
    device_fixture f;
    device_sim sim;
    void *graph, *stream;
} captured;

static heddle_status set_up(captured *c, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    memset(c, 0, sizeof *c);
    HD_TRY(device_sim_get(&c->sim));
    HD_TRY(device_set_up(&c->f, comm, 0));
    HD_TRY(c->sim.stream_create(&c->stream));
    HD_TRY(whole(&c->f, 0));
    HD_TRY(c->sim.capture(c->stream, 1));
    HD_TRY(heddle_reshard_execute(c->f.reshard, c->f.src, c->f.dst, c->stream));
    st = c->sim.record(c->stream, &c->graph);
out:
    return st;
}

static void tear_down(captured *c)
{
    if (c->stream != NULL) {
        device_graph_free(&c->sim, c->graph);
        device_stream_free(&c->sim, c->stream);
    }
    device_tear_down(&c->f);
}

HD_RANK_CASE(replays_move_what_calls_move, "2 shm cuda peer", "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    captured c;
    HD_TRY(set_up(&c, comm));
    for (int round = 1; round <= REPLAYS; round++) {
        device_fill(&c.f, round);
        HD_TRY(device_copy(comm, c.f.src, c.f.sent, sizeof c.f.sent, c.stream));
        HD_TRY(heddle_comm_replay(comm, c.graph, c.stream));
        HD_TRY(device_copy(comm, c.f.got, c.f.dst, sizeof c.f.got, c.stream));
        HD_TRY(device_settle(comm, c.stream));
        HD_TRY(check_got(&c.f, round));
    }
    HD_TRY(heddle_comm_poll(comm));
    st = heddle_comm_barrier(comm);
out:
    tear_down(&c);
    return st;
}

HD_RANK_CASE(replays_want_a_device, "1 threads")
{
    heddle_status st = HEDDLE_OK;
    CHECK(heddle_comm_replay(comm, &st, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG && says("the communicator has no device"));
out:
    return st;
}

/* Of a wire that counts no replays. */
static heddle_status give_up(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_sim sim;
    void *graph = NULL, *stream = NULL;
    (void)arg;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(sim.stream_create(&stream));
    HD_TRY(sim.capture(stream, 1));
    HD_TRY(sim.record(stream, &graph));
    HD_TRY(heddle_comm_replay(comm, graph, stream));
    HD_TRY(heddle_comm_abort(comm, "enough"));
    CHECK(heddle_comm_replay(comm, graph, stream) == HEDDLE_ERR_PEER && says("enough"));
out:
    if (stream != NULL) {
        device_graph_free(&sim, graph);
        device_stream_free(&sim, stream);
    }
    return st;
}

HD_CASE(nothing_is_launched_behind_a_failure)
{
    run_on(1, "threads", "cuda", HEDDLE_WIRE_HOST, give_up);
}

static captured late;
static _Atomic int is_held, has_given_up;

/* Rank 1's replay stands behind what its stream has before, and rank 1 ends; so does rank 0, behind it. */
static heddle_status both_end(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    captured c;
    (void)arg;
    HD_TRY(set_up(&c, comm));
    HD_TRY(device_sim_unseen());
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 1) {
        c.sim.hold(c.stream);
        HD_TRY(heddle_comm_replay(comm, c.graph, c.stream));
        late = c; /* graph and stream end behind the replay */
        c.stream = NULL;
        is_held = 1;
        HD_TRY(heddle_comm_barrier(comm));
    } else {
        HD_TRY(heddle_comm_barrier(comm));
        HD_TRY(heddle_comm_abort(comm, "enough"));
        CHECK(heddle_comm_replay(comm, c.graph, c.stream) == HEDDLE_ERR_PEER && says("enough")); /* nothing more */
        has_given_up = 1;
    }
out:
    tear_down(&c);
    return st;
}

/* Later than they end by themselves, and earlier than they cease to wait for what peers replay. */
static void *release(void *arg)
{
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(20);
    while (!(is_held && has_given_up) && hd_now_ns() < until_ns) {
        usleep(MS);
    }
    usleep(500 * MS);
    if (is_held) {
        late.sim.release();
    }
    return arg;
}

HD_CASE(ranks_end_behind_what_they_replay)
{
    pthread_t beside;
    hd_leaves("launches of a plan that was captured: nobody knows whether they have ended");
    assert_int_equal(pthread_create(&beside, NULL, release, NULL), 0);
    run_on(RANKS, "threads", "cuda", HEDDLE_WIRE_PEER, both_end);
    assert_int_equal(pthread_join(beside, NULL), 0);
    usleep(200 * MS); /* what was held has come to its end, or to what is gone */
    device_graph_free(&late.sim, late.graph);
    device_stream_free(&late.sim, late.stream);
}
