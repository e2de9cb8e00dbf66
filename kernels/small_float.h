/* 16- and 8-bit floats to and from f32.
 *
 * To f32 is exact. From f32 rounds to nearest even, subnormals kept. NaN stays NaN (quiet; sign and leading payload
 * bits kept where the format has any). Overflow: f16, bf16 and f8e5m2 give infinity; f8e4m3 has none and gives NaN. */
#ifndef HD_SMALL_FLOAT_H
#define HD_SMALL_FLOAT_H

#include "kernels/anywhere.h"

#include <stdint.h>
#include <string.h>

HD_ANYWHERE uint32_t hd_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

HD_ANYWHERE float hd_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

HD_ANYWHERE float hd_f32_from_bf16(uint16_t bits)
{
    return hd_f32_from_bits((uint32_t)bits << 16);
}

HD_ANYWHERE uint16_t hd_bf16_from_f32(float value)
{
    uint32_t bits = hd_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* A format with `exponent` bits of bias 2^(exponent-1)-1 and `mantissa` bits; the value is below infinity and NaN. */
HD_ANYWHERE float hd_small_to_f32(uint32_t magnitude, uint32_t sign, int exponent, int mantissa)
{
    int bias = (1 << (exponent - 1)) - 1;
    uint32_t e = magnitude >> mantissa;
    uint32_t m = magnitude & ((1u << mantissa) - 1);
    if (e == 0) { /* zero or subnormal: m * 2^(1-bias-mantissa), exact in f32 */
        float unit = hd_f32_from_bits((uint32_t)(127 + 1 - bias - mantissa) << 23);
        return hd_f32_from_bits(hd_f32_bits((float)m * unit) | sign << 31);
    }
    return hd_f32_from_bits(sign << 31 | (e + 127 - (uint32_t)bias) << 23 | m << (23 - mantissa));
}

/* Rounds a finite magnitude (f32 bits without sign) to nearest even; the result may exceed the format's largest. */
HD_ANYWHERE uint32_t hd_small_from_f32(uint32_t magnitude, int exponent, int mantissa)
{
    int bias = (1 << (exponent - 1)) - 1;
    int e = (int)(magnitude >> 23) - 127 + bias;
    int drop = 23 - mantissa;
    if (e >= 1) {
        uint32_t rebased = magnitude - ((uint32_t)(127 - bias) << 23);
        return (rebased + (1u << (drop - 1)) - 1 + (rebased >> drop & 1u)) >> drop;
    }
    drop += 1 - e;
    if (drop > 25) {
        return 0;
    }
    uint32_t full = (magnitude & 0x7fffffu) | 0x800000u;
    return (full + (1u << (drop - 1)) - 1 + (full >> drop & 1u)) >> drop;
}

HD_ANYWHERE float hd_f32_from_f16(uint16_t bits)
{
    uint32_t magnitude = bits & 0x7fffu;
    uint32_t sign = bits >> 15;
    if (magnitude >= 0x7c00u) {
        uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0;
        return hd_f32_from_bits(sign << 31 | 0x7f800000u | quiet | (magnitude & 0x3ffu) << 13);
    }
    return hd_small_to_f32(magnitude, sign, 5, 10);
}

HD_ANYWHERE uint16_t hd_f16_from_f32(float value)
{
    uint32_t bits = hd_f32_bits(value);
    uint32_t sign = bits >> 31;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign << 15 | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    uint32_t small = magnitude >= 0x47800000u ? 0x7c00u : hd_small_from_f32(magnitude, 5, 10);
    return (uint16_t)(sign << 15 | (small > 0x7c00u ? 0x7c00u : small));
}

/* Bias 7, no infinity, one NaN per sign (all ones), largest 448. */
HD_ANYWHERE float hd_f32_from_f8e4m3(uint8_t bits)
{
    uint32_t magnitude = bits & 0x7fu;
    uint32_t sign = bits >> 7;
    if (magnitude == 0x7fu) {
        return hd_f32_from_bits(sign << 31 | 0x7fc00000u);
    }
    return hd_small_to_f32(magnitude, sign, 4, 3);
}

HD_ANYWHERE uint8_t hd_f8e4m3_from_f32(float value)
{
    uint32_t bits = hd_f32_bits(value);
    uint32_t sign = bits >> 31;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t small = magnitude >= 0x44000000u ? 0x7fu : hd_small_from_f32(magnitude, 4, 3); /* 512 and more, NaN */
    return (uint8_t)(sign << 7 | (small > 0x7fu ? 0x7fu : small));
}

/* Bias 15, infinity and NaN as in f16, largest 57344. */
HD_ANYWHERE float hd_f32_from_f8e5m2(uint8_t bits)
{
    return hd_f32_from_f16((uint16_t)(bits << 8));
}

HD_ANYWHERE uint8_t hd_f8e5m2_from_f32(float value)
{
    uint32_t bits = hd_f32_bits(value);
    uint32_t sign = bits >> 31;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint8_t)(sign << 7 | 0x7eu | (magnitude >> 21 & 3u));
    }
    uint32_t small = magnitude >= 0x47800000u ? 0x7cu : hd_small_from_f32(magnitude, 5, 2);
    return (uint8_t)(sign << 7 | (small > 0x7cu ? 0x7cu : small));
}

#endif
