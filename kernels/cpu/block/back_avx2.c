#if defined(__x86_64__)

#define HD_VEC_COLUMNS 2

#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/block/back_body.h"

const hd_block_back_kernels hd_block_back_avx2 = {
    .name = "avx2",
    .scale_rows = scale_rows,
    .norm_back = norm_back,
    .gelu_back = gelu_back,
    .norm_rotate_back = norm_rotate_back,
    .add_columns = add_columns,
    .add_scaled = add_scaled,
};

#endif
