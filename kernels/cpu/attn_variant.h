/* The attention kernels for one vector width: after vec_*.h; ATTN_TABLE and ATTN_NAME are defined before. */
#include "kernels/cpu/attn_cpu.h"
#include "kernels/cpu/vec_math.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/attn_tile.h"

#include "kernels/cpu/attn_vec.h"

#define ATTN_ROWS_ONLY
#define REAL float
#define REAL_EXP expf
#define REAL_LOG logf
#define ATTN(name) rows_##name
#include "kernels/cpu/attn_body.h"

#include "kernels/cpu/attn_rows.h"

const hd_attn_kernels ATTN_TABLE = {
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
};
