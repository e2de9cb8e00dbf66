#if defined(__x86_64__)

#include "kernels/cpu/linear_cpu.h"

#include "kernels/cpu/small_float.h"

#include <math.h>
#include <string.h>

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx512.h"

#define REAL float
#define TILE_ROWS 12
#define TILE_ROWS_LEFT_8 1

#include "kernels/cpu/linear_gemm.h"

#include "kernels/cpu/linear_vec.h"

#include "kernels/cpu/linear_body.h"

const hd_linear_kernels hd_linear_avx512 = {
    .name = "avx512",
    .real_bytes = sizeof(REAL),
    .padded = padded,
    .scratch_bytes = scratch_bytes,
    .begin = begin,
    .states = states,
    .fold = fold,
    .inner = inner,
    .outer = outer,
    .forward = forward,
    .inner_back = inner_back,
    .outer_back = outer_back,
};

#endif
