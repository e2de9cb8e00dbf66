/* Reshards of arrays on an emulated device: in the order of streams, and when the device fails. */
#include "on_device.h"
#include "time_limit.h"

#include <pthread.h>
#include <unistd.h>

/* --- streams ------------------------------------------------------------------------------------------------------ */

static void *release_later(void *arg)
{
    usleep(30000);
    ((const device_sim *)arg)->release();
    return NULL;
}

/* src is written by what the stream still has to do: a copy within the device, for which no host waits. */
HD_RANK_CASE(streams_order, "2 shm cuda host")
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    device_sim sim;
    void *stream = NULL, *other = NULL, *staged = NULL;
    pthread_t later;
    int done = 1;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(whole(&f, 0));
    HD_TRY(sim.stream_create(&stream));
    HD_TRY(sim.stream_create(&other));
    HD_TRY(heddle_buffer_alloc(&staged, comm, sizeof f.sent, HEDDLE_SPACE_DEVICE));
    device_fill(&f, 3);
    HD_TRY(device_copy_now(comm, staged, f.sent, sizeof f.sent));
    sim.hold(stream);
    CHECK(pthread_create(&later, NULL, release_later, &sim) == 0);
    st = device_copy(comm, f.src, staged, sizeof f.sent, stream);
    st = st == HEDDLE_OK ? heddle_reshard_execute(f.reshard, f.src, f.dst, stream) : st;
    pthread_join(later, NULL);
    HD_TRY(st);
    HD_TRY(device_copy(comm, f.got, f.dst, sizeof f.got, stream));
    HD_TRY(device_settle(comm, stream));
    HD_TRY(check_got(&f, 3));

    /* dst is written in the order of the stream, and others can wait for that. */
    device_fill(&f, 5);
    HD_TRY(device_copy(comm, f.src, f.sent, sizeof f.sent, stream));
    HD_TRY(heddle_reshard_start(f.reshard, f.src, f.dst, stream));
    CHECK(heddle_reshard_start(f.reshard, f.src, f.dst, stream) == HEDDLE_ERR_ARG && says("already in flight"));
    sim.hold(stream);
    HD_TRY(heddle_reshard_wait_on(f.reshard, other));
    HD_TRY(heddle_reshard_test(f.reshard, &done));
    CHECK(!done);
    CHECK(pthread_create(&later, NULL, release_later, &sim) == 0);
    st = device_copy(comm, f.got, f.dst, sizeof f.got, other);
    st = st == HEDDLE_OK ? heddle_reshard_wait(f.reshard) : st;
    pthread_join(later, NULL);
    HD_TRY(st);
    HD_TRY(heddle_reshard_test(f.reshard, &done));
    CHECK(done);
    HD_TRY(device_settle(comm, other));
    st = check_got(&f, 5);
out:
    heddle_buffer_free(comm, staged);
    device_tear_down(&f);
    device_stream_free(&sim, stream);
    device_stream_free(&sim, other);
    return st;
}

/* Rank 0's stream does not come: it says so, and rank 1 is told. */
HD_RANK_CASE(a_stream_has_a_deadline, "2 shm cuda host")
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    device_sim sim;
    void *stream = NULL;
    int is_late = heddle_comm_rank(comm) == 0;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, is_late ? 200 : 20000));
    HD_TRY(sim.stream_create(&stream));
    if (is_late) {
        sim.hold(stream);
    }
    st = heddle_reshard_execute(f.reshard, f.src, f.dst, stream);
    sim.release();
    CHECK(st == (is_late ? HEDDLE_ERR_TIMEOUT : HEDDLE_ERR_PEER));
    CHECK(says("the stream of device cuda:0 did not come to the copies of a reshard before the deadline"));
    CHECK(heddle_comm_poll(comm) == HEDDLE_ERR_PEER);
    st = HEDDLE_OK;
out:
    device_tear_down(&f);
    device_stream_free(&sim, stream);
    return st;
}

/* A stream that is being captured is refused on both ranks, and the plan goes on. */
HD_RANK_CASE(a_captured_stream_is_refused, "2 shm cuda host")
{
    heddle_status st = HEDDLE_OK, refused;
    device_fixture f = {0};
    device_sim sim;
    void *stream = NULL, *graph = NULL;
    int captures = heddle_comm_rank(comm) == 1;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(sim.stream_create(&stream));
    HD_TRY(captures ? sim.capture(stream, 1) : HEDDLE_OK);
    refused = heddle_reshard_execute(f.reshard, f.src, f.dst, stream);
    HD_TRY(captures ? sim.record(stream, &graph) : HEDDLE_OK);
    sim.graph_free(graph);
    CHECK(refused == HEDDLE_ERR_ARG && says("rank 1") &&
          says("its stream is being captured, and this wire waits on the host"));
    st = whole(&f, 2);
out:
    device_tear_down(&f);
    device_stream_free(&sim, stream);
    return st;
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

HD_CASE(every_call_can_fail)
{
    hd_leaves("images of which the device does not say when they have been copied are kept");
    each_call_fails(HEDDLE_WIRE_HOST, 0, sizeof(int32_t[ELEMS]));
}

/* A device that fails under one rank: the other hears of it at once. */
HD_RANK_CASE(failures_are_told, "2 shm cuda host")
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    device_sim sim;
    int is_broken = heddle_comm_rank(comm) == 1;
    int64_t start_ns = hd_now_ns();
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(whole(&f, 1));
    if (is_broken) {
        sim.fail_at(8, 999);
    }
    st = HEDDLE_OK;
    for (int i = 0; i < 10 && st == HEDDLE_OK; i++) {
        st = heddle_reshard_execute(f.reshard, f.src, f.dst, HEDDLE_NO_STREAM);
    }
    CHECK(st == (is_broken ? HEDDLE_ERR_DEVICE : HEDDLE_ERR_PEER));
    CHECK(says("device cuda:1: ") && says("failed with error 999"));
    CHECK(hd_now_ns() - start_ns < hd_test_limit_ns(20));
    st = HEDDLE_OK;
out:
    device_tear_down(&f);
    return st;
}

/* A call within a question about an event fails: the launch behind it does not say so. */
HD_RANK_CASE(a_failed_question_is_no_launchs, "1 threads cuda host")
{
    enum { CALLS = 6 /* more than a question has */, BYTES = 64 };
    heddle_status st = HEDDLE_OK;
    device_sim sim;
    void *event = NULL;
    char *memory = NULL;
    const hd_device *device = hd_comm_device(comm);
    const heddle_device *library = device->library;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(heddle_buffer_alloc((void **)&memory, comm, 2 * BYTES, HEDDLE_SPACE_DEVICE));
    HD_TRY(library->event_create(&event, device->number));
    HD_TRY(library->event_record(event, device->number, HEDDLE_NO_STREAM));
    HD_TRY(device_settle(comm, HEDDLE_NO_STREAM));
    for (int n = 1; n <= CALLS; n++) {
        int done = 0;
        sim.fail_at(n, 999);
        heddle_ignore(library->event_test(event, device->number, &done));
        sim.fail_at(0, 0);
        HD_TRY(library->store(memory + BYTES, memory, BYTES, device->number, HEDDLE_NO_STREAM));
    }
    st = device_settle(comm, HEDDLE_NO_STREAM);
out:
    library->event_destroy(event, device->number);
    heddle_buffer_free(comm, memory);
    return st;
}

/* A graph whose making fails at whichever call: the stream and the thread are in no capture behind it. */
HD_RANK_CASE(a_capture_whose_end_fails_has_ended, "1 threads cuda host")
{
    enum { MOST_CALLS = 40 };
    heddle_status st = HEDDLE_OK, ended = HEDDLE_ERR_DEVICE;
    device_sim sim;
    const heddle_device *table = heddle_comm_device_table(comm);
    const int device = heddle_comm_device(comm);
    void *graph = NULL, *event = NULL, *memory = NULL;
    heddle_stream stream = HEDDLE_NO_STREAM;
    int captures = 0;
    hd_leaves("a graph whose destruction fails");
    HD_TRY(device_sim_get(&sim));
    HD_TRY(table->event_create(&event, device));
    HD_TRY(table->stream_create(&stream, device));
    for (int n = 1; n < MOST_CALLS && ended != HEDDLE_OK; n++) {
        HD_TRY(table->capture_begin(device, stream));
        HD_TRY(table->event_record(event, device, stream));
        sim.fail_at(n, 999);
        ended = table->capture_end(&graph, device, stream);
        sim.fail_at(0, 0);
        CHECK((ended == HEDDLE_OK) == (graph != NULL));
        HD_TRY(table->stream_captures(&captures, device, stream));
        CHECK(!captures);
        HD_TRY(heddle_buffer_alloc(&memory, comm, 64, HEDDLE_SPACE_DEVICE)); /* no capture of this thread forbids it */
        st = table->store((char *)memory + 32, memory, 32, device, stream);  /* nor does its launch say what failed */
        HD_TRY(st == HEDDLE_OK ? device_settle(comm, stream) : st);
        heddle_buffer_free(comm, memory);
    }
    CHECK(ended == HEDDLE_OK);
out:
    table->graph_destroy(graph, device);
    table->event_destroy(event, device);
    table->stream_destroy(stream, device);
    return st;
}
