/* Vectors of heads, as kernels are given them. */
#ifndef HD_CUDA_HEADS_H
#define HD_CUDA_HEADS_H

#include "kernels/cuda/rows.h"

/* Lanes that share a vector of at most HD_DEVICE_MOST_WIDTH elements. */
#define HD_HEADS_LANES(dtype) ((dtype) == HEDDLE_F32 ? 32 : 16)

typedef struct hd_heads_args {
    uint32_t vectors;
    int32_t d;
    hd_divisor heads, inner, extent;
    int64_t row_stride;
    const float *weight, *cos_sin;
    float inverse_d;
    int is_whole, is_whole_vector, unused;
} hd_heads_args;

/* Where vector n, which is of that row, begins, in elements. */
HD_DEV int64_t hd_heads_at(const hd_heads_args *of, uint32_t row, uint32_t n)
{
    return (int64_t)row * of->row_stride + (int64_t)(n - row * of->heads.d) * of->d;
}

HD_DEV uint32_t hd_heads_position(const hd_heads_args *of, uint32_t row)
{
    const uint32_t at = hd_divide(&of->inner, row);
    return at - hd_divide(&of->extent, at) * of->extent.d;
}

/* Vectors that a group of lanes has under way at a time: those of a block lie beside one another. */
enum { HD_HEADS_AT_ONCE = 4, HD_HEADS_MOST_BLOCKS = 65536 };

typedef struct hd_heads_place {
    int64_t begin; /* of the vector, bytes */
    int64_t row;
    uint32_t position; /* by whose angles it turns */
    int32_t at, left;  /* this lane's elements, and how many are left from there; none: the vector is not there */
} hd_heads_place;

HD_DEV uint32_t hd_heads_groups(heddle_dtype dtype)
{
    return HD_THREADS / HD_HEADS_LANES(dtype);
}

/* The u-th of the vectors from `first` on that this group has. */
HD_DEV hd_heads_place hd_heads_place_of(const hd_heads_args *of, uint32_t first, int u, heddle_dtype dtype)
{
    const uint32_t n = first + (uint32_t)u * hd_heads_groups(dtype) + HD_THREAD / HD_HEADS_LANES(dtype);
    const uint32_t row = hd_divide(&of->heads, n);
    hd_heads_place p;
    p.row = row;
    p.begin = hd_heads_at(of, row, n) * hd_elem_bytes(dtype);
    p.position = of->cos_sin != 0 ? hd_heads_position(of, row) : 0;
    p.at = (int32_t)(HD_LANE % HD_HEADS_LANES(dtype)) * hd_piece_elems(dtype);
    p.left = n < of->vectors && p.at < of->d ? of->d - p.at : 0;
    return p;
}

/* This lane's weights, the same of every vector. */
HD_DEV void hd_heads_weights(float *weight, const hd_heads_args *of, heddle_dtype dtype, int is_whole)
{
    const int32_t at = (int32_t)(HD_LANE % HD_HEADS_LANES(dtype)) * hd_piece_elems(dtype);
    if (of->weight != 0 && at < of->d) {
        hd_floats_load(weight, of->weight + at, of->d - at, hd_piece_elems(dtype), is_whole);
    }
}

/* Of the sum of a vector's squares. */
HD_DEV float hd_heads_inverse(const hd_heads_args *of, float squares)
{
    return hd_rsqrt(hd_fma(squares, of->inverse_d, HD_ROWS_EPSILON));
}

/* Pairs by the angles of a position, or back (sign -1). */
HD_DEV void hd_heads_turn(float *value, const hd_heads_args *of, const hd_heads_place *p, int per, int is_whole,
                          float sign)
{
    float turn[HD_PIECE_MOST];
    hd_floats_load(turn, of->cos_sin + (int64_t)p->position * of->d + p->at, p->left, per, is_whole);
    HD_UNROLL
    for (int i = 0; i < per; i += 2) {
        const float a = value[i], b = value[i + 1], c = turn[i], s = hd_mul(sign, turn[i + 1]);
        value[i] = hd_fma(a, c, -hd_mul(b, s));
        value[i + 1] = hd_fma(a, s, hd_mul(b, c));
    }
}

static inline int hd_heads_are_right(const hd_device_heads *of)
{
    const int is_float = of->dtype == HEDDLE_F32 || of->dtype == HEDDLE_BF16 || of->dtype == HEDDLE_F16;
    return is_float && of->rows >= 0 && of->heads >= 1 && of->rows <= INT32_MAX / of->heads && of->d >= 2 &&
           of->d % 2 == 0 && of->d <= HD_DEVICE_MOST_WIDTH &&
           (of->cos_sin == NULL ||
            (of->inner >= 1 && of->inner <= INT32_MAX && of->extent >= 1 && of->extent <= INT32_MAX));
}

static inline hd_heads_args hd_heads_of(const hd_device_heads *of, const void *x)
{
    const int64_t per = of->dtype == HEDDLE_F32 ? 4 : 8;
    hd_heads_args a;
    a.vectors = (uint32_t)(of->rows * of->heads);
    a.d = (int32_t)of->d;
    a.heads = hd_divisor_of(of->heads);
    a.inner = hd_divisor_of(of->cos_sin != NULL ? of->inner : 1);
    a.extent = hd_divisor_of(of->cos_sin != NULL ? of->extent : 1);
    a.row_stride = of->row_stride;
    a.weight = of->weight;
    a.cos_sin = of->cos_sin;
    a.inverse_d = 1.0f / (float)of->d;
    a.unused = 0;
    a.is_whole = of->d % per == 0 && of->row_stride % per == 0 && hd_is_aligned(x);
    a.is_whole_vector = of->d % per == 0 && hd_is_aligned(of->weight) && hd_is_aligned(of->cos_sin);
    return a;
}

static inline unsigned hd_heads_blocks(const hd_device_heads *of)
{
    const int64_t groups = HD_ROWS_THREADS / HD_HEADS_LANES(of->dtype) * HD_HEADS_AT_ONCE;
    const int64_t blocks = (of->rows * of->heads + groups - 1) / groups;
    return (unsigned)(blocks < HD_HEADS_MOST_BLOCKS ? blocks : (int64_t)HD_HEADS_MOST_BLOCKS);
}

#endif
