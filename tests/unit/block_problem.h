/* A random block, a whole activation and its conditioning, and a naive fp64 model of the formulas. */
#ifndef HD_TEST_BLOCK_PROBLEM_H
#define HD_TEST_BLOCK_PROBLEM_H

#include "block_calls.h"
#include "case.h"
#include "draw.h"

#include "kernels/small_float.h"

#include <heddle/block.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VECTOR_ROWS = 6 };

static inline void *must_alloc(int64_t count, size_t bytes)
{
    void *memory = calloc((size_t)count + 1, bytes);
    assert_non_null(memory);
    return memory;
}

/* --- a problem: a block, a whole activation and its conditioning -------------------------------------------------- */

typedef struct problem {
    heddle_block_options options;
    heddle_block *block;
    heddle_conditioning conditioning;
    int64_t elems;
    int64_t c;
    float *x; /* values representable in the dtype */
} problem;

static inline heddle_shape shape_of(heddle_dtype dtype, int ndim, const int64_t *extent)
{
    heddle_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.dtype = dtype;
    shape.ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        snprintf(shape.dim[d].name, sizeof shape.dim[d].name, "%c",
                 d == 0          ? 'b'
                 : d == ndim - 1 ? 'c'
                                 : "tsuvw"[d - 1]);
        shape.dim[d].extent = extent[d];
    }
    return shape;
}

static inline void rounded(float *x, int64_t elems, heddle_dtype dtype)
{
    for (int64_t i = 0; i < elems && dtype == HEDDLE_BF16; i++) {
        x[i] = hd_f32_from_bf16(hd_bf16_from_f32(x[i]));
    }
}

static inline void open_problem(problem *p, const heddle_block_options *options)
{
    memset(p, 0, sizeof *p);
    p->options = *options;
    HD_OK(heddle_block_create(&p->block, options));
    HD_OK(heddle_block_seed(p->block, 7));
    const heddle_shape *shape = &options->shape;
    p->c = shape->dim[shape->ndim - 1].extent;
    p->elems = 1;
    for (int d = 0; d < shape->ndim; d++) {
        p->elems *= shape->dim[d].extent;
    }
    p->x = must_alloc(p->elems, sizeof(float));
    for (int64_t i = 0; i < p->elems; i++) {
        p->x[i] = 2 * symmetric();
    }
    rounded(p->x, p->elems, shape->dtype);
    int64_t samples = shape->dim[0].extent;
    float *vector = must_alloc(samples * VECTOR_ROWS * p->c, sizeof(float));
    for (int64_t i = 0; i < samples * VECTOR_ROWS * p->c; i++) {
        vector[i] = symmetric();
    }
    p->conditioning.vector = vector;
    int64_t text_elems = samples * options->text_tokens * p->c;
    float *text = must_alloc(text_elems, sizeof(float));
    for (int64_t i = 0; i < text_elems; i++) {
        text[i] = symmetric();
    }
    rounded(text, text_elems, shape->dtype);
    p->conditioning.text = text;
    int64_t *lengths = must_alloc(samples, sizeof *lengths);
    for (int64_t b = 0; b < samples; b++) {
        lengths[b] = b == 0 ? options->text_tokens : b == 1 ? 0 : between(0, options->text_tokens);
    }
    p->conditioning.text_lengths = lengths;
}

static inline void close_problem(problem *p)
{
    heddle_block_destroy(p->block);
    free(p->x);
    free((void *)(uintptr_t)p->conditioning.vector);
    free((void *)(uintptr_t)p->conditioning.text);
    free((void *)(uintptr_t)p->conditioning.text_lengths);
}

static inline void *stored(const float *x, int64_t elems, heddle_dtype dtype)
{
    void *memory = must_alloc(elems, heddle_dtype_bytes(dtype));
    for (int64_t i = 0; i < elems; i++) {
        if (dtype == HEDDLE_BF16) {
            ((uint16_t *)memory)[i] = hd_bf16_from_f32(x[i]);
        } else {
            ((float *)memory)[i] = x[i];
        }
    }
    return memory;
}

static inline double value_at(const void *x, heddle_dtype dtype, int64_t i)
{
    return dtype == HEDDLE_BF16 ? (double)hd_f32_from_bf16(((const uint16_t *)x)[i]) : (double)((const float *)x)[i];
}

static inline heddle_box whole_box(const heddle_shape *shape)
{
    heddle_box box;
    memset(&box, 0, sizeof box);
    box.ndim = shape->ndim;
    for (int d = 0; d < shape->ndim; d++) {
        box.len[d] = shape->dim[d].extent;
    }
    return box;
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

static inline const float *named(problem *p, const char *name)
{
    for (int i = 0; i < heddle_block_nparams(p->block); i++) {
        heddle_param param = {.struct_bytes = sizeof param};
        HD_OK(heddle_block_param(&param, p->block, i));
        if (strcmp(param.name, name) == 0) {
            return param.data;
        }
    }
    fail_msg("no parameter %s", name);
    return NULL;
}

static inline void linear(double *out, const double *x, const float *weight, const float *bias, int64_t k, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        double sum = (double)bias[j];
        for (int64_t i = 0; i < k; i++) {
            sum += x[i] * (double)weight[j * k + i];
        }
        out[j] = sum;
    }
}

static inline void model_norm(double *out, const problem *p, const double *x, int64_t sample, int shift)
{
    double mean = 0;
    double variance = 0;
    for (int64_t i = 0; i < p->c; i++) {
        mean += x[i] / (double)p->c;
    }
    for (int64_t i = 0; i < p->c; i++) {
        variance += (x[i] - mean) * (x[i] - mean) / (double)p->c;
    }
    const float *vector = p->conditioning.vector + (sample * VECTOR_ROWS + shift) * p->c;
    for (int64_t i = 0; i < p->c; i++) {
        out[i] = (x[i] - mean) / sqrt(variance + 1e-6);
        if (p->options.modulate) {
            out[i] = out[i] * (1 + (double)vector[p->c + i]) + (double)vector[i];
        }
    }
}

static inline void model_head(double *x, int64_t d, const float *weight, int rope, int64_t position)
{
    double squares = 0;
    for (int64_t i = 0; i < d; i++) {
        squares += x[i] * x[i];
    }
    for (int64_t i = 0; i < d && weight != NULL; i++) {
        x[i] = x[i] / sqrt(squares / (double)d + 1e-6) * (double)weight[i];
    }
    for (int64_t i = 0; i + 1 < d && rope; i += 2) {
        double angle = (double)position / pow(10000, (double)i / (double)d);
        double a = x[i];
        double b = x[i + 1];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + 1] = b * cos(angle) + a * sin(angle);
    }
}

/* One query head against nk key and value heads `stride` apart. */
static inline void model_attention(double *out, const double *q, const double *k, const double *v, int64_t nk,
                                   int64_t d, int64_t stride)
{
    double *weight = must_alloc(nk, sizeof *weight);
    double top = -INFINITY;
    double sum = 0;
    for (int64_t j = 0; j < nk; j++) {
        for (int64_t i = 0; i < d; i++) {
            weight[j] += q[i] * k[j * stride + i] / sqrt((double)d);
        }
        top = weight[j] > top ? weight[j] : top;
    }
    for (int64_t j = 0; j < nk; j++) {
        weight[j] = exp(weight[j] - top);
        sum += weight[j];
    }
    for (int64_t i = 0; i < d; i++) {
        out[i] = 0;
        for (int64_t j = 0; j < nk; j++) {
            out[i] += weight[j] / sum * v[j * stride + i];
        }
    }
    free(weight);
}

static inline void add_gated(problem *p, double *x, const double *change, int64_t sample, int gate)
{
    const float *vector = p->conditioning.vector + (sample * VECTOR_ROWS + gate) * p->c;
    for (int64_t i = 0; i < p->c; i++) {
        x[i] += p->options.modulate && gate >= 0 ? (double)vector[i] * change[i] : change[i];
    }
}

static inline void model_self(problem *p, double *x)
{
    const heddle_shape *shape = &p->options.shape;
    int64_t c = p->c;
    int64_t d = c / p->options.heads;
    int64_t rows = p->elems / c;
    int64_t inner = 1;
    for (int i = p->options.mixed_dim + 1; i < shape->ndim - 1; i++) {
        inner *= shape->dim[i].extent;
    }
    int64_t t_extent = shape->dim[p->options.mixed_dim].extent;
    int64_t sample_rows = rows / shape->dim[0].extent;
    double *qkv = must_alloc(rows * 3 * c, sizeof *qkv);
    double *row = must_alloc(c, sizeof *row);
    double *change = must_alloc(c, sizeof *change);
    for (int64_t r = 0; r < rows; r++) {
        model_norm(row, p, x + r * c, r / sample_rows, 0);
        linear(qkv + r * 3 * c, row, named(p, "qkv.weight"), named(p, "qkv.bias"), c, 3 * c);
        for (int64_t h = 0; h < 2 * p->options.heads; h++) {
            const float *weight =
                p->options.qk_norm ? named(p, h < p->options.heads ? "q_norm.weight" : "k_norm.weight") : NULL;
            model_head(qkv + r * 3 * c + h * d, d, weight, p->options.rope, r / inner % t_extent);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t fibre = r - r / inner % t_extent * inner;
        for (int64_t h = 0; h < p->options.heads; h++) {
            const double *k = qkv + fibre * 3 * c + c + h * d;
            model_attention(row + h * d, qkv + r * 3 * c + h * d, k, k + c, t_extent, d, inner * 3 * c);
        }
        linear(change, row, named(p, "proj.weight"), named(p, "proj.bias"), c, c);
        add_gated(p, x + r * c, change, r / sample_rows, 2);
    }
    free(qkv);
    free(row);
    free(change);
}

static inline void model_cross(problem *p, double *x)
{
    int64_t c = p->c;
    int64_t d = c / p->options.heads;
    int64_t rows = p->elems / c;
    int64_t samples = p->options.shape.dim[0].extent;
    int64_t tokens = p->options.text_tokens;
    double *kv = must_alloc(samples * tokens * 2 * c, sizeof *kv);
    double *row = must_alloc(c, sizeof *row);
    double *mixed = must_alloc(c, sizeof *mixed);
    for (int64_t r = 0; r < samples * tokens; r++) {
        for (int64_t i = 0; i < c; i++) {
            row[i] = (double)p->conditioning.text[r * c + i];
        }
        linear(kv + r * 2 * c, row, named(p, "kv_linear.weight"), named(p, "kv_linear.bias"), c, 2 * c);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t sample = r / (rows / samples);
        int64_t length = p->conditioning.text_lengths[sample];
        if (length == 0) {
            continue;
        }
        linear(row, x + r * c, named(p, "q_linear.weight"), named(p, "q_linear.bias"), c, c);
        for (int64_t h = 0; h < p->options.heads; h++) {
            const double *k = kv + sample * tokens * 2 * c + h * d;
            model_attention(mixed + h * d, row + h * d, k, k + c, length, d, 2 * c);
        }
        linear(row, mixed, named(p, "proj.weight"), named(p, "proj.bias"), c, c);
        add_gated(p, x + r * c, row, sample, -1);
    }
    free(kv);
    free(row);
    free(mixed);
}

static inline void model_mlp(problem *p, double *x)
{
    int64_t c = p->c;
    int64_t hidden = p->options.mlp_channels;
    int64_t rows = p->elems / c;
    double *row = must_alloc(c, sizeof *row);
    double *wide = must_alloc(hidden, sizeof *wide);
    for (int64_t r = 0; r < rows; r++) {
        int64_t sample = r / (rows / p->options.shape.dim[0].extent);
        model_norm(row, p, x + r * c, sample, 3);
        linear(wide, row, named(p, "fc1.weight"), named(p, "fc1.bias"), c, hidden);
        for (int64_t i = 0; i < hidden; i++) {
            double y = wide[i];
            wide[i] = 0.5 * y * (1 + tanh(0.79788456080286535588 * (y + 0.044715 * y * y * y)));
        }
        linear(row, wide, named(p, "fc2.weight"), named(p, "fc2.bias"), hidden, c);
        add_gated(p, x + r * c, row, sample, 5);
    }
    free(row);
    free(wide);
}

static inline heddle_block_options options_for(heddle_stage_kind kind, heddle_dtype dtype, int ndim,
                                               const int64_t *extent)
{
    heddle_block_options options;
    heddle_block_options_init(&options);
    options.kind = kind;
    options.shape = shape_of(dtype, ndim, extent);
    options.mixed_dim = kind == HEDDLE_STAGE_ATTENTION ? 1 : -1;
    options.heads = 2;
    options.mlp_channels = 4 * extent[ndim - 1];
    options.text_tokens = kind == HEDDLE_STAGE_CROSS ? 11 : 0;
    return options;
}

static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16};

#endif
