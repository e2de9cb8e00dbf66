/* Token-wise layers outside the blocks. */
#include "runtime/base/base.h"
#include "runtime/block/block_internal.h"
#include "runtime/block/products.h"

typedef struct dense_rows {
    hd_gemm *gemm;
    float *out;
    const float *x;
    int64_t rows, k, n;
    int64_t blocks; /* of HD_GEMM_ROWS */
    int shares;
} dense_rows;

static heddle_status run_share(void *ctx, int seat, int64_t i)
{
    const dense_rows *d = ctx;
    int64_t first = d->blocks * i / d->shares * HD_GEMM_ROWS;
    int64_t end = i + 1 < d->shares ? d->blocks * (i + 1) / d->shares * HD_GEMM_ROWS : d->rows;
    return hd_gemm_run(d->gemm, seat, d->out + first * d->n, d->x + first * d->k, end - first);
}

heddle_status heddle_dense_forward(float *out, const float *x, int64_t rows, int64_t k, const float *weight,
                                   const float *bias, int64_t n, int threads, heddle_stream stream)
{
    (void)stream; /* host memory: done on return */
    heddle_status st = HEDDLE_OK;
    const hd_kernels *kernels = NULL;
    hd_gemm *gemm = NULL;
    if (rows < 0 || threads < 0 || threads > HD_MAX_THREADS) {
        return hd_fail(HEDDLE_ERR_ARG, "%lld rows on %d threads: rows must not be negative, threads 0 to %d",
                       (long long)rows, threads, HD_MAX_THREADS);
    }
    if (rows == 0) {
        return HEDDLE_OK;
    }
    if (out == NULL || x == NULL || weight == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_dense_forward: %s is NULL",
                       out == NULL ? "out"
                       : x == NULL ? "x"
                                   : "weight");
    }
    HD_TRY(hd_kernels_cpu(&kernels));
    int64_t unused, widest = k > n ? k : n;
    const int64_t bytes[] = {rows, widest > 0 ? widest : 1, sizeof(float)};
    HD_TRY(hd_product(&unused, "rows of a linear layer", 3, bytes));
    int64_t blocks = rows / HD_GEMM_ROWS + (rows % HD_GEMM_ROWS != 0);
    int count = threads > 1 ? threads : 1;
    count = count > blocks ? (int)blocks : count;
    HD_TRY(hd_gemm_create(&gemm, kernels, k, n, HEDDLE_F32, HEDDLE_F32, count));
    HD_TRY(hd_gemm_pack(gemm, weight, bias));
    dense_rows all = {gemm, out, x, rows, k, n, blocks, count};
    HD_TRY(hd_products_run("hd-dense", count, count, run_share, &all));
out:
    hd_gemm_destroy(gemm);
    return st;
}
