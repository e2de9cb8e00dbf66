/* Rows and products for body.h, scalar. REAL is defined before. */

enum { LANES = 1, TILE_ROWS = 1 };

static REAL load_one(const hd_linear_rows *x, int64_t at)
{
    return x->dtype == HEDDLE_BF16 ? (REAL)hd_f32_from_bf16(((const uint16_t *)x->data)[at])
                                   : ((const REAL *)x->data)[at];
}

/* dst = the array's rows times their weights (NULL: 1), zeros up to `row`
 * columns. 1: something is not finite. */
static int load_rows(REAL *dst, int64_t row, const hd_linear_rows *x, int64_t rows, int64_t columns, const REAL *weight,
                     int64_t weight_step)
{
    int odd = 0;
    for (int64_t i = 0; i < rows; i++) {
        REAL factor = weight != NULL ? weight[i * weight_step] : 1;
        for (int64_t c = 0; c < row; c++) {
            REAL value = c < columns ? load_one(x, i * x->row + c * x->column) : 0;
            odd |= !(value - value == 0);
            dst[i * row + c] = factor * value;
        }
    }
    return odd;
}

static void store_rows(const hd_linear_rows *x, const REAL *src, int64_t row, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t c = 0; c < columns; c++) {
            int64_t at = i * x->row + c * x->column;
            if (x->dtype == HEDDLE_BF16) {
                ((uint16_t *)x->data)[at] = hd_bf16_from_f32((float)src[i * row + c]);
            } else {
                ((REAL *)x->data)[at] = src[i * row + c];
            }
        }
    }
}

static void product(const gemm *g)
{
    for (int64_t m = 0; m < g->m; m++) {
        int64_t n_end = g->part == HD_LINEAR_LOWER_N && m + 1 < g->n ? m + 1 : g->n;
        int64_t k_start = g->part == HD_LINEAR_UPPER_K ? m : 0;
        int64_t k_end = g->part == HD_LINEAR_LOWER_K && m + 1 < g->k ? m + 1 : g->k;
        REAL *row = g->dst + m * g->dst_row;
        REAL weight = g->weight != NULL ? g->weight[m * g->weight_step] : 1;
        for (int64_t n = 0; n < n_end; n++) {
            row[n] = g->keep == 0 ? 0 : g->keep * row[n];
        }
        for (int64_t k = k_start; k < k_end; k++) {
            REAL a = weight * g->a[m * g->a_row + k * g->a_column];
            for (int64_t n = 0; n < n_end; n++) {
                row[n] += a * g->b[k * g->b_row + n];
            }
        }
        for (int64_t n = 0; n < n_end && g->mask != NULL; n++) {
            row[n] *= g->mask[n - m];
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
