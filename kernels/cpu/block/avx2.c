#if defined(__x86_64__)

#define HD_VEC_COLUMNS 2

#include "kernels/cpu/vec_avx2.h"

#include <string.h>

#include "kernels/cpu/block/body.h"

void hd_block_fill_avx2(hd_kernels *table)
{
    table->norm_modulate = norm_modulate;
    table->gate_residual = gate_residual;
    table->gelu = gelu;
    table->norm_rotate = norm_rotate;
    table->convert = convert;
}

#endif
