/* The attention kernels for one vector width: after vec_*.h; ATTN_FILL and ATTN_NAME are defined before. */
#include "kernels/cpu/attention/internal.h"
#include "kernels/cpu/fill.h"
#include "kernels/cpu/vec_math.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention/flash.h"
#include "kernels/cpu/attention/tile.h"

/* The operations of a lane of vector.h's score. */
static float rows_score(const hd_attn_block *block, int64_t i, int64_t j)
{
    const float *q = (const float *)block->q + i * block->d, *k = (const float *)block->k + j * block->d;
    float scale = (float)block->scale, sum = 0;
    for (int64_t c = 0; c < block->d; c++) {
        sum = fmaf(k[c], q[c] * scale, sum);
    }
    return sum;
}

#define ATTN_ROWS_ONLY
#define REAL float
#define REAL_EXP expf
#define REAL_LOG logf
#define REAL_MOST FLT_MAX
#define ATTN(name) rows_##name
#include "kernels/cpu/attention/scalar.h"

#include "kernels/cpu/attention/scalar_rows.h"

#include "kernels/cpu/attention/vector.h"

#include "kernels/cpu/attention/vector_back.h"

#include "kernels/cpu/attention/rows.h"

void ATTN_FILL(hd_kernels *table)
{
    table->attn_f32 = (hd_attn_kernels){
        .name = ATTN_NAME,
        .real_bytes = sizeof(float),
        .scratch_bytes = scratch_bytes,
        .forward = forward,
        .backward = backward,
        .finish = rows_finish,
        .row_dots = rows_row_dots,
        .scores = scores,
        .softmax = softmax,
        .softmax_back = rows_softmax_back,
        .mix = mix,
        .mix_back = mix_back,
        .add = rows_add,
        .fill = rows_fill,
        .add_dots = rows_add_dots,
    };
}
