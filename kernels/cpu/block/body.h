/* Row kernels, written once for any vector width: included by avx2.c and avx512.c after their vectors. */
#include "kernels/cpu/block/internal.h"
#include "kernels/cpu/block/row.h"

#include <string.h>

INLINE void norm_rows(void *dst, const void *src, int bf16, int64_t rows, int64_t c, const float *shift,
                      const float *scale)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = r * c;
        float mean = row_sum(src, bf16, row, c, 0, 0) / (float)c;
        float variance = row_sum(src, bf16, row, c, mean, 1) / (float)c;
        vec centre = vec_set1(mean);
        vec inverse = vec_set1(1.0f / sqrtf(variance + (float)HD_NORM_EPSILON));
        for (int64_t i = 0; i < c; i += VEC) {
            vec y = vec_mul(vec_sub(load_some(src, bf16, row + i, c - i), centre), inverse);
            if (scale != NULL) {
                vec factor = vec_add(load_some(scale, 0, i, c - i), vec_set1(1));
                y = vec_fma(y, factor, load_some(shift, 0, i, c - i));
            }
            store_some(dst, bf16, row + i, y, c - i);
        }
    }
}

static void norm_modulate(void *dst, const void *src, heddle_dtype dtype, int64_t rows, int64_t c, const float *shift,
                          const float *scale)
{
    if (dtype == HEDDLE_BF16) {
        norm_rows(dst, src, 1, rows, c, shift, scale);
    } else {
        norm_rows(dst, src, 0, rows, c, shift, scale);
    }
}

INLINE void residual_rows(void *x, int bf16, const float *y, int64_t rows, int64_t c, const float *gate)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < c; i += VEC) {
            vec value = load_some(x, bf16, r * c + i, c - i);
            vec change = load_some(y, 0, r * c + i, c - i);
            value = gate != NULL ? vec_fma(load_some(gate, 0, i, c - i), change, value) : vec_add(value, change);
            store_some(x, bf16, r * c + i, value, c - i);
        }
    }
}

static void gate_residual(void *x, heddle_dtype dtype, const float *y, int64_t rows, int64_t c, const float *gate)
{
    if (dtype == HEDDLE_BF16) {
        residual_rows(x, 1, y, rows, c, gate);
    } else {
        residual_rows(x, 0, y, rows, c, gate);
    }
}

/* x (1 + tanh u) / 2 = x / (1 + e^-2u) */
INLINE vec gelu_vec(vec x)
{
    const float exponent = -2.0f * HD_LOG2_E * HD_GELU_SLOPE;
    vec cubic = vec_mul(vec_mul(x, x), vec_set1(exponent * HD_GELU_CUBIC));
    vec power = vec_exp2(vec_mul(x, vec_add(cubic, vec_set1(exponent))));
    return vec_div(x, vec_add(power, vec_set1(1)));
}

static void gelu(void *dst, heddle_dtype dtype, const float *src, int64_t elems)
{
    for (int64_t i = 0; i < elems; i += VEC) {
        vec y = gelu_vec(load_some(src, 0, i, elems - i));
        if (dtype == HEDDLE_BF16) {
            store_some(dst, 1, i, y, elems - i);
        } else {
            store_some(dst, 0, i, y, elems - i);
        }
    }
}

INLINE void norm_rotate_heads(void *x, int bf16, int64_t heads, int64_t d, const float *weight, const float *cos_sin)
{
    for (int64_t h = 0; h < heads; h++) {
        vec inverse = vec_set1(1);
        if (weight != NULL) {
            float squares = row_sum(x, bf16, h * d, d, 0, 1);
            inverse = vec_set1(1.0f / sqrtf(squares / (float)d + (float)HD_NORM_EPSILON));
        }
        for (int64_t i = 0; i < d; i += VEC) {
            vec y = load_some(x, bf16, h * d + i, d - i);
            if (weight != NULL) {
                y = vec_mul(vec_mul(y, inverse), load_some(weight, 0, i, d - i));
            }
            if (cos_sin != NULL) {
                y = vec_rotate(y, load_some(cos_sin, 0, i, d - i));
            }
            store_some(x, bf16, h * d + i, y, d - i);
        }
    }
}

static void norm_rotate(void *x, heddle_dtype dtype, int64_t heads, int64_t d, const float *weight,
                        const float *cos_sin)
{
    if (dtype == HEDDLE_BF16) {
        norm_rotate_heads(x, 1, heads, d, weight, cos_sin);
    } else {
        norm_rotate_heads(x, 0, heads, d, weight, cos_sin);
    }
}

INLINE void convert_elems(void *dst, int dst_bf16, const void *src, int src_bf16, int64_t elems)
{
    for (int64_t i = 0; i < elems; i += VEC) {
        store_some(dst, dst_bf16, i, load_some(src, src_bf16, i, elems - i), elems - i);
    }
}

static void convert(void *dst, heddle_dtype dst_dtype, const void *src, heddle_dtype src_dtype, int64_t elems)
{
    if (dst_dtype == src_dtype) {
        memmove(dst, src, (size_t)elems * (dst_dtype == HEDDLE_BF16 ? sizeof(uint16_t) : sizeof(float)));
    } else if (dst_dtype == HEDDLE_BF16) {
        convert_elems(dst, 1, src, 0, elems);
    } else {
        convert_elems(dst, 0, src, 1, elems);
    }
}

const hd_kernels BLOCK_SLOTS = {HD_BLOCK_SLOTS(HD_BLOCK_PUT)};
