/* Attention on blocks of queries and keys, forward and backward, in f32 or f64. Plain pointers, no allocation.
 *
 * Rows are dense, of width d. A block sees keys j <= i + diagonal for query i (both counted in the block); diagonal >=
 * nk - 1 means all. Keys that are not seen are never read, so that a NaN behind a mask stays behind it.
 */
#ifndef HD_KERNELS_ATTENTION_H
#define HD_KERNELS_ATTENTION_H

#include <heddle/layout.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hd_attn_block {
    const void *q; /* [nq][d] */
    const void *k; /* [nk][d] */
    const void *v; /* [nk][d] */
    int64_t nq, nk, d;
    int64_t diagonal;
    double scale;
} hd_attn_block;

/* Online softmax, carried from block to block: top = largest score so far (-infinity at first), sum = sum of exp(score
 * - top), acc = sum of exp(score - top) v. The largest score's own weight is 1, so the sum of a row that has seen a key
 * is 1 or more. Where acc would leave the range of the type, as a sum of many large values does though their mean is
 * within, the row's acc and sum are kept 2^-32 times as large; a sum between 0 and 1 says so. */
typedef struct hd_attn_carry {
    void *acc; /* [nq][d] */
    void *top; /* [nq] */
    void *sum; /* [nq] */
} hd_attn_carry;

typedef struct hd_attn_grad {
    const void *d_o;     /* [nq][d] */
    const void *top;     /* [nq] what finish leaves: a score's weight is exp((score - top) - log_sum) */
    const void *log_sum; /* [nq] */
    const void *delta;   /* [nq] sum of o * d_o */
    void *dq;            /* [nq][d], added to */
    void *dk;            /* [nk][d], added to */
    void *dv;            /* [nk][d], added to */
} hd_attn_grad;

/* Part of a matrix of scores or weights: rows of `stride` elements. */
typedef struct hd_attn_matrix {
    void *data;
    int64_t stride;
} hd_attn_matrix;

typedef struct hd_attn_kernels {
    const char *name; /* "generic" "avx2" "avx512" "f64" */
    size_t real_bytes;
    /* 64-byte aligned, for any block of width d */
    size_t (*scratch_bytes)(int64_t d);
    void (*forward)(const hd_attn_block *block, const hd_attn_carry *carry, void *scratch);
    /* acc becomes o, sum its logarithm. lse: NULL or gets top + log_sum, rounded: of large scores too coarse to make
     * weights from. seen 0: these rows saw no key at all; o becomes 0, lse -infinity. */
    void (*finish)(const hd_attn_carry *carry, void *lse, int seen, int64_t nq, int64_t d);
    /* Scores are computed by the same operations as in forward, bit for bit. */
    void (*backward)(const hd_attn_block *block, const hd_attn_grad *grad, void *scratch);
    /* delta[i] = sum of a[i] * b[i] over d */
    void (*row_dots)(void *delta, const void *a, const void *b, int64_t rows, int64_t d);

    /* Whole score rows: s = scale * q k^T where seen, `hidden` elsewhere */
    void (*scores)(const hd_attn_block *block, const hd_attn_matrix *s, double hidden, void *scratch);
    /* In place over `columns`, those of -infinity become 0; lse per row or NULL; seen as above */
    void (*softmax)(const hd_attn_matrix *s, int64_t rows, int64_t columns, void *lse, int seen);
    /* ds = factor * p * (dp - sum(p * dp)) per row, into dp */
    void (*softmax_back)(const hd_attn_matrix *p, const hd_attn_matrix *dp, int64_t rows, int64_t columns,
                         double factor);
    /* out[nq][d] += s b (rows of b: keys), where seen */
    void (*mix)(const hd_attn_block *mask, const hd_attn_matrix *s, const void *b, void *out);
    /* out[nk][d] += s^T b (rows of b: queries), where seen */
    void (*mix_back)(const hd_attn_block *mask, const hd_attn_matrix *s, const void *b, void *out);
    /* dst += src */
    void (*add)(void *dst, const void *src, int64_t elems);
    void (*fill)(void *dst, double value, int64_t elems);
    /* dst[na][nb] += <a[i], b[j]> over d */
    void (*add_dots)(void *dst, const void *a, int64_t na, const void *b, int64_t nb, int64_t d);
} hd_attn_kernels;

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
     * they are too coarse to make weights of large scores from. NULL: not wanted. */
    float *top, *log_sum;
} hd_attention_head;

#endif
