/* Rows and products for linear_body.h on vectors of floats; vec_avx2.h or vec_avx512.h and TILE_ROWS (rows of a
 * register tile of two vectors) come before. */

enum { LANES = VEC, TILE_VECS = 2 };

static void load_row(float *dst, const hd_linear_rows *x, int64_t i, int64_t n)
{
    if (x->dtype == HEDDLE_BF16) {
        const uint16_t *from = (const uint16_t *)x->data + i * x->row;
        for (int64_t c = 0; c < n; c += x->column == 1 ? VEC : 1) {
            if (x->column != 1) {
                dst[c] = hd_f32_from_bf16(from[c * x->column]);
            } else {
                vec_store(dst + c, vec_load_bf16_part(from + c, n - c));
            }
        }
        return;
    }
    const float *from = (const float *)x->data + i * x->row;
    if (x->column == 1) {
        memcpy(dst, from, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t c = 0; c < n; c++) {
        dst[c] = from[c * x->column];
    }
}

static void store_row(const hd_linear_rows *x, int64_t i, const float *src, int64_t n)
{
    if (x->dtype == HEDDLE_BF16) {
        uint16_t *to = (uint16_t *)x->data + i * x->row;
        for (int64_t c = 0; c < n; c += x->column == 1 ? VEC : 1) {
            if (x->column != 1) {
                to[c * x->column] = hd_bf16_from_f32(src[c]);
            } else {
                vec_store_bf16_part(to + c, vec_load(src + c), n - c);
            }
        }
        return;
    }
    float *to = (float *)x->data + i * x->row;
    if (x->column == 1) {
        memcpy(to, src, (size_t)n * sizeof *src);
        return;
    }
    for (int64_t c = 0; c < n; c++) {
        to[c * x->column] = src[c];
    }
}

/* rows x vecs results in registers: per k one load of b's row, one broadcast of a per row. */
static inline __attribute__((always_inline)) void tile(const gemm *g, int64_t m, int64_t n, int64_t k_start,
                                                       int64_t k_end, const int rows, const int vecs)
{
    vec sum[TILE_ROWS][TILE_VECS];
    float *dst = g->dst + m * g->dst_row + n;
    const float *a = g->a + m * g->a_row;
    const float *b = g->b + n;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) {
            sum[i][v] = g->add ? vec_load(dst + i * g->dst_row + v * VEC) : vec_set1(0);
        }
    }
    for (int64_t k = k_start; k < k_end; k++) {
        vec column[TILE_VECS];
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) {
            column[v] = vec_load(b + k * g->b_row + v * VEC);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vec x = vec_set1(a[i * g->a_row + k * g->a_column]);
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++) {
                sum[i][v] = vec_fma(x, column[v], sum[i][v]);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) {
            vec_store(dst + i * g->dst_row + v * VEC, sum[i][v]);
        }
    }
}

static inline __attribute__((always_inline)) int64_t tile_rows(const gemm *g, int64_t m, int64_t n, const int vecs)
{
    int64_t left = g->m - m;
    int64_t rows = g->exact ? 1 : left >= TILE_ROWS ? TILE_ROWS : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    int64_t k_start = g->part == HD_LINEAR_UPPER_K ? m : 0;
    int64_t k_end = g->part == HD_LINEAR_LOWER_K && m + rows < g->k ? m + rows : g->k;
    if (g->part == HD_LINEAR_LOWER_N && n >= m + rows) {
        return rows;
    }
    switch (rows) {
    case TILE_ROWS:
        tile(g, m, n, k_start, k_end, TILE_ROWS, vecs);
        break;
#if TILE_ROWS_LEFT_8
    case 8:
        tile(g, m, n, k_start, k_end, 8, vecs);
        break;
#endif
    case 4:
        tile(g, m, n, k_start, k_end, 4, vecs);
        break;
    case 2:
        tile(g, m, n, k_start, k_end, 2, vecs);
        break;
    default:
        tile(g, m, n, k_start, k_end, 1, vecs);
        break;
    }
    return rows;
}

static void product(const gemm *g)
{
    int64_t n = 0;
    for (; n + TILE_VECS * VEC <= g->n; n += TILE_VECS * VEC) {
        for (int64_t m = 0; m < g->m; m += tile_rows(g, m, n, TILE_VECS)) {
        }
    }
    for (; n < g->n; n += VEC) {
        for (int64_t m = 0; m < g->m; m += tile_rows(g, m, n, 1)) {
        }
    }
}

/* Rows and columns are multiples of the lanes. */
static void transpose(float *dst, int64_t dst_row, const float *src, int64_t src_row, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += VEC) {
        for (int64_t c = 0; c < columns; c += VEC) {
            vec t[VEC];
#pragma GCC unroll 16
            for (int i = 0; i < VEC; i++) {
                t[i] = vec_load(src + (r + i) * src_row + c);
            }
            vec_transpose(t);
#pragma GCC unroll 16
            for (int i = 0; i < VEC; i++) {
                vec_store(dst + (c + i) * dst_row + r, t[i]);
            }
        }
    }
}
