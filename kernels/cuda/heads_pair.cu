/* Rotation of q and k, and their norms before it, of 16 bits: a thread has the same 16 bytes of two heads of q and of
 * the same two of k, which share their angles and, q's and k's, their weights. Squares of a head are summed by way of
 * the block's memory, in the order that heads.h has: the bits are those of heads.cu. */
#include "kernels/cuda/heads.h"
#include "kernels/cuda/kernels.h"

enum { TOGETHER = 2, PIECES = 2 * TOGETHER /* of a thread */, MOST_THREADS = 256, FEW_THREADS = 144 };

typedef struct pair_args {
    hd_heads_rotation as;
    uint32_t rows, rows_of_block;
    hd_divisor of_row, of_head; /* threads */
} pair_args;

/* As hd_heads_sum adds what its lanes have. */
HD_DEV float sum_of(const float *squares, int32_t pieces)
{
    float of[HD_HEADS_LANES];
    HD_UNROLL
    for (int i = 0; i < HD_HEADS_LANES; i++) {
        float x[4];
        HD_UNROLL
        for (int m = 0; m < 4; m++) {
            x[m] = i + m * HD_HEADS_LANES < pieces ? squares[i + m * HD_HEADS_LANES] : 0;
        }
        of[i] = (x[0] + x[2]) + (x[1] + x[3]);
    }
    return (of[0] + of[2]) + (of[1] + of[3]);
}

/* 1 / deviation of each of the block's heads: [of a thread's][head] */
HD_DEV const float *inverses(float *squares, const pair_args *a, const hd_lane_piece *x, heddle_dtype dtype)
{
    const uint32_t heads = hd_divide(&a->of_head, HD_THREADS);
    float *inverse = squares + PIECES * HD_THREADS;
    HD_UNROLL
    for (int i = 0; i < PIECES; i++) {
        squares[i * HD_THREADS + HD_THREAD] = hd_heads_squares(&x[i], dtype);
    }
    hd_sync(); /* all squares are there */
    for (uint32_t v = HD_THREAD; v < PIECES * heads; v += HD_THREADS) {
        const uint32_t i = v / heads;
        const float *from = squares + i * HD_THREADS + (v - i * heads) * a->of_head.d;
        inverse[v] = hd_rsqrt(hd_fma(sum_of(from, (int32_t)a->of_head.d), a->as.of.inverse_d, HD_ROWS_EPSILON));
    }
    hd_sync(); /* and all that is made of them */
    return inverse;
}

HD_DEV void rotate_pairs(const pair_args *a, int has_weight, heddle_dtype dtype)
{
    HD_DYNAMIC_SHARED(float, squares);
    const hd_heads_args *of = &a->as.of;
    const uint32_t r = hd_divide(&a->of_row, HD_THREAD), head = hd_divide(&a->of_head, HD_THREAD);
    const uint32_t row = HD_BLOCK * a->rows_of_block + r, heads = hd_divide(&a->of_head, HD_THREADS);
    const int32_t column = (int32_t)(HD_THREAD - head * a->of_head.d) * 8;
    const int64_t begin = (row * of->row_stride + (int64_t)(HD_THREAD - r * a->of_row.d) * 8) * 2;
    const int is_there = row < a->rows;
    const float *inverse = 0;
    hd_lane_piece x[PIECES];
    float turn[8] = {0}, weight[8] = {0};
#define AT(i) (((i) / TOGETHER * of->second_at + (i) % TOGETHER * (int64_t)a->of_row.d * 8) * 2)
    HD_UNROLL
    for (int i = 0; i < PIECES; i++) {
        x[i].whole = hd_zero_16();
        if (is_there) {
            x[i].whole = hd_load_16(a->as.src + begin + AT(i));
        }
    }
    if (is_there) {
        hd_floats_load(turn, of->cos_sin + (int64_t)hd_heads_position(of, row) * of->d + column, 8, 8, 1);
    }
    if (has_weight) {
        inverse = inverses(squares, a, x, dtype);
    }
    HD_UNROLL
    for (int i = 0; i < PIECES && is_there; i++) {
        if (has_weight && i % TOGETHER == 0) {
            hd_floats_load(weight, of->weight[i / TOGETHER] + column, 8, 8, 1);
        }
        const float by = has_weight ? inverse[i * heads + head] : 1.0f;
        hd_heads_rotate(a->as.dst + begin + row * a->as.farther * 2 + AT(i), &x[i], has_weight ? weight : 0, turn, by,
                        0, 8, dtype, 1);
    }
}

#define PAIR_KERNEL(name, has_weight, dtype)                                                                           \
    HD_KERNEL_BESIDE(name, pair_args, a, MOST_THREADS, 4)                                                              \
    {                                                                                                                  \
        rotate_pairs(&a, has_weight, dtype);                                                                           \
    }
PAIR_KERNEL(rotate_pairs_bf16, 0, HEDDLE_BF16)
PAIR_KERNEL(rotate_pairs_f16, 0, HEDDLE_F16)
PAIR_KERNEL(norm_rotate_pairs_bf16, 1, HEDDLE_BF16)
PAIR_KERNEL(norm_rotate_pairs_f16, 1, HEDDLE_F16)

/* Threads of a row. */
static int64_t threads_of(const hd_device_heads *of)
{
    return of->heads / TOGETHER * (of->d / 8);
}

int hd_heads_are_pairs(const hd_device_heads *of, const hd_heads_args *a)
{
    return of->dtype != HEDDLE_F32 && of->second_at > 0 && of->heads % TOGETHER == 0 && of->cos_sin != NULL &&
           (of->weight == NULL) == (of->second_weight == NULL) && a->is_whole && a->is_whole_vector &&
           threads_of(of) <= MOST_THREADS;
}

int hd_heads_pairs_rotate(const hd_device_heads *of, const hd_heads_rotation *rotation, void *stream)
{
    const int64_t of_row = threads_of(of), rows_of_block = of_row < FEW_THREADS ? FEW_THREADS / of_row : 1;
    const unsigned threads = (unsigned)(of_row * rows_of_block);
    const unsigned blocks = (unsigned)((of->rows + rows_of_block - 1) / rows_of_block);
    const int bytes = of->weight != NULL ? PIECES * (int)(threads + threads / (unsigned)(of->d / 8)) * 4 : 0;
    const pair_args a = {*rotation, (uint32_t)of->rows, (uint32_t)rows_of_block, hd_divisor_of(of_row),
                         hd_divisor_of(of->d / 8)};
    if (blocks == 0) {
        return 0;
    }
#define LAUNCH(name) HD_LAUNCH_SHARED(name, blocks, threads, bytes, stream, &a)
    if (of->dtype == HEDDLE_BF16 && of->weight == NULL) {
        LAUNCH(rotate_pairs_bf16);
    } else if (of->dtype == HEDDLE_BF16) {
        LAUNCH(norm_rotate_pairs_bf16);
    } else if (of->weight == NULL) {
        LAUNCH(rotate_pairs_f16);
    } else {
        LAUNCH(norm_rotate_pairs_f16);
    }
    return (int)cudaGetLastError();
}

int hd_heads_pairs_load(void)
{
    const void *const kernel[] = {HD_KERNEL_ADDRESS(rotate_pairs_bf16), HD_KERNEL_ADDRESS(rotate_pairs_f16),
                                  HD_KERNEL_ADDRESS(norm_rotate_pairs_bf16), HD_KERNEL_ADDRESS(norm_rotate_pairs_f16)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
