#include "case.h"
#include "draw.h"
#include "kernels/small_float.h"
#include "kernels/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ELEMS = 3000, MAX_SRC = 5 };

static int elem_bytes(heddle_dtype dtype)
{
    static const int bytes[] = {
#define DTYPE_BYTES(name, text, size) size,
        HEDDLE_DTYPE_LIST(DTYPE_BYTES)
#undef DTYPE_BYTES
    };
    return bytes[dtype];
}

static int is_nan(heddle_dtype dtype, const void *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, (size_t)elem_bytes(dtype));
    switch (dtype) {
    case HEDDLE_F64:
        return (bits & INT64_MAX) > 0x7ff0000000000000u;
    case HEDDLE_F32:
        return (bits & 0x7fffffffu) > 0x7f800000u;
    case HEDDLE_F16:
        return (bits & 0x7fffu) > 0x7c00u;
    case HEDDLE_BF16:
        return (bits & 0x7fffu) > 0x7f80u;
    default:
        return 0;
    }
}

static void compare(heddle_dtype dtype, const char *got, const char *wanted, int64_t elems)
{
    int bytes = elem_bytes(dtype);
    for (int64_t i = 0; i < elems; i++) {
        if (memcmp(got + i * bytes, wanted + i * bytes, (size_t)bytes) != 0 &&
            !(is_nan(dtype, got + i * bytes) && is_nan(dtype, wanted + i * bytes))) {
            fail_msg("dtype %d element %lld of %lld differs", dtype, (long long)i, (long long)elems);
        }
    }
}

static const char *const variants[] = {"avx2", "avx512"};

/* Random bits hold every kind of float: NaN, infinities, subnormals. */
HD_CASE(vectors_equal_the_judge)
{
    static char store[MAX_SRC][MAX_ELEMS * 8 + 64];
    static char got[MAX_ELEMS * 8 + 64], wanted[MAX_ELEMS * 8 + 64];
    for (int v = 0; v < 2; v++) {
        if (hd_kernels_named(variants[v]) == NULL) {
            hd_not_here(variants[v], "this CPU has no %s", variants[v]);
        }
    }
    for (int round = 0; round < hd_rounds(400); round++) {
        heddle_dtype dtype = (heddle_dtype)(round % HEDDLE_DTYPE_COUNT);
        int64_t elems = below(round % 3 ? 200 : MAX_ELEMS);
        int nsrc = 1 + below(MAX_SRC);
        size_t shift = (size_t)(elem_bytes(dtype) * below(5));
        const void *src[MAX_SRC];
        for (int k = 0; k < nsrc; k++) {
            for (size_t i = 0; i < sizeof(store[k]); i++) {
                store[k][i] = (char)(drawn_bits() >> 13);
            }
            src[k] = store[k] + shift;
        }
        size_t end = shift + (size_t)elems * (size_t)elem_bytes(dtype);
        memset(wanted, 0x5a, sizeof(wanted));
        hd_kernels_named("generic")->sum[dtype](wanted + shift, src, nsrc, elems);
        for (int v = 0; v < 2; v++) {
            const hd_kernels *kernels = hd_kernels_named(variants[v]);
            if (kernels != NULL) {
                memset(got, 0x5a, sizeof(got));
                (round % 2 ? kernels->sum : kernels->sum_streamed)[dtype](got + shift, src, nsrc, elems);
                compare(dtype, got + shift, wanted + shift, elems);
                assert_memory_equal(got + end, wanted + end, sizeof(got) - end);
                assert_memory_equal(got, wanted, shift);
            }
        }
    }
}

HD_CASE(adds_in_order)
{
    const hd_sum_fn *sum = hd_kernels_named("generic")->sum;
    float a[20], b[20], c[20], out[20];
    for (int i = 0; i < 20; i++) {
        a[i] = 1e8f;
        b[i] = 1;
        c[i] = -1e8f;
    }
    sum[HEDDLE_F32](out, (const void *[]){a, c, b}, 3, 20);
    assert_true(out[0] == 1 && out[19] == 1);
    sum[HEDDLE_F32](out, (const void *[]){a, b, c}, 3, 20);
    assert_true(out[0] == 0 && out[19] == 0);
    /* 256 + 1 + 1 is 258 in bf16 only when it is rounded once. */
    uint16_t big = hd_bf16_from_f32(256), one = hd_bf16_from_f32(1), three;
    sum[HEDDLE_BF16](&three, (const void *[]){&big, &one, &one}, 3, 1);
    assert_true(hd_f32_from_bf16(three) == 258);
    int8_t x = 100, y = 100, z;
    sum[HEDDLE_I8](&z, (const void *[]){&x, &y}, 2, 1);
    assert_int_equal(z, -56);
}

/* The value of a small float from its definition, in double. */
static double value_of(unsigned bits, int exponent, int mantissa)
{
    int bias = (1 << (exponent - 1)) - 1;
    int e = (int)(bits >> mantissa) & ((1 << exponent) - 1);
    double m = (double)(bits & ((1u << mantissa) - 1)) / (double)(1 << mantissa);
    double v = e == 0 ? ldexp(m, 1 - bias) : ldexp(1 + m, e - bias);
    return bits >> (exponent + mantissa) ? -v : v;
}

typedef struct format {
    int exponent, mantissa, has_infinity;
    unsigned nan; /* smallest magnitude that is NaN */
    float (*widen)(unsigned bits);
    unsigned (*narrow)(float value);
} format;

#define FORMAT(name, type)                                                                                             \
    static float widen_##name(unsigned bits)                                                                           \
    {                                                                                                                  \
        return hd_f32_from_##name((type)bits);                                                                         \
    }                                                                                                                  \
    static unsigned narrow_##name(float value)                                                                         \
    {                                                                                                                  \
        return hd_##name##_from_f32(value);                                                                            \
    }
FORMAT(f16, uint16_t)
FORMAT(bf16, uint16_t)
FORMAT(f8e4m3, uint8_t)
FORMAT(f8e5m2, uint8_t)

static const format formats[] = {
    {5, 10, 1, 0x7c01, widen_f16, narrow_f16},
    {8, 7, 1, 0x7f81, widen_bf16, narrow_bf16},
    {4, 3, 0, 0x7f, widen_f8e4m3, narrow_f8e4m3},
    {5, 2, 1, 0x7d, widen_f8e5m2, narrow_f8e5m2},
};

HD_CASE(every_value_survives)
{
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        const format *at = &formats[f];
        int bits = 1 + at->exponent + at->mantissa;
        unsigned sign = 1u << (bits - 1);
        for (unsigned v = 0; v < 1u << bits; v++) {
            float wide = at->widen(v);
            unsigned magnitude = v & (sign - 1);
            if (magnitude >= at->nan) {
                assert_true(isnan(wide));
                assert_true((at->narrow(wide) & (sign - 1)) >= at->nan);
            } else {
                assert_int_equal(at->narrow(wide), v);
                if (!(at->has_infinity && magnitude == at->nan - 1)) {
                    assert_true((double)wide == value_of(v, at->exponent, at->mantissa));
                } else {
                    assert_true(isinf(wide));
                }
            }
        }
    }
}

/* Whatever the bits of a NaN, and with its sign. */
HD_CASE(nan_survives)
{
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        const format *at = &formats[f];
        unsigned sign = 1u << (at->exponent + at->mantissa);
        for (int i = 0; i < 2 * 23; i++) {
            unsigned got = at->narrow(hd_f32_from_bits((uint32_t)(i & 1) << 31 | 0x7f800000u | 1u << i / 2));
            assert_true((got & (sign - 1)) >= at->nan && (got & sign) == (i & 1 ? sign : 0));
        }
    }
}

/* Every value of two bytes through the vector kernels, alone and after another; in every lane. */
HD_CASE(every_value_is_summed)
{
    static const heddle_dtype dtypes[] = {HEDDLE_BF16, HEDDLE_F16};
    enum { COUNT = 1 << 16 };
    uint16_t *all = malloc(COUNT * sizeof *all), *one = malloc(COUNT * sizeof *one);
    uint16_t *got = malloc(COUNT * sizeof *got), *wanted = malloc(COUNT * sizeof *wanted);
    for (int v = 0; v < 2; v++) {
        const hd_kernels *kernels = hd_kernels_named(variants[v]);
        for (int i = 0; i < 2 * 2 * 3 && kernels != NULL; i++) {
            heddle_dtype dtype = dtypes[i & 1];
            const int nsrc = 1 + (i >> 1 & 1), shift = i / 4 * 5, elems = COUNT - shift;
            for (int e = 0; e < COUNT; e++) {
                all[e] = (uint16_t)e;
                one[e] = dtype == HEDDLE_BF16 ? 0x0001 : 0x0400; /* subnormal; the smallest that is not */
            }
            const void *src[] = {all + shift, one};
            hd_kernels_named("generic")->sum[dtype](wanted, src, nsrc, elems);
            kernels->sum[dtype](got, src, nsrc, elems);
            compare(dtype, (char *)got, (char *)wanted, elems);
        }
    }
    free(all);
    free(one);
    free(got);
    free(wanted);
}

/* Between two neighbours the nearer wins, in the middle the even one; beyond the largest the overflow rule holds. */
HD_CASE(rounds_to_nearest_even)
{
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        const format *at = &formats[f];
        unsigned largest = at->nan - 1 - (unsigned)at->has_infinity;
        for (unsigned v = 0; v < largest; v++) {
            float low = at->widen(v), high = at->widen(v + 1);
            float middle = (float)(((double)low + (double)high) / 2);
            assert_int_equal(at->narrow(middle), v % 2 ? v + 1 : v);
            assert_int_equal(at->narrow(nextafterf(middle, 0)), v);
            assert_int_equal(at->narrow(nextafterf(middle, INFINITY)), v + 1);
        }
        assert_int_equal(at->narrow(INFINITY), largest + 1);
        assert_int_equal(at->narrow(3e38f), at->exponent == 8 ? 0x7f62 : largest + 1);
    }
    assert_int_equal(hd_f8e4m3_from_f32(464), 0x7e);
    assert_int_equal(hd_f8e4m3_from_f32(465), 0x7f);
    assert_int_equal(hd_f16_from_f32(65519), 0x7bff);
    assert_int_equal(hd_f16_from_f32(65520), 0x7c00);
}
