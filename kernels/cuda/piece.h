/* 16 bytes of a row: 4 or 8 numbers, loaded at once where the row lies as it should, else one by one. Functions are
 * given a type that is constant where they are called. */
#ifndef HD_CUDA_PIECE_H
#define HD_CUDA_PIECE_H

#include "kernels/cuda/warp.h"
#include "kernels/small_float.h"

#include <heddle/layout.h>

typedef union hd_lane_piece {
    hd_v16 whole;
    uint32_t word[4];
    uint16_t half[8];
} hd_lane_piece;

enum { HD_PIECE_MOST = 8 };

HD_DEV int hd_piece_elems(heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? 4 : 8;
}

HD_DEV int hd_elem_bytes(heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? 4 : 2;
}

HD_DEV float hd_half_get(uint16_t bits, heddle_dtype dtype)
{
    return dtype == HEDDLE_BF16 ? hd_f32_from_bf16(bits) : hd_from_f16(bits);
}

HD_DEV uint16_t hd_half_of(float value, heddle_dtype dtype)
{
    return dtype == HEDDLE_BF16 ? hd_to_bf16(value) : hd_to_f16(value);
}

HD_DEV uint32_t hd_half_pair(float low, float high, heddle_dtype dtype)
{
    return dtype == HEDDLE_BF16 ? hd_pair_to_bf16(low, high) : hd_pair_to_f16(low, high);
}

HD_DEV float hd_piece_get(const hd_lane_piece *p, int i, heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? hd_f32_from_bits(p->word[i]) : hd_half_get(p->half[i], dtype);
}

/* Of as many values as a piece has. */
HD_DEV hd_lane_piece hd_piece_of(const float *value, heddle_dtype dtype)
{
    hd_lane_piece p;
    HD_UNROLL
    for (int i = 0; i < 4; i++) {
        p.word[i] = dtype == HEDDLE_F32 ? hd_f32_bits(value[i]) : hd_half_pair(value[2 * i], value[2 * i + 1], dtype);
    }
    return p;
}

/* From column `at` of a row of which `left` elements are left there; zeros behind its end. */
HD_DEV hd_lane_piece hd_piece_load(const char *row, int32_t at, int32_t left, heddle_dtype dtype, int is_whole)
{
    hd_lane_piece p;
    const char *from = row + (int64_t)at * hd_elem_bytes(dtype);
    if (is_whole) {
        p.whole = hd_load_16(from);
        return p;
    }
    HD_UNROLL
    for (int i = 0; i < hd_piece_elems(dtype); i++) {
        if (dtype == HEDDLE_F32) {
            p.word[i] = i < left ? hd_load_4(from + 4 * i) : 0;
        } else {
            p.half[i] = i < left ? (uint16_t)hd_load_2(from + 2 * i) : (uint16_t)0;
        }
    }
    return p;
}

HD_DEV void hd_piece_store(char *row, int32_t at, int32_t left, heddle_dtype dtype, int is_whole,
                           const hd_lane_piece *p)
{
    char *to = row + (int64_t)at * hd_elem_bytes(dtype);
    if (is_whole) {
        hd_store_16(to, p->whole);
        return;
    }
    HD_UNROLL
    for (int i = 0; i < hd_piece_elems(dtype); i++) {
        if (i < left && dtype == HEDDLE_F32) {
            hd_store_4(to + 4 * i, p->word[i]);
        } else if (i < left) {
            hd_store_2(to + 2 * i, p->half[i]);
        }
    }
}

/* n numbers of a row from column `at`, whole pieces of the type. */
HD_DEV void hd_values_load(float *out, const char *row, int32_t at, int32_t left, int n, heddle_dtype dtype,
                           int is_whole)
{
    HD_UNROLL
    for (int j = 0; j < n; j += hd_piece_elems(dtype)) {
        const hd_lane_piece p = hd_piece_load(row, at + j, left - j, dtype, is_whole);
        HD_UNROLL
        for (int i = 0; i < hd_piece_elems(dtype); i++) {
            out[j + i] = hd_piece_get(&p, i, dtype);
        }
    }
}

HD_DEV void hd_values_store(char *row, const float *value, int32_t at, int32_t left, int n, heddle_dtype dtype,
                            int is_whole)
{
    HD_UNROLL
    for (int j = 0; j < n; j += hd_piece_elems(dtype)) {
        const hd_lane_piece p = hd_piece_of(value + j, dtype);
        hd_piece_store(row, at + j, left - j, dtype, is_whole, &p);
    }
}

/* As many as a piece of `dtype` has, of that type or of f32. */
HD_DEV void hd_values_load_either(float *out, const char *row, int32_t at, int32_t left, heddle_dtype dtype, int is_f32,
                                  int is_whole)
{
    if (is_f32) {
        hd_values_load(out, row, at, left, hd_piece_elems(dtype), HEDDLE_F32, is_whole);
    } else {
        hd_values_load(out, row, at, left, hd_piece_elems(dtype), dtype, is_whole);
    }
}

/* n numbers of a vector that neighbours read, too: 4 or 8 of them. */
HD_DEV void hd_floats_load(float *out, const float *at, int32_t left, int n, int is_whole)
{
    HD_UNROLL
    for (int i = 0; i < n; i += 4) {
        hd_lane_piece p;
        if (is_whole) {
            p.whole = hd_load_kept_16(at + i);
        }
        HD_UNROLL
        for (int j = 0; j < 4; j++) {
            out[i + j] = is_whole       ? hd_f32_from_bits(p.word[j])
                         : i + j < left ? hd_f32_from_bits(hd_load_constant_4(at + i + j))
                                        : 0;
        }
    }
}

#endif
