/* What launchers of attention on a device are asked (kernels/table_device.h).
 *
 *   o[i] = sum over j of softmax_j(scale q[i] k[j]) v[j]        of every head of every fibre
 *
 * Arrays are read where they lie, by strides, so that attention along any dim needs no permutation. Types are F32, BF16
 * and F16; sums are f32, weights are rounded to the type before they are multiplied by values. A query's result is a
 * function of that query and the keys of its fibre, a key's gradients of that key and the queries of its fibre: not of
 * how many fibres there are, nor of which blocks run when. Nothing is added by atomics.
 *
 * BF16 and F16 want a width that is a multiple of 8, and addresses and strides of 16 bytes.
 */
#ifndef HD_KERNELS_DEVICE_ATTENTION_H
#define HD_KERNELS_DEVICE_ATTENTION_H

#include <heddle/layout.h>
#include <stdint.h>

enum { HD_DEVICE_MOST_HEAD = 128 };

/* Token t of head h of fibre (o, i) lies o * outer + i * inner + t * token + h * head elements behind `data`. */
typedef struct hd_device_tokens {
    void *data;
    int64_t outer, inner, token, head;
} hd_device_tokens;

typedef struct hd_device_attention {
    heddle_dtype dtype;
    int64_t outer, inner;    /* fibres of either dim */
    int64_t heads, kv_heads; /* head h reads key head h / (heads / kv_heads) */
    int64_t group, skipped;  /* group > 0: (h + skipped) / group instead, skipped < group */
    int64_t nq, nk, d;       /* d 1 to HD_DEVICE_MOST_HEAD */
    float scale;             /* > 0 */
    int64_t diagonal;        /* query i sees keys j <= i + diagonal; nk: all. Keys that are hidden must be finite */
    /* [outer / fibres_of_length] keys of those fibres, from 0 to nk, read by the kernel; NULL: nk of all. Keys behind
     * them are not read; a query that sees none gets zeros. */
    const int32_t *lengths;
    int64_t fibres_of_length;
    hd_device_tokens q, k, v, o;
    int gives_f32; /* o is f32 whatever the type is: one part of the keys, to be merged with others */
    float *stats;  /* [outer][inner][heads][nq][2] what backward needs; NULL: not wanted */
} hd_device_attention;

/* The gradients; each is written, not added to. dq, dk and dv are of the same type and lie as they say. Of some of the
 * keys: o and stats are those of all keys, then dq is these keys' part of it. */
typedef struct hd_device_attention_back {
    hd_device_attention of; /* as it was in forward; o is of the type */
    hd_device_tokens d_o, dq, dk, dv;
    int gives_f32; /* dq, dk and dv are f32 whatever the type is */
    float *delta;  /* [outer][inner][heads][nq] of scratch, for the sums of o d_o */
    /* attention_back_bytes(&of) of scratch, for sums over parts of the queries where those are many; the parts are said
     * by how many queries and keys there are. NULL: all queries of a key are one block's. */
    float *part;
} hd_device_attention_back;

/* Tokens from one place, type and order to another: every head of every fibre. dst = src, rounded once, or, in F32,
 * dst += src. src.data NULL: zeros. */
typedef struct hd_device_arrange {
    int64_t outer, inner, heads, n, d; /* d: any */
    hd_device_tokens dst, src;
    heddle_dtype dst_dtype, src_dtype;
    int adds;
} hd_device_arrange;

/* Softmax over two sets of keys from softmax over either, f32: o and stats of one, which get the result, and of the
 * other; dense rows of d, and of 2, as stats of attention lie. */
typedef struct hd_device_merge {
    int64_t rows, d;
    float scale; /* as attention's */
    float *o, *stats;
    const float *other, *other_stats;
} hd_device_merge;

/* The logarithm of the sum of exp(scale q k) of each query, from its stats; out.data f32, out.inner unused. */
typedef struct hd_device_log_sum {
    int64_t outer, heads, n;
    float scale;
    const float *stats; /* [outer][heads][n][2] */
    hd_device_tokens out;
} hd_device_log_sum;

#endif
