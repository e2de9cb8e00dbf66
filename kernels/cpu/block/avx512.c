#if defined(__x86_64__)

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx512.h"

#include <string.h>

#include "kernels/cpu/block/body.h"

#include "kernels/cpu/attention/head.h"

const hd_block_kernels hd_block_avx512 = {
    .name = "avx512",
    .norm_modulate = norm_modulate,
    .gate_residual = gate_residual,
    .gelu = gelu,
    .norm_rotate = norm_rotate,
    .convert = convert,
    .attention = attention,
    .attention_scratch_bytes = attention_scratch_bytes,
};

#endif
