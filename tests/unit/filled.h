/* Arrays of random numbers, f32 or bf16. */
#ifndef HD_TEST_FILLED_H
#define HD_TEST_FILLED_H

#include "case.h"
#include "draw.h"

#include "kernels/small_float.h"

#include <heddle/layout.h>
#include <stdlib.h>

/* -size <= element < size. Behind the array lies nothing: a vector read too far shows under the sanitizers. */
static inline void *filled(int64_t elems, heddle_dtype dtype, float size)
{
    char *memory = malloc((size_t)elems * heddle_dtype_bytes(dtype));
    assert_non_null(memory);
    for (int64_t i = 0; i < elems; i++) {
        float value = size * symmetric();
        if (dtype == HEDDLE_BF16) {
            ((uint16_t *)(void *)memory)[i] = hd_bf16_from_f32(value);
        } else {
            ((float *)(void *)memory)[i] = value;
        }
    }
    return memory;
}

static inline float value_at(const void *x, heddle_dtype dtype, int64_t i)
{
    return dtype == HEDDLE_BF16 ? hd_f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

#endif
