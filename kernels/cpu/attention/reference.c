#include "kernels/cpu/attention/internal.h"
#include "kernels/cpu/fill.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define REAL float
#define REAL_EXP expf
#define REAL_LOG logf
#define REAL_MOST FLT_MAX
#define ATTN(name) f32_##name
#include "kernels/cpu/attention/scalar.h"

#include "kernels/cpu/attention/scalar_rows.h"

void hd_attn_fill(hd_kernels *table)
{
    table->attn_f32 = (hd_attn_kernels){
        .name = "generic",
        .real_bytes = sizeof(float),
        .scratch_bytes = f32_scratch_bytes,
        .forward = f32_forward,
        .finish = f32_finish,
        .backward = f32_backward,
        .row_dots = f32_row_dots,
        .scores = f32_scores,
        .softmax = f32_softmax,
        .softmax_back = f32_softmax_back,
        .mix = f32_mix,
        .mix_back = f32_mix_back,
        .add = f32_add,
        .fill = f32_fill,
        .add_dots = f32_add_dots,
    };
}
