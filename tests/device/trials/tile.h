/* What trials of attention have that kernels/cuda/tile.h has not: rows that end in 8 columns (heads of 72 are not
 * padded to 80), queries that stay in registers, rounded weights that are stored besides. Only bf16. Widths, n (of 8
 * rows) and wide (16 rows of a warp) are constant where they are called. */
#ifndef HD_TRIALS_TILE_H
#define HD_TRIALS_TILE_H

#include "kernels/cuda/attention_back.h"

#ifdef __CUDACC__
#define TRIAL_KERNEL(name, args_type, args, threads, blocks)                                                           \
    static __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ args_type args)

HD_DEV void trial_mma_8(float sum[4], const uint32_t a[2], const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
#else
#define TRIAL_KERNEL(name, args_type, args, threads, blocks) HD_KERNEL(name, args_type, args)

HD_DEV void trial_mma_8(float sum[4], const uint32_t a[2], const uint32_t *b)
{
    const uint32_t whole_a[4] = {a[0], a[1], 0, 0}, whole_b[2] = {b[0], 0};
    hd_mma_bf16(sum, whole_a, whole_b);
}
#endif

/* An odd number of 16 bytes: 8 rows of a matrix lie in different banks. */
#define STRIDE(width) ((width) % 16 == 0 ? (width) + 8 : (width))

HD_DEV void trial_ask(uint16_t *tile, const hd_device_tokens *x, const hd_attention_part *p, uint32_t head,
                      int32_t first, int32_t end, int32_t d, int rows, int width)
{
    const char *from = hd_tokens_at(x, p, head, HEDDLE_BF16);
    const int pieces = width / 8;
    for (int i = (int)HD_THREAD; i < rows * pieces; i += (int)HD_THREADS) {
        const int r = i / pieces, c = (i - r * pieces) * 8, is_there = first + r < end && c < d;
        hd_copy_async_16(tile + r * STRIDE(width) + c, is_there ? from + ((first + r) * x->token + c) * 2 : from,
                         is_there);
    }
}

/* Part k of 16 rows from `a` on: 16 columns, or the last 8. */
HD_DEV void trial_part(uint32_t *part, const uint16_t *a, int k, int width)
{
    const int column = k * 16 + (k < width / 16 ? (int)HD_LANE / 16 * 8 : 0);
    hd_load_matrix_4(part, a + (int)HD_LANE % 16 * STRIDE(width) + column);
}

/* sum[wide][n] += a b^T; a: this warp's first row; held: its parts, where they are in registers. */
HD_DEV void trial_dots(float (*sum)[4], const uint16_t *a, const uint32_t (*held)[4], const uint16_t *b, int n,
                       int wide, int width)
{
    const uint16_t *b_row = b + (HD_LANE / 16 * 8 + HD_LANE % 8) * STRIDE(width) + HD_LANE / 8 % 2 * 8;
    HD_UNROLL
    for (int k = 0; k < (width + 15) / 16; k++) {
        uint32_t of_a[2][4], of_b[4];
        HD_UNROLL
        for (int i = 0; i < wide && held == 0; i++) {
            trial_part(of_a[i], a + i * 16 * STRIDE(width), k, width);
        }
        HD_UNROLL
        for (int j = 0; j < n && k < width / 16; j += 2) {
            hd_load_matrix_4(of_b, b_row + j * 8 * STRIDE(width) + k * 16);
            HD_UNROLL
            for (int i = 0; i < wide; i++) {
                hd_mma_bf16(sum[i * n + j], held != 0 ? held[i * (width / 16) + k] : of_a[i], of_b);
                hd_mma_bf16(sum[i * n + j + 1], held != 0 ? held[i * (width / 16) + k] : of_a[i], of_b + 2);
            }
        }
        HD_UNROLL
        for (int j = 0; j < n && k == width / 16; j += 4) {
            hd_load_matrix_4(of_b, b + (j * 8 + (int)HD_LANE) * STRIDE(width) + width - 8);
            HD_UNROLL
            for (int i = 0; i < wide * 4; i++) {
                trial_mma_8(sum[i / 4 * n + j + i % 4], of_a[i / 4], of_b + i % 4);
            }
        }
    }
}

/* Weights [wide][n], as products left them, become [wide][n / 2] parts, as products take them. */
HD_DEV void trial_round(uint32_t (*part)[4], const float (*weight)[4], int n, int wide)
{
    HD_UNROLL
    for (int i = 0; i < wide * n * 2; i++) {
        const float *pair = &weight[i / 4 * 2 + i % 4 / 2][i % 2 * 2];
        part[i / 4][i % 4] = hd_pair_to_bf16(pair[0], pair[1]);
    }
}

/* sum[wide][width / 8] += those parts times 8 n rows of b. */
HD_DEV void trial_mix(float (*sum)[4], const uint32_t (*part)[4], const uint16_t *b, int n, int wide, int width)
{
    const uint16_t *b_row = b + HD_LANE % 16 * STRIDE(width) + HD_LANE / 16 * 8;
    HD_UNROLL
    for (int k = 0; k < n / 2; k++) {
        uint32_t of_b[4];
        HD_UNROLL
        for (int j = 0; j < width / 16 * 2; j += 2) {
            hd_load_matrix_4_turned(of_b, b_row + k * 16 * STRIDE(width) + j * 8);
            HD_UNROLL
            for (int i = 0; i < wide; i++) {
                hd_mma_bf16(sum[i * (width / 8) + j], part[i * (n / 2) + k], of_b);
                hd_mma_bf16(sum[i * (width / 8) + j + 1], part[i * (n / 2) + k], of_b + 2);
            }
        }
        if (width % 16 != 0 && k % 2 == 0) { /* the last 8 columns of 32 rows */
            hd_load_matrix_4_turned(of_b, b + (k * 16 + (int)HD_LANE) * STRIDE(width) + width - 8);
            HD_UNROLL
            for (int i = 0; i < wide * 2; i++) {
                hd_mma_bf16(sum[i / 2 * (width / 8) + width / 8 - 1], part[i / 2 * (n / 2) + k + i % 2],
                            of_b + i % 2 * 2);
            }
        }
    }
}

/* 16 rows from `row` on, by way of rows in the block's memory that nobody else reads any more. */
HD_DEV void trial_store(const hd_device_tokens *to, const hd_attention_part *p, int32_t row, int32_t end, int32_t d,
                        uint16_t *own, const float (*sum)[4], int width)
{
    char *at = hd_tokens_at(to, p, p->head, HEDDLE_BF16);
    hd_sync_warp();
    HD_UNROLL
    for (int i = 0; i < width / 4; i++) {
        const uint32_t pair = hd_pair_to_bf16(sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1]);
        memcpy(own + ((int)HD_LANE / 4 + i % 2 * 8) * STRIDE(width) + i / 2 * 8 + (int)HD_LANE % 4 * 2, &pair, 4);
    }
    hd_sync_warp();
    for (int i = (int)HD_LANE; i < 16 * (width / 8); i += 32) {
        const int r = i / (width / 8), c = (i - r * (width / 8)) * 8;
        if (row + r < end && c < d) {
            hd_v16 piece;
            memcpy(&piece, own + r * STRIDE(width) + c, sizeof piece);
            hd_store_16(at + ((row + r) * to->token + c) * 2, piece);
        }
    }
}

#endif
