/* Sums over a row, of which a lane keeps the first pieces. */
#ifndef HD_CUDA_ROW_SUM_H
#define HD_CUDA_ROW_SUM_H

#include "kernels/cuda/rows.h"

enum { HD_ROW_HELD = 8 /* pieces; what is left of longer rows is read again */ };

/* x - mean, or its square, of one piece */
HD_DEV float hd_piece_sum(float sum, const hd_lane_piece *p, int32_t left, heddle_dtype dtype, float mean,
                          int is_square)
{
    HD_UNROLL
    for (int i = 0; i < hd_piece_elems(dtype); i++) {
        if (i < left) {
            const float delta = hd_piece_get(p, i, dtype) - mean;
            sum = is_square ? hd_fma(delta, delta, sum) : sum + delta;
        }
    }
    return sum;
}

/* Over the row; the first time, which is that of no mean, it is loaded. */
HD_DEV float hd_row_sum(const char *row, const hd_rows_args *of, hd_lane_piece *held, heddle_dtype dtype, float mean,
                        int is_square)
{
    const int32_t per = hd_piece_elems(dtype), first = (int32_t)HD_LANE * per;
    float sum = 0;
    HD_UNROLL
    for (int u = 0; u < HD_ROW_HELD; u++) {
        const int32_t at = first + u * 32 * per;
        if (at < of->c) {
            if (!is_square) {
                held[u] = hd_piece_load(row, at, of->c - at, dtype, of->is_whole);
            }
            sum = hd_piece_sum(sum, &held[u], of->c - at, dtype, mean, is_square);
        }
    }
    HD_NOT_UNROLLED
    for (int32_t at = first + HD_ROW_HELD * 32 * per; at < of->c; at += 32 * per) {
        const hd_lane_piece p = hd_piece_load(row, at, of->c - at, dtype, of->is_whole);
        sum = hd_piece_sum(sum, &p, of->c - at, dtype, mean, is_square);
    }
    return hd_group_sum(sum, 32);
}

#endif
