/* A random block, a whole activation and its conditioning. */
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
    for (int64_t i = 0; i < elems && dtype != HEDDLE_F32; i++) {
        x[i] = dtype == HEDDLE_BF16 ? hd_f32_from_bf16(hd_bf16_from_f32(x[i])) : hd_f32_from_f16(hd_f16_from_f32(x[i]));
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
        if (dtype == HEDDLE_BF16 || dtype == HEDDLE_F16) {
            ((uint16_t *)memory)[i] = dtype == HEDDLE_BF16 ? hd_bf16_from_f32(x[i]) : hd_f16_from_f32(x[i]);
        } else {
            ((float *)memory)[i] = x[i];
        }
    }
    return memory;
}

static inline double value_at(const void *x, heddle_dtype dtype, int64_t i)
{
    const uint16_t *half = x;
    return dtype == HEDDLE_BF16  ? (double)hd_f32_from_bf16(half[i])
           : dtype == HEDDLE_F16 ? (double)hd_f32_from_f16(half[i])
                                 : (double)((const float *)x)[i];
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

/* Row `row` of a box among those of the whole tensor. */
static inline int64_t row_of(const heddle_shape *shape, const heddle_box *box, int64_t row)
{
    int64_t offset = 0, index[HEDDLE_MAX_DIMS];
    for (int d = shape->ndim - 2; d >= 0; d--) {
        index[d] = box->lo[d] + row % box->len[d];
        row /= box->len[d];
    }
    for (int d = 0; d < shape->ndim - 1; d++) {
        offset = offset * shape->dim[d].extent + index[d];
    }
    return offset;
}

/* Rows of the box out of a whole tensor, or (back) into it. */
static inline char *part_of(const problem *p, const heddle_box *box, char *whole, char *part, int back)
{
    size_t row_bytes = (size_t)p->c * heddle_dtype_bytes(p->options.shape.dtype);
    int64_t rows = heddle_box_elems(box) / p->c;
    for (int64_t r = 0; r < rows; r++) {
        char *there = whole + (size_t)row_of(&p->options.shape, box, r) * row_bytes,
             *here = part + (size_t)r * row_bytes;
        memcpy(back ? there : here, back ? here : there, row_bytes);
    }
    return part;
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

/* The same of 2 x 6 x 5 rows of 32. */
static inline heddle_block_options small_options(heddle_stage_kind kind, heddle_dtype dtype)
{
    static const int64_t extent[] = {2, 6, 5, 32};
    return options_for(kind, dtype, 4, extent);
}

static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16};

/* Options of a stage by bits: 1 bf16, 2 modulation (cross: one token of text), 4 rope, 8 qk_norm. */
static inline heddle_block_options options_by_bits(heddle_stage_kind kind, int bits)
{
    static const int64_t attention[] = {2, 5, 7, 48}, cross[] = {4, 3, 9, 48}, mlp[] = {3, 4, 9, 56};
    const int is_attention = kind == HEDDLE_STAGE_ATTENTION, is_cross = kind == HEDDLE_STAGE_CROSS;
    heddle_block_options options = options_for(kind, dtypes[bits & 1], 4,
                                               is_attention ? attention
                                               : is_cross   ? cross
                                                            : mlp);
    options.modulate = !is_cross && (bits & 2);
    options.text_tokens = !is_cross ? options.text_tokens : bits & 2 ? 1 : 37;
    options.rope = is_attention && (bits & 4);
    options.qk_norm = is_attention && (bits & 8);
    return options;
}

#endif
