/* What each file has for the slots of a table, and nothing in the others. The reference comes first, then the wider
 * instruction sets over it (table.c). */
#ifndef HD_CPU_SLOTS_H
#define HD_CPU_SLOTS_H

#include "kernels/table.h"

extern const hd_kernels hd_copy_slots, hd_sum_slots, hd_attn_slots, hd_attn_slots_f64, hd_linear_slots,
    hd_linear_slots_f64, hd_block_slots, hd_block_back_slots, hd_head_norm_slots, hd_pack_slots, hd_adamw_slots,
    hd_squares_slots;

#if defined(__x86_64__)
extern const hd_kernels hd_copy_slots_avx2, hd_sum_slots_avx2, hd_attn_slots_avx2, hd_head_slots_avx2,
    hd_linear_slots_avx2, hd_block_slots_avx2, hd_block_back_slots_avx2;
extern const hd_kernels hd_copy_slots_avx512, hd_sum_slots_avx512, hd_attn_slots_avx512, hd_head_slots_avx512,
    hd_linear_slots_avx512, hd_block_slots_avx512, hd_block_back_slots_avx512;
#endif

#endif
