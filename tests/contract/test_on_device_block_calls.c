/* Calls of stages on a device: what is refused, graphs, and calls of CUDA that fail. */
#include "block_on_device.h"
#include "held_streams.h"

#include <heddle/train/tape.h>

static heddle_comm *on_other_device(void)
{
    heddle_comm *comm = NULL;
    const heddle_comm_options options = device_options("cuda:0", HEDDLE_WIRE_HOST);
    HD_OK(heddle_comm_open(&comm, "self", &options));
    return comm;
}

static heddle_block_options options_on(heddle_comm *comm, heddle_stage_kind kind, heddle_dtype dtype)
{
    heddle_block_options options = small_options(kind, dtype);
    options.space = HEDDLE_SPACE_DEVICE;
    options.comm = comm;
    return options;
}

HD_CASE(blocks_that_no_device_has_are_refused)
{
    heddle_comm *comm = alone(), *plain = NULL;
    heddle_block *block = NULL;
    heddle_block_options options = options_on(NULL, HEDDLE_STAGE_MLP, HEDDLE_F32);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &options));
    assert_true(says("options.comm"));
    HD_OK(heddle_comm_open(&plain, "self", NULL));
    options.comm = plain;
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_block_create(&block, &options));
    assert_true(says("the communicator has none"));
    heddle_comm_destroy(plain);
    options = options_on(comm, HEDDLE_STAGE_ATTENTION, HEDDLE_BF16);
    options.heads = 8;
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_block_create(&block, &options));
    assert_true(says("heads of 4 channels of bf16"));
    options.space = (heddle_space)7;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &options));
    options = options_on(comm, HEDDLE_STAGE_MLP, HEDDLE_F16);
    options.space = HEDDLE_SPACE_HOST;
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_block_create(&block, &options));
    assert_null(block);
    heddle_comm_destroy(comm);
}

/* A call with other arrays than the block's is refused by name, and the block goes on. */
HD_CASE(arrays_elsewhere_are_refused)
{
    heddle_comm *comm = alone(), *other = on_other_device();
    const heddle_block_options options = small_options(HEDDLE_STAGE_MLP, HEDDLE_F32);
    const heddle_box box = whole_box(&options.shape);
    there t;
    there_open(&t, comm, &options);
    const size_t bytes = (size_t)t.p.elems * sizeof(float);
    void *here = placed_on(comm, t.p.x, bytes), *elsewhere = placed_on(other, t.p.x, bytes);
    heddle_tensor x = there_tensor(&t, t.p.x, &box);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(t.p.block, &x, &box, &t.conditioning, HEDDLE_NO_STREAM));
    assert_true(says("x at ") && says("in host memory; the block works on device cuda:1"));
    x.data = elsewhere;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(t.p.block, &x, &box, &t.conditioning, HEDDLE_NO_STREAM));
    assert_true(says("in the memory of another device"));
    x.data = here;
    x.device = 0;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(t.p.block, &x, &box, &t.conditioning, HEDDLE_NO_STREAM));
    x = box_tensor(t.p.block, t.p.x, &box);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(t.p.block, &x, &box, &t.conditioning, HEDDLE_NO_STREAM));
    assert_true(says("host memory (space 0"));
    x = there_tensor(&t, here, &box);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(t.p.block, &x, &box, &t.p.conditioning, HEDDLE_NO_STREAM));
    assert_true(says("the conditioning vector at "));
    x.stride_elems[1]++;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_block_forward(t.p.block, &x, &box, &t.conditioning, HEDDLE_NO_STREAM));
    x.stride_elems[1]--;
    HD_OK(heddle_block_forward(t.p.block, &x, &box, &t.conditioning, HEDDLE_NO_STREAM));
    HD_OK(device_settle(comm, HEDDLE_NO_STREAM));
    heddle_buffer_free(comm, here);
    heddle_buffer_free(other, elsewhere);
    there_close(&t);
    heddle_comm_destroy(other);
    heddle_comm_destroy(comm);
}

/* What was the device's in the call before is not asked after again, unless memory was freed. */
HD_CASE(arrays_that_were_freed_are_refused)
{
    heddle_comm *comm = alone();
    const heddle_block_options options = small_options(HEDDLE_STAGE_MLP, HEDDLE_F32);
    const heddle_box box = whole_box(&options.shape);
    there t;
    there_open(&t, comm, &options);
    void *here = placed_on(comm, t.p.x, (size_t)t.p.elems * sizeof(float));
    const heddle_tensor x = there_tensor(&t, here, &box);
    for (int i = 0; i < 2; i++) {
        HD_OK(heddle_block_forward(t.p.block, &x, &box, &t.conditioning, HEDDLE_NO_STREAM));
    }
    HD_OK(device_settle(comm, HEDDLE_NO_STREAM));
    heddle_buffer_free(comm, here);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(t.p.block, &x, &box, &t.conditioning, HEDDLE_NO_STREAM));
    assert_true(says("x at ") && says("in host memory"));
    there_close(&t);
    heddle_comm_destroy(comm);
}

/* A block of the CPU takes nothing of a device, and shares no workspace with one there. */
HD_CASE(blocks_of_the_host_take_no_arrays_of_devices)
{
    heddle_comm *comm = alone();
    const heddle_block_options options = small_options(HEDDLE_STAGE_MLP, HEDDLE_F32);
    const heddle_box box = whole_box(&options.shape);
    there t;
    problem p;
    there_open(&t, comm, &options);
    open_problem(&p, &options);
    const heddle_tensor x = there_tensor(&t, p.x, &box);
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_block_forward(p.block, &x, &box, &p.conditioning, HEDDLE_NO_STREAM));
    assert_true(says("the memory of device 1; the block works in host memory"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_share_workspace(p.block, t.p.block));
    close_problem(&p);
    there_close(&t);
    heddle_comm_destroy(comm);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

/* A block with rows, and two streams. */
typedef struct in_turn {
    there t;
    heddle_box box;
    heddle_tensor x;
    heddle_stream a, b;
} in_turn;

static heddle_status forward_in(in_turn *s, heddle_stream stream)
{
    return heddle_block_forward(s->t.p.block, &s->x, &s->box, &s->t.conditioning, stream);
}

static void in_turn_open(in_turn *s, heddle_comm *comm)
{
    const heddle_block_options options = small_options(HEDDLE_STAGE_MLP, HEDDLE_F32);
    const hd_device *device = hd_comm_device(comm);
    s->box = whole_box(&options.shape);
    there_open(&s->t, comm, &options);
    s->x = there_tensor(&s->t, placed_on(comm, s->t.p.x, (size_t)s->t.p.elems * sizeof(float)), &s->box);
    HD_OK(device->library->stream_create(&s->a, device->number));
    HD_OK(device->library->stream_create(&s->b, device->number));
    HD_OK(forward_in(s, s->b)); /* the workspace is there */
    HD_OK(device_settle(comm, s->b));
}

static void in_turn_close(in_turn *s)
{
    const hd_device *device = hd_comm_device(s->t.comm);
    device->library->stream_destroy(s->a, device->number);
    device->library->stream_destroy(s->b, device->number);
    heddle_buffer_free(s->t.comm, s->x.data);
    there_close(&s->t);
}

/* The workspace is that of the call before until that has ended, also where its stream is gone and another one has the
 * handle. */
HD_CASE(a_handle_comes_again)
{
    heddle_comm *comm = alone();
    in_turn s;
    device_sim sim;
    int goes_ahead = 1;
    HD_OK(device_sim_get(&sim));
    in_turn_open(&s, comm);
    sim.hold(s.a);
    HD_OK(forward_in(&s, s.a));
    HD_OK(stream_comes_again(&s.a, &s.b, hd_comm_device(comm)));
    HD_OK(forward_in(&s, s.b));
    HD_OK(stream_has_ended(&goes_ahead, hd_comm_device(comm), s.b));
    sim.release();
    HD_OK(device_settle(comm, s.b));
    assert_false(goes_ahead);
    in_turn_close(&s);
    heddle_comm_destroy(comm);
}

static const heddle_device *real;
static int records_fail;

static heddle_status record(void *event, int device, heddle_stream stream)
{
    return records_fail ? heddle_set_error(HEDDLE_ERR_DEVICE, "no event for you")
                        : real->event_record(event, device, stream);
}

/* Nobody but the stream knows when a call is done behind which there is no event: its next call has one. */
HD_CASE(an_event_that_is_missing_is_made_up_for)
{
    heddle_comm *comm = alone();
    hd_device *device = hd_comm_device(comm);
    heddle_device library = *device->library;
    in_turn s;
    in_turn_open(&s, comm);
    real = device->library;
    library.event_record = record;
    device->library = &library;
    records_fail = 1;
    for (int i = 0; i < 2; i++) { /* the second one cannot be ordered behind the first one */
        HD_FAILS(HEDDLE_ERR_DEVICE, forward_in(&s, s.a));
        assert_true(says("no event for you"));
    }
    records_fail = 0;
    HD_FAILS(HEDDLE_ERR_DEVICE, forward_in(&s, s.b));
    assert_true(says("nobody knows when they are done"));
    HD_OK(forward_in(&s, s.a));
    HD_OK(forward_in(&s, s.b));
    HD_OK(device_settle(comm, s.b));
    device->library = real;
    in_turn_close(&s);
    heddle_comm_destroy(comm);
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

/* Forward with a tape and backward, as a graph or as they are; dx in place after one time. */
typedef struct pass {
    there t;
    heddle_tape *tape;
    heddle_box box;
    size_t bytes;
    void *x, *dx;
    heddle_stream stream;
} pass;

static heddle_status enqueue(pass *p)
{
    heddle_status st = HEDDLE_OK;
    const heddle_tensor x = there_tensor(&p->t, p->x, &p->box), dx = there_tensor(&p->t, p->dx, &p->box);
    HD_TRY(heddle_block_forward_tape(p->t.p.block, &x, &p->box, &p->t.conditioning, p->tape, p->stream));
    st = heddle_block_backward(p->t.p.block, &dx, &p->t.conditioning, NULL, p->tape, p->stream);
out:
    return st;
}

static void pass_fill(pass *p)
{
    void *host = stored(p->t.p.x, p->t.p.elems, p->t.p.options.shape.dtype);
    HD_OK(device_copy(p->t.comm, p->x, host, p->bytes, p->stream));
    HD_OK(device_copy(p->t.comm, p->dx, host, p->bytes, p->stream));
    HD_OK(device_settle(p->t.comm, p->stream));
    free(host);
}

static void pass_open(pass *p, heddle_comm *comm, const device_sim *sim, const heddle_block_options *options)
{
    memset(p, 0, sizeof *p);
    there_open(&p->t, comm, options);
    p->box = whole_box(&options->shape);
    p->bytes = (size_t)p->t.p.elems * heddle_dtype_bytes(options->shape.dtype);
    HD_OK(heddle_buffer_alloc(&p->x, comm, p->bytes, HEDDLE_SPACE_DEVICE));
    HD_OK(heddle_buffer_alloc(&p->dx, comm, p->bytes, HEDDLE_SPACE_DEVICE));
    HD_OK(heddle_tape_create(&p->tape, p->t.p.block, NULL));
    HD_OK(sim->stream_create(&p->stream));
    pass_fill(p);
}

static void pass_close(pass *p, const device_sim *sim)
{
    heddle_tape_destroy(p->tape);
    heddle_buffer_free(p->t.comm, p->x);
    heddle_buffer_free(p->t.comm, p->dx);
    there_close(&p->t);
    device_stream_free(sim, p->stream);
}

static void check_graph(heddle_comm *comm, const device_sim *sim, const heddle_block_options *options)
{
    pass p;
    void *graph = NULL;
    pass_open(&p, comm, sim, options);
    HD_OK(sim->capture(p.stream, 0));
    HD_FAILS(HEDDLE_ERR_ARG, enqueue(&p)); /* the first call allocates */
    assert_true(says("heddle_block_reserve"));
    heddle_ignore(sim->record(p.stream, &graph));
    device_graph_free(sim, graph);
    HD_OK(heddle_tape_reserve(p.tape, &p.box));
    HD_OK(enqueue(&p));
    HD_OK(device_settle(comm, p.stream));
    void *eager[] = {brought_back(comm, p.x, p.bytes), brought_back(comm, p.dx, p.bytes)};
    HD_OK(sim->capture(p.stream, 0));
    HD_OK(enqueue(&p));
    HD_OK(sim->record(p.stream, &graph));
    const int replays = hd_rounds(20);
    for (int i = 0; i < replays; i++) {
        pass_fill(&p);
        HD_OK(sim->replay(graph, p.stream));
        HD_OK(device_settle(comm, p.stream));
        void *again[] = {brought_back(comm, p.x, p.bytes), brought_back(comm, p.dx, p.bytes)};
        assert_memory_equal(again[0], eager[0], p.bytes);
        assert_memory_equal(again[1], eager[1], p.bytes);
        free(again[0]);
        free(again[1]);
    }
    device_graph_free(sim, graph);
    free(eager[0]);
    free(eager[1]);
    pass_close(&p, sim);
}

HD_CASE(graphs_replay_what_calls_do)
{
    heddle_comm *comm = alone();
    device_sim sim;
    HD_OK(device_sim_get(&sim));
    for (int kind = 0; kind < 3; kind++) {
        static const int64_t extent[] = {2, 3, 2, 16};
        const heddle_block_options options = options_for((heddle_stage_kind)kind, HEDDLE_F32, 4, extent);
        check_graph(comm, &sim, &options);
    }
    heddle_comm_destroy(comm);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static heddle_status whole_life(heddle_comm *comm, const heddle_block_options *options, void *memory)
{
    heddle_status st = HEDDLE_OK;
    heddle_block *block = NULL;
    heddle_tape *tape = NULL;
    const heddle_box box = whole_box(&options->shape);
    HD_TRY(heddle_block_create(&block, options));
    HD_TRY(heddle_block_seed(block, 7));
    HD_TRY(heddle_tape_create(&tape, block, NULL));
    heddle_tensor x = box_tensor(block, memory, &box);
    x.space = HEDDLE_SPACE_DEVICE;
    x.device = heddle_comm_device(comm);
    HD_TRY(heddle_block_forward_tape(block, &x, &box, NULL, tape, HEDDLE_NO_STREAM));
    HD_TRY(heddle_block_backward(block, &x, NULL, NULL, tape, HEDDLE_NO_STREAM));
    HD_TRY(device_settle(comm, HEDDLE_NO_STREAM));
out:
    heddle_tape_destroy(tape);
    heddle_block_destroy(block);
    return st;
}

/* ThreadSanitizer makes kernels a hundred times as slow, and there is one thread to see: the other builds try all.
 * AddressSanitizer makes them ten times as slow: there a life that goes well follows each eighth that does not. */
#if defined(__SANITIZE_THREAD__)
enum { APART = 500, LIVES = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { APART = 1, LIVES = 8 };
#else
enum { APART = 1, LIVES = 1 };
#endif

/* Each call of CUDA fails once: with a sentence, and nothing is lost but what could not be known to be idle. */
HD_CASE(each_call_that_fails_says_so)
{
    stay_on_one_core();
    heddle_comm *comm = alone();
    device_sim sim;
    HD_OK(device_sim_get(&sim));
    static const int64_t extent[] = {1, 2, 8};
    heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 3, extent);
    options.space = HEDDLE_SPACE_DEVICE;
    options.comm = comm;
    options.modulate = 0;
    void *memory = NULL;
    HD_OK(heddle_buffer_alloc(&memory, comm, 1024, HEDDLE_SPACE_DEVICE));
    int64_t calls = sim.calls();
    HD_OK(whole_life(comm, &options, memory));
    calls = sim.calls() - calls;
    int failed = 0;
    for (int64_t n = 1; n <= calls; n += (int64_t)APART * hd_call_step()) {
        sim.fail_at(n, 999);
        const heddle_status st = whole_life(comm, &options, memory);
        sim.fail_at(0, 0);
        if (st != HEDDLE_OK) {
            if (!says("failed with error 999")) {
                fail_msg("call %d: %s", (int)n, heddle_last_error());
            }
            failed++;
        }
        if (n % LIVES == 0) {
            HD_OK(whole_life(comm, &options, memory));
        }
    }
    HD_OK(whole_life(comm, &options, memory));
    assert_true(failed > (APART > 1 ? 1 : 10));
    heddle_buffer_free(comm, memory);
    heddle_comm_destroy(comm);
}
