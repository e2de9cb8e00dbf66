#if defined(__x86_64__)

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx512.h"

#include <string.h>

#include "kernels/cpu/block/body.h"

void hd_block_fill_avx512(hd_kernels *table)
{
    table->norm_modulate = norm_modulate;
    table->gate_residual = gate_residual;
    table->gelu = gelu;
    table->norm_rotate = norm_rotate;
    table->convert = convert;
}

#endif
