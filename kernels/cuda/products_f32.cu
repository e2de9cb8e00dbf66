/* Products in f32, without tensor units: a block has 64 x 64 results, a thread 4 x 4 of them, and walks the depth from
 * 0 up. Right and slow. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/products.h"

enum { TILE = 64, DEPTH = 16, SIDE = 16, THREADS = SIDE * SIDE, EACH = TILE / SIDE };

typedef struct tiles {
    float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
} tiles;

/* Neighbours have what lies beside one another. */
HD_DEV void load(float (*tile)[TILE + 1], const hd_operand *x, int64_t first, int64_t depth)
{
    const int across = x->is_turned ? TILE : DEPTH;
    for (int i = (int)HD_THREAD; i < TILE * DEPTH; i += THREADS) {
        const int r = i / across, c = i % across;
        const int64_t row = (x->is_turned ? depth : first) + r, column = (x->is_turned ? first : depth) + c;
        const int is_there = row < x->rows && column < x->width;
        const float value = is_there ? hd_number_load(x->data + (row * x->width + column) * 4, HEDDLE_F32) : 0;
        tile[x->is_turned ? r : c][x->is_turned ? c : r] = value;
    }
}

HD_KERNEL(product_f32, hd_products_args, a)
{
    HD_SHARED(tiles, tile);
    const int64_t row = (int64_t)(HD_BLOCK / a.strips) * TILE, column = (int64_t)(HD_BLOCK % a.strips) * TILE;
    const int m = (int)HD_THREAD / SIDE, n = (int)HD_THREAD % SIDE;
    float sum[EACH][EACH] = {{0}};
    for (int64_t depth = 0; depth < a.depth; depth += DEPTH) {
        hd_sync(); /* nobody reads the tiles any more */
        load(tile->a, &a.a, row, depth);
        load(tile->b, &a.b, column, depth);
        hd_sync(); /* they are whole */
        for (int d = 0; d < DEPTH; d++) {
            HD_UNROLL
            for (int i = 0; i < EACH * EACH; i++) {
                float *to = &sum[i / EACH][i % EACH];
                *to = hd_fma(tile->a[d][m + i / EACH * SIDE], tile->b[d][n + i % EACH * SIDE], *to);
            }
        }
    }
    HD_UNROLL
    for (int i = 0; i < EACH * EACH; i++) {
        const int64_t r = row + m + i / EACH * SIDE, c = column + n + i % EACH * SIDE;
        if (r < a.m && c < a.n) {
            hd_product_store(&a, r, (int32_t)c, sum[i / EACH][i % EACH], HEDDLE_F32);
        }
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
