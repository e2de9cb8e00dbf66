/* Backward of a layer of its own, heddle_dense_backward: against f64 sums, and the same bits for threads and parts. */
#include "block_problem.h"

static void same_bits(const char *what, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) != 0) {
        fail_msg("%s: other bits", what);
    }
}

HD_CASE(a_token_wise_layer_has_a_backward)
{
    for (int i = 0; i < 12; i++) {
        int64_t rows = i == 0 ? 1500 : between(1, 300), k = between(1, 200), n = i < 2 ? 400 : between(1, 200);
        float *x = must_alloc(rows * k, sizeof *x), *weight = must_alloc(n * k, sizeof *weight);
        float *dout = must_alloc(rows * n, sizeof *dout), *dx = must_alloc(rows * k, sizeof *dx);
        float *dw[3], *db[3], *part = must_alloc(rows * k, sizeof *part);
        for (int64_t j = 0; j < rows * k; j++) {
            x[j] = symmetric();
        }
        for (int64_t j = 0; j < n * k; j++) {
            weight[j] = symmetric();
        }
        for (int64_t j = 0; j < rows * n; j++) {
            dout[j] = symmetric();
        }
        for (int t = 0; t < 3; t++) {
            dw[t] = must_alloc(n * k, sizeof(float));
            db[t] = must_alloc(n, sizeof(float));
            HD_OK(heddle_dense_backward(dx, dw[t], db[t], dout, x, rows, k, weight, n, t + 1, HEDDLE_NO_STREAM));
            same_bits("dweight", dw[0], dw[t], (size_t)(n * k) * sizeof(float));
            same_bits("dbias", db[0], db[t], (size_t)n * sizeof(float));
        }
        for (int64_t j = 0; j < n * k; j++) {
            double sum = 0;
            for (int64_t r = 0; r < rows; r++) {
                sum += (double)dout[r * n + j / k] * (double)x[r * k + j % k];
            }
            assert_true(fabs(sum - (double)dw[0][j]) < 1e-4);
        }
        for (int64_t j = 0; j < rows * k; j++) {
            double sum = 0;
            for (int64_t o = 0; o < n; o++) {
                sum += (double)dout[j / k * n + o] * (double)weight[o * k + j % k];
            }
            assert_true(fabs(sum - (double)dx[j]) < 5e-5);
        }
        int64_t first = between(0, rows - 1), count = between(1, rows - first);
        HD_OK(heddle_dense_backward(part, dw[1], NULL, dout + first * n, x + first * k, count, k, weight, n, 1,
                                    HEDDLE_NO_STREAM));
        same_bits("dx", part, dx + first * k, (size_t)(count * k) * sizeof(float));
        HD_OK(heddle_dense_backward(NULL, dw[2], NULL, dout, x, rows, k, NULL, n, 1, HEDDLE_NO_STREAM));
        for (int t = 0; t < 3; t++) {
            free(dw[t]);
            free(db[t]);
        }
        free(x);
        free(weight);
        free(dout);
        free(dx);
        free(part);
    }
    float one = 0;
    HD_OK(heddle_dense_backward(NULL, NULL, NULL, NULL, NULL, 0, 1, NULL, 1, 1, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_backward(&one, NULL, &one, &one, &one, 1, 1, &one, 1, 1, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_backward(&one, &one, &one, &one, &one, 1, 1, NULL, 1, 1, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_backward(&one, &one, &one, &one, &one, -1, 1, &one, 1, 1, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_backward(&one, &one, &one, &one, &one, 1, 0, &one, 1, 1, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_backward(&one, &one, &one, &one, &one, 1, 1, &one, 1, 257, HEDDLE_NO_STREAM));
}
