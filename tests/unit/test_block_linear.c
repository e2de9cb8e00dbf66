/* The LINEAR stage on whole fibres: against a naive fp64 model, and rows that do not know of other fibres. */
#include "block_problem.h"

#include <heddle/linear_attention.h>

static double decay_of(const problem *p, int64_t head)
{
    double slopes[64];
    if (p->options.decay > 0) {
        return p->options.decay;
    }
    HD_OK(heddle_linear_attention_slopes(slopes, p->options.heads));
    return slopes[head];
}

/* One head's result of query i of a fibre of t rows, `stride` apart; q is scaled here. */
static void model_linear_row(double *out, const problem *p, const double *fibre, int64_t i, int64_t t, int64_t stride,
                             int64_t h)
{
    int64_t d = p->c / p->options.heads;
    double decay = decay_of(p, h), squares = 0;
    memset(out, 0, (size_t)d * sizeof *out);
    for (int64_t j = 0; j < (p->options.causal ? i + 1 : t); j++) {
        const double *q = fibre + i * stride, *k = fibre + j * stride + p->c;
        double weight = 0;
        for (int64_t e = 0; e < d; e++) {
            weight += q[e] * k[e] / sqrt((double)d);
        }
        weight *= pow(decay, (double)(i > j ? i - j : j - i));
        for (int64_t e = 0; e < d; e++) {
            out[e] += weight * k[p->c + e];
        }
    }
    for (int64_t e = 0; e < d; e++) {
        squares += out[e] * out[e];
    }
    for (int64_t e = 0; e < d; e++) {
        out[e] /= sqrt(squares / (double)d + 1e-6);
    }
}

static void model_linear_stage(problem *p, double *x)
{
    const heddle_shape *shape = &p->options.shape;
    int64_t c = p->c, d = c / p->options.heads, rows = p->elems / c, inner = 1;
    for (int i = p->options.mixed_dim + 1; i < shape->ndim - 1; i++) {
        inner *= shape->dim[i].extent;
    }
    int64_t t = shape->dim[p->options.mixed_dim].extent, sample_rows = rows / shape->dim[0].extent;
    double *qkv = must_alloc(rows * 3 * c, sizeof *qkv);
    double *row = must_alloc(c, sizeof *row), *change = must_alloc(c, sizeof *change);
    for (int64_t r = 0; r < rows; r++) {
        model_norm(row, p, x + r * c, r / sample_rows, 0);
        linear(qkv + r * 3 * c, row, named(p, "qkv.weight"), named(p, "qkv.bias"), c, 3 * c);
        for (int64_t h = 0; h < 2 * p->options.heads; h++) {
            model_head(qkv + r * 3 * c + h * d, d, NULL, p->options.rope, r / inner % t);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t i = r / inner % t, first = r - i * inner;
        for (int64_t h = 0; h < p->options.heads; h++) {
            model_linear_row(row + h * d, p, qkv + first * 3 * c + h * d, i, t, inner * 3 * c, h);
        }
        linear(change, row, named(p, "proj.weight"), named(p, "proj.bias"), c, c);
        add_gated(p, x + r * c, change, r / sample_rows, 2);
    }
    free(qkv);
    free(row);
    free(change);
}

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

static void follows_the_model(void **state)
{
    (void)state;
    static const int64_t extents[][4] = {{2, 5, 3, 24}, {1, 150, 2, 16}, {2, 1, 4, 12}, {1, 3, 300, 32}};
    for (int flags = 0; flags < 64; flags++) {
        problem p;
        heddle_dtype dtype = dtypes[flags >> 5 & 1];
        heddle_block_options options = linear_options(dtype, extents[flags % 4], flags >> 1);
        open_problem(&p, &options);
        heddle_box whole = whole_box(&options.shape);
        double *wanted = must_alloc(p.elems, sizeof *wanted), worst = 0;
        for (int64_t i = 0; i < p.elems; i++) {
            wanted[i] = (double)p.x[i];
        }
        model_linear_stage(&p, wanted);
        void *x = stored(p.x, p.elems, dtype);
        HD_OK(heddle_block_forward(p.block, x, &whole, &p.conditioning));
        for (int64_t i = 0; i < p.elems; i++) {
            double off = fabs(value_at(x, dtype, i) - wanted[i]) / (1 + fabs(wanted[i]));
            worst = off > worst || isnan(off) ? off : worst;
        }
        if (!(worst < (dtype == HEDDLE_BF16 ? 0.08 : 3e-5))) {
            fail_msg("flags %d: off by %g", flags, worst);
        }
        free(x);
        free(wanted);
        close_problem(&p);
    }
}

/* A block of one fibre, or of any part of the others, gives the bits of the whole. */
static void fibres_are_independent(void **state)
{
    (void)state;
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
        HD_OK(heddle_block_forward(p.block, x, &whole, &p.conditioning));
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
                HD_OK(heddle_block_forward(p.block, own + at, &one, &p.conditioning));
                assert_memory_equal(own + at, x + at, (size_t)(part.len[1] * extent[2] * extent[3]) * elem);
            }
        }
        free(x);
        free(own);
        close_problem(&p);
    }
}

static void bad_options_are_refused(void **state)
{
    (void)state;
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

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(follows_the_model),
        cmocka_unit_test(fibres_are_independent),
        cmocka_unit_test(bad_options_are_refused),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
