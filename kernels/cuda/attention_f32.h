/* Attention in f32, without tensor units: tiles in a block's memory, and their products by FMA. A warp has 16 rows of a
 * result, of which a lane has every fourth: four lanes' rows lie between one another, and the eight lanes beside each
 * other have the same rows and every eighth column of scores, or every eighth piece of 16 bytes of results. Rows lie an
 * odd number of pieces apart, so that pieces of eight rows are in different banks. Every sum walks from 0 up. */
#ifndef HD_CUDA_ATTENTION_F32_H
#define HD_CUDA_ATTENTION_F32_H

#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernels.h"

typedef struct __attribute__((aligned(16))) hd_four {
    float at[4];
} hd_four;

enum { HD_F32_TALL = 4 /* rows of a lane */, HD_F32_ROWS = HD_F32_TALL * 4 /* of a warp */ };

/* Constant where they are called: width, a multiple of 32, and columns. */
#define HD_F32_STRIDE(width) ((width) / 4 + 1)
#define HD_F32_MOST_COLUMNS 8 /* of scores of a lane */
typedef float hd_f32_scores[HD_F32_TALL][HD_F32_MOST_COLUMNS];
typedef float hd_f32_sums[HD_F32_TALL][HD_DEVICE_MOST_HEAD / 8];

HD_DEV int hd_f32_row(void)
{
    return (int)HD_WARP * HD_F32_ROWS + (int)HD_LANE / 8;
}

/* Threads that a row of a tile is copied by, a power of two. */
#define HD_F32_LANES(width) ((width) > 64 ? 32 : (width) > 32 ? 16 : 8)

/* Asks for `rows` rows from row `first` on, zeros from row `end` on and in the rest of the last piece of d; columns
 * behind it are whatever they are. A thread has the same piece of all its rows. What does not lie in whole pieces is
 * there at once. */
HD_DEV void hd_f32_ask(hd_four *tile, const char *from, int64_t token, int32_t first, int32_t end, int rows,
                       const hd_attention_args *a, int width)
{
    const int column = (int)HD_THREAD % HD_F32_LANES(width), step = (int)HD_THREADS / HD_F32_LANES(width);
    int row = (int)HD_THREAD / HD_F32_LANES(width);
    const char *at = from + (first + row) * token * 4;
    hd_four *to = tile + row * HD_F32_STRIDE(width) + column;
    const int32_t left = a->d - column * 4, there = end - first;
    for (; row < rows && left > 0; row += step) {
        if (a->is_whole) {
            hd_copy_async_16(to, row < there ? at + column * 16 : from, row < there);
        } else {
            hd_four piece;
            hd_values_load(piece.at, at, column * 4, row < there ? left : 0, 4, HEDDLE_F32, 0);
            *to = piece;
        }
        at += step * token * 4;
        to += step * HD_F32_STRIDE(width);
    }
}

/* sum += a b^T over `pieces` pieces of either: this lane's rows of a, and its columns, which are rows of b. */
HD_DEV void hd_f32_dots(hd_f32_scores sum, const hd_four *a, const hd_four *b, int pieces, int columns, int width)
{
    const hd_four *own = a + hd_f32_row() * HD_F32_STRIDE(width), *other = b + HD_LANE % 8 * HD_F32_STRIDE(width);
    HD_UNROLL_2
    for (int k = 0; k < pieces; k++) {
        hd_four x[HD_F32_TALL], y[HD_F32_MOST_COLUMNS];
        HD_UNROLL
        for (int i = 0; i < HD_F32_TALL; i++) {
            x[i] = own[i * 4 * HD_F32_STRIDE(width) + k];
        }
        HD_UNROLL
        for (int j = 0; j < columns; j++) {
            y[j] = other[j * 8 * HD_F32_STRIDE(width) + k];
        }
        HD_UNROLL
        for (int n = 0; n < 4 * HD_F32_TALL; n++) {
            HD_UNROLL
            for (int j = 0; j < columns; j++) {
                float *to = &sum[n % HD_F32_TALL][j];
                *to = hd_fma(x[n % HD_F32_TALL].at[n / HD_F32_TALL], y[j].at[n / HD_F32_TALL], *to);
            }
        }
    }
}

/* Scores into this warp's rows of a tile of 8 `columns`, for all its lanes; and what lay there is not read any more. */
HD_DEV void hd_f32_leave(hd_four *tile, hd_f32_scores s, int columns)
{
    hd_four *own = tile + hd_f32_row() * HD_F32_STRIDE(8 * columns) + HD_LANE % 8 / 4;
    hd_sync_warp();
    HD_UNROLL
    for (int i = 0; i < HD_F32_TALL; i++) {
        HD_UNROLL
        for (int j = 0; j < columns; j++) {
            own[i * 4 * HD_F32_STRIDE(8 * columns) + j * 2].at[HD_LANE % 4] = s[i][j];
        }
    }
    hd_sync_warp();
}

/* sum += weight b, over `rows` rows of b and some more that are zeros: this lane's rows of weight, 8 `columns` wide. */
HD_DEV void hd_f32_mix(hd_f32_sums sum, const hd_four *weight, const hd_four *b, int rows, int columns, int width)
{
    const hd_four *own = weight + hd_f32_row() * HD_F32_STRIDE(8 * columns), *other = b + HD_LANE % 8;
    HD_UNROLL_2
    for (int k = 0; k * 4 < rows; k++) {
        hd_four x[HD_F32_TALL];
        HD_UNROLL
        for (int i = 0; i < HD_F32_TALL; i++) {
            x[i] = own[i * 4 * HD_F32_STRIDE(8 * columns) + k];
        }
        HD_UNROLL
        for (int n = 0; n < 4 * (width / 32); n++) {
            const hd_four y = other[(k * 4 + n / (width / 32)) * HD_F32_STRIDE(width) + n % (width / 32) * 8];
            HD_UNROLL
            for (int i = 0; i < HD_F32_TALL * 4; i++) {
                float *to = &sum[i / 4][n % (width / 32) * 4 + i % 4];
                *to = hd_fma(x[i / 4].at[n / (width / 32)], y.at[i % 4], *to);
            }
        }
    }
}

/* This lane's part of the result times a factor for each of its rows. */
HD_DEV void hd_f32_store(const hd_device_tokens *x, const hd_attention_args *a, const hd_attention_part *p,
                         int32_t first, int32_t end, hd_f32_sums sum, const float *factor, int width)
{
    HD_UNROLL
    for (int i = 0; i < HD_F32_TALL; i++) {
        const int32_t row = first + hd_f32_row() + i * 4;
        HD_UNROLL
        for (int c = 0; c < width / 32; c++) {
            const int32_t column = (c * 8 + (int32_t)(HD_LANE % 8)) * 4;
            if (row < end && column < a->d) {
                const float value[4] = {hd_mul(sum[i][c * 4], factor[i]), hd_mul(sum[i][c * 4 + 1], factor[i]),
                                        hd_mul(sum[i][c * 4 + 2], factor[i]), hd_mul(sum[i][c * 4 + 3], factor[i])};
                hd_values_store(hd_tokens_at(x, p, p->head, HEDDLE_F32) + row * x->token * 4, value, column,
                                a->d - column, 4, HEDDLE_F32, a->is_whole);
            }
        }
    }
}

#define HD_F32_KERNELS(kernel, name)                                                                                   \
    kernel(name##_f32_32, 32) kernel(name##_f32_64, 64) kernel(name##_f32_96, 96) kernel(name##_f32_128, 128)
#define HD_F32_ADDRESSES(name)                                                                                         \
    HD_KERNEL_ADDRESS(name##_f32_32), HD_KERNEL_ADDRESS(name##_f32_64), HD_KERNEL_ADDRESS(name##_f32_96),              \
        HD_KERNEL_ADDRESS(name##_f32_128)
#define HD_F32_LAUNCH_CASE(name, args, blocks, threads, bytes, stream, width)                                          \
    if (((args)->d + 31) / 32 * 32 == (width)) {                                                                       \
        HD_LAUNCH_SHARED(name, blocks, threads, bytes, stream, args);                                                  \
    }

/* As many warps as have any rows, up to 4: by the whole length, whoever holds how many fibres. */
static inline unsigned hd_f32_threads(int64_t n)
{
    return n <= HD_F32_ROWS ? 32 : n <= 2 * HD_F32_ROWS ? 64 : 128;
}

/* Whether rows are whole pieces, at multiples of 16 bytes. */
static inline int hd_f32_is_whole(const hd_device_tokens *x, int64_t d)
{
    return d % 4 == 0 && (uintptr_t)x->data % 16 == 0 && x->outer % 4 == 0 && x->inner % 4 == 0 && x->token % 4 == 0 &&
           x->head % 4 == 0;
}

#endif
