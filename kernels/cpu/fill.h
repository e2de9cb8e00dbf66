/* What fills the slots of a table: the reference first, then the wider instruction sets over it. */
#ifndef HD_CPU_FILL_H
#define HD_CPU_FILL_H

#include "kernels/table.h"

void hd_copy_fill(hd_kernels *table);
void hd_sum_fill(hd_kernels *table);
void hd_attn_fill(hd_kernels *table);
void hd_attn_fill_f64(hd_kernels *table);
void hd_linear_fill(hd_kernels *table);
void hd_linear_fill_f64(hd_kernels *table);
void hd_block_fill(hd_kernels *table);
void hd_block_back_fill(hd_kernels *table);
void hd_head_norm_fill(hd_kernels *table);
void hd_pack_fill(hd_kernels *table);
void hd_adamw_fill(hd_kernels *table);
void hd_squares_fill(hd_kernels *table);

#if defined(__x86_64__)
void hd_copy_fill_avx2(hd_kernels *table);
void hd_sum_fill_avx2(hd_kernels *table);
void hd_attn_fill_avx2(hd_kernels *table);
void hd_head_fill_avx2(hd_kernels *table);
void hd_linear_fill_avx2(hd_kernels *table);
void hd_block_fill_avx2(hd_kernels *table);
void hd_block_back_fill_avx2(hd_kernels *table);

void hd_copy_fill_avx512(hd_kernels *table);
void hd_sum_fill_avx512(hd_kernels *table);
void hd_attn_fill_avx512(hd_kernels *table);
void hd_head_fill_avx512(hd_kernels *table);
void hd_linear_fill_avx512(hd_kernels *table);
void hd_block_fill_avx512(hd_kernels *table);
void hd_block_back_fill_avx512(hd_kernels *table);
#endif

#endif
