/* Block kernels: every variant this CPU runs against the reference, and the same bits in whatever lane or row. */
#include "case.h"
#include "filled.h"

#include "kernels/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void close_to(const void *x, const void *wanted, heddle_dtype dtype, int64_t elems, double tolerance)
{
    tolerance = dtype == HEDDLE_BF16 ? fmax(tolerance, 0x1p-8) : tolerance;
    for (int64_t i = 0; i < elems; i++) {
        double a = (double)value_at(x, dtype, i);
        double b = (double)value_at(wanted, dtype, i);
        if (!(fabs(a - b) <= tolerance * (1 + fabs(b)))) {
            fail_msg("element %lld: %.9g, the reference has %.9g", (long long)i, a, b);
        }
    }
}

typedef void (*variant_case)(const hd_kernels *kernels, heddle_dtype dtype);

static void for_each_variant(variant_case fn)
{
    static const char *const name[] = {"generic", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        const hd_kernels *kernels = hd_kernels_named(name[i]);
        if (kernels == NULL) {
            hd_not_here(name[i], "this CPU has no %s", name[i]);
            continue;
        }
        fn(kernels, HEDDLE_F32);
        fn(kernels, HEDDLE_BF16);
    }
}

static const hd_kernels *reference(void)
{
    const hd_kernels *kernels = hd_kernels_named("generic");
    assert_non_null(kernels);
    return kernels;
}

static void run_attention(const hd_kernels *kernels, const hd_attention_head *head)
{
    void *scratch = NULL;
    assert_int_equal(posix_memalign(&scratch, 64, kernels->attention_scratch_bytes(head->nk, head->d)), 0);
    kernels->attention(head, scratch);
    free(scratch);
}

static void attention_case(const hd_kernels *kernels, heddle_dtype dtype)
{
    for (int i = 0; i < hd_rounds(60); i++) {
        hd_attention_head head = {.dtype = dtype, .nq = between(1, 150), .nk = between(1, 250), .d = between(1, 140)};
        if (i % 3 == 0) {
            head.nq = head.nk = between(1, 70);
        }
        head.q_stride = head.d + between(0, 9);
        head.kv_stride = head.d + between(0, 9);
        head.out_stride = head.d + between(0, 9);
        head.scale = 1.0f / sqrtf((float)head.d);
        void *q = filled(head.nq * head.q_stride, dtype, 4);
        void *k = filled(head.nk * head.kv_stride, dtype, 4);
        void *v = filled(head.nk * head.kv_stride, dtype, 1);
        void *out = filled(head.nq * head.out_stride, dtype, 1);
        void *wanted = malloc((size_t)(head.nq * head.out_stride) * heddle_dtype_bytes(dtype));
        memcpy(wanted, out, (size_t)(head.nq * head.out_stride) * heddle_dtype_bytes(dtype));
        head.q = q;
        head.k = k;
        head.v = v;
        head.out = wanted;
        run_attention(reference(), &head);
        head.out = out;
        run_attention(kernels, &head);
        close_to(out, wanted, dtype, head.nq * head.out_stride, 2e-5); /* what lies between the rows included */
        /* One query alone has the bits it has among others. */
        int64_t alone = between(0, head.nq - 1);
        size_t elem = heddle_dtype_bytes(dtype);
        void *row = filled(head.d, dtype, 1);
        hd_attention_head one = head;
        one.q = (const char *)q + (size_t)(alone * head.q_stride) * elem;
        one.nq = 1;
        one.out = row;
        run_attention(kernels, &one);
        assert_memory_equal(row, (char *)out + (size_t)(alone * head.out_stride) * elem, (size_t)head.d * elem);
        free(row);
        free(q);
        free(k);
        free(v);
        free(out);
        free(wanted);
    }
}

HD_CASE(attention_follows_the_reference)
{
    for_each_variant(attention_case);
}

static void far_scores_case(const hd_kernels *kernels, heddle_dtype dtype)
{
    enum { KEYS = 130, D = 8 };
    hd_attention_head head = {.dtype = dtype, .nq = 3, .nk = KEYS, .d = D, .scale = 1};
    head.q_stride = head.kv_stride = head.out_stride = D;
    float q[3 * D] = {0}, k[KEYS * D] = {0}, v[KEYS * D] = {0};
    q[0] = 1000; /* falls, rises, then one that is reached in the second block of keys */
    q[D] = -1000;
    q[2 * D + 1] = 500;
    for (int i = 0; i < KEYS; i++) {
        k[i * D] = (float)i;
        v[i * D] = (float)i;
    }
    k[120 * D + 1] = 1;
    void *narrow[3] = {malloc(sizeof q), malloc(sizeof k), malloc(sizeof v)};
    kernels->convert(narrow[0], dtype, q, HEDDLE_F32, 3 * D);
    kernels->convert(narrow[1], dtype, k, HEDDLE_F32, KEYS * D);
    kernels->convert(narrow[2], dtype, v, HEDDLE_F32, KEYS * D);
    float out[3 * D] = {0};
    head.q = narrow[0];
    head.k = narrow[1];
    head.v = narrow[2];
    head.out = out;
    run_attention(kernels, &head);
    assert_true(value_at(out, dtype, 0) == KEYS - 1);
    assert_true(value_at(out, dtype, D) == 0);
    assert_true(value_at(out, dtype, 2 * D) == 120);
    for (int i = 0; i < 3; i++) {
        free(narrow[i]);
    }
}

HD_CASE(far_scores_pick_one_key)
{
    for_each_variant(far_scores_case);
}

static void nan_case(const hd_kernels *kernels, heddle_dtype dtype)
{
    enum { KEYS = 100, D = 16, QUERIES = 20 };
    for (int where = 0; where < 3; where++) {
        hd_attention_head head = {.dtype = dtype, .nq = QUERIES, .nk = KEYS, .d = D, .scale = 0.25f};
        head.q_stride = head.kv_stride = head.out_stride = D;
        void *input[3] = {filled(QUERIES * D, dtype, 1), filled(KEYS * D, dtype, 1), filled(KEYS * D, dtype, 1)};
        void *out = filled(QUERIES * D, dtype, 1);
        const float nan = NAN;
        kernels->convert((char *)input[where] + (size_t)(7 * D + 3) * heddle_dtype_bytes(dtype), dtype, &nan,
                         HEDDLE_F32, 1);
        head.q = input[0];
        head.k = input[1];
        head.v = input[2];
        head.out = out;
        run_attention(kernels, &head);
        for (int i = 0; i < QUERIES * D; i++) {
            int reached = where == 0 ? i / D == 7 : where == 1 ? 1 : i % D == 3;
            assert_int_equal(!!isnan(value_at(out, dtype, i)), reached);
        }
        free(input[0]);
        free(input[1]);
        free(input[2]);
        free(out);
    }
}

HD_CASE(nan_reaches_what_depends_on_it)
{
    for_each_variant(nan_case);
}

static void norm_case(const hd_kernels *kernels, heddle_dtype dtype)
{
    for (int64_t c = 1; c < 200; c += 1 + c / 20) {
        int64_t rows = between(1, 5);
        size_t row_bytes = (size_t)c * heddle_dtype_bytes(dtype);
        char *x = filled(rows * c, dtype, 3);
        float *change = filled(3 * c, HEDDLE_F32, 1);
        char *out = filled(rows * c, dtype, 1);
        char *wanted = filled(rows * c, dtype, 1);
        reference()->norm_modulate(wanted, x, dtype, rows, c, change, change + c);
        kernels->norm_modulate(out, x, dtype, rows, c, change, change + c);
        close_to(out, wanted, dtype, c > 1 ? rows * c : 0, 1e-5);
        kernels->norm_modulate(wanted, x + (size_t)(rows - 1) * row_bytes, dtype, 1, c, change, change + c);
        assert_memory_equal(wanted, out + (size_t)(rows - 1) * row_bytes, row_bytes);
        float *y = filled(rows * c, HEDDLE_F32, 1);
        memcpy(wanted, x, (size_t)rows * row_bytes);
        reference()->gate_residual(wanted, dtype, y, rows, c, c % 2 ? change + 2 * c : NULL);
        kernels->gate_residual(x, dtype, y, rows, c, c % 2 ? change + 2 * c : NULL);
        close_to(x, wanted, dtype, rows * c, 1e-6);
        free(x);
        free(change);
        free(out);
        free(wanted);
        free(y);
    }
}

HD_CASE(norm_and_residual_follow_the_reference)
{
    for_each_variant(norm_case);
}

static void rotate_case(const hd_kernels *kernels, heddle_dtype dtype)
{
    for (int64_t d = 2; d <= 140; d += 2) {
        void *x = filled(3 * d, dtype, 2);
        void *wanted = malloc((size_t)(3 * d) * heddle_dtype_bytes(dtype));
        float *weight = filled(d, HEDDLE_F32, 1);
        float *cos_sin = filled(d, HEDDLE_F32, 1);
        memcpy(wanted, x, (size_t)(3 * d) * heddle_dtype_bytes(dtype));
        reference()->norm_rotate(wanted, dtype, 3, d, d % 4 ? weight : NULL, d % 6 ? cos_sin : NULL);
        kernels->norm_rotate(x, dtype, 3, d, d % 4 ? weight : NULL, d % 6 ? cos_sin : NULL);
        close_to(x, wanted, dtype, 3 * d, 2e-6);
        free(x);
        free(wanted);
        free(weight);
        free(cos_sin);
    }
}

HD_CASE(rotation_follows_the_reference)
{
    for_each_variant(rotate_case);
}

static void gelu_case(const hd_kernels *kernels, heddle_dtype dtype)
{
    enum { COUNT = 4003 };
    float *x = malloc(COUNT * sizeof *x);
    void *out = filled(COUNT, dtype, 1);
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(i - COUNT / 2) * 0.01f;
    }
    x[1] = 1e30f;
    x[2] = NAN;
    x[3] = 0;
    x[4] = -1e4f;
    kernels->gelu(out, dtype, x, COUNT);
    assert_true(value_at(out, dtype, 1) >= 0.99e30f);
    assert_true(isnan(value_at(out, dtype, 2)));
    assert_true(value_at(out, dtype, 3) == 0);
    assert_true(fabsf(value_at(out, dtype, 4)) < 1e-30f);
    for (int i = 5; i < COUNT; i++) {
        double v = (double)x[i];
        double wanted = 0.5 * v * (1 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
        double error = fabs((double)value_at(out, dtype, i) - wanted);
        assert_true(error <= (dtype == HEDDLE_BF16 ? 0x1p-8 : 4e-7) * (1 + fabs(wanted)));
    }
    /* The same bits wherever it lies. */
    for (int64_t i = 5; i < COUNT - 40; i += 13) {
        char part[40 * sizeof(float)];
        int64_t count = between(1, 40);
        size_t elem = heddle_dtype_bytes(dtype);
        kernels->gelu(part, dtype, x + i, count);
        assert_memory_equal(part, (char *)out + (size_t)i * elem, (size_t)count * elem);
    }
    free(x);
    free(out);
}

HD_CASE(gelu_is_accurate)
{
    for_each_variant(gelu_case);
}

static void convert_case(const hd_kernels *kernels, heddle_dtype dtype)
{
    if (dtype == HEDDLE_F32) {
        return;
    }
    enum { COUNT = 1 << 16 };
    float *x = malloc((COUNT + 5) * sizeof *x);
    uint16_t *narrow = malloc(COUNT * sizeof *narrow);
    uint16_t *back = malloc(COUNT * sizeof *back);
    for (int i = 0; i < COUNT; i++) {
        narrow[i] = (uint16_t)i;
    }
    kernels->convert(x, HEDDLE_F32, narrow, HEDDLE_BF16, COUNT);
    kernels->convert(back, HEDDLE_BF16, x, HEDDLE_F32, COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(back[i], isnan(x[i]) ? narrow[i] | 0x40 : narrow[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits = (uint32_t)drawn_bits();
        memcpy(&x[i], &bits, sizeof bits);
    }
    kernels->convert(back, HEDDLE_BF16, x, HEDDLE_F32, COUNT - 3);
    for (int i = 0; i < COUNT - 3; i++) {
        assert_int_equal(back[i], hd_bf16_from_f32(x[i]));
    }
    /* Every upper half with the lower ones that decide: ties, what is next to them, a NaN that has nothing but them. In
     * whole vectors and in parts of one. */
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (size_t l = 0; l < sizeof lower / sizeof lower[0]; l++) {
        for (int i = 0; i < COUNT; i++) {
            x[i] = hd_f32_from_bits((uint32_t)i << 16 | lower[l]);
        }
        for (int piece = 7; piece <= COUNT; piece *= COUNT / 7) {
            memset(back, 0x55, COUNT * sizeof *back);
            for (int i = 0; i < COUNT; i += piece) {
                kernels->convert(back + i, HEDDLE_BF16, x + i, HEDDLE_F32, COUNT - i < piece ? COUNT - i : piece);
            }
            for (int i = 0; i < COUNT; i++) {
                if (back[i] != hd_bf16_from_f32(x[i]) || isnan(x[i]) != isnan(hd_f32_from_bf16(back[i]))) {
                    fail_msg("%s: %08x becomes %04x", kernels->name, hd_f32_bits(x[i]), back[i]);
                }
            }
        }
    }
    free(x);
    free(narrow);
    free(back);
}

HD_CASE(conversion_rounds_to_even)
{
    for_each_variant(convert_case);
}

HD_CASE(the_best_variant_is_known_by_name)
{
    const hd_kernels *widest = NULL;
    HD_OK(hd_kernels_cpu(&widest));
    assert_ptr_equal(hd_kernels_named(widest->name), widest);
    assert_null(hd_kernels_named("abacus"));
}
