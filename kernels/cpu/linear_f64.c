#include "kernels/cpu/linear_cpu.h"

#include "kernels/cpu/small_float.h"

#include <math.h>
#include <string.h>

#define REAL double

#include "kernels/cpu/linear_gemm.h"

#include "kernels/cpu/linear_scalar.h"

#include "kernels/cpu/linear_body.h"

const hd_linear_kernels hd_linear_f64 = {
    .name = "f64",
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
