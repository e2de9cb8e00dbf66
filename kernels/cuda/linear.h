/* What kernels of linear attention are given, and what they share. A block of threads walks a segment of one head of
 * one fibre, for COLUMNS of its dv columns; the states of all columns are in the registers of its threads. */
#ifndef HD_CUDA_LINEAR_H
#define HD_CUDA_LINEAR_H

#include "kernels/cuda/attention.h"
#include "kernels/device_linear.h"

enum { HD_LINEAR_COLUMNS = 64, HD_LINEAR_THREADS = 128 };

typedef struct hd_linear_args {
    hd_device_linear of;
    uint32_t tiles, segments, heads, inner;
    int32_t n, dk, dv, segment_rows;
} hd_linear_args;

typedef struct hd_linear_stretch {
    hd_attention_part of; /* where tokens are found: outer, inner, head */
    int32_t column;       /* the first one */
    int32_t first, end;   /* rows of the segment */
    int64_t state;        /* elements before the segment's */
    float *left;          /* where the state behind the segment goes; NULL: nowhere */
    float log2_decay;
} hd_linear_stretch;

HD_DEV hd_linear_stretch hd_linear_stretch_of(const hd_linear_args *a, uint32_t n)
{
    hd_linear_stretch p;
    uint32_t rest = n / a->tiles;
    p.column = (int32_t)(n - rest * a->tiles) * HD_LINEAR_COLUMNS;
    const uint32_t of_head = rest / a->segments, segment = rest - of_head * a->segments, fibre = of_head / a->heads;
    p.of.head = of_head - fibre * a->heads;
    p.of.outer = fibre / a->inner;
    p.of.inner = fibre - p.of.outer * a->inner;
    p.first = (int32_t)segment * a->segment_rows;
    p.end = a->n - p.first < a->segment_rows ? a->n : p.first + a->segment_rows;
    p.state = (int64_t)rest * a->dk * a->dv;
    p.left = a->of.o.data == 0 ? a->of.states + p.state : 0;
    if (a->of.o.data != 0 && a->of.end != 0 && segment == (a->of.descends ? 0 : a->segments - 1)) {
        p.left = a->of.end + (int64_t)of_head * a->dk * a->dv;
    }
    p.log2_decay = hd_float_load(a->of.log2_decay + p.of.head);
    return p;
}

/* The chunks of a segment in the order of the walk: the first row of the i-th. */
HD_DEV int32_t hd_linear_chunk(const hd_linear_args *a, const hd_linear_stretch *p, int32_t i, int32_t rows)
{
    const int32_t chunks = (p->end - p->first + rows - 1) / rows;
    return p->first + (a->of.descends ? chunks - 1 - i : i) * rows;
}

/* Element (k, c) of the state in front of the segment, c counted from the block's first column. */
HD_DEV float hd_linear_state_load(const hd_linear_args *a, const hd_linear_stretch *p, int32_t k, int32_t c)
{
    const int64_t at = a->of.is_turned ? (int64_t)(p->column + c) * a->dk + k : (int64_t)k * a->dv + p->column + c;
    const int is_there = a->of.o.data != 0 && a->of.states != 0 && k < a->dk && p->column + c < a->dv;
    return is_there ? hd_float_load(a->of.states + p->state + at) : 0;
}

/* Of the state behind it. */
HD_DEV void hd_linear_state_store(const hd_linear_args *a, const hd_linear_stretch *p, int32_t k, int32_t c,
                                  float value)
{
    if (k < a->dk && p->column + c < a->dv) {
        hd_float_store(p->left + (int64_t)k * a->dv + p->column + c, value);
    }
}

/* Rows from where the walk comes into a chunk of `rows` to row i of it. */
HD_DEV int32_t hd_linear_depth(const hd_linear_args *a, int32_t i, int32_t rows)
{
    const int32_t depth = a->of.descends ? rows - 1 - i : i;
    return depth < 0 ? 0 : depth < rows ? depth : rows - 1; /* rows behind the chunk are zeros */
}

/* Of row j for row i of a chunk: g^distance, or 0. power[x]: g^x */
HD_DEV float hd_linear_weight(const hd_linear_args *a, const float *power, int32_t i, int32_t j)
{
    const int32_t distance = a->of.descends ? j - i : i - j;
    return distance > 0 ? power[distance] : distance == 0 && !a->of.skips_own ? 1.0f : 0.0f;
}

#ifdef __cplusplus
extern "C" {
#endif
/* In F32, by plain products: linear_f32.cu. */
int hd_linear_f32(const hd_linear_args *a, unsigned blocks, void *stream);
int hd_linear_f32_load(void);
#ifdef __cplusplus
}
#endif

#endif
