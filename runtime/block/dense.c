/* Token-wise layers outside the blocks. */
#include "runtime/base/base.h"
#include "runtime/block/block_internal.h"

#include <pthread.h>

typedef struct linear_share {
    hd_gemm *gemm;
    int seat;
    float *out;
    const float *x;
    int64_t rows;
    heddle_status status;
} linear_share;

static void *work(void *arg)
{
    linear_share *share = arg;
    int entered = hd_gemm_enter();
    share->status = hd_gemm_run(share->gemm, share->seat, share->out, share->x, share->rows);
    hd_gemm_leave(entered);
    return NULL;
}

static heddle_status run_shares(linear_share *share, int count)
{
    pthread_t thread[HD_BLOCK_THREADS];
    int running[HD_BLOCK_THREADS] = {0};
    for (int i = 1; i < count; i++) {
        running[i] = pthread_create(&thread[i], NULL, work, &share[i]) == 0;
    }
    for (int i = 0; i < count; i++) {
        if (!running[i]) {
            work(&share[i]);
        }
    }
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < count; i++) {
        if (running[i]) {
            pthread_join(thread[i], NULL);
        }
        if (share[i].status != HEDDLE_OK) {
            st = hd_fail(share[i].status, "a linear layer failed in thread %d of %d", i, count);
        }
    }
    return st;
}

heddle_status heddle_dense_forward(float *out, const float *x, int64_t rows, int64_t k, const float *weight,
                                   const float *bias, int64_t n, int threads, heddle_stream stream)
{
    (void)stream; /* host memory: done on return */
    heddle_status st = HEDDLE_OK;
    const hd_kernels *kernels = NULL;
    hd_gemm *gemm = NULL;
    linear_share share[HD_BLOCK_THREADS];
    if (rows < 0 || threads < 0 || threads > HD_BLOCK_THREADS) {
        return hd_fail(HEDDLE_ERR_ARG, "%lld rows on %d threads: rows must not be negative, threads 0 to %d",
                       (long long)rows, threads, HD_BLOCK_THREADS);
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
    for (int i = 0; i < count; i++) {
        int64_t first = blocks * i / count * HD_GEMM_ROWS;
        int64_t end = i + 1 < count ? blocks * (i + 1) / count * HD_GEMM_ROWS : rows;
        share[i] = (linear_share){gemm, i, out + first * n, x + first * k, end - first, HEDDLE_OK};
    }
    HD_TRY(run_shares(share, count));
out:
    hd_gemm_destroy(gemm);
    return st;
}
