/* What the variants of the linear attention kernels share. */
#ifndef HD_LINEAR_CPU_H
#define HD_LINEAR_CPU_H

#include "kernels/cpu/slots.h"

/* dst[m][n] (+)= sum over k of a[m*a_row + k*a_column] * b[k*b_row + n], n a multiple of the lanes. */
typedef enum hd_linear_part {
    HD_LINEAR_ALL,
    HD_LINEAR_LOWER_K, /* a is 0 for k > m */
    HD_LINEAR_UPPER_K, /* a is 0 for k < m */
    HD_LINEAR_LOWER_N  /* only n <= m is wanted; more may be written */
} hd_linear_part;

#endif
