/* Eight floats. Names are those that the kernels of blocks and of attention are written in. */
#ifndef HD_VEC_AVX2_H
#define HD_VEC_AVX2_H

#include "kernels/inline.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum {
    VEC = 8,
    VEC_COLUMNS = HD_VEC_COLUMNS
}; /* lanes; vectors of queries per block (2 x 6 accumulators of 16 registers) */

typedef __m256 vec;

static inline __m256i lanes(int64_t count)
{
    static const int32_t mask[2 * VEC] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const void *)(mask + (count >= VEC ? 0 : VEC - count)));
}

static inline vec vec_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x);
}

/* The first `count` lanes; the others are zero. */
static inline vec vec_load_part(const float *p, int64_t count)
{
    return _mm256_maskload_ps(p, lanes(count));
}

static inline void vec_store_part(float *p, vec x, int64_t count)
{
    _mm256_maskstore_ps(p, lanes(count), x);
}

static inline vec vec_keep(vec x, int64_t count)
{
    return _mm256_and_ps(x, _mm256_castsi256_ps(lanes(count)));
}

static inline vec vec_widen(__m128i bits)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/* Round to nearest even; NaN stays NaN. */
static inline __m128i vec_narrow(vec x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

static inline vec vec_load_bf16(const uint16_t *p)
{
    return vec_widen(_mm_loadu_si128((const void *)p));
}

static inline vec vec_load_bf16_part(const uint16_t *p, int64_t count)
{
    uint16_t part[VEC] = {0};
    memcpy(part, p, (size_t)(count < VEC ? count : VEC) * sizeof *p);
    return vec_load_bf16(part);
}

static inline void vec_store_bf16(uint16_t *p, vec x)
{
    _mm_storeu_si128((void *)p, vec_narrow(x));
}

static inline void vec_store_bf16_part(uint16_t *p, vec x, int64_t count)
{
    uint16_t part[VEC];
    vec_store_bf16(part, x);
    memcpy(p, part, (size_t)(count < VEC ? count : VEC) * sizeof *p);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* b where either is NaN */
static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline vec vec_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x - n for n = vec_round(x); vec_exp2_range has no infinities */
static inline vec vec_fraction(vec x, vec n)
{
    return _mm256_sub_ps(x, n);
}

/* x * 2^n for a whole n of -126 .. 127; zero for -127 */
static inline vec vec_scale_by_power(vec x, vec n)
{
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

/* NaN stays NaN: max and min return their second operand then. */
static inline vec vec_exp2_range(vec x)
{
    return _mm256_min_ps(_mm256_set1_ps(127), _mm256_max_ps(_mm256_set1_ps(-127), x));
}

/* Lanes in pairs (a, b), turned by (cos, sin): a cos - b sin, b cos + a sin. */
static inline vec vec_rotate(vec x, vec cos_sin)
{
    vec turned = _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), _mm256_movehdup_ps(cos_sin));
    return _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(cos_sin), turned);
}

/* All lanes, in a fixed order. */
static inline float vec_sum(vec x)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

static inline HD_ALWAYS_INLINE void vec_transpose(vec *t)
{
    vec u[VEC];
#pragma GCC unroll 8
    for (int i = 0; i < VEC; i += 2) {
        u[i] = _mm256_unpacklo_ps(t[i], t[i + 1]);
        u[i + 1] = _mm256_unpackhi_ps(t[i], t[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < VEC; i += 4) {
        t[i] = _mm256_shuffle_ps(u[i], u[i + 2], 0x44);
        t[i + 1] = _mm256_shuffle_ps(u[i], u[i + 2], 0xee);
        t[i + 2] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0x44);
        t[i + 3] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0xee);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        u[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        u[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
    memcpy(t, u, sizeof u);
}

#endif
