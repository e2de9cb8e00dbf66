/* Gradients of the row kernels, written once for any vector width: included after the vectors. */
#include "kernels/cpu/block/internal.h"
#include "kernels/cpu/block/row.h"

static void scale_rows(float *dst, const float *src, int64_t rows, int64_t c, const float *gate)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < c; i += VEC) {
            vec y = vec_mul(load_some(src, 0, r * c + i, c - i), load_some(gate, 0, i, c - i));
            store_some(dst, 0, r * c + i, y, c - i);
        }
    }
}

/* What one row of the norm's backward is given. */
typedef struct norm_row {
    const void *src;
    const float *dy;
    const float *scale; /* NULL: none */
    int64_t at;         /* of the row in src and dy */
    int64_t c;
    vec mean, inverse;
} norm_row;

INLINE vec normed_at(const norm_row *row, int bf16, int64_t i)
{
    return vec_mul(vec_sub(load_some(row->src, bf16, row->at + i, row->c - i), row->mean), row->inverse);
}

/* Gradient of the normed value */
INLINE vec gradient_at(const norm_row *row, int64_t i)
{
    vec dy = load_some(row->dy, 0, row->at + i, row->c - i);
    return row->scale != NULL ? vec_fma(dy, load_some(row->scale, 0, i, row->c - i), dy) : dy;
}

INLINE void norm_back_row(void *dx, int64_t dx_at, const norm_row *row, int bf16, float *dshift, float *dscale)
{
    int64_t c = row->c;
    vec plain = vec_set1(0), along = vec_set1(0);
    for (int64_t i = 0; i < c; i += VEC) {
        vec y = vec_keep(normed_at(row, bf16, i), c - i);
        vec g = vec_keep(gradient_at(row, i), c - i);
        plain = vec_add(plain, g);
        along = vec_fma(g, y, along);
        if (dshift != NULL) {
            vec dy = load_some(row->dy, 0, row->at + i, c - i);
            store_some(dshift, 0, i, vec_add(load_some(dshift, 0, i, c - i), dy), c - i);
            store_some(dscale, 0, i, vec_fma(dy, y, load_some(dscale, 0, i, c - i)), c - i);
        }
    }
    vec mean_plain = vec_set1(vec_sum(plain) / (float)c), mean_along = vec_set1(vec_sum(along) / (float)c);
    for (int64_t i = 0; i < c; i += VEC) {
        vec y = normed_at(row, bf16, i);
        vec change = vec_sub(vec_sub(gradient_at(row, i), mean_plain), vec_mul(y, mean_along));
        vec value = load_some(dx, bf16, dx_at + i, c - i);
        store_some(dx, bf16, dx_at + i, vec_fma(change, row->inverse, value), c - i);
    }
}

INLINE void norm_back_rows(void *dx, int64_t dx_stride, const void *src, int bf16, const float *dy, int64_t rows,
                           int64_t c, const float *scale, float *dshift, float *dscale)
{
    for (int64_t r = 0; r < rows; r++) {
        float mean = row_sum(src, bf16, r * c, c, 0, 0) / (float)c;
        float variance = row_sum(src, bf16, r * c, c, mean, 1) / (float)c;
        vec inverse = vec_set1(1.0f / sqrtf(variance + (float)HD_NORM_EPSILON));
        norm_row row = {src, dy, scale, r * c, c, vec_set1(mean), inverse};
        norm_back_row(dx, r * dx_stride, &row, bf16, dshift, dscale);
    }
}

static void norm_back(void *dx, int64_t dx_stride, const void *src, heddle_dtype dtype, const float *dy, int64_t rows,
                      int64_t c, const float *scale, float *dshift, float *dscale)
{
    if (dtype == HEDDLE_BF16) {
        norm_back_rows(dx, dx_stride, src, 1, dy, rows, c, scale, dshift, dscale);
    } else {
        norm_back_rows(dx, dx_stride, src, 0, dy, rows, c, scale, dshift, dscale);
    }
}

/* gelu(x) = x s(2u), s the logistic function, u = slope (x + cubic x^3); its slope is s + 2 u' x s (1 - s). */
INLINE void gelu_back_elems(float *dy, float *active, const void *src, int bf16, int64_t elems)
{
    const float exponent = -2.0f * HD_LOG2_E * HD_GELU_SLOPE;
    for (int64_t i = 0; i < elems; i += VEC) {
        int64_t left = elems - i;
        vec x = load_some(src, bf16, i, left), one = vec_set1(1);
        vec square = vec_mul(x, x);
        vec power = vec_exp2(vec_mul(x, vec_fma(square, vec_set1(exponent * HD_GELU_CUBIC), vec_set1(exponent))));
        vec s = vec_div(one, vec_add(power, one));
        vec y = vec_mul(x, s);
        vec turn = vec_fma(square, vec_set1(6.0f * HD_GELU_SLOPE * HD_GELU_CUBIC), vec_set1(2.0f * HD_GELU_SLOPE));
        vec slope = vec_fma(vec_mul(turn, y), vec_sub(one, s), s);
        store_some(active, 0, i, y, left);
        store_some(dy, 0, i, vec_mul(load_some(dy, 0, i, left), slope), left);
    }
}

static void gelu_back(float *dy, float *active, const void *src, heddle_dtype dtype, int64_t elems)
{
    if (dtype == HEDDLE_BF16) {
        gelu_back_elems(dy, active, src, 1, elems);
    } else {
        gelu_back_elems(dy, active, src, 0, elems);
    }
}

static void rotate_back(float *dy, int64_t d, const float *cos_sin)
{
    static const float backwards[16] = {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1};
    for (int64_t i = 0; i < d; i += VEC) {
        vec angle = vec_mul(load_some(cos_sin, 0, i, d - i), vec_load(backwards));
        store_some(dy, 0, i, vec_rotate(load_some(dy, 0, i, d - i), angle), d - i);
    }
}

/* y = x weight / rms(x) */
INLINE void rms_back(float *dy, const void *src, int bf16, int64_t at, int64_t d, const float *weight, float *dweight)
{
    vec inverse = vec_set1(1.0f / sqrtf(row_sum(src, bf16, at, d, 0, 1) / (float)d + (float)HD_NORM_EPSILON));
    vec along = vec_set1(0);
    for (int64_t i = 0; i < d; i += VEC) {
        vec n = vec_mul(load_some(src, bf16, at + i, d - i), inverse);
        vec g = load_some(dy, 0, i, d - i);
        store_some(dweight, 0, i, vec_fma(g, n, load_some(dweight, 0, i, d - i)), d - i);
        along = vec_fma(vec_mul(g, load_some(weight, 0, i, d - i)), n, along);
    }
    vec mean = vec_set1(vec_sum(along) / (float)d);
    for (int64_t i = 0; i < d; i += VEC) {
        vec n = vec_mul(load_some(src, bf16, at + i, d - i), inverse);
        vec g = vec_mul(load_some(dy, 0, i, d - i), load_some(weight, 0, i, d - i));
        store_some(dy, 0, i, vec_mul(vec_sub(g, vec_mul(n, mean)), inverse), d - i);
    }
}

static void norm_rotate_back(float *dy, const void *src, heddle_dtype dtype, int64_t heads, int64_t d,
                             const float *weight, const float *cos_sin, float *dweight)
{
    for (int64_t h = 0; h < heads; h++) {
        if (cos_sin != NULL) {
            rotate_back(dy + h * d, d, cos_sin);
        }
        if (weight != NULL && dtype == HEDDLE_BF16) {
            rms_back(dy + h * d, src, 1, h * d, d, weight, dweight);
        } else if (weight != NULL) {
            rms_back(dy + h * d, src, 0, h * d, d, weight, dweight);
        }
    }
}

static void add_columns(float *dst, const float *src, int64_t rows, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i += VEC) {
        vec sum = load_some(dst, 0, i, n - i);
        for (int64_t r = 0; r < rows; r++) {
            sum = vec_add(sum, load_some(src, 0, r * stride + i, n - i));
        }
        store_some(dst, 0, i, sum, n - i);
    }
}

static float add_scaled(float *dst, const float *src, const float *other, int64_t elems, float factor)
{
    vec sum = vec_set1(0), scale = vec_set1(factor);
    for (int64_t i = 0; i < elems; i += VEC) {
        vec x = load_some(src, 0, i, elems - i);
        sum = vec_fma(x, load_some(other, 0, i, elems - i), sum);
        store_some(dst, 0, i, vec_fma(x, scale, load_some(dst, 0, i, elems - i)), elems - i);
    }
    return vec_sum(sum);
}

const hd_kernels BLOCK_BACK_SLOTS = {HD_BLOCK_BACK_SLOTS(HD_BLOCK_PUT)};
