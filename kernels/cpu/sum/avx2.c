/* Sums of rows with 32-byte vectors. */
#if defined(__x86_64__)

#define HD_VEC_COLUMNS 2

#include "kernels/cpu/vec_avx2.h"

typedef __m256d dvec;
#define dvec_load _mm256_loadu_pd
#define dvec_add _mm256_add_pd
#define dvec_store _mm256_storeu_pd
#define dvec_stream _mm256_stream_pd
#define stream_f32 _mm256_stream_ps

static inline vec load_f16(const uint16_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)at));
}

static inline void store_f16(uint16_t *at, vec value)
{
    _mm_storeu_si128((void *)at, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

static inline void stream_f16(uint16_t *at, vec value)
{
    _mm_stream_si128((__m128i *)(void *)at, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

static inline void stream_bf16(uint16_t *at, vec value)
{
    _mm_stream_si128((__m128i *)(void *)at, vec_narrow(value));
}

#define SUM_SLOTS hd_sum_slots_avx2

#include "kernels/cpu/sum/vector.h"

#endif
