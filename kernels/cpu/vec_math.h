/* Functions of vectors, for any width: included after vec_avx2.h or vec_avx512.h. */
#ifndef HD_VEC_MATH_H
#define HD_VEC_MATH_H

#include "kernels/inline.h"

#define HD_LOG2_E 1.4426950408889634f

#define INLINE static inline HD_ALWAYS_INLINE

/* 2^x to 1 ulp: x = n + f, 2^f by a polynomial that is exactly 1 at 0. 2^-infinity is 0. */
INLINE vec vec_exp2(vec x)
{
    x = vec_exp2_range(x);
    vec n = vec_round(x);
    vec f = vec_fraction(x, n);
    vec p = vec_set1(0x1.41fbba0000000p-13f);
    p = vec_fma(p, f, vec_set1(0x1.5f3e540000000p-10f));
    p = vec_fma(p, f, vec_set1(0x1.3b2d4c0000000p-7f));
    p = vec_fma(p, f, vec_set1(0x1.c6aee80000000p-5f));
    p = vec_fma(p, f, vec_set1(0x1.ebfbdc0000000p-3f));
    p = vec_fma(p, f, vec_set1(0x1.62e4300000000p-1f));
    p = vec_fma(p, f, vec_set1(1));
    return vec_scale_by_power(p, n);
}

#endif
