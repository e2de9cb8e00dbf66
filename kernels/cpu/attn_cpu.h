/* The variants of the attention kernels. */
#ifndef HD_ATTN_CPU_H
#define HD_ATTN_CPU_H

#include "kernels/kernels_attention.h"

extern const hd_attn_kernels hd_attn_f64;
extern const hd_attn_kernels hd_attn_reference;

#endif
