/* Sums of rows with 64-byte vectors. */
#include "kernels/cpu/fill.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "kernels/cpu/sum/vector.h"

static inline __m512 load_bf16(const uint16_t *at)
{
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

static inline void store_bf16(uint16_t *at, __m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i round = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i out = _mm512_mask_or_epi32(_mm512_srli_epi32(round, 16), nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)(void *)at, _mm512_cvtepi32_epi16(out));
}

static inline __m512 load_f16(const uint16_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}

static inline void store_f16(uint16_t *at, __m512 value)
{
    _mm256_storeu_si256((__m256i *)(void *)at, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

SUM_VECTOR(f64, double, 8, __m512d, _mm512_loadu_pd, _mm512_add_pd, _mm512_storeu_pd)
SUM_VECTOR(f32, float, 16, __m512, _mm512_loadu_ps, _mm512_add_ps, _mm512_storeu_ps)
SUM_VECTOR(bf16, uint16_t, 16, __m512, load_bf16, _mm512_add_ps, store_bf16)
SUM_VECTOR(f16, uint16_t, 16, __m512, load_f16, _mm512_add_ps, store_f16)

void hd_sum_fill_avx512(hd_kernels *table)
{
    table->sum[HEDDLE_F64] = sum_f64;
    table->sum[HEDDLE_F32] = sum_f32;
    table->sum[HEDDLE_BF16] = sum_bf16;
    table->sum[HEDDLE_F16] = sum_f16;
}

#else
typedef int hd_no_sum_avx512;
#endif
