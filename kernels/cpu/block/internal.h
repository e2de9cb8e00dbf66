/* What the variants of the block kernels share. */
#ifndef HD_BLOCK_CPU_H
#define HD_BLOCK_CPU_H

#include "kernels/block_numbers.h"
#include "kernels/cpu/slots.h"
#include "kernels/small_float.h"

/* What the variants do: each defines a function of a slot's name, and fills the table with it. */
#define HD_BLOCK_SLOTS(X) X(norm_modulate) X(gate_residual) X(gelu) X(norm_rotate) X(convert)
#define HD_BLOCK_BACK_SLOTS(X) X(scale_rows) X(norm_back) X(gelu_back) X(norm_rotate_back) X(add_columns) X(add_scaled)
#define HD_BLOCK_PUT(slot) .slot = slot,

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
