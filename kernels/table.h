/* The kernel table of a device that this process computes on: one slot and one signature per operation.
 *
 * A table is filled once, from the scalar reference, and then slot by slot by what the CPU's vectors do better. Whoever
 * computes takes the table once, where its object is made, and keeps the pointer; nothing looks a kernel up inside a
 * loop. Kernels work on plain pointers and strides, and neither communicate nor allocate.
 */
#ifndef HD_KERNELS_TABLE_H
#define HD_KERNELS_TABLE_H

#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/linear.h"
#include "kernels/training.h"

#include <heddle/status.h>

/* dst[i] = src[0][i] + src[1][i] + ... in this order, nsrc >= 1; 16- and 8-bit floats are summed in f32 and rounded
 * once, f32 in f32, f64 in f64, integers modulo 2^n, bool as or. dst may be src[0], and must not overlap another. */
typedef void (*hd_sum_fn)(void *dst, const void *const *src, int nsrc, int64_t elems);

enum { HD_MOST_COPIES = 32 };

/* Element [i][j][k][l] of somebody's array lies i * stride[0] + j * stride[1] + ... elements behind data. */
typedef struct hd_strided {
    void *data;
    int64_t extent[4], stride[4];
} hd_strided;

typedef struct hd_kernels {
    const char *name; /* "generic" "avx2" "avx512" */

    /* Strided copies to choose among: all this CPU can run, copy[0] the reference. hd_copy_candidates chooses. */
    hd_copy_kernel copy[HD_MOST_COPIES];
    int copies;

    /* run_bytes zeros at every step of the loops, the outermost first */
    void (*clear)(void *dst, int64_t run_bytes, int nloops, const int64_t *count, const int64_t *stride_bytes);

    hd_sum_fn sum[HEDDLE_DTYPE_COUNT];
    /* The same bits, past the caches, where the CPU can: for long rows. Fences before it returns. */
    hd_sum_fn sum_streamed[HEDDLE_DTYPE_COUNT];

    /* --- between a strided array and dense ones of its extents */

    void (*pack)(void *dense, const hd_strided *src, int64_t elem_bytes);
    /* dst = the sum of nsrc dense arrays, added in this order in f64 and rounded once; none: zeros */
    void (*unpack)(const hd_strided *dst, heddle_dtype dtype, const void *const *src, int nsrc, heddle_dtype src_dtype);

    /* Elementwise, F32 and BF16 (rounded to nearest even). dst may equal src only for equal types. */
    void (*convert)(void *dst, heddle_dtype dst_dtype, const void *src, heddle_dtype src_dtype, int64_t elems);

    /* --- rows of blocks. Every result element is computed by the same sequence of operations wherever it lies: in
     * which lane, in which row, how many rows there are. Tables may differ from one another in the last bits. */

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

    /* On `heads` vectors of d elements: y = x * inverse, which is 1 / sqrt(mean square of x + 1e-6 d); NULL: it is not
     * wanted. y may be x where dtype is F32 */
    void (*head_norm)(void *y, heddle_dtype dtype, float *inverse, const float *x, int64_t heads, int64_t d);

    /* --- their gradients; f32 unless a dtype is named. "+=": added to. Sums over rows go from the first row to the
     * last. */

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
    void (*add_columns_bf16)(float *dst, const uint16_t *src, int64_t rows, int64_t stride, int64_t n);
    /* dst += factor * src; returns the sum of src * other */
    float (*add_scaled)(float *dst, const float *src, const float *other, int64_t elems, float factor);
    /* Backward of head_norm; y, inverse: what it left */
    void (*head_norm_back)(float *dx, const float *dy, const void *y, heddle_dtype dtype, const float *inverse,
                           int64_t heads, int64_t d);

    /* --- optimisers */

    void (*adamw)(const hd_adamw_step *step, float *param, const float *grad, float *mean, float *square,
                  int64_t elems);
    void (*divide)(float *dst, const float *src, float divisor, int64_t elems);
    void (*add_squares)(hd_squares *squares, const float *values, int64_t elems);

    /* --- attention of one head of one fibre; scratch: attention_scratch_bytes(nk, d), 64-byte aligned. Scores are
     * those of attn_f32, bit for bit. */
    void (*attention)(const hd_attention_head *head, void *scratch);
    size_t (*attention_scratch_bytes)(int64_t nk, int64_t d);

    /* --- attention and linear attention on blocks of rows; the signatures are of the arithmetic in f32 and in f64 */
    hd_attn_kernels attn_f32, attn_f64;
    hd_linear_kernels linear_f32, linear_f64;
} hd_kernels;

/* The CPU's table: the widest instruction set that the CPU has and HEDDLE_CPU ("avx512", "avx2", "generic"; unset or
 * empty: any) leaves. HEDDLE_ERR_ARG: HEDDLE_CPU is something else. */
heddle_status hd_kernels_cpu(const hd_kernels **out);
/* One table by name; NULL: unknown, not for this CPU, or left out by HEDDLE_CPU. */
const hd_kernels *hd_kernels_named(const char *name);

/* Of the arithmetic's type, F32 or F64. */
static inline const hd_attn_kernels *hd_kernels_attn(const hd_kernels *kernels, heddle_dtype real)
{
    return real == HEDDLE_F64 ? &kernels->attn_f64 : &kernels->attn_f32;
}

static inline const hd_linear_kernels *hd_kernels_linear(const hd_kernels *kernels, heddle_dtype real)
{
    return real == HEDDLE_F64 ? &kernels->linear_f64 : &kernels->linear_f32;
}

#endif
