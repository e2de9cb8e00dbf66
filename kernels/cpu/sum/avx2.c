/* Sums of rows with 32-byte vectors. */
#include "kernels/cpu/fill.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "kernels/cpu/sum/vector.h"

static inline __m256 load_bf16(const uint16_t *at)
{
    __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)at);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

static inline void store_bf16(uint16_t *at, __m256 value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i round = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i out = _mm256_blendv_epi8(_mm256_srli_epi32(round, 16), _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
    __m128i low = _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
    _mm_storeu_si128((__m128i *)(void *)at, low);
}

static inline __m256 load_f16(const uint16_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

static inline void store_f16(uint16_t *at, __m256 value)
{
    _mm_storeu_si128((__m128i *)(void *)at, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

SUM_VECTOR(f64, double, 4, __m256d, _mm256_loadu_pd, _mm256_add_pd, _mm256_storeu_pd)
SUM_VECTOR(f32, float, 8, __m256, _mm256_loadu_ps, _mm256_add_ps, _mm256_storeu_ps)
SUM_VECTOR(bf16, uint16_t, 8, __m256, load_bf16, _mm256_add_ps, store_bf16)
SUM_VECTOR(f16, uint16_t, 8, __m256, load_f16, _mm256_add_ps, store_f16)

void hd_sum_fill_avx2(hd_kernels *table)
{
    table->sum[HEDDLE_F64] = sum_f64;
    table->sum[HEDDLE_F32] = sum_f32;
    table->sum[HEDDLE_BF16] = sum_bf16;
    table->sum[HEDDLE_F16] = sum_f16;
}

#else
typedef int hd_no_sum_avx2;
#endif
