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
    int64_t nq, nk, d;       /* d 1 to HD_DEVICE_MOST_HEAD */
    float scale;             /* > 0 */
    int64_t diagonal;        /* query i sees keys j <= i + diagonal; nk: all. Keys that are hidden must be finite */
    /* [outer / fibres_of_length] keys of those fibres, from 0 to nk, read by the kernel; NULL: nk of all. Keys behind
     * them are not read; a query that sees none gets zeros. */
    const int32_t *lengths;
    int64_t fibres_of_length;
    hd_device_tokens q, k, v, o;
    float *stats; /* [outer][inner][heads][nq][2] what backward needs; NULL: not wanted */
} hd_device_attention;

/* The gradients; each is written, not added to. dq, dk and dv are of the same type and lie as they say. */
typedef struct hd_device_attention_back {
    hd_device_attention of; /* as it was in forward */
    hd_device_tokens d_o, dq, dk, dv;
    float *delta; /* [outer][inner][heads][nq] gets the sums of o d_o */
} hd_device_attention_back;

#endif
