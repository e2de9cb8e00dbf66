/* Parts of rows in vectors, f32 or bf16: included after the vectors by whatever is written for any vector width. */
#ifndef HD_BLOCK_ROW_H
#define HD_BLOCK_ROW_H

#include <math.h>

#include "kernels/cpu/vec_math.h"

INLINE vec load_some(const void *x, int bf16, int64_t at, int64_t count)
{
    if (count >= VEC) {
        return bf16 ? vec_load_bf16((const uint16_t *)x + at) : vec_load((const float *)x + at);
    }
    return bf16 ? vec_load_bf16_part((const uint16_t *)x + at, count) : vec_load_part((const float *)x + at, count);
}

INLINE void store_some(void *x, int bf16, int64_t at, vec value, int64_t count)
{
    if (count >= VEC) {
        if (bf16) {
            vec_store_bf16((uint16_t *)x + at, value);
        } else {
            vec_store((float *)x + at, value);
        }
    } else if (bf16) {
        vec_store_bf16_part((uint16_t *)x + at, value, count);
    } else {
        vec_store_part((float *)x + at, value, count);
    }
}

/* Sum over one row of (x - mean), or of its square. Four partial sums per lane, so the order depends on c alone. */
INLINE float row_sum(const void *x, int bf16, int64_t row, int64_t c, float mean, int square)
{
    vec sum[4] = {vec_set1(0), vec_set1(0), vec_set1(0), vec_set1(0)};
    vec shift = vec_set1(mean);
    int64_t i = 0;
    for (; i + 4 * VEC <= c; i += 4 * VEC) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            vec delta = vec_sub(load_some(x, bf16, row + i + j * VEC, VEC), shift);
            sum[j] = square ? vec_fma(delta, delta, sum[j]) : vec_add(sum[j], delta);
        }
    }
    for (; i < c; i += VEC) {
        vec delta = vec_keep(vec_sub(load_some(x, bf16, row + i, c - i), shift), c - i);
        sum[0] = square ? vec_fma(delta, delta, sum[0]) : vec_add(sum[0], delta);
    }
    return vec_sum(vec_add(vec_add(sum[0], sum[1]), vec_add(sum[2], sum[3])));
}

#endif
