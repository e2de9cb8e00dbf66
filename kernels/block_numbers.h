/* The numbers of blocks' formulas (docs/blocks.md). */
#ifndef HD_KERNELS_BLOCK_NUMBERS_H
#define HD_KERNELS_BLOCK_NUMBERS_H

#define HD_NORM_EPSILON 1e-6
#define HD_GELU_SLOPE 0.7978845608028654f /* sqrt(2 / pi) */
#define HD_GELU_CUBIC 0.044715f

#endif
