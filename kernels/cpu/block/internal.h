/* What the variants of the block kernels share. */
#ifndef HD_BLOCK_CPU_H
#define HD_BLOCK_CPU_H

#include "kernels/cpu/fill.h"
#include "kernels/small_float.h"

#define HD_NORM_EPSILON 1e-6
#define HD_GELU_SLOPE 0.7978845608028654f /* sqrt(2 / pi) */
#define HD_GELU_CUBIC 0.044715f

/* Element i of f32 or bf16. */
static inline float hd_block_load(const void *x, heddle_dtype dtype, int64_t i)
{
    return dtype == HEDDLE_BF16 ? hd_f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static inline void hd_block_store(void *x, heddle_dtype dtype, int64_t i, float value)
{
    if (dtype == HEDDLE_BF16) {
        ((uint16_t *)x)[i] = hd_bf16_from_f32(value);
    } else {
        ((float *)x)[i] = value;
    }
}

#endif
