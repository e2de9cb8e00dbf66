/* Rows and products for linear_body.h, scalar. REAL is defined before. */

enum { LANES = 1, TILE_ROWS = 1 };

static void load_row(REAL *dst, const hd_linear_rows *x, int64_t i, int64_t n)
{
    if (x->dtype == HEDDLE_BF16) {
        const uint16_t *from = (const uint16_t *)x->data + i * x->row;
        for (int64_t c = 0; c < n; c++) {
            dst[c] = (REAL)hd_f32_from_bf16(from[c * x->column]);
        }
        return;
    }
    const REAL *from = (const REAL *)x->data + i * x->row;
    for (int64_t c = 0; c < n; c++) {
        dst[c] = from[c * x->column];
    }
}

static void store_row(const hd_linear_rows *x, int64_t i, const REAL *src, int64_t n)
{
    if (x->dtype == HEDDLE_BF16) {
        uint16_t *to = (uint16_t *)x->data + i * x->row;
        for (int64_t c = 0; c < n; c++) {
            to[c * x->column] = hd_bf16_from_f32((float)src[c]);
        }
        return;
    }
    REAL *to = (REAL *)x->data + i * x->row;
    for (int64_t c = 0; c < n; c++) {
        to[c * x->column] = src[c];
    }
}

static void product(const gemm *g)
{
    for (int64_t m = 0; m < g->m; m++) {
        int64_t n_end = g->part == HD_LINEAR_LOWER_N && m + 1 < g->n ? m + 1 : g->n;
        int64_t k_start = g->part == HD_LINEAR_UPPER_K ? m : 0;
        int64_t k_end = g->part == HD_LINEAR_LOWER_K && m + 1 < g->k ? m + 1 : g->k;
        REAL *row = g->dst + m * g->dst_row;
        for (int64_t n = 0; n < n_end && !g->add; n++) {
            row[n] = 0;
        }
        for (int64_t k = k_start; k < k_end; k++) {
            REAL a = g->a[m * g->a_row + k * g->a_column];
            for (int64_t n = 0; n < n_end; n++) {
                row[n] += a * g->b[k * g->b_row + n];
            }
        }
    }
}

static void transpose(REAL *dst, int64_t dst_row, const REAL *src, int64_t src_row, int64_t rows, int64_t columns)
{
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t r = 0; r < rows; r++) {
            dst[c * dst_row + r] = src[r * src_row + c];
        }
    }
}
