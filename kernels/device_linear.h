/* What launchers of linear attention on a device are asked (kernels/table_device.h). For each head of each fibre, with
 * decay g in (0, 1]:
 *
 *   o[i] = sum over j <= i of g^(i-j) (q[i] k[j]) v[j]        or over j >= i of g^(j-i); without j = i where that is so
 *
 * A fibre is cut into segments, and a segment is walked by rows: within a chunk of them by products, from chunk to
 * chunk by a state [dk][dv], the sum of g^distance k[j] v[j] of the rows before, seen from the nearest of them. A
 * segment's *part* of a state is that of its rows alone; from the parts of all segments `linear_states` makes the
 * states in front of each. Gradients are the same sums with roles changed:
 *
 *   dq = o of (do, v, k)      dk = o of (v, do, q), the other way      dv = o of (k, q, do), the other way
 *
 * where dq's states are those of (k, v) transposed, and dk's those of dv.
 *
 * Types are F32, BF16 and F16; sums and states are f32. In BF16 and F16 scores and states are rounded to the type
 * before they are multiplied. What is not finite spreads over its chunk of rows. A row's result is a function of its
 * fibre, its segment's borders and what came before it, not of how many fibres there are; nothing is added by atomics.
 *
 * BF16 and F16 want widths that are multiples of 8, and addresses and strides of 16 bytes.
 */
#ifndef HD_KERNELS_DEVICE_LINEAR_H
#define HD_KERNELS_DEVICE_LINEAR_H

#include "kernels/device_attention.h"

enum { HD_DEVICE_LINEAR_ROWS = 64 /* segments are of whole chunks of so many rows */ };

typedef struct hd_device_linear {
    heddle_dtype dtype;
    int64_t outer, inner, heads; /* fibres of either dim */
    int64_t n, dk, dv;           /* dk, dv 1 to HD_DEVICE_MOST_HEAD */
    int64_t segment_rows;        /* a multiple of HD_DEVICE_LINEAR_ROWS */
    int descends;                /* over j >= i: the rows before are those behind */
    int skips_own;               /* not j = i */
    const float *log2_decay;     /* [heads] on the device */
    hd_device_tokens q, k, v, o; /* o.data NULL: parts of states are wanted, not results; then q is not read */
    hd_device_tokens before;     /* f32, added to o; data NULL: nothing. May be o in F32 */
    int gives_f32;               /* o is f32 whatever the type is */
    /* [outer][inner][heads][segments][dk][dv]: gets parts, or has the state in front of each segment; then NULL is
     * zeros, and where it is turned it has [dv][dk]. */
    float *states;
    int is_turned;
    float *end; /* [outer][inner][heads][dk][dv] gets the state behind the fibre, with results; NULL: not wanted */
} hd_device_linear;

/* States from parts, of `count` heads of fibres, head n being head n % heads; in order, or from the last segment to the
 * first. */
typedef struct hd_device_linear_states {
    int64_t count, heads, elems; /* elems: dk dv */
    int64_t n, segment_rows;
    int descends;
    const float *log2_decay;
    const float *in; /* [count][elems] in front of the fibre; NULL: zeros */
    float *out;      /* [count][elems] behind it; may be in; NULL: not wanted */
    float *states;   /* [count][segments][elems] parts; NULL: zeros */
    int spreads;     /* they become the states in front of their segments */
} hd_device_linear_states;

/* The norm behind linear attention: dense rows of `heads` vectors of d. y = x f of each, f = 1 / sqrt(<x, x> / d + d
 * epsilon); `factors` [rows][heads] gets f, NULL: not wanted. x is f32, y of dtype. */
typedef struct hd_device_head_norm {
    heddle_dtype dtype;
    int64_t rows, heads, d; /* d 1 to HD_DEVICE_MOST_HEAD */
    void *y;
    float *x, *factors; /* backward: x gets the gradient of x from dy, y and factors */
    const void *dy;     /* of dy_dtype, dtype or F32; forward: NULL */
    heddle_dtype dy_dtype;
} hd_device_head_norm;

#endif
