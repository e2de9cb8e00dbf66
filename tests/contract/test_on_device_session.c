/* Sessions in an emulated device's memory: every switch of a schedule, forward and backward, strided tensors and
 * results where the caller wants them. Forward by the elements' global index, backward against the same session on the
 * host. */
#include "on_device.h"

#include "session_fixture.h"

enum { MOST_T = 40, ROOM_BYTES = MOST_T * 7 * 6 * 4 * 2 + 64, CANARY = 0x77 };

/* A tensor on the device and its image, which the test fills and reads. */
typedef struct twofold {
    heddle_comm *comm;
    heddle_tensor x, image;
    void *on_device, *on_host;
} twofold;

static heddle_status twofold_make(twofold *out, heddle_comm *comm)
{
    memset(out, 0, sizeof *out);
    out->comm = comm;
    out->on_host = malloc(ROOM_BYTES);
    memset(out->on_host, CANARY, ROOM_BYTES);
    return heddle_buffer_alloc(&out->on_device, comm, ROOM_BYTES, HEDDLE_SPACE_DEVICE);
}

static void twofold_free(twofold *t)
{
    free(t->on_host);
    heddle_buffer_free(t->comm, t->on_device);
}

static heddle_status push(twofold *t)
{
    heddle_status st = device_copy(t->comm, t->on_device, t->on_host, ROOM_BYTES, HEDDLE_NO_STREAM);
    return st == HEDDLE_OK ? device_settle(t->comm, HEDDLE_NO_STREAM) : st;
}

/* t->image becomes what t->x says, wherever that lies by now. */
static heddle_status pull(twofold *t)
{
    heddle_status st = device_copy(t->comm, t->on_host, t->x.data, t->x.capacity_bytes, HEDDLE_NO_STREAM);
    t->image = t->x;
    t->image.data = t->on_host;
    return st == HEDDLE_OK ? device_settle(t->comm, HEDDLE_NO_STREAM) : st;
}

/* Every other element of rows, where `gaps`. */
static void spread(heddle_tensor *x, int gaps)
{
    for (int d = 0; d < x->shape.ndim; d++) {
        x->stride_elems[d] *= 1 + gaps;
    }
    x->capacity_bytes = ROOM_BYTES;
}

static heddle_status bring(twofold *t, const fixture *f, const char *text, int gaps)
{
    heddle_status st = HEDDLE_OK;
    heddle_layout layout;
    heddle_box box;
    const int rank = heddle_comm_rank(t->comm);
    HD_TRY(heddle_layout_parse(&layout, text, &f->info.shape, &f->info.mesh));
    HD_TRY(heddle_layout_box(&box, &f->info.shape, &f->info.mesh, &layout, rank));
    HD_TRY(heddle_tensor_init(&t->image, t->on_host, &f->info.shape, &f->info.mesh, &layout, NULL, rank));
    spread(&t->image, gaps);
    stamp(&t->image, &box, f);
    HD_TRY(push(t));
    t->x = t->image;
    t->x.data = t->on_device;
    t->x.space = HEDDLE_SPACE_DEVICE;
    t->x.device = heddle_comm_device(t->comm);
out:
    return st;
}

static heddle_status open_session(heddle_session **out, heddle_comm *comm, const fixture *f, heddle_space space)
{
    heddle_session_options options;
    heddle_session_options_init(&options);
    options.backward = 1;
    options.space = space;
    options.device = space == HEDDLE_SPACE_DEVICE ? heddle_comm_device(comm) : 0;
    return heddle_session_create(out, comm, f->schedule, &options);
}

/* Into memory of the caller's, with gaps that nobody writes to. */
static heddle_status enter_own(int *times, fixture *f, twofold *from, twofold *to, const char *stage)
{
    heddle_status st = HEDDLE_OK;
    int written = 0;
    HD_TRY(heddle_session_expect(&to->x, NULL, f->session, stage));
    spread(&to->x, 1);
    to->x.data = to->on_device;
    memset(to->on_host, CANARY, ROOM_BYTES);
    HD_TRY(push(to));
    HD_TRY(heddle_session_enter(f->session, stage, &from->x, &to->x, HEDDLE_NO_STREAM));
    if (from->x.data != to->on_device) { /* in the stage's layout before */
        return HEDDLE_OK;
    }
    ++*times;
    HD_TRY(pull(to));
    for (int i = 1; i < ROOM_BYTES / 4; i += 2) {
        written |= ((const uint32_t *)to->on_host)[i] != 0x77777777;
    }
    CHECK(!written);
    st = check_stamps(&to->image, f, heddle_comm_rank(from->comm), 0);
out:
    return st;
}

HD_RANK_CASE(forward_as_on_the_host, "4 shm cuda host", "1 threads cuda peer", "3 threads cuda peer",
             "1 threads cuda host", "3 threads cuda host")
{
    heddle_status st = HEDDLE_OK;
    fixture f = {0};
    twofold x = {0}, own = {0};
    heddle_tensor on_host;
    int times = 0;
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    HD_TRY(make_schedule(&f, heddle_comm_size(comm), "t=5"));
    HD_TRY(open_session(&f.session, comm, &f, HEDDLE_SPACE_DEVICE));
    HD_TRY(twofold_make(&x, comm));
    HD_TRY(twofold_make(&own, comm));
    HD_TRY(heddle_comm_barrier(comm)); /* nobody executes while others allocate */
    HD_TRY(bring(&x, &f, "s@sp", 1));
    on_host = x.image;
    CHECK(heddle_session_enter(f.session, stages[0], &on_host, NULL, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(says("x is host memory, the session's buffers are a device's memory"));
    for (int i = 0; i < STAGES * REPEAT; i++) {
        if (i >= 5 && times == 0) { /* the others go on from there */
            HD_TRY(enter_own(&times, &f, &x, &own, stages[i % STAGES]));
            continue;
        }
        HD_TRY(heddle_session_enter(f.session, stages[i % STAGES], &x.x, NULL, HEDDLE_NO_STREAM));
        CHECK(x.x.space == HEDDLE_SPACE_DEVICE && x.x.device == heddle_comm_device(comm));
        HD_TRY(pull(&x));
        HD_TRY(check_stamps(&x.image, &f, heddle_comm_rank(comm), 0));
    }
    HD_TRY(heddle_session_get_counters(&counters, f.session));
    CHECK(counters.bytes_sent == counters.bytes_planned);
    CHECK(heddle_comm_size(comm) == 1 || (times == 1 && counters.switches >= 5));
out:
    tear_down(&f);
    twofold_free(&x);
    twofold_free(&own);
    return st;
}

/* The same gradients through both sessions: the same bits come out. */
HD_RANK_CASE(backward_as_on_the_host, "3 threads cuda peer", "3 threads cuda host")
{
    heddle_status st = HEDDLE_OK;
    fixture f = {0};
    heddle_session *on_host = NULL;
    twofold dx = {0};
    heddle_tensor host;
    void *memory = malloc(ROOM_BYTES);
    HD_TRY(make_schedule(&f, heddle_comm_size(comm), "t=5"));
    HD_TRY(open_session(&f.session, comm, &f, HEDDLE_SPACE_DEVICE));
    HD_TRY(open_session(&on_host, comm, &f, HEDDLE_SPACE_HOST));
    HD_TRY(twofold_make(&dx, comm));
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(bring(&dx, &f, "*", 0));
    host = dx.image;
    host.data = memcpy(memory, dx.on_host, ROOM_BYTES);
    for (int i = STAGES * REPEAT; i >= 0; i--) {
        const char *stage = i == STAGES * REPEAT ? "end" : stages[i % STAGES];
        HD_TRY(heddle_session_backward(f.session, stage, &dx.x, NULL, HEDDLE_NO_STREAM));
        HD_TRY(heddle_session_backward(on_host, stage, &host, NULL, HEDDLE_NO_STREAM));
        HD_TRY(pull(&dx));
        CHECK(host.capacity_bytes == dx.x.capacity_bytes);
        CHECK(memcmp(host.data, dx.on_host, host.capacity_bytes) == 0);
    }
out:
    heddle_session_destroy(on_host);
    tear_down(&f);
    twofold_free(&dx);
    free(memory);
    return st;
}

/* A pass in a graph: what x holds at each replay goes through all stages, and the device counts it. */
HD_RANK_CASE(a_pass_in_a_graph, "2 threads cuda peer")
{
    enum { REPLAYS = 100 };
    heddle_status st = HEDDLE_OK;
    fixture f = {0};
    twofold x = {0};
    device_sim sim;
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    const hd_device *device = hd_comm_device(comm);
    heddle_stream stream = NULL;
    void *graph = NULL;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(make_schedule(&f, heddle_comm_size(comm), "t=5"));
    HD_TRY(open_session(&f.session, comm, &f, HEDDLE_SPACE_DEVICE));
    HD_TRY(device->library->stream_create(&stream, device->number));
    HD_TRY(twofold_make(&x, comm));
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(bring(&x, &f, "s@sp", 0));
    HD_TRY(sim.capture(stream, 1));
    for (int i = 0; i < STAGES * REPEAT; i++) {
        HD_TRY(heddle_session_enter(f.session, stages[i % STAGES], &x.x, NULL, stream));
    }
    HD_TRY(sim.record(stream, &graph));
    twofold source = x;
    for (int round = 0; round < REPLAYS; round++) {
        HD_TRY(bring(&source, &f, "s@sp", 0));
        for (size_t i = 0; i < source.image.capacity_bytes / sizeof(float); i++) {
            ((float *)x.on_host)[i] += (float)round;
        }
        HD_TRY(device_copy(comm, x.on_device, x.on_host, ROOM_BYTES, stream));
        HD_TRY(sim.replay(graph, stream));
        HD_TRY(device_settle(comm, stream));
        HD_TRY(pull(&x));
        HD_TRY(check_stamps(&x.image, &f, heddle_comm_rank(comm), (float)round));
    }
    HD_TRY(heddle_session_get_counters(&counters, f.session));
    CHECK(counters.bytes_planned > 0 && counters.bytes_sent == REPLAYS * counters.bytes_planned);
    st = heddle_comm_barrier(comm);
out:
    sim.graph_free(graph);
    tear_down(&f);
    twofold_free(&x);
    device->library->stream_destroy(stream, device->number);
    return st;
}

/* --- memory that grows -------------------------------------------------------------------------------------------- */

enum { TAKEN = 8, TAKEN_BYTES = 4096 /* a session's smallest buffer */ };

/* As somebody else would who gets what the session has let go: written to at once, in another stream. */
static heddle_status take_and_write(void **taken, heddle_comm *comm, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    static const char zeros[TAKEN_BYTES];
    for (int i = 0; i < TAKEN; i++) {
        HD_TRY(heddle_buffer_alloc(&taken[i], comm, TAKEN_BYTES, HEDDLE_SPACE_DEVICE));
        HD_TRY(device_copy(comm, taken[i], zeros, TAKEN_BYTES, stream));
    }
    st = device_settle(comm, stream);
out:
    return st;
}

/* No layout of which a rank has the whole: its buffers are smaller. */
static heddle_status make_sharded_schedule(fixture *f, int ranks)
{
    heddle_status st = HEDDLE_OK;
    heddle_plan_options options;
    heddle_plan_options_init(&options);
    options.epilogue = "any";
    HD_TRY(make_schedule(f, ranks, "t=40"));
    heddle_schedule_destroy(f->schedule);
    f->schedule = NULL;
    st = heddle_plan(&f->schedule, f->model, &f->info.mesh, &options);
    st = st == HEDDLE_OK ? heddle_schedule_get_info(&f->info, f->schedule) : st;
out:
    return st;
}

/* The second switch's source, of no layout of the schedule's, needs more room than the first's, which is enqueued and
 * has not been read. */
HD_RANK_CASE(what_is_enqueued_keeps_its_memory, "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    fixture f = {0};
    twofold x = {0}, whole = {0}, dense = {0};
    device_sim sim;
    void *taken[TAKEN] = {NULL};
    const hd_device *device = hd_comm_device(comm);
    heddle_stream stream = NULL, other = NULL;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(make_sharded_schedule(&f, heddle_comm_size(comm)));
    HD_TRY(open_session(&f.session, comm, &f, HEDDLE_SPACE_DEVICE));
    HD_TRY(device->library->stream_create(&stream, device->number));
    HD_TRY(device->library->stream_create(&other, device->number));
    HD_TRY(twofold_make(&x, comm));
    HD_TRY(twofold_make(&whole, comm));
    HD_TRY(twofold_make(&dense, comm));
    HD_TRY(bring(&x, &f, "s@sp", 1));
    HD_TRY(bring(&whole, &f, "*", 1));
    HD_TRY(bring(&dense, &f, "*", 0));
    HD_TRY(heddle_session_enter(f.session, "s.attn", &dense.x, NULL, stream)); /* makes the plan, and grows nothing */
    HD_TRY(device_settle(comm, stream));
    HD_TRY(heddle_session_rewind(f.session));
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 0) {
        sim.hold(stream);
    }
    HD_TRY(heddle_session_enter(f.session, "s.attn", &x.x, NULL, stream));
    HD_TRY(heddle_session_rewind(f.session));
    HD_TRY(heddle_session_enter(f.session, "s.attn", &whole.x, NULL, stream));
    usleep(50000); /* until rank 1 has copied its source, which rank 0 does not fetch yet */
    HD_TRY(take_and_write(taken, comm, other));
    HD_TRY(heddle_comm_barrier(comm));
    sim.release();
    HD_TRY(device_settle(comm, stream));
    HD_TRY(pull(&x));
    st = check_stamps(&x.image, &f, heddle_comm_rank(comm), 0);
out:
    sim.release();
    for (int i = 0; i < TAKEN; i++) {
        heddle_buffer_free(comm, taken[i]);
    }
    tear_down(&f);
    twofold_free(&x);
    twofold_free(&whole);
    twofold_free(&dense);
    device->library->stream_destroy(other, device->number);
    device->library->stream_destroy(stream, device->number);
    return st;
}
