/* Rows and products for body.h on vectors of floats; vec_avx2.h or vec_avx512.h and TILE_ROWS (rows of a
 * register tile of two vectors, a multiple of three) come before. */

enum { LANES = VEC, TILE_VECS = 2 };

static void load_row(float *dst, const hd_linear_rows *x, int64_t i, int64_t n)
{
    const float *from = (const float *)x->data + i * x->row;
    const uint16_t *half = (const uint16_t *)x->data + i * x->row;
    if (x->column == 1 && x->dtype != HEDDLE_BF16) {
        memcpy(dst, from, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t c = 0; c < n; c += x->column == 1 ? VEC : 1) {
        if (x->column == 1) {
            vec_store(dst + c, vec_load_bf16_part(half + c, n - c));
        } else {
            dst[c] = x->dtype == HEDDLE_BF16 ? hd_f32_from_bf16(half[c * x->column]) : from[c * x->column];
        }
    }
}

/* dst = the array's rows times their weights (NULL: 1), zeros up to `row` columns. 1: something is not finite.
 * All rows are copied before anything is computed: rows far apart miss the cache, the more at once the better. */
static int load_rows(float *dst, int64_t row, const hd_linear_rows *x, int64_t rows, int64_t columns,
                     const float *weight, int64_t weight_step)
{
    vec odd = vec_set1(0);
    for (int64_t i = 0; i < rows; i++) {
        load_row(dst + i * row, x, i, columns);
    }
    for (int64_t i = 0; i < rows; i++) {
        vec factor = vec_set1(weight != NULL ? weight[i * weight_step] : 1);
        for (int64_t c = 0; c < row; c += VEC) {
            float *at = dst + i * row + c;
            vec value = columns - c >= VEC ? vec_load(at) : c < columns ? vec_load_part(at, columns - c) : vec_set1(0);
            odd = vec_add(odd, vec_sub(value, value));
            if (weight != NULL || columns - c < VEC) {
                vec_store(at, vec_mul(factor, value));
            }
        }
    }
    return !(vec_sum(odd) == 0);
}

static void store_rows(const hd_linear_rows *x, const float *src, int64_t row, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++) {
        const float *from = src + i * row;
        float *to = (float *)x->data + i * x->row;
        uint16_t *half = (uint16_t *)x->data + i * x->row;
        if (x->column == 1 && x->dtype != HEDDLE_BF16) {
            memcpy(to, from, (size_t)columns * sizeof *to);
            continue;
        }
        for (int64_t c = 0; c < columns; c += x->column == 1 ? VEC : 1) {
            if (x->column == 1) {
                vec_store_bf16_part(half + c, vec_load(from + c), columns - c);
            } else if (x->dtype == HEDDLE_BF16) {
                half[c * x->column] = hd_bf16_from_f32(from[c]);
            } else {
                to[c * x->column] = from[c];
            }
        }
    }
}

static inline HD_ALWAYS_INLINE void store_tile(const gemm *g, int64_t m, int64_t n, vec sum[TILE_ROWS][TILE_VECS],
                                               const int rows, const int vecs)
{
    float *dst = g->dst + m * g->dst_row + n;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) {
            vec x = sum[i][v];
            float *to = dst + i * g->dst_row + v * VEC;
            if (g->weight != NULL) {
                x = vec_mul(vec_set1(g->weight[(m + i) * g->weight_step]), x);
            }
            if (g->mask != NULL) {
                x = vec_mul(x, vec_load(g->mask + n + v * VEC - m - i));
                int64_t seen = m + i + 1 - n - v * VEC;
                if (g->part == HD_LINEAR_LOWER_N && seen < VEC) { /* what overflowed there is not zero times zero */
                    x = vec_keep(x, seen > 0 ? seen : 0);
                }
            }
            if (g->keep != 0) {
                x = vec_fma(vec_set1(g->keep), vec_load(to), x);
            }
            vec_store(to, x);
        }
    }
}

/* rows x vecs results in registers: per k one load of b's row, one broadcast of a per row. Every third row of a has a
 * pointer of its own: the two behind it are reached by multiples of the stride. turned: rows of a are neighbours. */
static inline HD_ALWAYS_INLINE void tile(const gemm *g, int64_t m, int64_t n, int64_t k_start, int64_t k_end,
                                         const int rows, const int vecs, const int turned)
{
    vec sum[TILE_ROWS][TILE_VECS];
    const float *a[TILE_ROWS / 3 + 1];
    const float *b = g->b + n + k_start * g->b_row;
    int64_t a_row = turned ? 1 : g->a_row, a_step = turned ? g->a_column : 1;
#pragma GCC unroll 8
    for (int i = 0; 3 * i < rows; i++) {
        a[i] = g->a + (m + 3 * i) * a_row + k_start * a_step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) {
            sum[i][v] = vec_set1(0);
        }
    }
    for (int64_t k = k_start; k < k_end; k++) {
        vec column[TILE_VECS];
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) {
            column[v] = vec_load(b + v * VEC);
        }
        b += g->b_row;
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vec x = vec_set1(a[i / 3][i % 3 * a_row]);
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++) {
                sum[i][v] = vec_fma(x, column[v], sum[i][v]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; 3 * i < rows; i++) {
            a[i] += a_step;
        }
    }
    store_tile(g, m, n, sum, rows, vecs);
}

static inline HD_ALWAYS_INLINE int64_t tile_rows(const gemm *g, int64_t m, int64_t n, const int vecs, const int turned)
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
        tile(g, m, n, k_start, k_end, TILE_ROWS, vecs, turned);
        break;
#if TILE_ROWS_LEFT_8
    case 8:
        tile(g, m, n, k_start, k_end, 8, vecs, turned);
        break;
#endif
    case 4:
        tile(g, m, n, k_start, k_end, 4, vecs, turned);
        break;
    case 2:
        tile(g, m, n, k_start, k_end, 2, vecs, turned);
        break;
    default:
        tile(g, m, n, k_start, k_end, 1, vecs, turned);
        break;
    }
    return rows;
}

static inline HD_ALWAYS_INLINE void all_tiles(const gemm *g, const int turned)
{
    int64_t n = 0;
    for (; n + TILE_VECS * VEC <= g->n; n += TILE_VECS * VEC) {
        int64_t m = 0;
        if (g->part == HD_LINEAR_LOWER_N) { /* where the triangle begins half of the
                                               tile is enough */
            while (m < g->m && m + TILE_ROWS <= n + VEC) {
                m += tile_rows(g, m, n, 1, turned);
            }
        }
        while (m < g->m) {
            m += tile_rows(g, m, n, TILE_VECS, turned);
        }
    }
    for (; n < g->n; n += VEC) {
        for (int64_t m = 0; m < g->m; m += tile_rows(g, m, n, 1, turned)) {
        }
    }
}

static void product(const gemm *g)
{
    if (g->a_column == 1) {
        all_tiles(g, 0);
    } else {
        all_tiles(g, 1);
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
