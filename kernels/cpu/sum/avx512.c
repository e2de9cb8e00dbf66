/* Sums of rows with 64-byte vectors. */
#if defined(__x86_64__)

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx512.h"

typedef __m512d dvec;
#define dvec_load _mm512_loadu_pd
#define dvec_add _mm512_add_pd
#define dvec_store _mm512_storeu_pd
#define dvec_stream _mm512_stream_pd
#define stream_f32 _mm512_stream_ps

static inline vec load_f16(const uint16_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at));
}

static inline void store_f16(uint16_t *at, vec value)
{
    _mm256_storeu_si256((void *)at, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

static inline void stream_f16(uint16_t *at, vec value)
{
    _mm256_stream_si256((__m256i *)(void *)at, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

static inline void stream_bf16(uint16_t *at, vec value)
{
    _mm256_stream_si256((__m256i *)(void *)at, vec_narrow(value));
}

#define SUM_SLOTS hd_sum_slots_avx512

#include "kernels/cpu/sum/vector.h"

#endif
