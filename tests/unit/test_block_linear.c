/* The LINEAR stage on whole fibres: against a naive fp64 model, and rows that do not know of other fibres. */
#include "block_model_linear.h"

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

HD_CASE(follows_the_model)
{
    static const int64_t extents[][4] = {{2, 5, 3, 24}, {1, 150, 2, 16}, {2, 1, 4, 12}, {1, 1, 260, 32}};
    for (int flags = 0; flags < 64; flags++) {
        problem p;
        heddle_dtype dtype = dtypes[flags >> 5 & 1];
        heddle_block_options options = linear_options(dtype, extents[flags % 4], flags >> 1);
        if (!hd_goes("linear %d", flags)) {
            continue;
        }
        open_problem(&p, &options);
        heddle_box whole = whole_box(&options.shape);
        linear_judge judge = judge_open(&p, NULL);
        void *x = stored(p.x, p.elems, dtype);
        HD_OK(forward_on(p.block, x, &whole, &p.conditioning));
        double worst = judge_worst(&judge, 0, x, dtype);
        if (!(worst <= 1)) {
            fail_msg("flags %d: %g times what roundings may do", flags, worst);
        }
        judge_close(&judge);
        free(x);
        close_problem(&p);
    }
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static double loss_of(const problem *p, const double *x, const double *weight)
{
    model_values v;
    model m = model_of(p, &v);
    double *y = must_alloc(p->elems, sizeof *y), loss = 0;
    memcpy(v.x, x, (size_t)p->elems * sizeof *x);
    stage_linear(&m, &v, y, NULL, NULL, (roundings){.stored = 0});
    for (int64_t i = 0; i < p->elems; i++) {
        loss += weight[i] * y[i];
    }
    free(y);
    model_free(&m, &v);
    return loss;
}

/* Moves x (all of it) or one parameter a little along `way`, by the same step forth and back. */
static double derivative(const problem *p, double *x, heddle_param *param, const float *way, const double *weight)
{
    const double step = 0x1p-22;
    double loss[2];
    int64_t elems = param == NULL ? p->elems : param->extent[0] * (param->ndim == 2 ? param->extent[1] : 1);
    float *kept = must_alloc(elems, sizeof *kept);
    for (int64_t i = 0; i < elems && param != NULL; i++) {
        param->data[i] = kept[i] = roundf(param->data[i] * 4096) / 4096; /* the step is exact */
    }
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < elems; i++) {
            double by = (side ? step : -step) * (way[i] < 0 ? -1 : 1);
            if (param != NULL) {
                param->data[i] = kept[i] + (float)by;
            } else {
                x[i] += side ? 2 * by : by;
            }
        }
        loss[side] = loss_of(p, x, weight);
    }
    for (int64_t i = 0; i < elems; i++) {
        if (param != NULL) {
            param->data[i] = kept[i];
        } else {
            x[i] -= step * (way[i] < 0 ? -1 : 1);
        }
    }
    free(kept);
    return (loss[1] - loss[0]) / (2 * step);
}

static void expect_near(const char *what, int flags, double got, double wanted, double size)
{
    if (!(fabs(got - wanted) <= 2e-4 * size)) {
        fail_msg("flags %d: slope along the gradient of %s is %g, the model's %g", flags, what, got, wanted);
    }
}

HD_CASE(gradients_are_slopes_of_the_model)
{
    static const int64_t extents[][4] = {{2, 5, 3, 24}, {1, 150, 2, 16}, {2, 1, 4, 12}, {1, 1, 260, 8}};
    for (int flags = 0; flags < 16; flags++) {
        problem p;
        heddle_block_options options = linear_options(HEDDLE_F32, extents[flags % 4], flags);
        open_problem(&p, &options);
        heddle_box whole = whole_box(&options.shape);
        heddle_tape *tape = NULL;
        double *x = must_alloc(p.elems, sizeof *x), *weight = must_alloc(p.elems, sizeof *weight);
        float *y = must_alloc(p.elems, sizeof *y), *dx = must_alloc(p.elems, sizeof *dx);
        for (int i = 0; i < heddle_block_nparams(p.block); i++) { /* as derivative will have them */
            heddle_param param = HEDDLE_EMPTY(heddle_param);
            HD_OK(heddle_block_param(&param, p.block, i));
            for (int64_t e = 0; e < param.extent[0] * (param.ndim == 2 ? param.extent[1] : 1); e++) {
                param.data[e] = roundf(param.data[e] * 4096) / 4096;
            }
        }
        HD_OK(heddle_block_commit(p.block));
        for (int64_t i = 0; i < p.elems; i++) {
            x[i] = (double)(y[i] = p.x[i]);
            weight[i] = (double)(dx[i] = symmetric());
        }
        HD_OK(heddle_tape_create(&tape, p.block, NULL));
        HD_OK(forward_tape_on(p.block, y, &whole, &p.conditioning, tape));
        HD_OK(backward_on(p.block, dx, &p.conditioning, NULL, tape));
        for (int i = -1; i < heddle_block_nparams(p.block); i++) {
            heddle_param param = HEDDLE_EMPTY(heddle_param);
            heddle_param gradient = {
                .struct_bytes = sizeof gradient, .data = dx, .extent = {p.elems}, .ndim = 1, .name = "x"};
            if (i >= 0) {
                HD_OK(heddle_block_param(&param, p.block, i));
                HD_OK(heddle_block_gradient(&gradient, p.block, i));
            }
            double along = 0;
            for (int64_t e = 0; e < gradient.extent[0] * (gradient.ndim == 2 ? gradient.extent[1] : 1); e++) {
                along += fabs((double)gradient.data[e]); /* the direction is the gradient's signs */
            }
            double slope = derivative(&p, x, i < 0 ? NULL : &param, gradient.data, weight);
            expect_near(gradient.name, flags, along, slope, fmax(along, 1));
        }
        heddle_tape_destroy(tape);
        free(x);
        free(y);
        free(dx);
        free(weight);
        close_problem(&p);
    }
}

/* Every element of every gradient, f32 and bf16. */
HD_CASE(gradients_follow_the_model)
{
    static const int64_t extents[][4] = {{2, 5, 3, 24}, {1, 150, 2, 16}, {2, 1, 4, 12}, {1, 1, 260, 8}};
    for (int flags = 0; flags < 64; flags++) {
        problem p;
        heddle_dtype dtype = dtypes[flags >> 5 & 1];
        heddle_block_options options = linear_options(dtype, extents[flags % 4], flags >> 1);
        if (!hd_goes("gradients of linear %d", flags)) {
            continue;
        }
        open_problem(&p, &options);
        heddle_box whole = whole_box(&options.shape);
        heddle_tape *tape = NULL;
        float *dy = must_alloc(p.elems, sizeof *dy);
        double *wanted_dy = must_alloc(p.elems, sizeof *wanted_dy);
        float *vector = must_alloc(extents[flags % 4][0] * 6 * p.c, sizeof *vector);
        heddle_conditioning_gradient into = {.vector = options.modulate ? vector : NULL};
        for (int64_t i = 0; i < p.elems; i++) {
            dy[i] = symmetric();
        }
        rounded(dy, p.elems, dtype);
        for (int64_t i = 0; i < p.elems; i++) {
            wanted_dy[i] = (double)dy[i];
        }
        linear_judge judge = judge_open(&p, wanted_dy);
        void *x = stored(p.x, p.elems, dtype), *dx = stored(dy, p.elems, dtype);
        HD_OK(heddle_tape_create(&tape, p.block, NULL));
        HD_OK(forward_tape_on(p.block, x, &whole, &p.conditioning, tape));
        HD_OK(backward_on(p.block, dx, &p.conditioning, &into, tape));
        int nparams = heddle_block_nparams(p.block);
        for (int a = 0; a < nparams + 2 + options.modulate; a++) {
            heddle_param gradient = {.struct_bytes = sizeof gradient, .name = "vector", .data = vector};
            if (a > 0 && a <= nparams) {
                HD_OK(heddle_block_gradient(&gradient, p.block, a - 1));
            }
            double worst = a == 0             ? judge_worst(&judge, a, x, dtype)
                           : a == nparams + 1 ? judge_worst(&judge, a, dx, dtype)
                                              : judge_worst(&judge, a, gradient.data, HEDDLE_F32);
            if (!(worst <= 1)) {
                fail_msg("flags %d: %s: %g times what roundings may do", flags,
                         a == 0             ? "y"
                         : a == nparams + 1 ? "dx"
                                            : gradient.name,
                         worst);
            }
        }
        judge_close(&judge);
        heddle_tape_destroy(tape);
        free(dy);
        free(wanted_dy);
        free(vector);
        free(x);
        free(dx);
        close_problem(&p);
    }
}

/* A block of one fibre, or of any part of the others, gives the bits of the whole. */
HD_CASE(fibres_are_independent)
{
    static const int64_t extent[] = {3, 7, 200, 48};
    for (int flags = 0; flags < 8; flags++) {
        problem p;
        heddle_dtype dtype = dtypes[flags >> 2];
        heddle_block_options options = linear_options(dtype, extent, 1 + 2 * flags);
        options.threads = 1 + flags % 3;
        open_problem(&p, &options);
        heddle_box whole = whole_box(&options.shape), part = whole;
        size_t elem = heddle_dtype_bytes(dtype);
        char *x = stored(p.x, p.elems, dtype), *own = stored(p.x, p.elems, dtype);
        HD_OK(forward_on(p.block, x, &whole, &p.conditioning));
        for (int64_t t = 0; t < extent[1]; t += part.len[1]) {
            part.lo[0] = t % 2;
            part.len[0] = 1 + t % 2;
            part.lo[1] = t;
            part.len[1] = t == 2 ? 3 : 1;
            for (int64_t b = part.lo[0]; b < part.lo[0] + part.len[0]; b++) {
                heddle_box one = part;
                one.lo[0] = b;
                one.len[0] = 1;
                size_t at = (size_t)((b * extent[1] + t) * extent[2] * extent[3]) * elem;
                HD_OK(forward_on(p.block, own + at, &one, &p.conditioning));
                assert_memory_equal(own + at, x + at, (size_t)(part.len[1] * extent[2] * extent[3]) * elem);
            }
        }
        free(x);
        free(own);
        close_problem(&p);
    }
}

HD_CASE(bad_options_are_refused)
{
    static const int64_t extent[] = {1, 4, 2, 8};
    heddle_block *block = NULL;
    heddle_block_options options = linear_options(HEDDLE_F32, extent, 0);
    options.decay = 1.5;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &options));
    options.decay = NAN;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &options));
    options.decay = 1;
    options.qk_norm = 1;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &options));
    options.qk_norm = 0;
    options.mixed_dim = 0;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &options));
}
