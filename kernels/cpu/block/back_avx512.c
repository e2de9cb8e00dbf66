#if defined(__x86_64__)

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/block/back_body.h"

const hd_block_back_kernels hd_block_back_avx512 = {
    .name = "avx512",
    .scale_rows = scale_rows,
    .norm_back = norm_back,
    .gelu_back = gelu_back,
    .norm_rotate_back = norm_rotate_back,
    .add_columns = add_columns,
    .add_scaled = add_scaled,
};

#endif
