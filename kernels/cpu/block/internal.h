/* What the variants of the block kernels share. */
#ifndef HD_BLOCK_CPU_H
#define HD_BLOCK_CPU_H

#include "kernels/cpu/fill.h"

#define HD_NORM_EPSILON 1e-6
#define HD_GELU_SLOPE 0.7978845608028654f /* sqrt(2 / pi) */
#define HD_GELU_CUBIC 0.044715f

#endif
