/* What a CPU with products of bf16 does with a pair of them, for CPUs without. */
#ifndef HD_TEST_BF16_PRODUCTS_H
#define HD_TEST_BF16_PRODUCTS_H

#include <float.h>

static inline float bf16_flushed(float x)
{
    return x < FLT_MIN && x > -FLT_MIN ? 0.0f * x : x;
}

/* sum + x[1] y[1] + x[0] y[0] as VDPBF16PS has it: the odd product first, each sum rounded to nearest even, subnormal
 * numbers taken and left as zero, whatever the rounding mode says. x, y: values of bf16, whose product is
 * finite and so exact. */
static inline float bf16_pair(float sum, const float x[2], const float y[2])
{
    float odd = bf16_flushed(bf16_flushed(sum) + bf16_flushed(x[1]) * bf16_flushed(y[1]));
    return bf16_flushed(odd + bf16_flushed(x[0]) * bf16_flushed(y[0]));
}

#endif
