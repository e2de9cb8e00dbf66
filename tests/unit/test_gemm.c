/* Linear layers: right, and the same bits for a row among any others, whatever kernels oneDNN picks on a CPU. */
#include "case.h"
#include "filled.h"

#include "kernels/cpu/cpu.h"
#include "kernels/gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 700 };

static void check_values(const void *out, heddle_dtype out_dtype, const void *x, heddle_dtype dtype,
                         const float *weight, const float *bias, int64_t k, int64_t n, int whole)
{
    double of_weights = whole ? 0x1p-18 : 0x1p-8; /* of two halves */
    double tolerance = out_dtype == HEDDLE_BF16 ? 0x1p-7 : dtype == HEDDLE_BF16 ? of_weights : 0;
    for (int i = 0; i < 200; i++) {
        int64_t row = below(MOST_ROWS);
        int64_t column = between(0, n - 1);
        double sum = (double)bias[column], peak = 1;
        for (int64_t j = 0; j < k; j++) {
            sum += (double)value_at(x, dtype, row * k + j) * (double)weight[column * k + j];
            peak = fmax(peak, fabs(sum));
        }
        double limit =
            tolerance * (1 + sqrt((double)k)) + 0x1p-21 * peak * sqrt((double)k); /* k sums of f32: 8 sigma */
        double off = fabs((double)value_at(out, out_dtype, row * n + column) - sum);
        if (!(off <= limit)) {
            fail_msg("%lld to %lld, %s to %s: off by %g of %g", (long long)k, (long long)n, heddle_dtype_name(dtype),
                     heddle_dtype_name(out_dtype), off, sum);
        }
    }
}

static const hd_kernels *kernels(void)
{
    const hd_kernels *widest = NULL;
    HD_OK(hd_kernels_cpu(&widest));
    return widest;
}

/* With hd_gemm_whole_weights; BF16_WEIGHTS: they are whole as they are. */
enum { ROUNDED, WHOLE, BF16_WEIGHTS };

static void check_layer(int64_t k, int64_t n, heddle_dtype dtype, heddle_dtype out_dtype, int weights)
{
    hd_gemm *gemm = NULL;
    size_t in_bytes = (size_t)k * heddle_dtype_bytes(dtype);
    size_t out_bytes = (size_t)n * heddle_dtype_bytes(out_dtype);
    char *x = filled(MOST_ROWS * k, dtype, 1);
    float *weight = filled(n * k, HEDDLE_F32, 1);
    float *bias = filled(n, HEDDLE_F32, 1);
    char *whole = malloc(MOST_ROWS * out_bytes);
    char *part = malloc(MOST_ROWS * out_bytes);
    for (int64_t i = 0; i < n * k && weights == BF16_WEIGHTS; i++) {
        weight[i] = hd_f32_from_bf16(hd_bf16_from_f32(weight[i]));
    }
    HD_OK(hd_gemm_create(&gemm, kernels(), k, n, dtype, out_dtype, 2));
    if (weights != ROUNDED) {
        hd_gemm_whole_weights(gemm);
    }
    HD_OK(hd_gemm_pack(gemm, weight, bias));
    int entered = hd_gemm_enter();
    HD_OK(hd_gemm_run(gemm, 0, whole, x, MOST_ROWS));
    check_values(whole, out_dtype, x, dtype, weight, bias, k, n, weights != ROUNDED);
    for (int i = 0; i < 12; i++) {
        size_t first = drawn_bits() % MOST_ROWS;
        size_t rows = i % 3 == 0 ? 1 : 1 + drawn_bits() % (MOST_ROWS - first);
        memset(part, 0x55, MOST_ROWS * out_bytes);
        HD_OK(hd_gemm_run(gemm, i & 1, part, x + first * in_bytes, (int64_t)rows));
        if (memcmp(part, whole + first * out_bytes, rows * out_bytes) != 0) {
            fail_msg("%zu rows from %zu on differ: %lld to %lld, %s (%s, blocks of %lld)", rows, first, (long long)k,
                     (long long)n, heddle_dtype_name(dtype), hd_gemm_kernel(gemm), (long long)hd_gemm_block_rows(gemm));
        }
        const char *behind = part + rows * out_bytes; /* padding stays in the scratch */
        const size_t bytes = (MOST_ROWS - rows) * out_bytes;
        assert_true(bytes == 0 || (*behind == 0x55 && memcmp(behind, behind + 1, bytes - 1) == 0));
    }
    hd_gemm_leave(entered);
    hd_gemm_destroy(gemm);
    free(x);
    free(weight);
    free(bias);
    free(whole);
    free(part);
}

static void check_layers(void)
{
    static const int64_t size[][2] = {{144, 432}, {144, 144}, {580, 144}, {1152, 1152}, {384, 384},
                                      {16, 1152}, {1, 1},     {37, 41},   {72, 1000}};
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
        check_layer(size[i][0], size[i][1], HEDDLE_F32, HEDDLE_F32, ROUNDED);
        check_layer(size[i][0], size[i][1], HEDDLE_BF16, i & 1 ? HEDDLE_F32 : HEDDLE_BF16, ROUNDED);
        check_layer(size[i][0], size[i][1], HEDDLE_BF16, HEDDLE_F32, i & 1 ? BF16_WEIGHTS : WHOLE);
    }
}

HD_CASE(rows_are_independent)
{
    check_layers();
}

/* Any widths: what a kernel does with the rest of a vector or of a pair of bf16 must not depend on the row. */
HD_CASE(rows_are_independent_for_any_widths)
{
    for (int i = 0; i < hd_rounds(24); i++) {
        int64_t k = between(1, i % 3 == 0 ? 20 : 400), n = between(1, i % 4 == 0 ? 20 : 400);
        check_layer(k, n, HEDDLE_BF16, i & 1 ? HEDDLE_F32 : HEDDLE_BF16, ROUNDED);
        check_layer(k, n, HEDDLE_BF16, HEDDLE_F32, WHOLE);
        check_layer(k, n, HEDDLE_F32, HEDDLE_F32, ROUNDED);
    }
}

/* oneDNN reads this before its first kernel; every case is a process of its own. */
static void rows_are_independent_with(const char *isa)
{
    setenv("ONEDNN_MAX_CPU_ISA", isa, 1);
    check_layers();
}

HD_CASE(rows_are_independent_with_avx512_core)
{
    if (hd_cpu_isa() < HD_ISA_AVX512) {
        hd_skip("avx512", "this CPU has no avx512");
    }
    rows_are_independent_with("AVX512_CORE");
}

HD_CASE(rows_are_independent_with_avx2)
{
    if (hd_cpu_isa() < HD_ISA_AVX2) {
        hd_skip("avx2", "this CPU has no avx2");
    }
    rows_are_independent_with("AVX2");
}

HD_CASE(rows_are_independent_with_sse41)
{
    rows_are_independent_with("SSE41");
}

/* Twice the work only where there is something to gain. */
HD_CASE(bf16_weights_are_packed_once)
{
    static const float weight[] = {0.5f, 3, -1, 0x1p-9f};
    int64_t bytes[3];
    for (int i = 0; i < 3; i++) {
        const float wider[] = {weight[0], weight[1], weight[2], weight[3] * (i == 2 ? 1.001f : 1)};
        hd_gemm *gemm = NULL;
        HD_OK(hd_gemm_create(&gemm, kernels(), 2, 2, HEDDLE_BF16, HEDDLE_F32, 1));
        if (i > 0) {
            hd_gemm_whole_weights(gemm);
        }
        HD_OK(hd_gemm_pack(gemm, wider, NULL));
        bytes[i] = hd_gemm_bytes(gemm);
        assert_true(i < 2 || (bytes[i] > bytes[0]) == hd_gemm_narrow(gemm));
        hd_gemm_destroy(gemm);
    }
    assert_int_equal(bytes[1], bytes[0]);
}

/* oneDNN's gemm, the best it has for SSE41 and AVX2, is half as fast where rows of weights are 4 KiB apart. */
HD_CASE(plain_weights_lie_an_odd_number_of_cache_lines_apart)
{
    enum { K = 2, N = 4096 };
    setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1);
    float *weight = filled(N * K, HEDDLE_F32, 1);
    hd_gemm *gemm = NULL;
    HD_OK(hd_gemm_create(&gemm, kernels(), K, N, HEDDLE_F32, HEDDLE_F32, 1));
    HD_OK(hd_gemm_pack(gemm, weight, NULL));
    const int64_t dense = (int64_t)sizeof(float) * (HD_GEMM_ROWS * (K + N) + K * N); /* rows, results, weights */
    assert_string_equal(hd_gemm_kernel(gemm), "gemm:jit");
    assert_int_equal(hd_gemm_bytes(gemm) - dense, (int64_t)sizeof(float) * 16 * K);
    hd_gemm_destroy(gemm);
    free(weight);
}

HD_CASE(weights_may_change)
{
    const float first[] = {1, 2, 3, 4};
    const float second[] = {0, 1, 1, 0};
    const float x[] = {10, 1};
    float out[2];
    hd_gemm *gemm = NULL;
    HD_OK(hd_gemm_create(&gemm, kernels(), 2, 2, HEDDLE_F32, HEDDLE_F32, 1));
    HD_OK(hd_gemm_pack(gemm, first, x));
    HD_OK(hd_gemm_run(gemm, 0, out, x, 1));
    assert_true(out[0] == 22 && out[1] == 35);
    HD_OK(hd_gemm_pack(gemm, second, NULL));
    HD_OK(hd_gemm_run(gemm, 0, out, x, 1));
    assert_true(out[0] == 1 && out[1] == 10);
    HD_OK(hd_gemm_run(gemm, 0, NULL, NULL, 0));
    hd_gemm_destroy(gemm);
    hd_gemm_destroy(NULL);
    gemm = NULL;
    HD_FAILS(HEDDLE_ERR_ARG, hd_gemm_create(&gemm, kernels(), 0, 2, HEDDLE_F32, HEDDLE_F32, 1));
    assert_null(gemm);
}
