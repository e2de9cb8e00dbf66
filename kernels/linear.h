/* Linear attention with decay on chunks of rows, forward and backward, in f32 or f64. Plain pointers, no allocation.
 *
 * For one head with decay g in (0, 1], a chunk of c rows and 0 <= i, j < c:
 *
 *   weights    a_i = g^(i+1)   b_i = g^(c-1-i)   D_ij = g^(i-j) for j <= i, else 0 (bidirectional: g^|i-j|)
 *   left       state of all rows before the chunk, seen from the row before it:  sum over j of g^(distance) x_j y_j^T
 *   right      state of all rows behind it, seen from the chunk's last row (the row behind it counts g^1)
 *
 * A chunk's own contribution to the state on its right border is sum b_j x_j y_j^T ("left" for those behind), to the
 * one on its left border sum a_j x_j y_j^T ("right" for those before). States are [dk][padded(dv)], padding zero.
 *
 * Results of a row never read rows that it does not depend on when any input is not finite, so that a NaN spreads as in
 * the recurrence.
 */
#ifndef HD_KERNELS_LINEAR_H
#define HD_KERNELS_LINEAR_H

#include <heddle/layout.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hd_linear_dims {
    int64_t dk, dv;
    int64_t chunk_rows; /* largest chunk */
    int bidirectional;
} hd_linear_dims;

/* Rows of one head in somebody's array: element (i, c) at data + (i*row + c*column) elements. */
typedef struct hd_linear_rows {
    void *data;
    int64_t row, column;
    heddle_dtype dtype; /* the arithmetic's, or BF16 */
} hd_linear_rows;

typedef struct hd_linear_chunk {
    int64_t rows;
    hd_linear_rows q, k, v, d_o;                   /* read */
    hd_linear_rows o, dq, dk, dv;                  /* written; must not overlap what is read */
    hd_linear_rows o_so_far, dk_so_far, dv_so_far; /* read by the second half; may be what is written */
} hd_linear_chunk;

typedef struct hd_linear_kernels {
    const char *name; /* "generic" "avx2" "avx512" "f64" */
    size_t real_bytes;
    int64_t (*padded)(int64_t columns);
    size_t (*scratch_bytes)(const hd_linear_dims *dims);
    /* Before the calls below, per head: powers of its decay. scratch: 64-byte aligned. */
    void (*begin)(void *scratch, const hd_linear_dims *dims, double decay);

    /* to_left = sum b_i x_i y_i^T, to_right = sum a_i x_i y_i^T with x, y = k, v or (gradient) q, d_o; NULL: not wanted
     */
    void (*states)(void *scratch, const hd_linear_chunk *chunk, int gradient, void *to_left, void *to_right);
    /* dst = factor * state + add, elems of them (padding included); dst may be state */
    void (*fold)(void *dst, double factor, const void *state, const void *add, int64_t elems);
    /* dst = factor * src */
    void (*scale)(void *dst, double factor, const void *src, int64_t elems);

    /* o = ((q k^T) * D) v */
    void (*inner)(void *scratch, const hd_linear_chunk *chunk);
    /* o = o_so_far + a (q left) + b (q right); either state may be NULL */
    void (*outer)(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right);
    /* Causal, all at once: o, and state moves from the chunk's left border to its right one. */
    void (*forward)(void *scratch, const hd_linear_chunk *chunk, void *state);

    /* dq from everything; dk and dv from the chunk itself. left, right: states of k and v, NULL: none */
    void (*inner_back)(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right);
    /* dk = dk_so_far + b (v right^T) + a (v left^T), dv = dv_so_far + b (k right) + a (k left); states of q and d_o */
    void (*outer_back)(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right);
} hd_linear_kernels;

#endif
