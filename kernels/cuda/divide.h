/* Division by a number that a kernel is given: a product and a shift. */
#ifndef HD_CUDA_DIVIDE_H
#define HD_CUDA_DIVIDE_H

#include "kernels/cuda/lang.h"
#include "kernels/cuda/list.h"

HD_DEV uint32_t hd_divide(const hd_divisor *by, uint32_t n)
{
    return by->mul == 0 ? n : hd_high_product(n, by->mul) >> by->shift;
}

#endif
