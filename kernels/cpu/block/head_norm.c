/* The norm behind linear attention. One order of operations for all instruction sets: lane by lane, then the lanes. */
#include "kernels/cpu/block/internal.h"

#include <math.h>

enum { LANES = 8 };

/* <x, y> of one head */
static float dot(const float *x, const void *y, heddle_dtype dtype, int64_t at, int64_t d)
{
    float lane[LANES] = {0}, sum = 0;
    for (int64_t i = 0; i < d; i++) {
        lane[i % LANES] += x[at + i] * hd_block_load(y, dtype, at + i);
    }
    for (int l = 0; l < LANES; l++) {
        sum += lane[l];
    }
    return sum;
}

static void head_norm(void *y, heddle_dtype dtype, float *inverse, const float *x, int64_t heads, int64_t d)
{
    for (int64_t i = 0; i < heads; i++) {
        float squares = dot(x, x, HEDDLE_F32, i * d, d);
        float factor = 1.0f / sqrtf(squares / (float)d + (float)HD_NORM_EPSILON * (float)d);
        for (int64_t j = i * d; j < (i + 1) * d; j++) {
            hd_block_store(y, dtype, j, x[j] * factor);
        }
        if (inverse != NULL) {
            inverse[i] = factor;
        }
    }
}

static void head_norm_back(float *dx, const float *dy, const void *y, heddle_dtype dtype, const float *inverse,
                           int64_t heads, int64_t d)
{
    for (int64_t i = 0; i < heads; i++) {
        float mean = dot(dy, y, dtype, i * d, d) / (float)d;
        for (int64_t j = i * d; j < (i + 1) * d; j++) {
            dx[j] = (dy[j] - hd_block_load(y, dtype, j) * mean) * inverse[i];
        }
    }
}

const hd_kernels hd_head_norm_slots = {
    .head_norm = head_norm,
    .head_norm_back = head_norm_back,
};
