#if defined(__x86_64__)

#define HD_VEC_COLUMNS 2

#include "kernels/cpu/vec_avx2.h"

#include <string.h>

#include "kernels/cpu/block/body.h"

#include "kernels/cpu/attention/head.h"

const hd_block_kernels hd_block_avx2 = {
    .name = "avx2",
    .norm_modulate = norm_modulate,
    .gate_residual = gate_residual,
    .gelu = gelu,
    .norm_rotate = norm_rotate,
    .convert = convert,
    .attention = attention,
    .attention_scratch_bytes = attention_scratch_bytes,
};

#endif
