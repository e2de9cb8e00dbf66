/* Stages that compute on a device, forward: against the f64 model that judges the CPU's; and a row's bits. */
#include "block_on_device.h"
#include "time_limit.h"

/* As those of the CPU's blocks (docs/blocks.md): f32, or a few roundings to the type on the way. */
static double tolerance(heddle_dtype dtype)
{
    return dtype == HEDDLE_BF16 ? 2e-2 : dtype == HEDDLE_F16 ? 2.5e-3 : 2e-6;
}

static void check_against_model(there *t)
{
    problem *p = &t->p;
    const heddle_dtype dtype = p->options.shape.dtype;
    model_values v;
    model m = model_of(p, &v);
    double *wanted = must_alloc(p->elems, sizeof *wanted), largest = 1, worst = 0;
    void *x = stored(p->x, p->elems, dtype);
    const heddle_box box = whole_box(&p->options.shape);
    model_run(&m, &v, wanted, NULL, NULL);
    there_forward(t, x, &box);
    for (int64_t i = 0; i < p->elems; i++) {
        const double error = fabs(value_at(x, dtype, i) - wanted[i]);
        assert_true(isfinite(error));
        worst = fmax(worst, error);
        largest = fmax(largest, fabs(wanted[i]));
    }
    if (worst > tolerance(dtype) * largest) {
        fail_msg("error %g of values up to %g: %s kind %d", worst, largest, heddle_dtype_name(dtype),
                 (int)p->options.kind);
    }
    free(wanted);
    free(x);
    model_free(&m, &v);
}

static void check_options(heddle_comm *comm, const heddle_block_options *options)
{
    there t;
    there_open(&t, comm, options);
    check_against_model(&t);
    there_close(&t);
}

static void check_all(heddle_stage_kind kind, int is_f16)
{
    heddle_comm *comm = alone();
    for (int bits = is_f16; bits < (kind == HEDDLE_STAGE_ATTENTION ? 16 : 4); bits += hd_step() << is_f16) {
        heddle_block_options options = options_by_bits(kind, bits);
        options.shape.dtype = is_f16 ? HEDDLE_F16 : options.shape.dtype;
        options.heads = kind == HEDDLE_STAGE_MLP ? 1 : 3; /* of 16 channels */
        if (kind != HEDDLE_STAGE_ATTENTION) {
            check_options(comm, &options);
            continue;
        }
        for (options.mixed_dim = 1; options.mixed_dim <= 2; options.mixed_dim++) {
            check_options(comm, &options);
        }
    }
    heddle_comm_destroy(comm);
}

HD_CASE(mlp_follows_the_model)
{
    check_all(HEDDLE_STAGE_MLP, 0);
}

HD_CASE(attention_follows_the_model)
{
    check_all(HEDDLE_STAGE_ATTENTION, 0);
}

HD_CASE(cross_follows_the_model)
{
    check_all(HEDDLE_STAGE_CROSS, 0);
}

HD_CASE(stages_in_f16_follow_the_model)
{
    check_all(HEDDLE_STAGE_MLP, 1);
    check_all(HEDDLE_STAGE_ATTENTION, 1);
    check_all(HEDDLE_STAGE_CROSS, 1);
}

/* Rows of random boxes have the bits that they have in the whole tensor. */
static void check_rows(heddle_comm *comm, const heddle_block_options *options, int rounds)
{
    there t;
    there_open(&t, comm, options);
    const heddle_shape *shape = &options->shape;
    const size_t elem = heddle_dtype_bytes(shape->dtype);
    char *whole = stored(t.p.x, t.p.elems, shape->dtype), *done = stored(t.p.x, t.p.elems, shape->dtype);
    const heddle_box all = whole_box(shape);
    there_forward(&t, done, &all);
    for (int round = 0; round < rounds; round++) {
        const heddle_box box = random_box(options);
        char *part = must_alloc(heddle_box_elems(&box), elem), *wanted = must_alloc(heddle_box_elems(&box), elem);
        part_of(&t.p, &box, whole, part, 0);
        part_of(&t.p, &box, done, wanted, 0);
        there_forward(&t, part, &box);
        assert_memory_equal(part, wanted, (size_t)heddle_box_elems(&box) * elem);
        free(part);
        free(wanted);
    }
    free(whole);
    free(done);
    there_close(&t);
}

HD_CASE(a_row_has_its_bits_in_any_box)
{
    heddle_comm *comm = alone();
    for (int i = 0; i < 9; i++) {
        const heddle_block_options options = small_options((heddle_stage_kind)(i / 3), device_dtypes[i % 3]);
        check_rows(comm, &options, hd_rounds(20));
    }
    heddle_comm_destroy(comm);
}

/* In a graph that is gone: nobody asks for graphs. */
static void capture(const there *t, const heddle_tensor *x, const heddle_box *box, const device_sim *sim,
                    heddle_stream stream)
{
    void *graph = NULL;
    HD_OK(heddle_block_reserve(t->p.block, box));
    HD_OK(sim->capture(stream, 1));
    HD_OK(heddle_block_forward(t->p.block, x, box, &t->conditioning, stream));
    HD_OK(sim->record(stream, &graph));
    device_graph_free(sim, graph);
}

/* What a block has enqueued is waited for until the deadline, and then neither it nor its communicator is held up by
 * the stream. */
static void is_held_up_by_no_stream(int is_captured)
{
    hd_leaves("memory that a stream uses which does not come to its end");
    skip_on_card("streams stand still on the emulated device");
    const heddle_block_options options = small_options(HEDDLE_STAGE_MLP, HEDDLE_F32);
    const heddle_box box = whole_box(&options.shape);
    heddle_comm_options rank = device_options("cuda:1", HEDDLE_WIRE_HOST);
    heddle_comm *comm = NULL;
    heddle_stream stream = HEDDLE_NO_STREAM;
    device_sim sim;
    there t;
    rank.deadline_ms = hd_test_limit_ns(0.5) / 1000000;
    HD_OK(heddle_comm_open(&comm, "self", &rank));
    HD_OK(device_sim_get(&sim));
    HD_OK(hd_comm_device(comm)->library->stream_create(&stream, heddle_comm_device(comm)));
    there_open(&t, comm, &options);
    const heddle_tensor x = there_tensor(&t, placed_on(comm, t.p.x, (size_t)t.p.elems * sizeof(float)), &box);
    if (is_captured) {
        capture(&t, &x, &box, &sim, stream);
    }
    sim.hold(stream);
    HD_OK(heddle_block_forward(t.p.block, &x, &box, &t.conditioning, stream));
    const int64_t start_ns = hd_now_ns();
    there_close(&t);
    heddle_comm_destroy(comm);
    assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(8));
    assert_true(hd_now_ns() - start_ns >= rank.deadline_ms * 1000000);
    sim.release();
}

HD_CASE(a_stream_that_does_not_come_holds_up_nobody)
{
    is_held_up_by_no_stream(0);
}

HD_CASE(a_stream_is_waited_for_beside_a_graph)
{
    is_held_up_by_no_stream(1);
}
