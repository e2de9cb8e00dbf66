/* Compute kernels of the transformer blocks: one slot and one signature per operation. Plain pointers, no allocation.
 *
 * Every result element is computed by the same sequence of operations wherever it lies: in which lane, in which row,
 * how many rows there are. The variants (reference, AVX2, AVX-512) may differ from one another in the last bits.
 */
#ifndef HD_KERNELS_BLOCK_H
#define HD_KERNELS_BLOCK_H

#include <heddle/layout.h>
#include <stddef.h>
#include <stdint.h>

/* out[q, :] = sum_k softmax_k(scale * <q[q, :], k[k, :]>) v[k, :] for one head of one fibre. Token t of q lies
 * t * q_stride elements behind q, and so on. All of one dtype, F32 or BF16; arithmetic is f32. nk >= 1. */
typedef struct hd_attention_head {
    const void *q;
    const void *k;
    const void *v;
    void *out;
    heddle_dtype dtype;
    int64_t nq;
    int64_t nk;
    int64_t d;
    int64_t q_stride;
    int64_t kv_stride;
    int64_t out_stride;
    float scale;
    /* [nq] the largest score scale q k, and the log of the sum of exp(score - top): apart, because rounded together
     * they are too coarse to make weights of large scores from. NULL: not wanted. Scores are those of
     * hd_attn_kernels_best, bit for bit. */
    float *top, *log_sum;
} hd_attention_head;

typedef struct hd_block_kernels {
    const char *name; /* "reference" "avx2" "avx512" */

    /* dst = (src - mean) / sqrt(variance + 1e-6) * (1 + scale) + shift per row of c elements; shift and scale NULL: the
     * plain normalised row. dst and src dense, of one dtype. */
    void (*norm_modulate)(void *dst, const void *src, heddle_dtype dtype, int64_t rows, int64_t c, const float *shift,
                          const float *scale);
    /* x += gate * y per row; gate [c] or NULL (1) */
    void (*gate_residual)(void *x, heddle_dtype dtype, const float *y, int64_t rows, int64_t c, const float *gate);
    /* dst = gelu(src), tanh form; dst may be src when dtype is F32 */
    void (*gelu)(void *dst, heddle_dtype dtype, const float *src, int64_t elems);
    /* In place on `heads` vectors of d elements: root-mean-square norm times weight [d] (NULL: none), then rotation of
     * the pairs (2i, 2i+1) by cos_sin [d/2][2] (NULL: none). */
    void (*norm_rotate)(void *x, heddle_dtype dtype, int64_t heads, int64_t d, const float *weight,
                        const float *cos_sin);
    /* Elementwise; BF16 is rounded to nearest even. dst may equal src only for equal types. */
    void (*convert)(void *dst, heddle_dtype dst_dtype, const void *src, heddle_dtype src_dtype, int64_t elems);

    /* scratch: attention_scratch_bytes(nk, d), 64-byte aligned */
    void (*attention)(const hd_attention_head *head, void *scratch);
    size_t (*attention_scratch_bytes)(int64_t nk, int64_t d);
} hd_block_kernels;

/* Gradients; f32 unless a dtype is named. "+=": added to. Sums over rows go from the first row to the last. */
typedef struct hd_block_back_kernels {
    const char *name; /* "reference" "avx2" "avx512" */

    /* dst = src * gate per row of c elements */
    void (*scale_rows)(float *dst, const float *src, int64_t rows, int64_t c, const float *gate);
    /* Backward of norm_modulate: dx += the gradient through src's norm, given dy; dshift += dy, dscale += dy * normed.
     * Rows of dx lie dx_stride elements apart, those of src and dy are dense; dx and src of one dtype. scale, dshift
     * and dscale may be NULL together. */
    void (*norm_back)(void *dx, int64_t dx_stride, const void *src, heddle_dtype dtype, const float *dy, int64_t rows,
                      int64_t c, const float *scale, float *dshift, float *dscale);
    /* active = gelu(src); dy, a gradient of that, becomes one of src */
    void (*gelu_back)(float *dy, float *active, const void *src, heddle_dtype dtype, int64_t elems);
    /* Backward of norm_rotate, in place on dy; src: what norm_rotate began with, may be NULL without weight;
     * dweight[d] += */
    void (*norm_rotate_back)(float *dy, const void *src, heddle_dtype dtype, int64_t heads, int64_t d,
                             const float *weight, const float *cos_sin, float *dweight);
    /* dst[n] += sum over rows, which lie `stride` elements apart */
    void (*add_columns)(float *dst, const float *src, int64_t rows, int64_t stride, int64_t n);
    /* dst += factor * src; returns the sum of src * other */
    float (*add_scaled)(float *dst, const float *src, const float *other, int64_t elems, float factor);
} hd_block_back_kernels;

const hd_block_back_kernels *hd_block_back_kernels_best(void);
const hd_block_back_kernels *hd_block_back_kernels_named(const char *name); /* NULL: unknown or not for this CPU */

const hd_block_kernels *hd_block_kernels_best(void);              /* the fastest this CPU can run */
const hd_block_kernels *hd_block_kernels_named(const char *name); /* NULL: unknown or not for this CPU */

static inline float hd_bf16_to_f32(uint16_t bits)
{
    union {
        uint32_t u;
        float f;
    } pun = {(uint32_t)bits << 16};
    return pun.f;
}

static inline uint16_t hd_f32_to_bf16(float value)
{
    union {
        float f;
        uint32_t u;
    } pun = {value};
    if ((pun.u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(pun.u >> 16 | 0x40u); /* quiet NaN, payload cut */
    }
    return (uint16_t)((pun.u + 0x7fffu + (pun.u >> 16 & 1u)) >> 16);
}

#endif
