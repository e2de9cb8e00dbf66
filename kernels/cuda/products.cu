/* Products of matrices in tiles of one size: a block has 128 x 128 results and walks the depth from 0 up, 32 at a time,
 * whatever the number of rows is. So a result is a function of its row and its column alone. Nothing is split over the
 * depth, and nothing is added by atomics. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/products.h"

#include <string.h>

enum {
    TILE = 128,
    DEPTH = 32,                    /* of a turn */
    THREADS = 256,                 /* 2 x 4 warps of 64 x 32 results */
    ROWS_16 = 4,                   /* of a warp */
    COLUMNS_8 = 4,                 /* likewise */
    STRIDE = DEPTH + 8,            /* of rows of depth: 8 of them lie in different banks */
    TURNED_STRIDE = TILE + 8,      /* likewise */
    OPERAND_ELEMS = TILE * STRIDE, /* more than DEPTH * TURNED_STRIDE */
    PLACES = 3,
    SHARED_BYTES = PLACES * 2 * OPERAND_ELEMS * 2
};

HD_DEV int stride_of(int is_turned)
{
    return is_turned ? TURNED_STRIDE : STRIDE;
}

/* A turn's part of an operand, 16 bytes at a time; zeros where it ends. */
HD_DEV void ask(uint16_t *tile, const hd_operand *x, int64_t first, int64_t depth, int is_turned, heddle_dtype dtype)
{
    const int pieces = (is_turned ? TILE : DEPTH) / 8; /* of a row */
    const int64_t row = is_turned ? depth : first, column = is_turned ? first : depth;
    HD_UNROLL
    for (int i = 0; i < TILE * DEPTH / 8; i += THREADS) {
        const int piece = i + (int)HD_THREAD, r = piece / pieces, c = piece % pieces * 8;
        const int64_t at = row + r, left = x->width - (column + c);
        const int is_there = at < x->rows && left > 0;
        const char *from = x->data + (is_there ? (at * x->width + column + c) * 2 : 0);
        uint16_t *to = tile + r * stride_of(is_turned) + c;
        if (x->is_whole) {
            hd_copy_async_16(to, from, is_there);
        } else {
            const hd_lane_piece p = hd_piece_load(from, 0, is_there ? (left < 8 ? (int32_t)left : 8) : 0, dtype, 0);
            memcpy(to, &p, sizeof p);
        }
    }
}

HD_DEV void ask_both(uint16_t *places, const hd_products_args *a, int64_t turn, int64_t row, int64_t column,
                     int a_turned, int b_turned, heddle_dtype dtype)
{
    uint16_t *place = places + (int)(turn % PLACES) * 2 * OPERAND_ELEMS;
    if (turn * DEPTH < a->depth) {
        ask(place, &a->a, row, turn * DEPTH, a_turned, dtype);
        ask(place + OPERAND_ELEMS, &a->b, column, turn * DEPTH, b_turned, dtype);
    }
    hd_copy_commit();
}

/* 16 rows of a, 16 deep, from row `m` of the tile on. */
HD_DEV void load_a(uint32_t of_a[4], const uint16_t *tile, int m, int depth, int is_turned)
{
    const int eight = (int)HD_LANE / 16 * 8, next = (int)HD_LANE / 8 % 2 * 8, in = (int)HD_LANE % 8;
    if (is_turned) {
        hd_load_matrix_4_turned(of_a, tile + (depth + eight + in) * TURNED_STRIDE + m + next);
    } else {
        hd_load_matrix_4(of_a, tile + (m + next + in) * STRIDE + depth + eight);
    }
}

/* 16 columns: those of b's first 8 in of_b[0] and [1]. */
HD_DEV void load_b(uint32_t of_b[4], const uint16_t *tile, int n, int depth, int is_turned)
{
    const int eight = (int)HD_LANE / 16 * 8, next = (int)HD_LANE / 8 % 2 * 8, in = (int)HD_LANE % 8;
    if (is_turned) {
        hd_load_matrix_4_turned(of_b, tile + (depth + next + in) * TURNED_STRIDE + n + eight);
    } else {
        hd_load_matrix_4(of_b, tile + (n + eight + in) * STRIDE + depth + next);
    }
}

HD_DEV void multiply(float (*sum)[COLUMNS_8][4], const uint16_t *place, int m, int n, int a_turned, int b_turned,
                     heddle_dtype dtype)
{
    HD_UNROLL
    for (int depth = 0; depth < DEPTH; depth += 16) {
        uint32_t of_a[ROWS_16][4], of_b[COLUMNS_8 / 2][4];
        HD_UNROLL
        for (int i = 0; i < ROWS_16; i++) {
            load_a(of_a[i], place, m + i * 16, depth, a_turned);
        }
        HD_UNROLL
        for (int j = 0; j < COLUMNS_8 / 2; j++) {
            load_b(of_b[j], place + OPERAND_ELEMS, n + j * 16, depth, b_turned);
        }
        HD_UNROLL
        for (int i = 0; i < ROWS_16; i++) {
            HD_UNROLL
            for (int j = 0; j < COLUMNS_8; j++) {
                if (dtype == HEDDLE_BF16) {
                    hd_mma_bf16(sum[i][j], of_a[i], of_b[j / 2] + j % 2 * 2);
                } else {
                    hd_mma_f16(sum[i][j], of_a[i], of_b[j / 2] + j % 2 * 2);
                }
            }
        }
    }
}

/* Lane q of four beside one another gets what lanes 0..3 have of number q. */
HD_DEV void turn_of_four(float *number)
{
    HD_UNROLL
    for (unsigned mask = 1; mask < COLUMNS_8; mask *= 2) {
        HD_UNROLL
        for (unsigned i = 0; i < COLUMNS_8; i++) {
            if ((i & mask) == 0) {
                const int is_upper = (HD_LANE & mask) != 0;
                const float got = hd_shuffle_xor(is_upper ? number[i] : number[i + mask], mask);
                number[i] = is_upper ? got : number[i];
                number[i + mask] = is_upper ? number[i + mask] : got;
            }
        }
    }
}

/* Tensor units leave a lane two columns of each of four tiles; it stores the eight of one. */
HD_DEV void store(const hd_products_args *a, const float (*sum)[COLUMNS_8][4], int64_t row, int64_t column,
                  heddle_dtype type)
{
    const int32_t first = (int32_t)column + (int32_t)(HD_LANE % 4) * 8;
    float bias[8];
    hd_product_bias(bias, a, first, 8, type);
    HD_UNROLL
    for (int i = 0; i < ROWS_16 * 2; i++) {
        float result[8];
        HD_UNROLL
        for (int e = 0; e < 2; e++) {
            float number[COLUMNS_8];
            HD_UNROLL
            for (int j = 0; j < COLUMNS_8; j++) {
                number[j] = sum[i / 2][j][i % 2 * 2 + e];
            }
            turn_of_four(number);
            HD_UNROLL
            for (int j = 0; j < COLUMNS_8; j++) {
                result[j * 2 + e] = number[j];
            }
        }
        hd_product_store(a, row + i * 8 + HD_LANE / 4, first, result, bias, 8, type);
    }
}

HD_DEV void product(const hd_products_args *a, int a_turned, int b_turned, heddle_dtype dtype)
{
    HD_DYNAMIC_SHARED(uint16_t, places);
    const int64_t row = (int64_t)(HD_BLOCK / a->strips) * TILE, column = (int64_t)(HD_BLOCK % a->strips) * TILE;
    const int m = (int)HD_WARP / 4 * 64, n = (int)HD_WARP % 4 * 32;
    const int is_needed = row + m < a->m && column + n < a->n; /* all of a warp or none of it */
    const int64_t turns = (a->depth + DEPTH - 1) / DEPTH;
    float sum[ROWS_16][COLUMNS_8][4] = {{{0}}};
    ask_both(places, a, 0, row, column, a_turned, b_turned, dtype);
    ask_both(places, a, 1, row, column, a_turned, b_turned, dtype);
    for (int64_t turn = 0; turn < turns; turn++) {
        hd_copy_wait_1();
        hd_sync(); /* all have what they asked for, and are done with the place before */
        ask_both(places, a, turn + 2, row, column, a_turned, b_turned, dtype);
        if (is_needed) {
            multiply(sum, places + (int)(turn % PLACES) * 2 * OPERAND_ELEMS, m, n, a_turned, b_turned, dtype);
        }
    }
    hd_copy_wait_0();
    if (a->c_is_f32) {
        store(a, sum, row + m, column + n, HEDDLE_F32);
    } else {
        store(a, sum, row + m, column + n, dtype);
    }
}

#define PRODUCT_KERNEL(name, a_turned, b_turned, dtype)                                                                \
    HD_KERNEL(name, hd_products_args, a)                                                                               \
    {                                                                                                                  \
        product(&a, a_turned, b_turned, dtype);                                                                        \
    }
/* In the order of heddle_product_kind, for BF16, then for F16. */
#define PRODUCT_KERNELS(kernel)                                                                                        \
    kernel(product_forward_bf16, 0, 0, HEDDLE_BF16) kernel(product_back_bf16, 0, 1, HEDDLE_BF16)                       \
        kernel(product_outer_bf16, 1, 1, HEDDLE_BF16) kernel(product_forward_f16, 0, 0, HEDDLE_F16)                    \
            kernel(product_back_f16, 0, 1, HEDDLE_F16) kernel(product_outer_f16, 1, 1, HEDDLE_F16)
PRODUCT_KERNELS(PRODUCT_KERNEL)

static hd_operand operand_of(const void *data, int64_t rows, int64_t width, int is_turned, heddle_dtype dtype)
{
    hd_operand x = {(const char *)data, rows, (int32_t)width, 0, is_turned};
    x.is_whole = (uintptr_t)data % 16 == 0 && width * (dtype == HEDDLE_F32 ? 4 : 2) % 16 == 0;
    return x;
}

static hd_products_args args_of(const heddle_product *of, const heddle_product_call *call)
{
    hd_products_args a;
    const int is_outer = of->kind == HEDDLE_PRODUCT_OUTER, is_forward = of->kind == HEDDLE_PRODUCT_FORWARD;
    const int64_t in = is_forward ? of->k : of->n; /* a row of src */
    memset(&a, 0, sizeof a);
    a.a = operand_of(call->src, call->rows, in, is_outer, of->dtype);
    a.b = operand_of(call->with, is_outer ? call->rows : of->n, of->k, !is_forward, of->dtype);
    a.c = (char *)call->dst;
    a.bias = (const char *)call->bias;
    a.m = is_outer ? of->n : call->rows;
    a.n = (int32_t)(is_forward ? of->n : of->k);
    a.depth = is_outer ? call->rows : in;
    a.c_is_f32 = of->dst_dtype == HEDDLE_F32;
    a.adds = is_outer && call->add;
    a.c_is_whole =
        ((uintptr_t)call->dst | (uintptr_t)call->bias) % 16 == 0 && (int64_t)a.n * (a.c_is_f32 ? 4 : 2) % 16 == 0;
    return a;
}

static int is_right(const heddle_product *of, const heddle_product_call *call)
{
    const int64_t most = (int64_t)1 << 30;
    return (of->dtype == HEDDLE_F32 || of->dtype == HEDDLE_BF16 || of->dtype == HEDDLE_F16) &&
           (of->dst_dtype == HEDDLE_F32 || (of->dst_dtype == of->dtype && of->kind != HEDDLE_PRODUCT_OUTER)) &&
           of->n >= 1 && of->n <= most && of->k >= 1 && of->k <= most && call->rows >= 0 && call->rows <= INT32_MAX &&
           (call->bias != NULL) == (of->has_bias && of->kind == HEDDLE_PRODUCT_FORWARD);
}

int hd_products_run(const heddle_product *of, const heddle_product_call *call, void *stream)
{
    if (!is_right(of, call)) {
        return (int)cudaErrorInvalidValue;
    }
    hd_products_args a = args_of(of, call);
    if (a.m == 0) {
        return 0;
    }
    if (of->dtype == HEDDLE_F32) {
        return hd_products_f32(&a, stream);
    }
    a.strips = (uint32_t)((a.n + TILE - 1) / TILE);
    const double blocks = (double)((a.m + TILE - 1) / TILE) * a.strips;
    if (blocks > INT32_MAX) {
        return (int)cudaErrorInvalidConfiguration;
    }
#define LAUNCH(name, a_turned, b_turned, type)                                                                         \
    if (of->dtype == (type) && a.a.is_turned == (a_turned) && a.b.is_turned == (b_turned)) {                           \
        HD_LAUNCH_SHARED(name, (unsigned)blocks, THREADS, SHARED_BYTES, stream, &a);                                   \
    }
    PRODUCT_KERNELS(LAUNCH)
    return (int)cudaGetLastError();
}

int hd_products_load(void)
{
#define ADDRESS(name, a_turned, b_turned, type) HD_KERNEL_ADDRESS(name),
    const void *const kernel[] = {PRODUCT_KERNELS(ADDRESS)};
    int error = 0;
    for (int i = 0; i < (int)(sizeof kernel / sizeof kernel[0]) && error == 0; i++) {
        error = hd_load_kernel(kernel[i], SHARED_BYTES);
    }
    return error != 0 ? error : hd_products_f32_load();
}
