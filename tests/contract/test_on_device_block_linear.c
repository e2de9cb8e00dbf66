/* The LINEAR stage on a device, forward and backward, against the f64 model that judges the CPU's, with its limits; and
 * a row's bits in any box. */
#include "block_model_linear.h"
#include "block_on_device.h"

#include <heddle/train/tape.h>

static heddle_block_options linear_options(heddle_dtype dtype, const int64_t extent[4], int flags)
{
    heddle_block_options options = options_for(HEDDLE_STAGE_LINEAR, dtype, 4, extent);
    options.mixed_dim = flags & 1 ? 2 : 1;
    options.causal = flags >> 1 & 1;
    options.rope = flags >> 2 & 1;
    options.modulate = flags >> 3 & 1;
    options.decay = (const double[]){1, 0, 0.9}[flags % 3];
    return options;
}

/* A forward with a tape and backward of a box; x and dx in place, on the host. vector lies on the device. */
static void there_and_back(there *t, void *x, void *dx, const heddle_box *box, int recompute, float *vector)
{
    const size_t bytes = (size_t)heddle_box_elems(box) * heddle_dtype_bytes(t->p.options.shape.dtype);
    void *x_there = placed_on(t->comm, x, bytes), *dx_there = placed_on(t->comm, dx, bytes);
    const heddle_tensor at_x = there_tensor(t, x_there, box), at_dx = there_tensor(t, dx_there, box);
    const heddle_conditioning_gradient wanted = {.vector = vector};
    heddle_tape_options options;
    heddle_tape *tape = NULL;
    heddle_tape_options_init(&options);
    options.recompute = recompute;
    HD_OK(heddle_tape_create(&tape, t->p.block, &options));
    HD_OK(heddle_block_forward_tape(t->p.block, &at_x, box, &t->conditioning, tape, HEDDLE_NO_STREAM));
    HD_OK(heddle_block_backward(t->p.block, &at_dx, &t->conditioning, &wanted, tape, HEDDLE_NO_STREAM));
    HD_OK(device_copy_now(t->comm, x, x_there, bytes));
    HD_OK(device_copy_now(t->comm, dx, dx_there, bytes));
    heddle_tape_destroy(tape);
    heddle_buffer_free(t->comm, x_there);
    heddle_buffer_free(t->comm, dx_there);
}

static void check_array(const linear_judge *judge, int array, const char *what, const void *got, heddle_dtype dtype,
                        int flags)
{
    const double worst = judge_worst(judge, array, got, dtype);
    if (!(worst <= 1)) {
        fail_msg("flags %d: %s: %g times what roundings may do", flags, what, worst);
    }
}

static void check_there(const linear_judge *judge, int array, there *t, const char *what, const void *at, int flags)
{
    void *got = brought_back(t->comm, at, (size_t)judge->elems[array] * sizeof(float));
    check_array(judge, array, what, got, HEDDLE_F32, flags);
    free(got);
}

static void check_against_model(heddle_comm *comm, const heddle_block_options *options, int flags)
{
    const heddle_dtype dtype = options->shape.dtype;
    there t;
    there_open(&t, comm, options);
    problem *p = &t.p;
    const int64_t vector_elems = options->shape.dim[0].extent * VECTOR_ROWS * p->c;
    const heddle_box whole = whole_box(&options->shape);
    float *dy = must_alloc(p->elems, sizeof *dy), *zeros = must_alloc(vector_elems, sizeof *zeros);
    double *wanted_dy = must_alloc(p->elems, sizeof *wanted_dy);
    for (int64_t i = 0; i < p->elems; i++) {
        dy[i] = symmetric();
    }
    rounded(dy, p->elems, dtype);
    for (int64_t i = 0; i < p->elems; i++) {
        wanted_dy[i] = (double)dy[i];
    }
    float *vector = options->modulate ? placed_on(comm, zeros, (size_t)vector_elems * sizeof *zeros) : NULL;
    linear_judge judge = judge_open(p, wanted_dy);
    void *x = stored(p->x, p->elems, dtype), *plain = stored(p->x, p->elems, dtype), *dx = stored(dy, p->elems, dtype);
    there_forward(&t, plain, &whole);
    there_and_back(&t, x, dx, &whole, flags & 1, vector);
    assert_memory_equal(x, plain, (size_t)p->elems * heddle_dtype_bytes(dtype));
    const int nparams = heddle_block_nparams(p->block);
    check_array(&judge, 0, "y", x, dtype, flags);
    check_array(&judge, nparams + 1, "dx", dx, dtype, flags);
    for (int i = 0; i < nparams; i++) {
        heddle_param gradient = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_gradient(&gradient, p->block, i));
        check_there(&judge, 1 + i, &t, gradient.name, gradient.data, flags);
    }
    if (options->modulate) {
        check_there(&judge, nparams + 2, &t, "vector", vector, flags);
    }
    judge_close(&judge);
    heddle_buffer_free(comm, vector);
    void *const all[] = {dy, zeros, wanted_dy, x, plain, dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    there_close(&t);
}

static void check_all(int first, int end)
{
    static const int64_t extents[][4] = {{2, 5, 3, 24}, {1, 150, 2, 16}, {2, 1, 4, 12}, {1, 1, 270, 8}};
    static const int64_t of_eights[][4] = {{2, 5, 3, 48}, {1, 75, 2, 16}, {2, 1, 4, 16}, {1, 1, 270, 16}};
    heddle_comm *comm = alone();
    for (int flags = first; flags < end; flags += 5 * hd_step()) {
        const heddle_dtype dtype = flags < 32 ? HEDDLE_F32 : flags % 2 ? HEDDLE_F16 : HEDDLE_BF16;
        const int64_t *extent = (dtype == HEDDLE_F32 ? extents : of_eights)[flags % 4];
        const heddle_block_options options = linear_options(dtype, extent, flags >> 1);
        check_against_model(comm, &options, flags);
    }
    heddle_comm_destroy(comm);
}

HD_CASE(linear_follows_the_model)
{
    check_all(0, 32);
}

HD_CASE(linear_in_bf16_and_f16_follows_the_model)
{
    check_all(32, 64);
}

/* Rows of random boxes, and their gradients, have the bits that they have in the whole tensor. */
HD_CASE(a_row_has_its_bits_in_any_box)
{
    static const int64_t extent[4] = {2, 2, 70, 16};
    heddle_comm *comm = alone();
    for (int i = 0; i < 3; i++) {
        heddle_block_options options = linear_options(device_dtypes[i], extent, 1 + 2 * i);
        const size_t elem = heddle_dtype_bytes(options.shape.dtype);
        const heddle_box all = whole_box(&options.shape);
        there t;
        there_open(&t, comm, &options);
        char *whole = stored(t.p.x, t.p.elems, options.shape.dtype), *y = stored(t.p.x, t.p.elems, options.shape.dtype),
             *dx = stored(t.p.x, t.p.elems, options.shape.dtype);
        there_and_back(&t, y, dx, &all, 0, NULL);
        for (int round = 0; round < hd_rounds(2); round++) {
            const heddle_box box = random_box(&options);
            const size_t n = (size_t)heddle_box_elems(&box);
            char *part[4]; /* x and dx, and what they should become */
            char *const of[4] = {whole, whole, y, dx};
            for (int k = 0; k < 4; k++) {
                part[k] = must_alloc((int64_t)n, elem);
                part_of(&t.p, &box, of[k], part[k], 0);
            }
            there_and_back(&t, part[0], part[1], &box, round & 1, NULL);
            assert_memory_equal(part[0], part[2], n * elem);
            assert_memory_equal(part[1], part[3], n * elem);
            for (int k = 0; k < 4; k++) {
                free(part[k]);
            }
        }
        free(whole);
        free(y);
        free(dx);
        there_close(&t);
    }
    heddle_comm_destroy(comm);
}
