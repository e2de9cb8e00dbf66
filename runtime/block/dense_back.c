/* Backward of token-wise layers outside the blocks. */
#include "runtime/block/back_internal.h"

#include "runtime/base/base.h"
#include "runtime/block/products.h"

/* Jobs: stretches of rows of dx, then panels of dweight, each over all rows in the same order. */
typedef struct linear_back {
    const hd_kernels *kernels;
    hd_gemm *gemm; /* NULL: dx is not wanted */
    float *dx, *dweight, *dbias;
    const float *dout, *x;
    int64_t rows, k, n;
    int64_t row_jobs, jobs;
} linear_back;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static heddle_status panel(const linear_back *b, int64_t first)
{
    int64_t columns = smaller(HD_PANEL_ROWS, b->n - first);
    for (int64_t r = 0; r < b->rows; r += HD_UNIT_ROWS) {
        int64_t rows = smaller(HD_UNIT_ROWS, b->rows - r);
        const float *dout = b->dout + r * b->n + first;
        const hd_outer_product product = {
            b->dweight + first * b->k, dout, b->x + r * b->k, b->n, columns, b->k, rows, 1};
        heddle_status st = hd_gemm_outer_f32(&product);
        if (st != HEDDLE_OK) {
            return st;
        }
        if (b->dbias != NULL) {
            b->kernels->add_columns(b->dbias + first, dout, rows, b->n, columns);
        }
    }
    return HEDDLE_OK;
}

static heddle_status run_job(void *ctx, int seat, int64_t job)
{
    const linear_back *b = ctx;
    if (job >= b->row_jobs) {
        return panel(b, (job - b->row_jobs) * HD_PANEL_ROWS);
    }
    int64_t r = job * HD_UNIT_ROWS;
    return hd_gemm_run(b->gemm, seat, b->dx + r * b->k, b->dout + r * b->n, smaller(HD_UNIT_ROWS, b->rows - r));
}

heddle_status heddle_dense_backward(float *dx, float *dweight, float *dbias, const float *dout, const float *x,
                                    int64_t rows, int64_t k, const float *weight, int64_t n, int threads,
                                    heddle_stream stream)
{
    (void)stream; /* host memory: done on return */
    heddle_status st = HEDDLE_OK;
    linear_back b = {.dx = dx, .dweight = dweight, .dbias = dbias, .dout = dout, .x = x, .rows = rows, .k = k, .n = n};
    if (rows < 0 || threads < 0 || threads > HD_MAX_THREADS) {
        return hd_fail(HEDDLE_ERR_ARG, "%lld rows on %d threads: rows must not be negative, threads 0 to %d",
                       (long long)rows, threads, HD_MAX_THREADS);
    }
    if (k < 1 || n < 1 || k > INT32_MAX || n > INT32_MAX) {
        return hd_fail(HEDDLE_ERR_ARG, "a linear layer needs 1 to %d inputs and outputs, not %lld and %lld", INT32_MAX,
                       (long long)k, (long long)n);
    }
    if (rows == 0) {
        return HEDDLE_OK;
    }
    if (dweight == NULL || dout == NULL || x == NULL || (weight == NULL && dx != NULL)) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_dense_backward: %s is NULL",
                       dweight == NULL ? "dweight"
                       : dout == NULL  ? "dout"
                       : x == NULL     ? "x"
                                       : "weight");
    }
    HD_TRY(hd_kernels_cpu(&b.kernels));
    b.row_jobs = dx != NULL ? (rows + HD_UNIT_ROWS - 1) / HD_UNIT_ROWS : 0;
    b.jobs = b.row_jobs + (n + HD_PANEL_ROWS - 1) / HD_PANEL_ROWS;
    int count = (int)smaller(threads > 1 ? threads : 1, b.jobs);
    if (dx != NULL) {
        HD_TRY(hd_gemm_create(&b.gemm, b.kernels, n, k, HEDDLE_F32, HEDDLE_F32, count));
        HD_TRY(hd_gemm_pack_transposed(b.gemm, weight));
    }
    HD_TRY(hd_products_run("hd-dense-back", count, b.jobs, run_job, &b));
out:
    hd_gemm_destroy(b.gemm);
    return st;
}
