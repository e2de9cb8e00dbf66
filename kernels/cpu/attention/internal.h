/* The variants of the attention kernels. */
#ifndef HD_ATTN_CPU_H
#define HD_ATTN_CPU_H

#include "kernels/attention.h"

extern const hd_attn_kernels hd_attn_f64;
extern const hd_attn_kernels hd_attn_reference;
#if defined(__x86_64__)
extern const hd_attn_kernels hd_attn_avx2;
extern const hd_attn_kernels hd_attn_avx512;
#endif

#define HD_LOG2_E 1.4426950408889634f
#define HD_ROW_DOWN 0x1p-32f              /* of rows that would leave the range: hd_attn_carry */
#define HD_ROW_DOWN_LOG 22.18070977791825 /* -log of it */

#endif
