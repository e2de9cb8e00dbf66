/* Sums over a row, of which a lane keeps the first pieces. What is constant where a function is called: the type,
 * is_whole (HD_ROWS_EITHER), and how many pieces are kept. */
#ifndef HD_CUDA_ROW_SUM_H
#define HD_CUDA_ROW_SUM_H

#include "kernels/cuda/rows.h"

/* Pieces: of all rows but long ones, whose kernel takes more registers, and so runs fewer warps. What is left of still
 * longer ones is read again. */
enum { HD_ROW_HELD = 5, HD_ROW_HELD_LONG = 8 };

static inline int hd_row_is_long(const hd_device_rows *of)
{
    return of->c > HD_ROW_HELD * 32 * (of->dtype == HEDDLE_F32 ? 4 : 8);
}

/* The launch of one of two kernels, which ends its function. */
#define HD_ROWS_LAUNCH_HELD(name, of, args, stream)                                                                    \
    do {                                                                                                               \
        if (hd_rows_are_right(of) && hd_row_is_long(of)) {                                                             \
            HD_ROWS_LAUNCH(name##_long, of, args, stream);                                                             \
        }                                                                                                              \
        HD_ROWS_LAUNCH(name, of, args, stream);                                                                        \
    } while (0)

/* Where piece u of a lane begins, and how much of the row is left there. */
HD_DEV int32_t hd_held_at(int u, heddle_dtype dtype)
{
    return ((int32_t)HD_LANE + u * 32) * hd_piece_elems(dtype);
}

/* Where what is not kept begins: only long rows have any. */
HD_DEV int32_t hd_rest_at(int most, heddle_dtype dtype)
{
    return most == HD_ROW_HELD_LONG ? hd_held_at(most, dtype) : INT32_MAX;
}

HD_DEV int32_t hd_left_at(const hd_rows_args *of, int32_t at, heddle_dtype dtype, int is_whole)
{
    return is_whole ? hd_piece_elems(dtype) : of->c - at;
}

/* All of them are on their way before the first is looked at. */
HD_DEV void hd_row_hold(hd_lane_piece *held, const char *row, const hd_rows_args *of, heddle_dtype dtype, int most,
                        int is_whole)
{
    HD_UNROLL
    for (int u = 0; u < most; u++) {
        const int32_t at = hd_held_at(u, dtype);
        if (at < of->c) {
            held[u] = hd_piece_load(row, at, of->c - at, dtype, is_whole);
        }
    }
}

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

/* Over the row. */
HD_DEV float hd_row_sum(const char *row, const hd_rows_args *of, const hd_lane_piece *held, heddle_dtype dtype,
                        int most, int is_whole, float mean, int is_square)
{
    const int32_t per = hd_piece_elems(dtype);
    float sum = 0;
    HD_UNROLL
    for (int u = 0; u < most; u++) {
        const int32_t at = hd_held_at(u, dtype);
        if (at < of->c) {
            sum = hd_piece_sum(sum, &held[u], hd_left_at(of, at, dtype, is_whole), dtype, mean, is_square);
        }
    }
    HD_NOT_UNROLLED
    for (int32_t at = hd_rest_at(most, dtype); at < of->c; at += 32 * per) {
        const hd_lane_piece p = hd_piece_load(row, at, of->c - at, dtype, is_whole);
        sum = hd_piece_sum(sum, &p, hd_left_at(of, at, dtype, is_whole), dtype, mean, is_square);
    }
    return hd_group_sum(sum, 32);
}

#endif
