/* The wire peer on devices that have little room: launches that wait for one another fit there together, and none waits
 * where one kernel runs at a time. And memory that peers do not reach. */
#include "own_stream.h"

/* --- how much of the device --------------------------------------------------------------------------------------- */

/* Launches that wait for one another must run at the same time, so both ranks' fit the device together. */
static heddle_status shares_blocks(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const int *processors = arg;
    enum { BYTES = 1 << 20 };
    own_stream o;
    heddle_reshard *large = NULL, *huge = NULL;
    void *src = NULL, *dst = NULL;
    heddle_reshard_options options;
    heddle_reshard_line line;
    HD_TRY(own_set_up(&o, comm, 0));
    HD_TRY(heddle_comm_barrier(comm));
    o.sim.set_processors(*processors);
    HD_TRY(heddle_comm_barrier(comm));
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    HD_TRY(heddle_reshard_parse(&line, "u8[t=2 s=1048576] on [sp=2]: t@sp -> s@sp"));
    HD_TRY(heddle_reshard_create_line(&large, comm, &line, &options));
    HD_TRY(heddle_buffer_alloc(&src, comm, BYTES, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_buffer_alloc(&dst, comm, BYTES, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_comm_barrier(comm));
    (void)o.sim.most_blocks();
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(heddle_reshard_execute(large, src, dst, o.stream));
    HD_TRY(heddle_reshard_wait(large));
    HD_TRY(heddle_comm_barrier(comm));
    const int most = heddle_comm_rank(comm) == 0 ? o.sim.most_blocks() : 2;
    CHECK(most >= 2 && most <= *processors);

    /* Boxes that are cut in three, each with a block at the least. */
    HD_TRY(heddle_reshard_parse(&line, "u8[t=2 s=8589934594] on [sp=2]: t@sp -> s@sp"));
    CHECK(heddle_reshard_create_line(&huge, comm, &line, &options) == HEDDLE_ERR_UNSUPPORTED);
    CHECK(says("a reshard needs 6 blocks that run at the same time, but 2 ranks share device cuda:0, where each has"));
    st = heddle_comm_barrier(comm);
out:
    o.sim.set_processors(132);
    heddle_reshard_destroy(large);
    heddle_buffer_free(comm, src);
    heddle_buffer_free(comm, dst);
    own_tear_down(&o);
    return st;
}

HD_CASE(launches_fit_the_device)
{
    heddle_comm_options options = device_options("cuda:0", HEDDLE_WIRE_PEER);
    for (int processors = 3; processors <= 5; processors += 2) {
        HD_OK(heddle_run_ranks_with(2, "threads", &options, shares_blocks, &processors));
    }
}

typedef struct seen {
    int most;         /* blocks of the ranks' launches; of rank 0 alone, others: 0 */
    int64_t launches; /* of this rank */
} seen;

static int64_t launches_of(const own_stream *o)
{
    int64_t calls = 0;
    const char *name;
    for (int i = 0; (name = o->sim.calls_by_name(i, &calls)) != NULL; i++) {
        if (strcmp(name, "cudaLaunchKernel") == 0) {
            return calls;
        }
    }
    return 0;
}

/* Of 8 MiB a rank; device_blocks: as the option has it. */
static heddle_status blocks_of(seen *out, own_stream *o, int device_blocks)
{
    enum { BYTES = 8 << 20 };
    heddle_status st = HEDDLE_OK;
    heddle_comm *comm = o->f.comm;
    heddle_reshard *reshard = NULL;
    void *src = NULL, *dst = NULL;
    heddle_reshard_options options;
    heddle_reshard_line line;
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    options.device_blocks = device_blocks;
    HD_TRY(heddle_reshard_parse(&line, "u8[t=2 s=8388608] on [sp=2]: t@sp -> s@sp"));
    HD_TRY(heddle_buffer_alloc(&src, comm, BYTES, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_buffer_alloc(&dst, comm, BYTES, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_reshard_create_line(&reshard, comm, &line, &options));
    (void)o->sim.most_blocks();
    HD_TRY(heddle_comm_barrier(comm));
    const int64_t before = launches_of(o);
    HD_TRY(heddle_reshard_execute(reshard, src, dst, o->stream));
    out->launches = launches_of(o) - before;
    HD_TRY(heddle_reshard_wait(reshard));
    HD_TRY(heddle_comm_barrier(comm));
    out->most = heddle_comm_rank(comm) == 0 ? o->sim.most_blocks() : 0;
    st = heddle_comm_barrier(comm);
out:
    heddle_reshard_destroy(reshard);
    heddle_buffer_free(comm, src);
    heddle_buffer_free(comm, dst);
    return st;
}

/* A launch leaves room: to peers on other devices go 32 blocks, and as many more for what stays. On a device that is
 * shared a launch of one thread waits in front of one of which more than 8 blocks would. */
HD_RANK_CASE(few_blocks_wait, "2 threads cuda:0 peer", "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    seen chosen = {0}, few = {0}, many = {0};
    int priority = 0;
    const int is_first = heddle_comm_rank(comm) == 0, device = heddle_comm_device(comm);
    int devices[2];
    HD_TRY(own_set_up(&o, comm, 0));
    HD_TRY(heddle_comm_allgather(comm, &device, devices, sizeof device));
    HD_TRY(blocks_of(&chosen, &o, 0));
    HD_TRY(blocks_of(&few, &o, 4));
    HD_TRY(blocks_of(&many, &o, 100));
    const int is_shared = devices[0] == devices[1];
    CHECK(!is_first || (chosen.most == (is_shared ? 132 : 64) && few.most == 4 && many.most == 100));
    CHECK(chosen.launches == 1 + is_shared && few.launches == 1 && many.launches == 1 + is_shared);
    CHECK(blocks_of(&few, &o, -1) == HEDDLE_ERR_ARG && says("device_blocks is -1, wanted 0 or more"));
    CHECK(o.sim.priority(o.stream, &priority) == 0 && priority < 0); /* heddle's streams come first */
out:
    own_tear_down(&o);
    return st;
}

/* --- one kernel at a time ----------------------------------------------------------------------------------------- */

/* arg: in order by events. Otherwise a kernel that waits for a peer's keeps that from running. */
static heddle_status runs_alone(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    const int by_events = *(const int *)arg;
    HD_TRY(own_set_up(&o, comm, by_events ? 0 : 300));
    HD_TRY(heddle_comm_barrier(comm));
    o.sim.set_serial(1);
    HD_TRY(heddle_comm_barrier(comm));
    if (!by_events) {
        st = heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream);
        st = st == HEDDLE_OK ? heddle_reshard_wait(o.f.reshard) : st;
        CHECK(st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_PEER);
        st = HEDDLE_OK;
        goto out;
    }
    for (int round = 0; round < 5; round++) {
        HD_TRY(enqueue_round(&o, round));
        HD_TRY(device_settle(comm, o.stream));
        HD_TRY(check_got(&o.f, round));
    }
    HD_TRY(heddle_reshard_get_info(&info, o.f.reshard));
    CHECK(info.executions == 5 && info.measured_bytes_sent == 5 * info.bytes_sent && !info.is_capturable);
    CHECK(strstr(info.why, "HEDDLE_DEVICE_SYNC=events") != NULL);
    st = heddle_comm_barrier(comm);
out:
    o.sim.set_serial(0);
    own_tear_down(&o);
    return st;
}

static heddle_status is_not_captured(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    void *graph = NULL;
    (void)arg;
    HD_TRY(own_set_up(&o, comm, 0));
    HD_TRY(o.sim.capture(o.stream, 1));
    st = heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream);
    CHECK(st == HEDDLE_ERR_ARG || st == HEDDLE_ERR_PEER);
    CHECK(says("its stream is being captured, and HEDDLE_DEVICE_SYNC=events orders executions on the host"));
    st = o.sim.record(o.stream, &graph);
out:
    o.sim.graph_free(graph);
    own_tear_down(&o);
    return st;
}

static heddle_status is_refused_by_name(heddle_comm *comm, void *arg)
{
    device_fixture f = {0};
    heddle_status st = HEDDLE_OK;
    CHECK(device_set_up(&f, comm, 0) != HEDDLE_OK && says(arg));
out:
    return st;
}

HD_CASE(streams_may_wait_instead)
{
    char nonsense[] = "HEDDLE_DEVICE_SYNC is 'luck', wanted flags or events";
    heddle_comm_options options = device_options("cuda:0", HEDDLE_WIRE_PEER);
    HD_OK(heddle_run_ranks_with(2, "threads", &options, runs_alone, &(int){0}));
    setenv("HEDDLE_DEVICE_SYNC", "events", 1);
    HD_OK(heddle_run_ranks_with(2, "threads", &options, runs_alone, &(int){1}));
    HD_OK(heddle_run_ranks_with(2, "threads", &options, is_not_captured, NULL));
    setenv("HEDDLE_DEVICE_SYNC", "luck", 1);
    HD_OK(heddle_run_ranks_with(2, "threads", &options, is_refused_by_name, nonsense));
    unsetenv("HEDDLE_DEVICE_SYNC");
}

/* --- memory that peers do not reach ------------------------------------------------------------------------------- */

/* dst of a pool: peers of another device are not given its address; those of the same device store there. */
HD_RANK_CASE(memory_of_a_pool, "2 threads cuda:0 peer", "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    int32_t *pooled = NULL;
    HD_TRY(own_set_up(&o, comm, 0));
    HD_TRY(enqueue_round(&o, 1));
    HD_TRY(device_settle(comm, o.stream));
    HD_TRY(heddle_comm_barrier(comm));
    o.sim.set_pooled(1);
    HD_TRY(heddle_buffer_alloc((void **)&pooled, comm, sizeof o.f.got, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_comm_barrier(comm));
    o.sim.set_pooled(0);
    st = heddle_reshard_execute(o.f.reshard, o.f.src, pooled, o.stream);
    if (hd_comm_sharers(comm).all == 2) {
        HD_TRY(st);
        HD_TRY(device_settle(comm, o.stream));
        HD_TRY(device_copy_now(comm, o.f.got, pooled, sizeof o.f.got));
        HD_TRY(check_got(&o.f, 1));
        HD_TRY(heddle_comm_barrier(comm));
    } else {
        CHECK(st == HEDDLE_ERR_UNSUPPORTED || st == HEDDLE_ERR_PEER); /* of who comes second */
        CHECK(says("memory that the devices of its peers do not reach"));
        st = HEDDLE_OK;
    }
out:
    heddle_buffer_free(comm, pooled);
    own_tear_down(&o);
    return st;
}

static heddle_status says_nothing(int *is_reached, const void *memory, int device)
{
    (void)is_reached;
    (void)memory;
    return heddle_set_error(HEDDLE_ERR_DEVICE, "device cuda:%d: cuPointerGetAttribute failed with error 999", device);
}

/* Where the device of rank 1 fails when it is asked, its own error is what all hear. */
HD_RANK_CASE(memory_that_the_device_says_nothing_of, "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    heddle_device fails;
    const int is_broken = heddle_comm_rank(comm) == 1;
    hd_device *device = hd_comm_device(comm);
    const heddle_device *const library = device->library;
    fails = *library;
    fails.ask_reached = is_broken ? says_nothing : library->ask_reached;
    device->library = &fails; /* while there is no plan, of which other threads read it */
    HD_TRY(own_set_up(&o, comm, 0));
    HD_TRY(device_sim_unseen());
    st = heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream);
    while (st == HEDDLE_OK) { /* it was enqueued before the other one gave up */
        st = heddle_comm_poll(comm);
        usleep(1000);
    }
    CHECK(st == (is_broken ? HEDDLE_ERR_DEVICE : HEDDLE_ERR_PEER));
    CHECK(says("cuPointerGetAttribute failed with error 999"));
    st = HEDDLE_OK;
out:
    own_tear_down(&o);
    device->library = library;
    return st;
}
