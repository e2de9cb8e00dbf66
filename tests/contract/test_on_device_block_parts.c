/* Boxes that go through stages on a device in parts, so that the workspace keeps to most_workspace_bytes: rows have the
 * bits that they have in one piece, sums over rows agree, and no call takes more. */
#include "block_on_device.h"

#include "device_sim.h"

#include <heddle/train/tape.h>

/* What passes leave, on the host: of x and dx whole, of the others f32. */
typedef struct outcome {
    void *x, *plain, *dx;
    float *vector, *text, *param[6];
    int64_t vector_elems, text_elems, param_elems[6], params;
} outcome;

static void outcome_free(outcome *o)
{
    void *const all[] = {o->x, o->plain, o->dx, o->vector, o->text};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    for (int64_t i = 0; i < o->params; i++) {
        free(o->param[i]);
    }
}

/* A block of the problem's options and weights whose calls take at most so much (0: as they like). */
static heddle_block *with_most(const there *t, int64_t most)
{
    heddle_block *block = NULL;
    heddle_block_options options = t->p.options;
    options.most_workspace_bytes = most;
    HD_OK(heddle_block_create(&block, &options));
    HD_OK(heddle_block_seed(block, 7));
    return block;
}

static void *filled(there *t)
{
    const heddle_dtype dtype = t->p.options.shape.dtype;
    void *host = stored(t->p.x, t->p.elems, dtype);
    void *at = placed_on(t->comm, host, (size_t)t->p.elems * heddle_dtype_bytes(dtype));
    free(host);
    return at;
}

/* Forward without a tape; *taken: workspace. */
static heddle_status forward(outcome *out, there *t, heddle_block *block, int64_t *taken)
{
    const heddle_box box = whole_box(&t->p.options.shape);
    const int64_t before = heddle_block_workspace_bytes(block);
    void *x = filled(t);
    const heddle_tensor tensor = there_tensor(t, x, &box);
    const heddle_status st = heddle_block_forward(block, &tensor, &box, &t->conditioning, HEDDLE_NO_STREAM);
    *taken = heddle_block_workspace_bytes(block) - before;
    out->plain = brought_back(t->comm, x, (size_t)t->p.elems * heddle_dtype_bytes(t->p.options.shape.dtype));
    heddle_buffer_free(t->comm, x);
    return st;
}

static float *taken_back(there *t, float *at, int64_t elems)
{
    float *host = brought_back(t->comm, at, (size_t)elems * sizeof *at);
    heddle_buffer_free(t->comm, at);
    return host;
}

static void keep_gradients(outcome *out, there *t, heddle_block *block)
{
    out->params = heddle_block_nparams(block);
    for (int i = 0; i < out->params; i++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_gradient(&param, block, i));
        out->param_elems[i] = param.extent[0] * (param.ndim == 2 ? param.extent[1] : 1);
        out->param[i] = brought_back(t->comm, param.data, (size_t)out->param_elems[i] * sizeof(float));
    }
}

/* Forward with a tape, and back. */
static heddle_status there_and_back(outcome *out, there *t, heddle_block *block, int recompute, int64_t *taken)
{
    heddle_status st = HEDDLE_OK;
    const heddle_box box = whole_box(&t->p.options.shape);
    const size_t bytes = (size_t)t->p.elems * heddle_dtype_bytes(t->p.options.shape.dtype);
    const int64_t samples = box.len[0];
    heddle_param param = HEDDLE_EMPTY(heddle_param);
    heddle_tape *tape = NULL;
    out->vector_elems = samples * VECTOR_ROWS * t->p.c;
    out->text_elems = samples * t->p.options.text_tokens * t->p.c;
    float *zeros = must_alloc(out->vector_elems + out->text_elems, sizeof *zeros);
    const heddle_conditioning_gradient wanted = {placed_on(t->comm, zeros, (size_t)out->vector_elems * sizeof *zeros),
                                                 placed_on(t->comm, zeros, (size_t)out->text_elems * sizeof *zeros)};
    void *x = filled(t), *dx = filled(t);
    const heddle_tensor at_x = there_tensor(t, x, &box), at_dx = there_tensor(t, dx, &box);
    heddle_tape_options options;
    heddle_tape_options_init(&options);
    options.recompute = recompute;
    HD_TRY(heddle_tape_create(&tape, block, &options));
    HD_TRY(heddle_block_gradient(&param, block, 0));
    const int64_t before = heddle_block_workspace_bytes(block);
    HD_TRY(heddle_tape_reserve(tape, &box));
    *taken = heddle_block_workspace_bytes(block) - before;
    HD_TRY(heddle_block_forward_tape(block, &at_x, &box, &t->conditioning, tape, HEDDLE_NO_STREAM));
    HD_TRY(heddle_block_backward(block, &at_dx, &t->conditioning, &wanted, tape, HEDDLE_NO_STREAM));
    assert_int_equal(*taken, heddle_block_workspace_bytes(block) - before); /* all was reserved */
out:
    out->x = brought_back(t->comm, x, bytes);
    out->dx = brought_back(t->comm, dx, bytes);
    out->vector = taken_back(t, wanted.vector, out->vector_elems);
    out->text = taken_back(t, wanted.text, out->text_elems);
    keep_gradients(out, t, block);
    heddle_buffer_free(t->comm, x);
    heddle_buffer_free(t->comm, dx);
    heddle_tape_destroy(tape);
    free(zeros);
    return st;
}

/* Sums of up to some hundred terms of f32, or of what is rounded to the type, in another order. */
static void agree(const char *what, const float *wanted, const float *got, int64_t elems)
{
    double worst = 0, largest = 0.1;
    for (int64_t i = 0; i < elems; i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)wanted[i]));
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    if (!(worst <= 2e-6 * largest)) {
        fail_msg("%s: error %g of values up to %g", what, worst, largest);
    }
}

static void compare(const there *t, const outcome *wanted, const outcome *got)
{
    const size_t bytes = (size_t)t->p.elems * heddle_dtype_bytes(t->p.options.shape.dtype);
    assert_memory_equal(got->x, wanted->x, bytes);
    assert_memory_equal(got->dx, wanted->dx, bytes);
    agree("gradient of the vector", wanted->vector, got->vector, wanted->vector_elems);
    agree("gradient of the text", wanted->text, got->text, wanted->text_elems);
    for (int64_t i = 0; i < wanted->params; i++) {
        agree("gradient of a parameter", wanted->param[i], got->param[i], wanted->param_elems[i]);
    }
}

/* Each cap is a fifth less than what the last one made calls take, until there is no way to divide the box. How many
 * there were. */
static int each_forward(there *t)
{
    outcome wanted = {0};
    int64_t taken = 0;
    int ways = 0;
    heddle_block *block = with_most(t, 0);
    HD_OK(forward(&wanted, t, block, &taken));
    heddle_block_destroy(block);
    for (heddle_status st = HEDDLE_OK; st == HEDDLE_OK; ways++) {
        outcome got = {0};
        const int64_t most = taken * 4 / 5;
        block = with_most(t, most);
        st = forward(&got, t, block, &taken);
        if (st == HEDDLE_OK) {
            assert_true(taken <= most);
            assert_memory_equal(got.plain, wanted.plain,
                                (size_t)t->p.elems * heddle_dtype_bytes(t->p.options.shape.dtype));
        } else {
            assert_int_equal(st, HEDDLE_ERR_ARG);
            assert_true(says("most_workspace_bytes") && says("takes"));
        }
        outcome_free(&got);
        heddle_block_destroy(block);
    }
    outcome_free(&wanted);
    return ways;
}

/* The same, in larger steps. */
static int some_backward(there *t, int recompute)
{
    outcome wanted = {0};
    int64_t taken = 0;
    int ways = 0;
    heddle_block *block = with_most(t, 0);
    HD_OK(there_and_back(&wanted, t, block, recompute, &taken));
    heddle_block_destroy(block);
    for (heddle_status st = HEDDLE_OK; st == HEDDLE_OK; ways++) {
        outcome got = {0};
        const int64_t most = taken * 3 / 5;
        block = with_most(t, most);
        st = there_and_back(&got, t, block, recompute, &taken);
        if (st == HEDDLE_OK) {
            assert_true(taken <= most);
            compare(t, &wanted, &got);
        } else {
            assert_int_equal(st, HEDDLE_ERR_ARG);
        }
        outcome_free(&got);
        heddle_block_destroy(block);
    }
    outcome_free(&wanted);
    return ways;
}

static heddle_block_options options_of(int kind, int i)
{
    static const int64_t extent[] = {3, 3, 4, 16};
    heddle_block_options options = options_for((heddle_stage_kind)kind, device_dtypes[i % 3], 4, extent);
    options.mixed_dim = 1 + (i & 1);
    options.rope = kind == HEDDLE_STAGE_ATTENTION || kind == HEDDLE_STAGE_LINEAR;
    options.qk_norm = kind == HEDDLE_STAGE_ATTENTION && (i & 2);
    options.causal = i >> 1 & 1;
    options.decay = 0.9;
    return options;
}

static void check_kind(int kind)
{
    heddle_comm *comm = alone();
    for (int i = 0; i < 3; i += hd_step()) {
        const heddle_block_options options = options_of(kind, i);
        there t;
        there_open(&t, comm, &options);
        assert_true(each_forward(&t) > 2);
        assert_true(some_backward(&t, i == 1) > 1);
        there_close(&t);
    }
    heddle_comm_destroy(comm);
}

HD_CASE(attention_in_parts_has_the_bits_of_the_whole)
{
    check_kind(HEDDLE_STAGE_ATTENTION);
}

HD_CASE(cross_in_parts_has_the_bits_of_the_whole)
{
    check_kind(HEDDLE_STAGE_CROSS);
}

HD_CASE(mlp_in_parts_has_the_bits_of_the_whole)
{
    check_kind(HEDDLE_STAGE_MLP);
}

HD_CASE(linear_attention_in_parts_has_the_bits_of_the_whole)
{
    check_kind(HEDDLE_STAGE_LINEAR);
}

/* Parts of fibres that lie apart are copied out and back: in a graph, too. */
HD_CASE(a_graph_replays_parts)
{
    heddle_comm *comm = alone();
    device_sim sim;
    outcome wanted = {0};
    const heddle_block_options options = options_of(HEDDLE_STAGE_ATTENTION, 0);
    const heddle_box box = whole_box(&options.shape);
    const size_t bytes = (size_t)heddle_box_elems(&box) * sizeof(float);
    int64_t taken = 0;
    void *graph = NULL;
    heddle_stream stream;
    there t;
    HD_OK(device_sim_get(&sim));
    there_open(&t, comm, &options);
    HD_OK(forward(&wanted, &t, t.p.block, &taken));
    heddle_block *block = with_most(&t, taken / 6); /* of 3 samples */
    HD_OK(sim.stream_create(&stream));
    HD_OK(heddle_block_reserve(block, &box));
    void *x = filled(&t);
    const heddle_tensor tensor = there_tensor(&t, x, &box);
    HD_OK(sim.capture(stream, 0));
    HD_OK(heddle_block_forward(block, &tensor, &box, &t.conditioning, stream));
    HD_OK(sim.record(stream, &graph));
    for (int i = 0; i < 2; i++) {
        HD_OK(device_copy_now(comm, x, t.p.x, bytes));
        HD_OK(sim.replay(graph, stream));
        HD_OK(device_settle(comm, stream));
        void *got = brought_back(comm, x, bytes);
        assert_memory_equal(got, wanted.plain, bytes);
        free(got);
    }
    device_graph_free(&sim, graph);
    outcome_free(&wanted);
    heddle_buffer_free(comm, x);
    heddle_block_destroy(block);
    device_stream_free(&sim, stream);
    there_close(&t);
    heddle_comm_destroy(comm);
}

HD_CASE(a_most_that_is_none_is_refused)
{
    heddle_comm *comm = alone();
    heddle_block *block = NULL;
    heddle_block_options options = options_of(HEDDLE_STAGE_MLP, 0);
    const heddle_box box = whole_box(&options.shape);
    options.space = HEDDLE_SPACE_DEVICE;
    options.comm = comm;
    options.most_workspace_bytes = -1;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &options));
    assert_true(says("most_workspace_bytes -1"));
    options.most_workspace_bytes = 100;
    HD_OK(heddle_block_create(&block, &options));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_reserve(block, &box));
    assert_true(says("most_workspace_bytes 100 of a block: on device cuda") && says("for 1 rows, the fewest"));
    heddle_block_destroy(block);
    heddle_comm_destroy(comm);
}
