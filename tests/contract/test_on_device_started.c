/* Split-phase executions, by every way and wire the same: how long another one of the plan is refused, what comes
 * behind wait_on, and what a capture takes no part in. */
#include "held_streams.h"
#include "nccl_sim.h"

enum { RANKS = 2, SOME_US = 30000 /* that an execution needs to end */ };

/* Arrays of the device, or of the host where the communicator has none. */
typedef struct started {
    heddle_comm *comm;
    heddle_reshard *reshard;
    int32_t *src, *dst;
    heddle_stream a, b;
    int is_device;
} started;

static heddle_status set_up(started *s, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_options options;
    heddle_reshard_line line;
    *s = (started){.comm = comm, .is_device = heddle_comm_device(comm) >= 0};
    heddle_reshard_options_init(&options);
    options.space = s->is_device ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
    options.device = s->is_device ? heddle_comm_device(comm) : 0;
    options.tuning = HEDDLE_TUNING_RULES;
    HD_TRY(heddle_reshard_parse(&line, "i32[t=6 s=8] on [sp=2]: t@sp -> s@sp as s,t"));
    HD_TRY(heddle_reshard_create_line(&s->reshard, comm, &line, &options));
    HD_TRY(heddle_buffer_alloc((void **)&s->src, comm, sizeof(int32_t[ELEMS]), options.space));
    HD_TRY(heddle_buffer_alloc((void **)&s->dst, comm, sizeof(int32_t[ELEMS]), options.space));
    if (s->is_device) {
        const hd_device *device = hd_comm_device(comm);
        HD_TRY(device->library->stream_create(&s->a, device->number));
        HD_TRY(device->library->stream_create(&s->b, device->number));
    }
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static void tear_down(started *s)
{
    heddle_reshard_destroy(s->reshard);
    if (s->is_device) {
        const hd_device *device = hd_comm_device(s->comm);
        device->library->stream_destroy(s->a, device->number);
        device->library->stream_destroy(s->b, device->number);
    }
    heddle_buffer_free(s->comm, s->src);
    heddle_buffer_free(s->comm, s->dst);
}

static heddle_status start(const started *s)
{
    return heddle_reshard_start(s->reshard, s->src, s->dst, s->a);
}

static heddle_status is_refused(const started *s)
{
    heddle_status st = HEDDLE_OK;
    CHECK(start(s) == HEDDLE_ERR_ARG && says("an execution of this reshard is already in flight"));
    CHECK(heddle_reshard_execute(s->reshard, s->src, s->dst, s->b) == HEDDLE_ERR_ARG && says("already in flight"));
out:
    return st;
}

static heddle_status test_until_done(const started *s)
{
    heddle_status st = HEDDLE_OK;
    for (int done = 0; !done;) {
        HD_TRY(heddle_reshard_test(s->reshard, &done));
        HD_TRY(done ? HEDDLE_OK : is_refused(s));
    }
out:
    return st;
}

static heddle_status is_one_at_a_time(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    started s;
    (void)arg;
    HD_TRY(set_up(&s, comm));
    for (int round = 0; round < 3; round++) {
        HD_TRY(start(&s));
        usleep(heddle_comm_rank(comm) == 0 ? SOME_US : 0); /* it may have ended here, and nobody has heard of it */
        HD_TRY(is_refused(&s));
        HD_TRY(heddle_reshard_wait(s.reshard));
        HD_TRY(start(&s));
        HD_TRY(test_until_done(&s));
        HD_TRY(start(&s));
        HD_TRY(heddle_reshard_wait_on(s.reshard, s.b));
        HD_TRY(start(&s)); /* the next one comes behind it */
        HD_TRY(heddle_reshard_wait_on(s.reshard, s.b));
        HD_TRY(heddle_reshard_execute(s.reshard, s.src, s.dst, s.b));
        HD_TRY(heddle_reshard_wait(s.reshard));
        HD_TRY(test_until_done(&s));
    }
    st = heddle_comm_barrier(comm);
out:
    tear_down(&s);
    return st;
}

/* A second one behind wait_on, of another src, to another dst: what the stream reads of both is right. */
static heddle_status comes_behind(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0}, g = {0};
    heddle_stream stream = NULL;
    const hd_device *device = hd_comm_device(comm);
    (void)arg;
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(device_set_up(&g, comm, 0));
    HD_TRY(device->library->stream_create(&stream, device->number));
    for (int round = 0; round < 5; round++) {
        device_fill(&f, round);
        device_fill(&g, 1000 + round);
        HD_TRY(device_copy(comm, f.src, f.sent, sizeof f.sent, stream));
        HD_TRY(device_copy(comm, g.src, g.sent, sizeof g.sent, stream));
        HD_TRY(heddle_reshard_start(f.reshard, f.src, f.dst, stream));
        HD_TRY(heddle_reshard_wait_on(f.reshard, stream));
        HD_TRY(device_copy(comm, f.got, f.dst, sizeof f.got, stream));
        HD_TRY(heddle_reshard_start(f.reshard, g.src, g.dst, stream));
        HD_TRY(heddle_reshard_wait_on(f.reshard, stream));
        HD_TRY(device_copy(comm, g.got, g.dst, sizeof g.got, stream));
        HD_TRY(device_settle(comm, stream));
        HD_TRY(check_got(&f, round));
        HD_TRY(check_got(&g, 1000 + round));
    }
    st = heddle_comm_barrier(comm);
out:
    device->library->stream_destroy(stream, device->number);
    device_tear_down(&f);
    device_tear_down(&g);
    return st;
}

/* --- streams that stand still ------------------------------------------------------------------------------------- */

typedef struct standing {
    device_fixture f, g;
    device_sim sim;
    const hd_device *device;
    heddle_stream a, b;
    int stands; /* this rank's stream a does, until go_on; the other rank's does not */
} standing;

static heddle_status standing_set_up(standing *s, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    *s = (standing){.device = hd_comm_device(comm), .stands = heddle_comm_rank(comm) == 0};
    HD_TRY(device_sim_get(&s->sim));
    HD_TRY(device_set_up(&s->f, comm, 0));
    HD_TRY(device_set_up(&s->g, comm, 0));
    HD_TRY(s->device->library->stream_create(&s->a, s->device->number));
    HD_TRY(s->device->library->stream_create(&s->b, s->device->number));
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static void standing_tear_down(standing *s)
{
    s->sim.release();
    s->device->library->stream_destroy(s->a, s->device->number);
    s->device->library->stream_destroy(s->b, s->device->number);
    device_tear_down(&s->f);
    device_tear_down(&s->g);
}

static void stand(const standing *s)
{
    if (s->stands) {
        s->sim.hold(s->a);
    }
}

static void go_on(const standing *s)
{
    if (s->stands) {
        usleep(SOME_US); /* in which what does not wait is done */
        s->sim.release();
    }
}

/* What is started comes behind what the caller's stream still has to do: src is written there. */
static heddle_status starts_behind(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    standing s;
    (void)arg;
    HD_TRY(standing_set_up(&s, comm));
    HD_TRY(whole(&s.f, 0));
    device_fill(&s.f, 7);
    HD_TRY(device_copy_now(comm, s.g.src, s.f.sent, sizeof s.f.sent));
    stand(&s);
    st = device_copy(comm, s.f.src, s.g.src, sizeof s.f.sent, s.a);
    st = st == HEDDLE_OK ? heddle_reshard_start(s.f.reshard, s.f.src, s.f.dst, s.a) : st;
    go_on(&s);
    HD_TRY(st);
    HD_TRY(heddle_reshard_wait(s.f.reshard));
    HD_TRY(device_copy_now(comm, s.f.got, s.f.dst, sizeof s.f.got));
    HD_TRY(check_got(&s.f, 7));
    st = heddle_comm_barrier(comm);
out:
    standing_tear_down(&s);
    return st;
}

/* Executions of a plan are done in the order of the calls, whichever streams they are on. Kernels were loaded before
 * they meet: a GPU that loads one waits for what runs there, which may wait for that one. arg: streams go. */
static heddle_status takes_turns(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    standing s;
    HD_TRY(standing_set_up(&s, comm));
    HD_TRY(whole(&s.f, 0));
    device_fill(&s.f, 11);
    device_fill(&s.g, 1011);
    HD_TRY(device_copy_now(comm, s.f.src, s.f.sent, sizeof s.f.sent));
    HD_TRY(device_copy_now(comm, s.g.src, s.g.sent, sizeof s.g.sent));
    stand(&s);
    st = heddle_reshard_execute(s.f.reshard, s.f.src, s.f.dst, s.a);
    st = st == HEDDLE_OK && arg != NULL ? stream_comes_again(&s.a, &s.b, s.device) : st;
    st = st == HEDDLE_OK ? heddle_reshard_execute(s.f.reshard, s.g.src, s.g.dst, s.b) : st;
    go_on(&s);
    HD_TRY(st);
    HD_TRY(s.a != HEDDLE_NO_STREAM ? device_settle(comm, s.a) : HEDDLE_OK);
    HD_TRY(device_settle(comm, s.b));
    HD_TRY(device_copy_now(comm, s.f.got, s.f.dst, sizeof s.f.got));
    HD_TRY(device_copy_now(comm, s.g.got, s.g.dst, sizeof s.g.got));
    HD_TRY(check_got(&s.f, 11));
    HD_TRY(check_got(&s.g, 1011));
    CHECK(s.sim.unloaded() == 0);
    st = heddle_comm_barrier(comm);
out:
    standing_tear_down(&s);
    return st;
}

/* --- captures ----------------------------------------------------------------------------------------------------- */

/* The capture is as good as before. */
static heddle_status is_not_captured(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    started s;
    device_sim sim;
    void *graph = NULL;
    const int goes_on = *(const heddle_wire *)arg == HEDDLE_WIRE_HOST;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(set_up(&s, comm));
    HD_TRY(start(&s));
    HD_TRY(sim.capture(s.b, 1));
    CHECK(heddle_reshard_wait_on(s.reshard, s.b) == HEDDLE_ERR_ARG && says("its stream is being captured"));
    HD_TRY(sim.record(s.b, &graph));
    sim.graph_free(graph);
    HD_TRY(heddle_reshard_wait(s.reshard));
    HD_TRY(heddle_comm_barrier(comm)); /* all have heard of its end before anybody gives up */
    HD_TRY(sim.capture(s.a, 1));
    st = start(&s);
    CHECK(st == HEDDLE_ERR_ARG || (!goes_on && st == HEDDLE_ERR_PEER)); /* the other rank may have given up before */
    CHECK(says("its stream is being captured"));
    HD_TRY(sim.record(s.a, &graph));
    sim.graph_free(graph);
    HD_TRY(goes_on ? heddle_reshard_execute(s.reshard, s.src, s.dst, s.a) : HEDDLE_OK);
    CHECK((heddle_comm_poll(comm) == HEDDLE_OK) == goes_on);
out:
    tear_down(&s);
    return st;
}

enum { ENQUEUE_ONLY = 2, ALL_WIRES = 3 };

static void on_wires(heddle_rank_main fn, int nwires)
{
    static const heddle_wire wires[] = {HEDDLE_WIRE_PEER, HEDDLE_WIRE_NCCL, HEDDLE_WIRE_HOST};
    heddle_comm_options options = by_nccl(20);
    for (int i = 0; i < nwires; i++) {
        options.wire = wires[i];
        HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, fn, (void *)(uintptr_t)&wires[i]));
    }
}

HD_CASE(one_at_a_time)
{
    on_wires(is_one_at_a_time, ALL_WIRES);
    HD_OK(heddle_run_ranks(RANKS, "threads", is_one_at_a_time, NULL));
    HD_OK(heddle_run_ranks(RANKS, "shm", is_one_at_a_time, NULL));
}

HD_CASE(the_next_comes_behind)
{
    on_wires(comes_behind, ALL_WIRES);
}

HD_CASE(what_is_started_comes_behind_the_callers_stream)
{
    on_wires(starts_behind, ENQUEUE_ONLY);
}

/* Each wire in a process of its own, which has no kernels loaded: ranks of one device need not prove by a kernel that
 * stores arrive. */
HD_CASE(streams_take_turns_by_stores)
{
    heddle_comm_options options = by_nccl(20);
    options.wire = HEDDLE_WIRE_PEER;
    options.device = "cuda:0";
    HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, takes_turns, NULL));
}

HD_CASE(streams_take_turns_by_messages)
{
    heddle_comm_options options = by_nccl(20);
    HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, takes_turns, NULL));
}

HD_CASE(a_handle_comes_again)
{
    on_wires(takes_turns, ENQUEUE_ONLY);
}

HD_CASE(only_execute_is_captured)
{
    on_wires(is_not_captured, ALL_WIRES);
}
