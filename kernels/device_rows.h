/* What launchers of row kernels are asked (kernels/table_device.h): the rows of blocks on a device, and their
 * gradients.
 *
 * Types are F32, BF16 and F16; arithmetic is f32, each result is rounded once. A row's result is a function of that row
 * and its conditioning: not of how many rows there are, where they lie, nor how their memory is aligned. Sums over rows
 * go in two stages and an order that the rows' number alone decides; nothing is added by atomics.
 *
 * Most: 2^31 - 1 rows, 2^30 elements of a row. Memory of any alignment that its type allows; that of 16 bytes, and rows
 * of whole 16 bytes, are the fast ones.
 */
#ifndef HD_KERNELS_DEVICE_ROWS_H
#define HD_KERNELS_DEVICE_ROWS_H

#include <heddle/layout.h>
#include <stdint.h>

/* Dense rows of c elements. Row r is of sample r / sample_rows, whose vectors of conditioning, [c] f32, lie so many
 * times sample_stride elements behind the first one's. */
typedef struct hd_device_rows {
    heddle_dtype dtype;
    int64_t rows, c;
    int64_t sample_rows; /* 0: all are of one sample */
    int64_t sample_stride;
} hd_device_rows;

/* What dense rows x still get: x + gate * y, rounded once, and keep gets them as they are. */
typedef struct hd_device_gate {
    hd_device_rows rows;
    const float *y;    /* [rows][c] */
    const float *gate; /* vectors of conditioning; NULL: 1 */
    void *keep;        /* NULL: nowhere */
} hd_device_gate;

/* Rows and vectors are whole pieces of 16 bytes at multiples of 16, as those who give rows away by pieces want them. */
static inline int hd_device_gate_is_whole(const hd_device_gate *g)
{
    const int per = g->rows.dtype == HEDDLE_F32 ? 4 : 8;
    return g->rows.c % per == 0 && g->rows.rows * (g->rows.c / per) <= INT32_MAX && g->rows.sample_stride % 4 == 0 &&
           ((uintptr_t)g->y | (uintptr_t)g->gate | (uintptr_t)g->keep) % 16 == 0;
}

/* `heads` vectors of d elements beside one another in each row: d even, at most HD_DEVICE_MOST_WIDTH. */
enum { HD_DEVICE_MOST_WIDTH = 128 };

typedef struct hd_device_heads {
    heddle_dtype dtype;
    int64_t rows, heads, d;
    int64_t row_stride;    /* elements */
    const float *weight;   /* [d] of the root-mean-square norm; NULL: none */
    const float *cos_sin;  /* [extent][d / 2][2] by which pairs turn; NULL: they do not */
    int64_t inner, extent; /* row r is at position r / inner % extent */
    int64_t to_stride;     /* of the rows that norm_rotate's results go to; 0: row_stride */
    /* As many vectors again, `second_at` elements behind the first ones of a row, with a weight of their own; 0: there
     * are none. */
    int64_t second_at;
    const float *second_weight;
} hd_device_heads;

/* Sums over rows, column by column: of src, and, where other is given, of src (other - mean) / deviation. */
typedef struct hd_device_columns {
    heddle_dtype dtype, src_dtype; /* of other; of src, which is that or F32 */
    int64_t rows, n;
    int64_t stride;      /* elements from row to row of src; those of other are dense */
    int64_t sample_rows; /* sums are of each sample's rows; 0: all are of one */
    const void *src, *other;
    const float *stats; /* [rows][2] what norm_back leaves of other; NULL: as it is */
} hd_device_columns;

#endif
