/* What the variants of the block kernels share. */
#ifndef HD_BLOCK_CPU_H
#define HD_BLOCK_CPU_H

#include "kernels/block.h"

#define HD_NORM_EPSILON 1e-6
#define HD_GELU_SLOPE 0.7978845608028654f /* sqrt(2 / pi) */
#define HD_GELU_CUBIC 0.044715f
#define HD_LOG2_E 1.4426950408889634f

extern const hd_block_kernels hd_block_reference;
extern const hd_block_back_kernels hd_block_back_reference;
#if defined(__x86_64__)
extern const hd_block_kernels hd_block_avx2;
extern const hd_block_kernels hd_block_avx512;
extern const hd_block_back_kernels hd_block_back_avx2;
extern const hd_block_back_kernels hd_block_back_avx512;
#endif

#endif
