/* What optimisers do with every element. */
#include "kernels/cpu/slots.h"

#include <math.h>

static void adamw(const hd_adamw_step *s, float *param, const float *grad, float *mean, float *square, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        double g = (double)grad[i] * s->clip;
        mean[i] = (float)(s->beta1 * (double)mean[i] + (1 - s->beta1) * g);
        square[i] = (float)(s->beta2 * (double)square[i] + (1 - s->beta2) * g * g);
        double change = (double)mean[i] * s->mean_scale / (sqrt((double)square[i]) * s->root_scale + s->epsilon);
        param[i] = (float)((double)param[i] * s->keep - s->rate * change);
    }
}

static void divide(float *dst, const float *src, float divisor, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        dst[i] = src[i] / divisor;
    }
}

const hd_kernels hd_adamw_slots = {
    .adamw = adamw,
    .divide = divide,
};
