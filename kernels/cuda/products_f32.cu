/* Products in f32, without tensor units: a block has 64 x 64 results, a thread 4 x 4 of them beside one another, and
 * walks the depth from 0 up. What the next turn needs is on its way while a turn is multiplied. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/products.h"

enum { TILE = 64, DEPTH = 16, PIECES = TILE / 4, THREADS = PIECES * PIECES };

/* A turn's part of both operands: at each depth, its pieces of 64 rows or columns. */
typedef struct tiles {
    hd_lane_piece a[DEPTH][PIECES], b[DEPTH][PIECES];
} tiles;

/* Of this turn and of the one before it. */
typedef struct tiles_of_turns {
    tiles of[2];
} tiles_of_turns;

/* Pieces of depths that are stored at once lie in different banks. */
HD_DEV hd_lane_piece *piece_at(hd_lane_piece (*tile)[PIECES], int depth, int piece)
{
    return &tile[depth][piece ^ (depth / 4 * 2)];
}

/* What this thread has of the row that it loads from: 16 bytes. */
HD_DEV int row_of(int is_turned)
{
    return (int)HD_THREAD / (is_turned ? PIECES : DEPTH / 4);
}

HD_DEV int column_of(int is_turned)
{
    return (int)HD_THREAD % (is_turned ? PIECES : DEPTH / 4) * 4;
}

/* Zeros where the operand ends. */
HD_DEV hd_lane_piece load(const hd_operand *x, int64_t first, int64_t depth)
{
    const int64_t row = (x->is_turned ? depth : first) + row_of(x->is_turned);
    const int64_t column = (x->is_turned ? first : depth) + column_of(x->is_turned);
    const int64_t left = row < x->rows ? x->width - column : 0;
    const int is_there = left > 0;
    return hd_piece_load(x->data + (is_there ? (row * x->width + column) * 4 : 0), 0, left < 4 ? (int32_t)left : 4,
                         HEDDLE_F32, x->is_whole && is_there);
}

HD_DEV void put(hd_lane_piece (*tile)[PIECES], hd_lane_piece piece, int is_turned)
{
    const int row = row_of(is_turned), column = column_of(is_turned);
    if (is_turned) {
        piece_at(tile, row, column / 4)->whole = piece.whole;
        return;
    }
    HD_UNROLL
    for (int i = 0; i < 4; i++) {
        piece_at(tile, column + i, row / 4)->word[row % 4] = piece.word[i];
    }
}

HD_KERNEL(product_f32, hd_products_args, a)
{
    HD_SHARED(tiles_of_turns, turns);
    const int64_t row = (int64_t)(HD_BLOCK / a.strips) * TILE, column = (int64_t)(HD_BLOCK % a.strips) * TILE;
    const int m = (int)HD_THREAD / PIECES, n = (int)HD_THREAD % PIECES;
    float sum[4][4] = {{0}}, bias[4];
    hd_lane_piece of_a = load(&a.a, row, 0), of_b = load(&a.b, column, 0);
    for (int64_t depth = 0; depth < a.depth; depth += DEPTH) {
        tiles *tile = &turns->of[depth / DEPTH % 2];
        put(tile->a, of_a, a.a.is_turned);
        put(tile->b, of_b, a.b.is_turned);
        hd_sync(); /* it is whole, and nobody reads the other one any more */
        of_a = load(&a.a, row, depth + DEPTH);
        of_b = load(&a.b, column, depth + DEPTH);
        HD_UNROLL
        for (int d = 0; d < DEPTH; d++) {
            hd_lane_piece x, y;
            x.whole = piece_at(tile->a, d, m)->whole;
            y.whole = piece_at(tile->b, d, n)->whole;
            HD_UNROLL
            for (int i = 0; i < 16; i++) {
                sum[i / 4][i % 4] =
                    hd_fma(hd_f32_from_bits(x.word[i / 4]), hd_f32_from_bits(y.word[i % 4]), sum[i / 4][i % 4]);
            }
        }
    }
    hd_product_bias(bias, &a, (int32_t)column + n * 4, 4, HEDDLE_F32);
    HD_UNROLL
    for (int i = 0; i < 4; i++) {
        hd_product_store(&a, row + m * 4 + i, (int32_t)column + n * 4, sum[i], bias, 4, HEDDLE_F32);
    }
}

int hd_products_f32(hd_products_args *a, void *stream)
{
    a->strips = (uint32_t)((a->n + TILE - 1) / TILE);
    const double blocks = (double)((a->m + TILE - 1) / TILE) * a->strips;
    if (blocks > INT32_MAX) {
        return (int)cudaErrorInvalidConfiguration;
    }
    HD_LAUNCH(product_f32, (unsigned)blocks, THREADS, stream, a);
    return (int)cudaGetLastError();
}

int hd_products_f32_load(void)
{
    return hd_load_kernel(HD_KERNEL_ADDRESS(product_f32), 0);
}
