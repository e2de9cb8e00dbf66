/* Backward of stages that compute on a device, against the f64 model that judges the CPU's; and a row's bits. */
#include "block_on_device.h"

#include <heddle/train/tape.h>

/* Largest error, relative to the array's largest value or to 0.1. What the CPU's are allowed at most (docs/blocks.md):
 * here all that goes through a product of bf16 is rounded before, the gradients of the last bias as well. */
static double tolerance(const char *what, heddle_dtype dtype)
{
    const double bf16 = strstr(what, "norm") != NULL ? 5e-2 : 2e-2;
    return dtype == HEDDLE_F32   ? 3e-6
           : dtype == HEDDLE_F16 ? bf16 / 8
                                 : bf16; /* 8e-7, bf16 1.8e-2 and 7e-3 were seen */
}

static void compare(const char *what, const double *wanted, const void *got, heddle_dtype got_dtype, int64_t elems,
                    heddle_dtype dtype)
{
    double worst = 0, largest = 0.1;
    for (int64_t i = 0; i < elems; i++) {
        const double error = fabs(value_at(got, got_dtype, i) - wanted[i]);
        assert_true(isfinite(error));
        worst = fmax(worst, error);
        largest = fmax(largest, fabs(wanted[i]));
    }
    if (worst > tolerance(what, dtype) * largest) {
        fail_msg("%s of %s: error %g of values up to %g", what, heddle_dtype_name(dtype), worst, largest);
    }
}

/* A forward with a tape and backward of a box; x and dx in place, on the host. The gradients of the conditioning lie on
 * the device and are added to. */
static void there_and_back(there *t, void *x, void *dx, const heddle_box *box, int recompute,
                           const heddle_conditioning_gradient *wanted)
{
    const size_t bytes = (size_t)heddle_box_elems(box) * heddle_dtype_bytes(t->p.options.shape.dtype);
    void *x_there = placed_on(t->comm, x, bytes), *dx_there = placed_on(t->comm, dx, bytes);
    const heddle_tensor at_x = there_tensor(t, x_there, box), at_dx = there_tensor(t, dx_there, box);
    heddle_tape_options options;
    heddle_tape *tape = NULL;
    heddle_tape_options_init(&options);
    options.recompute = recompute;
    HD_OK(heddle_tape_create(&tape, t->p.block, &options));
    HD_OK(heddle_block_forward_tape(t->p.block, &at_x, box, &t->conditioning, tape, HEDDLE_NO_STREAM));
    HD_OK(heddle_block_backward(t->p.block, &at_dx, &t->conditioning, wanted, tape, HEDDLE_NO_STREAM));
    HD_OK(device_copy_now(t->comm, x, x_there, bytes));
    HD_OK(device_copy_now(t->comm, dx, dx_there, bytes));
    heddle_tape_destroy(tape);
    heddle_buffer_free(t->comm, x_there);
    heddle_buffer_free(t->comm, dx_there);
}

static void compare_there(there *t, const char *what, const double *wanted, const void *at, int64_t elems)
{
    float *got = brought_back(t->comm, at, (size_t)elems * sizeof *got);
    compare(what, wanted, got, HEDDLE_F32, elems, t->p.options.shape.dtype);
    free(got);
}

static void compare_gradients(there *t, const model *m, const model_values *g, const heddle_conditioning_gradient *dc)
{
    compare_there(t, "vector", g->vector, dc->vector, m->vector_elems);
    compare_there(t, "text", g->text, dc->text, m->text_elems);
    for (int i = 0; i < m->nparams; i++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_gradient(&param, t->p.block, i));
        compare_there(t, param.name, g->param[i], param.data, m->param_elems[i]);
    }
}

static void check_against_model(heddle_comm *comm, const heddle_block_options *options, int recompute)
{
    const heddle_dtype dtype = options->shape.dtype;
    there t;
    there_open(&t, comm, options);
    model_values v, g;
    model m = model_of(&t.p, &v);
    g = model_new(&m);
    const size_t bytes = (size_t)m.x_elems * heddle_dtype_bytes(dtype);
    const heddle_box box = whole_box(&options->shape);
    double *y = must_alloc(m.x_elems, sizeof *y), *wanted_dy = must_alloc(m.x_elems, sizeof *y);
    float *dy = must_alloc(m.x_elems, sizeof *dy), *zeros = must_alloc(m.vector_elems + m.text_elems, sizeof *zeros);
    for (int64_t i = 0; i < m.x_elems; i++) {
        dy[i] = symmetric();
    }
    rounded(dy, m.x_elems, dtype);
    for (int64_t i = 0; i < m.x_elems; i++) {
        wanted_dy[i] = (double)dy[i];
    }
    model_run(&m, &v, y, wanted_dy, &g);
    const heddle_conditioning_gradient dc = {placed_on(comm, zeros, (size_t)m.vector_elems * sizeof *zeros),
                                             placed_on(comm, zeros, (size_t)m.text_elems * sizeof *zeros)};
    void *x = stored(t.p.x, m.x_elems, dtype), *plain = stored(t.p.x, m.x_elems, dtype);
    void *dx = stored(dy, m.x_elems, dtype);
    there_forward(&t, plain, &box);
    there_and_back(&t, x, dx, &box, recompute, &dc);
    assert_memory_equal(x, plain, bytes);
    compare("dx", g.x, dx, dtype, m.x_elems, dtype);
    compare_gradients(&t, &m, &g, &dc);
    heddle_buffer_free(comm, dc.vector);
    heddle_buffer_free(comm, dc.text);
    void *const all[] = {y, wanted_dy, dy, zeros, x, plain, dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    model_free(&m, &v);
    model_free(&m, &g);
    there_close(&t);
}

static void check_all(heddle_stage_kind kind, int is_f16)
{
    heddle_comm *comm = alone();
    for (int bits = is_f16; bits < (kind == HEDDLE_STAGE_ATTENTION ? 16 : 4); bits += hd_step() << is_f16) {
        heddle_block_options options = options_by_bits(kind, bits);
        options.shape.dtype = is_f16 ? HEDDLE_F16 : options.shape.dtype;
        options.heads = kind == HEDDLE_STAGE_MLP ? 1 : 3; /* of 16 channels */
        options.mixed_dim = kind == HEDDLE_STAGE_ATTENTION ? 1 + (bits >> 1 & 1) : -1;
        check_against_model(comm, &options, (bits ^ bits >> 2) & 1);
        if (kind != HEDDLE_STAGE_ATTENTION) {
            check_against_model(comm, &options, (~bits ^ bits >> 2) & 1);
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

/* dx of rows of random boxes has the bits that it has in the whole tensor. */
static void check_rows(heddle_comm *comm, const heddle_block_options *options, int rounds)
{
    there t;
    there_open(&t, comm, options);
    const heddle_shape *shape = &options->shape;
    const size_t elem = heddle_dtype_bytes(shape->dtype);
    char *x = stored(t.p.x, t.p.elems, shape->dtype), *whole = stored(t.p.x, t.p.elems, shape->dtype);
    char *dx = stored(t.p.x, t.p.elems, shape->dtype);
    const heddle_box all = whole_box(shape);
    there_and_back(&t, whole, dx, &all, 0, NULL);
    for (int round = 0; round < rounds; round++) {
        const heddle_box box = random_box(options);
        const int64_t elems = heddle_box_elems(&box);
        char *part = must_alloc(elems, elem), *d_part = must_alloc(elems, elem), *wanted = must_alloc(elems, elem);
        part_of(&t.p, &box, x, part, 0);
        part_of(&t.p, &box, x, d_part, 0);
        part_of(&t.p, &box, dx, wanted, 0);
        there_and_back(&t, part, d_part, &box, round % 2, NULL);
        assert_memory_equal(d_part, wanted, (size_t)elems * elem);
        free(part);
        free(d_part);
        free(wanted);
    }
    free(x);
    free(whole);
    free(dx);
    there_close(&t);
}

HD_CASE(dx_of_a_row_has_its_bits_in_any_box)
{
    heddle_comm *comm = alone();
    for (int i = 0; i < 9; i++) {
        const heddle_block_options options = small_options((heddle_stage_kind)(i / 3), device_dtypes[i % 3]);
        check_rows(comm, &options, hd_rounds(5));
    }
    heddle_comm_destroy(comm);
}
