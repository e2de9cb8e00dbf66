/* The variants of the linear attention kernels. */
#ifndef HD_LINEAR_CPU_H
#define HD_LINEAR_CPU_H

#include "kernels/linear.h"

/* dst[m][n] (+)= sum over k of a[m*a_row + k*a_column] * b[k*b_row + n], n a multiple of the lanes. */
typedef enum hd_linear_part {
    HD_LINEAR_ALL,
    HD_LINEAR_LOWER_K, /* a is 0 for k > m */
    HD_LINEAR_UPPER_K, /* a is 0 for k < m */
    HD_LINEAR_LOWER_N  /* only n <= m is wanted; more may be written */
} hd_linear_part;

extern const hd_linear_kernels hd_linear_f64;
extern const hd_linear_kernels hd_linear_reference;
#if defined(__x86_64__)
extern const hd_linear_kernels hd_linear_avx2;
extern const hd_linear_kernels hd_linear_avx512;
#endif

#endif
