/* Tiles of 16-bit matrices in a block's memory, and their products by warps: each has 16 rows of the result, or twice
 * as many (wide 2), for half as many loads a product. Rows lie an odd number of 8 elements apart, so that the 8 rows of
 * a matrix that is loaded at once lie in different banks. */
#ifndef HD_CUDA_TILE_H
#define HD_CUDA_TILE_H

#include "kernels/cuda/attention.h"

enum { HD_TILE_ROWS = 64, HD_TILE_MOST_WIDE = 2 };

/* Constant where it is called: width, a multiple of 8, and type. */
#define HD_TILE_STRIDE(width) ((width) % 16 == 0 ? (width) + 8 : (width))
#define HD_TILE_PARTS(width) (((width) + 15) / 16)
#define HD_TILE_ELEMS(width) (HD_TILE_ROWS * HD_TILE_STRIDE(width))

/* Lanes that a row of a tile is copied by, a power of two. */
#define HD_TILE_LANES(width) ((width) > 64 ? 16 : (width) > 32 ? 8 : 4)

/* Asks for `rows` rows from row `first` on, zeros from row `end` and column d on. A thread has the same columns of all
 * its rows. */
HD_DEV void hd_tile_ask(uint16_t *tile, const char *from, int64_t token, int32_t first, int32_t end, int32_t d,
                        int rows, int width)
{
    const int column = (int)HD_THREAD % HD_TILE_LANES(width) * 8, step = (int)HD_THREADS / HD_TILE_LANES(width);
    int row = (int)HD_THREAD / HD_TILE_LANES(width);
    const char *at = from + ((first + row) * token + column) * 2;
    uint16_t *to = tile + row * HD_TILE_STRIDE(width) + column;
    const int32_t there = column < d ? end - first : 0;
    for (; row < rows && column < width; row += step) {
        hd_copy_async_16(to, row < there ? at : from, row < there);
        at += step * token * 2;
        to += step * HD_TILE_STRIDE(width);
    }
}

HD_DEV void hd_tile_mma(float *sum, const uint32_t *a, const uint32_t *b, heddle_dtype dtype)
{
    if (dtype == HEDDLE_BF16) {
        hd_mma_bf16(sum, a, b);
    } else {
        hd_mma_f16(sum, a, b);
    }
}

/* Rows of a warp are `wide` times 16; part k of each is 16 columns of 16 rows, as products take them. Of the last part
 * there may be 8 columns alone: zeros for the rest. */
HD_DEV void hd_tile_part(uint32_t *part, const uint16_t *a, int k, int wide, int i, int width)
{
    const int row = ((int)HD_WARP * wide + i) * 16 + (int)HD_LANE % 16, is_whole = k < width / 16;
    const uint16_t *from = a + row * HD_TILE_STRIDE(width) + (int)HD_LANE / 16 * 8 + k * 16;
    hd_load_matrix_4(part, is_whole ? from : from - HD_LANE / 16 * 8);
    if (!is_whole) {
        part[2] = part[3] = 0;
    }
}

/* All parts of this warp's 16 rows. */
HD_DEV void hd_tile_hold(uint32_t (*held)[4], const uint16_t *a, int width)
{
    HD_UNROLL
    for (int k = 0; k < HD_TILE_PARTS(width); k++) {
        hd_tile_part(held[k], a, k, 1, 0, width);
    }
}

/* sum[wide n][8] of this warp's rows of a, over the columns of both: a b^T, n times 8 rows of b. held: a's parts, where
 * they are held already (wide 1); NULL: none. */
HD_DEV void hd_tile_dots(float (*sum)[4], const uint16_t *a, const uint32_t (*held)[4], const uint16_t *b, int n,
                         int wide, int width, heddle_dtype dtype)
{
    const uint16_t *b_row = b + (HD_LANE / 16 * 8 + HD_LANE % 8) * HD_TILE_STRIDE(width) + HD_LANE / 8 % 2 * 8;
    HD_UNROLL
    for (int k = 0; k < HD_TILE_PARTS(width); k++) {
        const int is_whole = k < width / 16;
        uint32_t of_a[HD_TILE_MOST_WIDE][4];
        HD_UNROLL
        for (int i = 0; i < wide && held == 0; i++) {
            hd_tile_part(of_a[i], a, k, wide, i, width);
        }
        HD_UNROLL
        for (int j = 0; j < n; j += 2) {
            uint32_t of_b[4];
            const uint16_t *from = b_row + j * 8 * HD_TILE_STRIDE(width) + k * 16;
            hd_load_matrix_4(of_b, is_whole ? from : from - HD_LANE / 8 % 2 * 8);
            if (!is_whole) {
                of_b[1] = of_b[3] = 0;
            }
            HD_UNROLL
            for (int i = 0; i < wide; i++) {
                hd_tile_mma(sum[i * n + j], held != 0 ? held[k] : of_a[i], of_b, dtype);
                hd_tile_mma(sum[i * n + j + 1], held != 0 ? held[k] : of_a[i], of_b + 2, dtype);
            }
        }
    }
}

/* sum[wide width / 8][8] += a b: a part of each, 16 rows of b. */
HD_DEV void hd_tile_add(float (*sum)[4], const uint32_t (*of_a)[4], const uint16_t *b, int wide, int width,
                        heddle_dtype dtype)
{
    const uint16_t *b_row = b + HD_LANE % 16 * HD_TILE_STRIDE(width) + HD_LANE / 16 * 8;
    HD_UNROLL
    for (int j = 0; j < width / 8; j += 2) {
        const int is_whole = j + 1 < width / 8;
        uint32_t of_b[4];
        hd_load_matrix_4_turned(of_b, b_row + j * 8 - (is_whole ? 0 : HD_LANE / 16 * 8));
        HD_UNROLL
        for (int i = 0; i < wide; i++) {
            hd_tile_mma(sum[i * (width / 8) + j], of_a[i], of_b, dtype);
            if (is_whole) {
                hd_tile_mma(sum[i * (width / 8) + j + 1], of_a[i], of_b + 2, dtype);
            }
        }
    }
}

/* Weights [16][16 parts], as products left them, as products take them. */
HD_DEV void hd_tile_round(uint32_t (*part)[4], const float (*weight)[4], int parts, heddle_dtype dtype)
{
    HD_UNROLL
    for (int i = 0; i < parts * 4; i++) {
        const float *pair = &weight[i / 2][i % 2 * 2];
        part[i / 4][i % 4] = hd_half_pair(pair[0], pair[1], dtype);
    }
}

/* The same of 8 n rows of b: weight [wide][16][8 n] as products left it, rounded to the type. */
HD_DEV void hd_tile_mix(float (*sum)[4], const float (*weight)[4], const uint16_t *b, int n, int wide, int width,
                        heddle_dtype dtype)
{
    HD_UNROLL
    for (int k = 0; k < n; k += 2) {
        uint32_t of_a[HD_TILE_MOST_WIDE][4];
        HD_UNROLL
        for (int i = 0; i < wide; i++) {
            hd_tile_round(of_a + i, weight + i * n + k, 1, dtype);
        }
        hd_tile_add(sum, of_a, b + k * 8 * HD_TILE_STRIDE(width), wide, width, dtype);
    }
}

/* This warp's 16 rows of the result, by way of its rows of a tile that nobody else reads any more. */
HD_DEV void hd_tile_store(char *to, int64_t token, int32_t first, int32_t end, int32_t d, uint16_t *own,
                          const float (*sum)[4], int width, heddle_dtype dtype)
{
    hd_sync_warp();
    HD_UNROLL
    for (int j = 0; j < width / 8; j++) {
        HD_UNROLL
        for (int i = 0; i < 4; i += 2) {
            const unsigned row = HD_LANE / 4 + (unsigned)(i / 2) * 8, column = (unsigned)j * 8 + HD_LANE % 4 * 2;
            const uint32_t pair = hd_half_pair(sum[j][i], sum[j][i + 1], dtype);
            memcpy(own + row * HD_TILE_STRIDE(width) + column, &pair, sizeof pair);
        }
    }
    hd_sync_warp();
    for (int i = (int)HD_LANE; i < 16 * (width / 8); i += 32) {
        const int row = i / (width / 8), column = i % (width / 8) * 8, at = first + row;
        if (at < end && column < d) {
            hd_v16 held;
            memcpy(&held, own + row * HD_TILE_STRIDE(width) + column, sizeof held);
            hd_store_16(to + (at * token + column) * 2, held);
        }
    }
}

/* The same in f32, straight to where they belong. */
HD_DEV void hd_tile_store_f32(char *to, int64_t token, int32_t first, int32_t end, int32_t d, const float (*sum)[4],
                              int width)
{
    HD_UNROLL
    for (int i = 0; i < width / 4; i++) {
        const int at = first + (int)(HD_LANE / 4) + i % 2 * 8;
        const int column = i / 2 * 8 + (int)(HD_LANE % 4) * 2;
        if (at < end && column < d) {
            const uint64_t low = hd_f32_bits(sum[i / 2][i % 2 * 2]), high = hd_f32_bits(sum[i / 2][i % 2 * 2 + 1]);
            hd_store_8(to + (at * token + column) * 4, low | high << 32);
        }
    }
}

/* Kernels of both types, and their addresses, for each width; of the block's memory that fibres of few tokens take as a
 * whole heads of 72 leave none for 80 columns, and wider ones none at all. */
#define HD_TILE_OF(kernel, name, width)                                                                                \
    kernel(name##_bf16_##width, HEDDLE_BF16, width) kernel(name##_f16_##width, HEDDLE_F16, width)
#define HD_TILE_KERNELS(kernel, name)                                                                                  \
    HD_TILE_OF(kernel, name, 32) HD_TILE_OF(kernel, name, 64) HD_TILE_OF(kernel, name, 80) HD_TILE_OF(kernel, name, 128)
#define HD_TILE_NARROW_KERNELS(kernel, name)                                                                           \
    HD_TILE_OF(kernel, name, 32) HD_TILE_OF(kernel, name, 64) HD_TILE_OF(kernel, name, 72)
#define HD_TILE_ADDRESS(name, dtype, width) HD_KERNEL_ADDRESS(name),
#define HD_TILE_ADDRESSES(name) HD_TILE_KERNELS(HD_TILE_ADDRESS, name)
#define HD_TILE_NARROW_ADDRESSES(name) HD_TILE_NARROW_KERNELS(HD_TILE_ADDRESS, name)

static const int hd_tile_width[4] = {32, 64, 80, 128}, hd_tile_narrow_width[3] = {32, 64, 72};

/* The first of them that a head fits into. */
static inline int hd_tile_width_of(const int *width, int64_t d)
{
    while (*width < d) {
        width++;
    }
    return *width;
}

/* Threads for rows of `n`, `wide` times 16 a warp: as many warps as have any, by the whole length, whoever holds how
 * many fibres. */
static inline unsigned hd_tile_threads(int64_t n, int wide)
{
    const int64_t warps = (n + 16 * wide - 1) / (16 * wide);
    return warps <= 1 ? 32 : warps <= 2 ? 64 : 128;
}

static inline int64_t hd_tile_rows(int64_t n, int wide)
{
    return hd_tile_threads(n, wide) / 2 * wide;
}

#define HD_TILE_LAUNCH_CASE(name, args, blocks, threads, bytes, stream, wanted, type, width)                           \
    if ((args)->of.dtype == (type) && (wanted) == (width)) {                                                           \
        HD_LAUNCH_SHARED(name, blocks, threads, bytes, stream, args);                                                  \
    }

#endif
