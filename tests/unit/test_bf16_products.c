/* The emulated products of bf16 are those of a CPU that has them. */
#include "bf16_products.h"
#include "case.h"
#include "draw.h"

#include "kernels/small_float.h"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f,avx512bf16"))) static float pair_of_cpu(float sum, uint32_t x, uint32_t y)
{
    __m512i a = _mm512_set1_epi32((int)x), b = _mm512_set1_epi32((int)y);
    return _mm512_cvtss_f32(_mm512_dpbf16_ps(_mm512_set1_ps(sum), (__m512bh)a, (__m512bh)b));
}
#endif

/* Within 2^spread of 1: sums that cancel, sums of one term, and numbers that are too small. */
static uint32_t float_bits(int spread)
{
    uint32_t sign = (uint32_t)between(0, 1) << 31, exponent = (uint32_t)(127 + between(-spread, spread));
    return sign | exponent << 23 | (uint32_t)between(0, 0x7fffff);
}

HD_CASE(pairs_are_those_of_the_cpu)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16")) {
        hd_skip("avx512_bf16", "this CPU has no avx512_bf16");
    }
    for (int i = 0; i < hd_rounds(200000); i++) {
        static const int spreads[] = {1, 4, 20, 40, 62};
        int spread = spreads[i % 5];
        uint32_t x[2], y[2], sum = float_bits(spread);
        float fx[2], fy[2];
        for (int e = 0; e < 2; e++) {
            x[e] = float_bits(spread) >> 16;
            y[e] = float_bits(i % 7 == 0 ? 62 : spread) >> 16;
            fx[e] = hd_f32_from_bf16((uint16_t)x[e]);
            fy[e] = hd_f32_from_bf16((uint16_t)y[e]);
        }
        float got = bf16_pair(hd_f32_from_bits(sum), fx, fy);
        float wanted = pair_of_cpu(hd_f32_from_bits(sum), x[1] << 16 | x[0], y[1] << 16 | y[0]);
        if (!(got == wanted) && !(isnan(got) && isnan(wanted))) {
            fail_msg("%a + %a %a + %a %a is %a, not %a", (double)hd_f32_from_bits(sum), (double)fx[1], (double)fy[1],
                     (double)fx[0], (double)fy[0], (double)wanted, (double)got);
        }
    }
#else
    hd_skip("avx512_bf16", "this CPU has no avx512_bf16");
#endif
}
