/* The attention kernels for one vector width: after vec_*.h; ATTN_SLOTS and ATTN_NAME are defined before. */
#include "kernels/cpu/attention/internal.h"
#include "kernels/cpu/slots.h"
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

#define ATTN_BEST(name) name
#define ATTN_SLOT attn_f32

#include "kernels/cpu/attention/slots.h"
