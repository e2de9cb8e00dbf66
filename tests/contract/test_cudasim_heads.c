/* Vectors of q and of k, whose norms have a weight each, in one launch: the bits of one launch for each, and so have
 * their gradients and the sums for the weights. */
#include "on_sim.h"

typedef struct problem {
    hd_device_heads of; /* of both */
    int64_t elems, part;
    int shift;
    void *x, *dy;
    float *weight[2], *cos_sin;
    void *x_there;
    float *weight_there[2], *cos_sin_there;
} problem;

static void problem_make(problem *p, int round)
{
    const int64_t d = round % 2 ? 2 * between(1, 64) : 8 * between(1, 16), heads = between(1, 5);
    p->of = (hd_device_heads){.dtype = float_types[round % 3], .rows = between(1, 60), .heads = heads, .d = d};
    p->of.row_stride = 3 * heads * d + (below(4) == 0 ? 1 : 0);
    p->of.second_at = heads * d + (below(4) == 0 ? 1 : 0);
    p->of.inner = between(1, 4);
    p->of.extent = between(1, 9);
    p->elems = p->of.rows * p->of.row_stride;
    p->shift = below(4) == 0 ? 1 : 0;
    p->x = random_array(p->of.dtype, p->elems, 2);
    p->dy = random_array(p->of.dtype, p->elems, 1);
    p->x_there = sim_array(p->x, p->of.dtype, p->elems, p->shift);
    p->cos_sin = random_array(HEDDLE_F32, p->of.extent * d, 1);
    p->cos_sin_there = sim_array(p->cos_sin, HEDDLE_F32, p->of.extent * d, 0);
    for (int i = 0; i < 2; i++) {
        p->weight[i] = random_array(HEDDLE_F32, d, 1);
        p->weight_there[i] = sim_array(p->weight[i], HEDDLE_F32, d, i * below(2));
    }
    p->of.weight = p->weight_there[0];
    p->of.second_weight = p->weight_there[1];
    p->of.cos_sin = below(3) > 0 ? p->cos_sin_there : NULL;
}

static void end(problem *p) /* memory of the device goes with the case */
{
    free(p->x);
    free(p->dy);
    free(p->cos_sin);
    free(p->weight[0]);
    free(p->weight[1]);
}

/* One of the two alone. */
static hd_device_heads alone(const problem *p, int which)
{
    hd_device_heads of = p->of;
    of.weight = p->weight_there[which];
    of.second_at = 0;
    of.second_weight = NULL;
    return of;
}

static void *at(const problem *p, void *there, int which)
{
    return (char *)there + (size_t)(which * p->of.second_at) * type_bytes(p->of.dtype);
}

static void compare(const problem *p, void *one, void *two, const char *what)
{
    void *got = from_sim(one, p->of.dtype, p->elems), *wanted = from_sim(two, p->of.dtype, p->elems);
    if (memcmp(got, wanted, (size_t)p->elems * type_bytes(p->of.dtype)) != 0) {
        fail_msg("%s of one launch, %s, has other bits", what, heddle_dtype_name(p->of.dtype));
    }
    free(got);
    free(wanted);
}

static void check_forward(const problem *p)
{
    void *one = sim_array(p->dy, p->of.dtype, p->elems, p->shift),
         *two = sim_array(p->dy, p->of.dtype, p->elems, p->shift);
    OK(device->norm_rotate(&p->of, one, p->x_there, NULL));
    for (int i = 0; i < 2; i++) {
        const hd_device_heads of = alone(p, i);
        OK(device->norm_rotate(&of, at(p, two, i), at(p, p->x_there, i), NULL));
    }
    compare(p, one, two, "norm_rotate");
}

static void check_back(const problem *p)
{
    void *one = sim_array(p->dy, p->of.dtype, p->elems, p->shift),
         *two = sim_array(p->dy, p->of.dtype, p->elems, p->shift);
    void *scratch = sim_array(NULL, HEDDLE_F32, (int64_t)device->norm_rotate_back_bytes(&p->of) / 4, 0);
    float *sums[4];
    for (int i = 0; i < 4; i++) {
        sums[i] = sim_array(p->weight[i % 2], HEDDLE_F32, p->of.d, 0);
    }
    OK(device->norm_rotate_back(&p->of, one, p->x_there, sums, scratch, NULL));
    for (int i = 0; i < 2; i++) {
        const hd_device_heads of = alone(p, i);
        assert_int_equal(2 * device->norm_rotate_back_bytes(&of), device->norm_rotate_back_bytes(&p->of));
        OK(device->norm_rotate_back(&of, at(p, two, i), at(p, p->x_there, i), (float *const[]){sums[2 + i], NULL},
                                    scratch, NULL));
    }
    compare(p, one, two, "norm_rotate_back");
    for (int i = 0; i < 2; i++) {
        float *got = from_sim(sums[i], HEDDLE_F32, p->of.d), *wanted = from_sim(sums[2 + i], HEDDLE_F32, p->of.d);
        assert_memory_equal(got, wanted, (size_t)p->of.d * sizeof *got);
        free(got);
        free(wanted);
    }
}

HD_CASE(two_weights_in_a_launch_have_the_bits_of_two)
{
    begin();
    for (int round = 0; round < hd_rounds(45); round++) {
        problem p;
        problem_make(&p, round);
        hd_sim_set_reversed(below(2));
        check_forward(&p);
        check_back(&p);
        end(&p);
    }
}

/* Of even numbers of heads in whole pieces, with weights and without, in place and elsewhere. */
HD_CASE(pairs_of_heads_have_the_bits_of_one_by_one)
{
    begin();
    for (int round = 0; round < hd_rounds(24); round++) {
        problem p;
        const int64_t heads = 2 * between(1, 4), d = 8 * between(1, 16);
        p.of = (hd_device_heads){.dtype = float_types[1 + round % 2], .rows = between(1, 60), .heads = heads, .d = d};
        p.shift = 0;
        p.of.row_stride = 3 * heads * d;
        p.of.second_at = heads * d;
        p.of.inner = between(1, 4);
        p.of.extent = between(1, 9);
        p.elems = p.of.rows * p.of.row_stride;
        p.x = random_array(p.of.dtype, p.elems, 2);
        p.dy = random_array(p.of.dtype, p.elems, 1);
        p.x_there = sim_array(p.x, p.of.dtype, p.elems, 0);
        p.cos_sin = random_array(HEDDLE_F32, p.of.extent * d, 1);
        p.of.cos_sin = sim_array(p.cos_sin, HEDDLE_F32, p.of.extent * d, 0);
        for (int i = 0; i < 2; i++) {
            p.weight[i] = random_array(HEDDLE_F32, d, 1);
            p.weight_there[i] = round % 4 < 2 ? sim_array(p.weight[i], HEDDLE_F32, d, 0) : NULL;
        }
        p.of.weight = p.weight_there[0];
        p.of.second_weight = p.weight_there[1];
        p.of.to_stride = round % 8 < 4 ? 0 : 2 * heads * d; /* without v */
        hd_sim_set_reversed(below(2));
        check_forward(&p);
        end(&p);
    }
}

HD_CASE(a_second_weight_wants_a_first)
{
    problem p;
    problem_make(&p, 0);
    p.of.weight = NULL;
    assert_int_equal(hd_kernels_cuda.norm_rotate(&p.of, p.x_there, p.x_there, NULL), cudaErrorInvalidValue);
    end(&p);
}
