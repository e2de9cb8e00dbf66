/* The wire peer when something has failed: arrays are the caller's again when a call has said so, other ranks are told
 * at once, and what graphs of peers may still write stays. */
#include "on_device.h"
#include "time_limit.h"

#include <stdio.h>

enum { RANKS = 2, QUEUED = 20, CALLS = 60, PATTERN = 0x5a5a5a5a };

static const char held_up[] = "launches that were held up may still write to pages of the host and to the device";

typedef struct own {
    heddle_comm *comm;
    const hd_device *device;
    heddle_reshard *reshard;
    int32_t *src, *dst;
    heddle_stream stream, other;
    device_sim sim;
} own;

static const char adds[] = "i32[t=6 s=8] on [sp=2]: sum@sp -> s@sp"; /* launches behind the meeting write dst */
static const char moves[] = "i32[t=6 s=8] on [sp=2]: t@sp -> s@sp";

/* Until somebody has given up. */
static void poll_to_the_end(heddle_comm *comm)
{
    while (heddle_comm_poll(comm) == HEDDLE_OK) {
        usleep(1000);
    }
}

static heddle_status set_up(own *o, heddle_comm *comm, const char *text, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_options options;
    heddle_reshard_line line;
    memset(o, 0, sizeof *o);
    o->comm = comm;
    o->device = hd_comm_device(comm);
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    options.deadline_ms = deadline_ms;
    HD_TRY(device_sim_get(&o->sim));
    HD_TRY(heddle_reshard_parse(&line, text));
    HD_TRY(heddle_reshard_create_line(&o->reshard, comm, &line, &options));
    HD_TRY(heddle_buffer_alloc((void **)&o->src, comm, ELEMS * 4, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_buffer_alloc((void **)&o->dst, comm, ELEMS * 4, HEDDLE_SPACE_DEVICE));
    HD_TRY(o->device->library->stream_create(&o->stream, o->device->number));
    HD_TRY(o->device->library->stream_create(&o->other, o->device->number));
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static void tear_down(own *o)
{
    heddle_reshard_destroy(o->reshard);
    o->device->library->stream_destroy(o->stream, o->device->number);
    o->device->library->stream_destroy(o->other, o->device->number);
    heddle_buffer_free(o->comm, o->src);
    heddle_buffer_free(o->comm, o->dst);
}

/* Rank 1 does not come. What rank 0 writes into its dst when it has been told stays there. */
static heddle_status is_written_again(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own o;
    int32_t values[ELEMS / RANKS];
    (void)arg;
    HD_TRY(set_up(&o, comm, adds, 200));
    if (heddle_comm_rank(comm) == 0) {
        for (int i = 0; i < QUEUED; i++) {
            HD_TRY(heddle_reshard_execute(o.reshard, o.src, o.dst, o.stream));
        }
        CHECK(heddle_reshard_wait(o.reshard) == HEDDLE_ERR_TIMEOUT && says("missing: rank 1"));
        for (int i = 0; i < ELEMS / RANKS; i++) {
            values[i] = PATTERN;
        }
        HD_TRY(device_copy(comm, o.dst, values, sizeof values, o.other));
        HD_TRY(device_settle(comm, o.other));
        HD_TRY(device_settle(comm, o.stream));
        memset(values, 0, sizeof values);
        HD_TRY(device_copy(comm, values, o.dst, sizeof values, o.other));
        HD_TRY(device_settle(comm, o.other));
        for (int i = 0; i < ELEMS / RANKS; i++) {
            CHECK(values[i] == PATTERN);
        }
    } else {
        poll_to_the_end(comm);
    }
out:
    tear_down(&o);
    return st;
}

HD_CASE(arrays_are_the_callers_again)
{
    run_on(RANKS, "threads", "cuda", HEDDLE_WIRE_PEER, is_written_again);
}

/* The caller's own work stands before rank 0's launches and does not end. */
static heddle_status is_held_up(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own o;
    (void)arg;
    HD_TRY(set_up(&o, comm, adds, 200));
    if (heddle_comm_rank(comm) == 0) {
        o.sim.hold(o.stream);
        HD_TRY(heddle_reshard_execute(o.reshard, o.src, o.dst, o.stream));
        CHECK(heddle_reshard_wait(o.reshard) == HEDDLE_ERR_TIMEOUT && says("did not come to the end of a reshard"));
        CHECK(says("launches did not come to their end, and may still write dst"));
        o.sim.release();
        HD_TRY(device_settle(comm, o.stream));
        CHECK(heddle_reshard_wait(o.reshard) == HEDDLE_ERR_TIMEOUT && !says("may still write"));
    } else {
        poll_to_the_end(comm);
    }
out:
    if (heddle_comm_rank(comm) == 0) {
        o.sim.release();
    }
    tear_down(&o);
    return st;
}

HD_CASE(arrays_that_are_not_the_callers_yet_are_said)
{
    hd_leaves(held_up);
    run_on(RANKS, "threads", "cuda", HEDDLE_WIRE_PEER, is_held_up);
}

static _Atomic int is_told;

/* Rank 0's launches are held up, and may store into rank 1's dst yet when rank 1 has given up. */
static heddle_status may_be_written(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own o;
    (void)arg;
    HD_TRY(set_up(&o, comm, moves, 200));
    if (heddle_comm_rank(comm) == 0) {
        o.sim.hold(o.stream);
        HD_TRY(heddle_reshard_execute(o.reshard, o.src, o.dst, o.stream));
        HD_TRY(heddle_comm_barrier(comm));
        while (!is_told) {
            usleep(1000);
        }
        o.sim.release();
        HD_TRY(device_settle(comm, o.stream));
    } else {
        HD_TRY(heddle_comm_barrier(comm));
        HD_TRY(heddle_reshard_execute(o.reshard, o.src, o.dst, o.stream));
        const heddle_status got = heddle_reshard_wait(o.reshard);
        is_told = 1;
        CHECK(got == HEDDLE_ERR_TIMEOUT && says("missing: rank 0") && says("may still write dst"));
    }
out:
    is_told = 1;
    tear_down(&o);
    return st;
}

HD_CASE(arrays_that_peers_may_still_write_are_said)
{
    hd_leaves(held_up);
    run_on(RANKS, "threads", "cuda", HEDDLE_WIRE_PEER, may_be_written);
}

static _Atomic int *is_given_up; /* between processes, too */

/* Rank 0's launches end when rank 1 gives up, but its thread is busy with something else and asks nothing. */
static heddle_status is_busy(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own o;
    (void)arg;
    HD_TRY(set_up(&o, comm, moves, 20000));
    if (heddle_comm_rank(comm) == 0) {
        HD_TRY(heddle_reshard_execute(o.reshard, o.src, o.dst, o.stream));
        HD_TRY(heddle_comm_barrier(comm));
        const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(20);
        while (!*is_given_up && hd_now_ns() < until_ns) {
            usleep(1000);
        }
    } else {
        HD_TRY(heddle_comm_barrier(comm));
        HD_TRY(heddle_comm_abort(comm, "enough"));
        const heddle_status got = heddle_reshard_execute(o.reshard, o.src, o.dst, o.stream);
        *is_given_up = 1;
        CHECK(got == HEDDLE_ERR_PEER && says("gave up: enough") && !says("may still write dst"));
    }
out:
    *is_given_up = 1;
    tear_down(&o);
    return st;
}

HD_CASE(launches_that_have_ended_are_not_waited_for)
{
    static const char *const transports[] = {"shm", "threads"}; /* forks first */
    is_given_up = hd_shared(sizeof *is_given_up);
    for (int i = 0; i < 2; i++) {
        *is_given_up = 0;
        run_on(RANKS, transports[i], "cuda", HEDDLE_WIRE_PEER, is_busy);
    }
}

static heddle_status ended[RANKS];
static int64_t fails_at;
static int64_t long_ms;  /* a deadline for which nobody is to wait */
static _Atomic int over; /* ranks whose call has returned; until all have nobody leaves */
static _Atomic int left; /* ranks whose launches had not ended after seconds: a machine without time for them */

static heddle_status one_call_fails(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own o;
    int rank = heddle_comm_rank(comm);
    (void)arg;
    HD_TRY(set_up(&o, comm, moves, long_ms));
    int64_t began_ns = hd_now_ns();
    if (rank == 0) {
        o.sim.fail_at(fails_at, 999);
    }
    HD_TRY(heddle_comm_barrier(comm));
    ended[rank] = heddle_reshard_execute(o.reshard, o.src, o.dst, o.stream);
    ended[rank] = ended[rank] == HEDDLE_OK ? heddle_reshard_start(o.reshard, o.src, o.dst, o.other) : ended[rank];
    ended[rank] = ended[rank] == HEDDLE_OK ? heddle_reshard_wait(o.reshard) : ended[rank];
    over++;
    CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(4));
out:
    o.sim.fail_at(0, 0);
    while (st == HEDDLE_OK && over < RANKS) {
        usleep(100);
    }
    tear_down(&o);
    left += o.device->is_left;
    return st;
}

/* Whichever it is: the other rank's launch does not wait for one that will not come. */
HD_CASE(others_are_told)
{
    int failed = 0;
    for (fails_at = 1; fails_at <= CALLS; fails_at += hd_call_step()) {
        over = 0;
        long_ms = 5 * hd_test_limit_ns(4) / 1000000;
        run_on(RANKS, "threads", "cuda", HEDDLE_WIRE_PEER, one_call_fails);
        failed += ended[0] != HEDDLE_OK && ended[1] != HEDDLE_OK;
    }
    assert_true(failed > CALLS / 4 / hd_call_step() && left < failed);
    if (left > 0) {
        hd_leaves(held_up);
    }
}

static _Atomic int is_destroyed, has_replayed;

/* Rank 1's graph may be launched yet when rank 0 has given up and destroys its plan. */
static heddle_status was_captured(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own o;
    void *graph = NULL;
    (void)arg;
    HD_TRY(set_up(&o, comm, adds, 0));
    HD_TRY(o.sim.capture(o.stream, 1));
    HD_TRY(heddle_reshard_execute(o.reshard, o.src, o.dst, o.stream));
    HD_TRY(o.sim.record(o.stream, &graph));
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 1) {
        o.sim.hold(o.stream);
        HD_TRY(o.sim.replay(graph, o.stream));
        poll_to_the_end(comm);
        while (!is_destroyed) {
            usleep(1000);
        }
        o.sim.release();
        HD_TRY(device_settle(comm, o.stream));
        has_replayed = 1;
    } else {
        HD_TRY(o.sim.replay(graph, o.stream));
        usleep(50000); /* it has come, and waits for rank 1's */
        HD_TRY(heddle_comm_abort(comm, "enough"));
        HD_TRY(device_settle(comm, o.stream));
        heddle_reshard_destroy(o.reshard);
        o.reshard = NULL;
        is_destroyed = 1;
        const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(4);
        while (!has_replayed && hd_now_ns() < until_ns) {
            usleep(1000);
        }
    }
out:
    o.sim.graph_free(graph);
    tear_down(&o);
    return st;
}

HD_CASE(what_peers_replay_finds_its_memory)
{
    run_on(RANKS, "threads", "cuda", HEDDLE_WIRE_PEER, was_captured);
}

/* --- a plan that ends before its launches ------------------------------------------------------------------------- */

static const heddle_device *library_of_all;
static int unmapped;

static void count_and_unmap(void *memory, int device)
{
    unmapped++;
    library_of_all->unmap(memory, device);
}

/* The communicator ends without closing a mapping: nobody knows by then whether rank 0's launch has come to its end. */
static heddle_status is_left_behind(own *o)
{
    heddle_status st = HEDDLE_OK;
    hd_device *device = hd_comm_device(o->comm);
    library_of_all = device->library;
    heddle_device counting = *library_of_all;
    counting.unmap = count_and_unmap;
    o->sim.hold(o->stream);
    st = heddle_reshard_execute(o->reshard, o->src, o->dst, o->stream);
    heddle_reshard_destroy(o->reshard);
    o->sim.release(); /* what frees memory waits for the device */
    device->library = &counting;
    heddle_comm_destroy(o->comm);
    device->library = library_of_all; /* the buffers still are of it */
    CHECK(unmapped == 0);
    o->sim.stream_destroy(o->stream); /* behind the launch, which finds what it stores to */
out:
    return st;
}

static heddle_status ends_before(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own o = {0};
    heddle_comm *comm = NULL;
    char key[40];
    const heddle_comm_options options = device_options("cuda", HEDDLE_WIRE_PEER);
    const int rank = heddle_comm_rank(launched);
    (void)arg;
    snprintf(key, sizeof key, "ends-before-%d", (int)getppid());
    HD_TRY(heddle_comm_join(&comm, key, rank, RANKS, &options));
    HD_TRY(set_up(&o, comm, moves, 200));
    if (rank == 0) {
        HD_TRY(is_left_behind(&o));
        HD_TRY(heddle_comm_barrier(launched));
    } else {
        HD_TRY(heddle_comm_barrier(launched));
        heddle_reshard_destroy(o.reshard);
        heddle_comm_destroy(comm);
    }
    heddle_buffer_free(comm, o.src); /* the last of which ends the communicator */
    heddle_buffer_free(comm, o.dst);
out:
    return st;
}

HD_CASE(mappings_stay_while_a_launch_may_store)
{
    hd_leaves(held_up);
    HD_OK(heddle_run_ranks(RANKS, "shm", ends_before, NULL));
}
