/* Gradients of blocks against an f64 model, which is itself checked by finite differences. */
#include "block_model.h"

#include "runtime/base/base.h"

/* Largest error allowed, relative to the array's largest value or to 0.1 (of zero there is no relative error), three to
 * five times what was seen in f32 and in bf16. Biases of the last product are sums of the gradient as it came. */
static double tolerance(const char *what, heddle_dtype dtype)
{
    static const struct {
        const char *what;
        double f32, bf16;
    } all[] = {{"q_norm.weight", 1e-5, 3e-2},    /* 2.5e-6, 9.7e-3: of long fibres */
               {"k_norm.weight", 1e-5, 3e-2},    /* 2.9e-6, 9.3e-3 */
               {"q_linear.weight", 3e-5, 1e-2},  /* 9.9e-6, 2.6e-3: with one token all but rounding cancels */
               {"q_linear.bias", 1e-5, 1.5e-2},  /* 3.0e-6, 4.5e-3 */
               {"kv_linear.weight", 2e-6, 5e-3}, /* 3.7e-7, 1.3e-3 */
               {"kv_linear.bias", 2e-6, 2e-3},   /* 4.4e-7, 3.7e-4 */
               {"proj.bias", 3e-6, 3e-6},        /* 6.8e-7, 3.2e-7 */
               {"fc2.bias", 3e-6, 3e-6},         /* 8.0e-7, 4.6e-7 */
               {"fc1.bias", 5e-6, 5e-3},         /* 1.2e-6, 1.5e-3 */
               {NULL, 3e-6, 2e-2}};              /* 9.1e-7, 5.0e-3 */
    int i = 0;
    while (all[i].what != NULL && strcmp(all[i].what, what) != 0) {
        i++;
    }
    return dtype == HEDDLE_BF16 ? all[i].bf16 : all[i].f32;
}

static void randomize(double *x, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        x[i] = (double)symmetric();
    }
}

static double dot(const double *a, const double *b, int64_t elems)
{
    double sum = 0;
    for (int64_t i = 0; i < elems; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* <dy, y(v + step direction) - y(v - step direction)> / 2 step, for every array that the stage depends on. */
static void check_model(const heddle_block_options *options)
{
    const double step = 1e-5;
    problem p;
    open_problem(&p, options);
    model_values v, g;
    model m = model_of(&p, &v);
    g = model_new(&m);
    double *y = must_alloc(m.x_elems, sizeof *y), *other = must_alloc(m.x_elems, sizeof *y);
    double *dy = must_alloc(m.x_elems, sizeof *dy);
    randomize(dy, m.x_elems);
    model_run(&m, &v, y, dy, &g);
    for (int array = 0; array < model_arrays(&m); array++) {
        int64_t elems;
        double *at = model_array(&m, &v, array, &elems), *direction = must_alloc(elems, sizeof *direction);
        randomize(direction, elems);
        for (int sign = 1; sign >= -1; sign -= 2) {
            for (int64_t i = 0; i < elems; i++) {
                at[i] += (sign > 0 ? 1 : -2) * step * direction[i];
            }
            model_run(&m, &v, sign > 0 ? y : other, NULL, NULL);
        }
        for (int64_t i = 0; i < elems; i++) {
            at[i] += step * direction[i];
        }
        double measured = (dot(dy, y, m.x_elems) - dot(dy, other, m.x_elems)) / (2 * step);
        double wanted = dot(model_array(&m, &g, array, &elems), direction, elems);
        if (fabs(measured - wanted) > 1e-6 * (1 + fabs(wanted))) {
            fail_msg("array %d of kind %d: slope %g, gradient says %g", array, (int)options->kind, measured, wanted);
        }
        free(direction);
    }
    free(y);
    free(other);
    free(dy);
    model_free(&m, &v);
    model_free(&m, &g);
    close_problem(&p);
}

static void compare(const char *what, const double *wanted, const void *got, heddle_dtype got_dtype, int64_t elems,
                    heddle_dtype dtype)
{
    double allowed = tolerance(what, dtype);
    double worst = 0, largest = 0.1; /* of zero there is no relative error */
    for (int64_t i = 0; i < elems; i++) {
        double error = fabs(value_at(got, got_dtype, i) - wanted[i]);
        assert_true(isfinite(error));
        worst = error > worst ? error : worst;
        largest = fabs(wanted[i]) > largest ? fabs(wanted[i]) : largest;
    }
    if (worst > allowed * largest) {
        fail_msg("%s: error %g of values up to %g", what, worst, largest);
    }
    if (getenv("SHOW") != NULL) {
        fprintf(stderr, "%-20s %.2e\n", what, worst / largest);
    }
}

static void check_against_model(const heddle_block_options *options, int recompute)
{
    heddle_dtype dtype = options->shape.dtype;
    problem p;
    open_problem(&p, options);
    model_values v, g;
    model m = model_of(&p, &v);
    g = model_new(&m);
    double *y = must_alloc(m.x_elems, sizeof *y), *wanted_dy = must_alloc(m.x_elems, sizeof *y);
    float *dy = must_alloc(m.x_elems, sizeof *dy);
    for (int64_t i = 0; i < m.x_elems; i++) {
        dy[i] = symmetric();
    }
    rounded(dy, m.x_elems, dtype);
    for (int64_t i = 0; i < m.x_elems; i++) {
        wanted_dy[i] = (double)dy[i];
    }
    model_run(&m, &v, y, wanted_dy, &g);

    heddle_tape_options tape_options;
    heddle_tape *tape = NULL;
    heddle_box box = whole_box(&options->shape);
    void *x = stored(p.x, m.x_elems, dtype), *plain = stored(p.x, m.x_elems, dtype);
    void *dx = stored(dy, m.x_elems, dtype);
    heddle_conditioning_gradient dc = {must_alloc(m.vector_elems, sizeof(float)),
                                       must_alloc(m.text_elems, sizeof(float))};
    heddle_tape_options_init(&tape_options);
    tape_options.recompute = recompute;
    HD_OK(heddle_tape_create(&tape, p.block, &tape_options));
    assert_int_equal(heddle_tape_bytes(tape), 0);
    HD_OK(forward_on(p.block, plain, &box, &p.conditioning));
    HD_OK(forward_tape_on(p.block, x, &box, &p.conditioning, tape));
    assert_memory_equal(x, plain, (size_t)m.x_elems * heddle_dtype_bytes(dtype));
    HD_OK(backward_on(p.block, dx, &p.conditioning, &dc, tape));
    compare("dx", g.x, dx, dtype, m.x_elems, dtype);
    compare("vector", g.vector, dc.vector, HEDDLE_F32, m.vector_elems, dtype);
    compare("text", g.text, dc.text, HEDDLE_F32, m.text_elems, dtype);
    for (int i = 0; i < m.nparams; i++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_gradient(&param, p.block, i));
        compare(param.name, g.param[i], param.data, HEDDLE_F32, m.param_elems[i], dtype);
    }
    heddle_tape_destroy(tape);
    free(x);
    free(plain);
    free(dx);
    free(dc.vector);
    free(dc.text);
    free(y);
    free(wanted_dy);
    free(dy);
    model_free(&m, &v);
    model_free(&m, &g);
    close_problem(&p);
}

HD_CASE(the_model_has_the_slopes_of_finite_differences)
{
    static const int64_t extent[] = {2, 3, 4, 8};
    for (int flags = 0; flags < 8; flags++) {
        heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 4, extent);
        options.modulate = flags & 1;
        options.rope = flags >> 1 & 1;
        options.qk_norm = flags >> 2 & 1;
        options.mixed_dim = 1 + (flags & 1);
        check_model(&options);
        options = options_for(flags & 1 ? HEDDLE_STAGE_CROSS : HEDDLE_STAGE_MLP, HEDDLE_F32, 4, extent);
        options.modulate = flags >> 1 & 1;
        check_model(&options);
    }
}

HD_CASE(attention_follows_the_model)
{
    for (int bits = 0; bits < 16; bits++) {
        heddle_block_options options = options_by_bits(HEDDLE_STAGE_ATTENTION, bits);
        for (options.mixed_dim = 1; options.mixed_dim <= 2; options.mixed_dim++) {
            check_against_model(&options, bits >> 1 & 1);
        }
    }
}

HD_CASE(long_fibres_follow_the_model)
{
    static const int64_t extent[] = {2, 1100, 16}, wide[] = {1, 300, 150};
    heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 3, extent);
    options.rope = 1;
    options.qk_norm = 1;
    check_against_model(&options, 0);
    options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 3, wide);
    options.heads = 3;
    options.qk_norm = 1;
    check_against_model(&options, 1);
}

static void check_kind(heddle_stage_kind kind, int64_t text_tokens)
{
    static const int64_t many[] = {2, 1100, 16};
    for (int bits = 0; bits < 8; bits++) {
        heddle_block_options options = options_by_bits(kind, bits);
        check_against_model(&options, bits >> 2);
    }
    heddle_block_options options = options_for(kind, HEDDLE_F32, 3, many);
    options.text_tokens = text_tokens;
    check_against_model(&options, 0);
}

HD_CASE(cross_follows_the_model)
{
    check_kind(HEDDLE_STAGE_CROSS, 100);
}

HD_CASE(mlp_follows_the_model)
{
    check_kind(HEDDLE_STAGE_MLP, 0);
}
