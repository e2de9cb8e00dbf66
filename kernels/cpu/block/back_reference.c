/* The judge of the gradients: one plain loop per operation, sums in f64. Formulas: docs/blocks.md, "Backward". */
#include "kernels/cpu/block/internal.h"
#include "kernels/small_float.h"

#include <math.h>

static double load(const void *x, heddle_dtype dtype, int64_t i)
{
    return (double)(dtype == HEDDLE_BF16 ? hd_f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i]);
}

static void add(void *x, heddle_dtype dtype, int64_t i, double value)
{
    if (dtype == HEDDLE_BF16) {
        ((uint16_t *)x)[i] = hd_bf16_from_f32((float)(load(x, dtype, i) + value));
    } else {
        ((float *)x)[i] += (float)value;
    }
}

static void scale_rows(float *dst, const float *src, int64_t rows, int64_t c, const float *gate)
{
    for (int64_t i = 0; i < rows * c; i++) {
        dst[i] = src[i] * gate[i % c];
    }
}

/* y = (x - mean) / deviation, m = y (1 + scale) + shift, g = dm (1 + scale):
 * dx += (g - mean(g) - y mean(g y)) / deviation. */
static void norm_back(void *dx, int64_t dx_stride, const void *src, heddle_dtype dtype, const float *dy, int64_t rows,
                      int64_t c, const float *scale, float *dshift, float *dscale)
{
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, squares = 0, plain = 0, along = 0;
        for (int64_t i = 0; i < c; i++) {
            mean += load(src, dtype, r * c + i) / (double)c;
        }
        for (int64_t i = 0; i < c; i++) {
            double delta = load(src, dtype, r * c + i) - mean;
            squares += delta * delta;
        }
        double inverse = 1.0 / sqrt(squares / (double)c + HD_NORM_EPSILON);
        for (int64_t i = 0; i < c; i++) {
            double y = (load(src, dtype, r * c + i) - mean) * inverse;
            double g = (double)dy[r * c + i];
            if (dshift != NULL) {
                dshift[i] += (float)g;
                dscale[i] += (float)(g * y);
            }
            g *= scale != NULL ? 1.0 + (double)scale[i] : 1.0;
            plain += g / (double)c;
            along += g * y / (double)c;
        }
        for (int64_t i = 0; i < c; i++) {
            double y = (load(src, dtype, r * c + i) - mean) * inverse;
            double g = (double)dy[r * c + i] * (scale != NULL ? 1.0 + (double)scale[i] : 1.0);
            add(dx, dtype, r * dx_stride + i, inverse * (g - plain - y * along));
        }
    }
}

/* gelu(x) = x s with s = 1 / (1 + exp(-2u)), u = HD_GELU_SLOPE (x + HD_GELU_CUBIC x^3): s + x s (1 - s) 2u'. The
 * forward's value comes out as well, for the gradient of the layer behind it. */
static void gelu_back(float *dy, float *active, const void *src, heddle_dtype dtype, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        double x = load(src, dtype, i);
        double s = 1.0 / (1.0 + exp(-2.0 * (double)HD_GELU_SLOPE * (x + (double)HD_GELU_CUBIC * x * x * x)));
        double turn = 2.0 * (double)HD_GELU_SLOPE * (1.0 + 3.0 * (double)HD_GELU_CUBIC * x * x);
        active[i] = (float)(x * s);
        dy[i] = (float)((double)dy[i] * (s + turn * x * s * (1.0 - s)));
    }
}

/* n = x / rms, y = n w: dw += dy n, dx = (dy w - n mean(dy w n)) / rms. */
static void rms_back(float *dy, const void *src, heddle_dtype dtype, int64_t at, int64_t d, const float *weight,
                     float *dweight)
{
    double squares = 0, along = 0;
    for (int64_t i = 0; i < d; i++) {
        squares += load(src, dtype, at + i) * load(src, dtype, at + i);
    }
    double inverse = 1.0 / sqrt(squares / (double)d + HD_NORM_EPSILON);
    for (int64_t i = 0; i < d; i++) {
        double n = load(src, dtype, at + i) * inverse;
        dweight[i] += (float)((double)dy[i] * n);
        along += (double)dy[i] * (double)weight[i] * n / (double)d;
    }
    for (int64_t i = 0; i < d; i++) {
        double n = load(src, dtype, at + i) * inverse;
        dy[i] = (float)(inverse * ((double)dy[i] * (double)weight[i] - n * along));
    }
}

static void norm_rotate_back(float *dy, const void *src, heddle_dtype dtype, int64_t heads, int64_t d,
                             const float *weight, const float *cos_sin, float *dweight)
{
    for (int64_t h = 0; h < heads; h++) {
        /* the forward turned each pair by an angle, so its gradient turns back */
        for (int64_t i = 0; i + 1 < d && cos_sin != NULL; i += 2) {
            float a = dy[h * d + i], b = dy[h * d + i + 1];
            dy[h * d + i] = a * cos_sin[i] + b * cos_sin[i + 1];
            dy[h * d + i + 1] = b * cos_sin[i] - a * cos_sin[i + 1];
        }
        if (weight != NULL) {
            rms_back(dy + h * d, src, dtype, h * d, d, weight, dweight);
        }
    }
}

static void add_columns(float *dst, const float *src, int64_t rows, int64_t stride, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < n; i++) {
            dst[i] += src[r * stride + i];
        }
    }
}

static void add_columns_bf16(float *dst, const uint16_t *src, int64_t rows, int64_t stride, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < n; i++) {
            dst[i] += hd_f32_from_bf16(src[r * stride + i]);
        }
    }
}

/* dst += factor src; the result is src . other. */
static float add_scaled(float *dst, const float *src, const float *other, int64_t elems, float factor)
{
    double sum = 0;
    for (int64_t i = 0; i < elems; i++) {
        sum += (double)src[i] * (double)other[i];
        dst[i] += factor * src[i];
    }
    return (float)sum;
}

const hd_kernels hd_block_back_slots = {
    HD_BLOCK_BACK_SLOTS(HD_BLOCK_PUT).add_columns_bf16 = add_columns_bf16,
};
