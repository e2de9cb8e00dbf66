/* Gradients of weights from bf16 rows: right, added up, the same bits on every seat. */
#include "case.h"
#include "draw.h"

#include "kernels/gemm.h"
#include "kernels/small_float.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint16_t *rows_of(int64_t elems)
{
    uint16_t *x = malloc((size_t)elems * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < elems; i++) {
        x[i] = hd_bf16_from_f32(symmetric());
    }
    return x;
}

static hd_gemm_outer *make(int seats)
{
    hd_gemm_outer *outer = NULL;
    HD_OK(hd_gemm_outer_create(&outer, seats));
    if (outer == NULL) {
        hd_skip("bf16", "oneDNN has no fast bf16 kernel for this CPU");
    }
    return outer;
}

/* Columns first..first+n-1 of dy, whose rows are `stride` long. */
static void check(hd_gemm_outer *outer, int64_t rows, int64_t stride, int64_t first, int64_t n, int64_t k)
{
    size_t bytes = (size_t)(n * k) * sizeof(float);
    uint16_t *dy = rows_of(rows * stride), *x = rows_of(rows * k);
    float *dw = malloc(bytes), *again = malloc(bytes);
    memset(dw, 0x7f, bytes); /* not read unless added to */
    hd_outer_product product = {dw, dy + first, x, stride, n, k, rows, 0};
    HD_OK(hd_gemm_outer_run(outer, 0, &product));
    product.add = 1;
    HD_OK(hd_gemm_outer_run(outer, 0, &product));
    memset(again, 0, bytes);
    for (int i = 0; i < 2; i++) {
        product.dw = again;
        HD_OK(hd_gemm_outer_run(outer, 1, &product));
    }
    assert_memory_equal(dw, again, bytes);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < k; j++) {
            double sum = 0;
            for (int64_t r = 0; r < rows; r++) {
                sum += (double)hd_f32_from_bf16(dy[r * stride + first + i]) * (double)hd_f32_from_bf16(x[r * k + j]);
            }
            if (!(fabs((double)dw[i * k + j] - 2 * sum) <= 2e-6 * sqrt((double)rows) + 1e-6)) {
                fail_msg("%lld x %lld over %lld rows: %g instead of %g", (long long)n, (long long)k, (long long)rows,
                         (double)dw[i * k + j], 2 * sum);
            }
        }
    }
    free(dy);
    free(x);
    free(dw);
    free(again);
}

HD_CASE(products_are_right)
{
    static const int64_t size[][5] = {/* rows, stride, first, n, k */
                                      {1, 1, 0, 1, 1},       {1, 7, 2, 3, 5},       {300, 200, 8, 192, 72},
                                      {17, 433, 192, 48, 9}, {1024, 40, 0, 40, 37}, {511, 64, 63, 1, 130}};
    hd_gemm_outer *outer = make(2);
    int entered = hd_gemm_enter();
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
        check(outer, size[i][0], size[i][1], size[i][2], size[i][3], size[i][4]);
    }
    hd_gemm_leave(entered);
    hd_gemm_outer_destroy(outer);
}

static int threads_of_this_process(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (const struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(tasks);
    return count;
}

/* A pool of OpenMP would share one core with the rank that is bound to it. Says nothing on a machine of one core. */
HD_CASE(openmp_starts_no_threads)
{
    int before = threads_of_this_process();
    hd_gemm_outer *outer = make(2);
    int entered = hd_gemm_enter();
    check(outer, 512, 192, 0, 192, 384);
    hd_gemm_leave(entered);
    assert_int_equal(threads_of_this_process(), before);
    hd_gemm_outer_destroy(outer);
}

/* oneDNN reads this before its first kernel; every case is a process of its own. */
HD_CASE(any_cpu_gets_an_answer)
{
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
    hd_gemm_outer *outer = NULL;
    HD_OK(hd_gemm_outer_create(&outer, 2));
    hd_gemm_outer_destroy(outer);
    hd_gemm_outer_destroy(NULL);
}
