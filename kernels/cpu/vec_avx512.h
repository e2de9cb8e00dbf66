/* Sixteen floats. Names are those that the kernels of blocks and of attention are written in. */
#ifndef HD_VEC_AVX512_H
#define HD_VEC_AVX512_H

#include "kernels/inline.h"

#include <immintrin.h>
#include <stdint.h>

enum {
    VEC = 16,
    VEC_COLUMNS = HD_VEC_COLUMNS
}; /* lanes; vectors of queries per block (4 x 6 accumulators of 32 registers) */

typedef __m512 vec;

static inline __mmask16 lanes(int64_t count)
{
    return count >= VEC ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1u);
}

static inline vec vec_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}

/* The first `count` lanes; the others are zero. */
static inline vec vec_load_part(const float *p, int64_t count)
{
    return _mm512_maskz_loadu_ps(lanes(count), p);
}

static inline void vec_store_part(float *p, vec x, int64_t count)
{
    _mm512_mask_storeu_ps(p, lanes(count), x);
}

static inline vec vec_keep(vec x, int64_t count)
{
    return _mm512_maskz_mov_ps(lanes(count), x);
}

static inline vec vec_widen(__m256i bits)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* Round to nearest even; NaN stays NaN. */
static inline __m256i vec_narrow(vec x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

static inline vec vec_load_bf16(const uint16_t *p)
{
    return vec_widen(_mm256_loadu_si256((const void *)p));
}

static inline vec vec_load_bf16_part(const uint16_t *p, int64_t count)
{
    return vec_widen(_mm256_maskz_loadu_epi16(lanes(count), p));
}

static inline void vec_store_bf16(uint16_t *p, vec x)
{
    _mm256_storeu_si256((void *)p, vec_narrow(x));
}

static inline void vec_store_bf16_part(uint16_t *p, vec x, int64_t count)
{
    _mm256_mask_storeu_epi16(p, lanes(count), vec_narrow(x));
}

static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* b where either is NaN */
static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline vec vec_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x - n for n = vec_round(x); 0 of an infinity */
static inline vec vec_fraction(vec x, vec n)
{
    (void)n;
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x * 2^n for a whole n */
static inline vec vec_scale_by_power(vec x, vec n)
{
    return _mm512_scalef_ps(x, n);
}

static inline vec vec_exp2_range(vec x)
{
    return x; /* the instruction above saturates by itself */
}

/* Lanes in pairs (a, b), turned by (cos, sin): a cos - b sin, b cos + a sin. */
static inline vec vec_rotate(vec x, vec cos_sin)
{
    vec turned = _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(cos_sin));
    return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(cos_sin), turned);
}

/* All lanes, in a fixed order. */
static inline float vec_sum(vec x)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

static inline HD_ALWAYS_INLINE void vec_transpose(vec *t)
{
    vec u[VEC];
#pragma GCC unroll 16
    for (int i = 0; i < VEC; i += 2) {
        u[i] = _mm512_unpacklo_ps(t[i], t[i + 1]);
        u[i + 1] = _mm512_unpackhi_ps(t[i], t[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < VEC; i += 4) {
        t[i] = _mm512_shuffle_ps(u[i], u[i + 2], 0x44);
        t[i + 1] = _mm512_shuffle_ps(u[i], u[i + 2], 0xee);
        t[i + 2] = _mm512_shuffle_ps(u[i + 1], u[i + 3], 0x44);
        t[i + 3] = _mm512_shuffle_ps(u[i + 1], u[i + 3], 0xee);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        u[i] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
        u[i + 4] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        u[i + 8] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
        u[i + 12] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(u[i], u[i + 8], 0x88);
        t[i + 8] = _mm512_shuffle_f32x4(u[i], u[i + 8], 0xdd);
        t[i + 4] = _mm512_shuffle_f32x4(u[i + 4], u[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(u[i + 4], u[i + 12], 0xdd);
    }
}

#endif
