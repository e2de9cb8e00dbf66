#include "kernels/cpu/attention/internal.h"
#include "kernels/cpu/fill.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define REAL double
#define REAL_EXP exp
#define REAL_LOG log
#define REAL_MOST DBL_MAX
#define ATTN(name) f64_##name
#include "kernels/cpu/attention/scalar.h"

#include "kernels/cpu/attention/scalar_rows.h"

void hd_attn_fill_f64(hd_kernels *table)
{
    table->attn_f64 = (hd_attn_kernels){
        .name = "f64",
        .real_bytes = sizeof(double),
        .scratch_bytes = f64_scratch_bytes,
        .forward = f64_forward,
        .finish = f64_finish,
        .backward = f64_backward,
        .row_dots = f64_row_dots,
        .scores = f64_scores,
        .softmax = f64_softmax,
        .softmax_back = f64_softmax_back,
        .mix = f64_mix,
        .mix_back = f64_mix_back,
        .add = f64_add,
        .fill = f64_fill,
        .add_dots = f64_add_dots,
    };
}
