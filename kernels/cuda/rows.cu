/* Rows of blocks, forward (kernels/device_rows.h): a warp takes a row, and each lane the same columns of every row; so
 * sums within a row have one order. */
#include "kernels/cuda/gate.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_sum.h"

/* --- norm and modulation */

typedef struct norm_args {
    hd_rows_args of;
    const char *src;
    char *dst;
    const float *shift, *scale; /* NULL together */
} norm_args;

HD_DEV void norm_piece(const norm_args *a, char *dst, const hd_lane_piece *p, int64_t vector, int32_t at,
                       heddle_dtype dtype, int is_whole, float mean, float inverse)
{
    const int per = hd_piece_elems(dtype), has_scale = a->scale != 0;
    float shift[HD_PIECE_MOST] = {0}, scale[HD_PIECE_MOST] = {0}, y[HD_PIECE_MOST];
    if (has_scale) {
        hd_floats_load(shift, a->shift + vector + at, a->of.c - at, per, is_whole);
        hd_floats_load(scale, a->scale + vector + at, a->of.c - at, per, is_whole);
    }
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        const float n = hd_mul(hd_piece_get(p, i, dtype) - mean, inverse);
        y[i] = has_scale ? hd_fma(n, 1.0f + scale[i], shift[i]) : n;
    }
    hd_values_store(dst, y, at, a->of.c - at, per, dtype, is_whole);
}

HD_DEV void norm_row(const norm_args *a, heddle_dtype dtype, int most, int is_whole)
{
    const uint32_t row = hd_row();
    if (row >= a->of.rows) {
        return;
    }
    const char *src = a->src + hd_row_at(&a->of, row, dtype);
    char *dst = a->dst + hd_row_at(&a->of, row, dtype);
    const int64_t vector = hd_vector_at(&a->of, row);
    hd_lane_piece held[HD_ROW_HELD_LONG];
    hd_row_hold(held, src, &a->of, dtype, most, is_whole);
    const float mean = hd_row_sum(src, &a->of, held, dtype, most, is_whole, 0, 0) / (float)a->of.c;
    const float variance = hd_row_sum(src, &a->of, held, dtype, most, is_whole, mean, 1) / (float)a->of.c;
    const float inverse = 1.0f / sqrtf(variance + HD_ROWS_EPSILON);
    HD_UNROLL
    for (int u = 0; u < most; u++) {
        const int32_t at = hd_held_at(u, dtype);
        if (at < a->of.c) {
            norm_piece(a, dst, &held[u], vector, at, dtype, is_whole, mean, inverse);
        }
    }
    HD_NOT_UNROLLED
    for (int32_t at = hd_rest_at(most, dtype); at < a->of.c; at += 32 * hd_piece_elems(dtype)) {
        const hd_lane_piece p = hd_piece_load(src, at, a->of.c - at, dtype, is_whole);
        norm_piece(a, dst, &p, vector, at, dtype, is_whole, mean, inverse);
    }
}

#define NORM_KERNEL(name, dtype)                                                                                       \
    HD_KERNEL(name, norm_args, a)                                                                                      \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, norm_row, &a, dtype, HD_ROW_HELD);                                                        \
    }
HD_ROWS_KERNELS(NORM_KERNEL, norm_modulate)

#define NORM_LONG_KERNEL(name, dtype)                                                                                  \
    HD_KERNEL(name, norm_args, a)                                                                                      \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, norm_row, &a, dtype, HD_ROW_HELD_LONG);                                                   \
    }
HD_ROWS_KERNELS(NORM_LONG_KERNEL, norm_modulate_long)

int hd_rows_norm_modulate(const hd_device_rows *of, void *dst, const void *src, const float *shift, const float *scale,
                          void *stream)
{
    norm_args a = {hd_rows_of(of), (const char *)src, (char *)dst, shift, scale};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(dst) && hd_is_aligned(src);
    a.of.is_whole_vector = a.of.is_whole_vector && hd_is_aligned(shift) && hd_is_aligned(scale);
    HD_ROWS_LAUNCH_HELD(norm_modulate, of, &a, stream);
}

/* --- what is added to the residual */

typedef struct gate_args {
    hd_rows_args of;
    char *x;
    const char *y;
    const float *gate; /* NULL: 1 */
    char *keep;        /* NULL: nowhere */
    int y_is_f32, unused;
} gate_args;

HD_DEV void gate_row(const gate_args *a, heddle_dtype dtype, int is_whole)
{
    const int32_t per = hd_piece_elems(dtype);
    const uint32_t row = hd_row();
    char *const x = a->x + hd_row_at(&a->of, row, dtype);
    HD_NOT_UNROLLED
    for (int32_t at = hd_held_at(0, dtype); at < a->of.c && row < a->of.rows; at += 32 * per) {
        const int32_t left = a->of.c - at;
        float y[HD_PIECE_MOST], gate[HD_PIECE_MOST] = {0};
        hd_lane_piece p = hd_piece_load(x, at, left, dtype, is_whole);
        hd_numbers_load(y, a->y, &a->of, row, at, dtype, a->y_is_f32, is_whole);
        if (a->keep != 0) {
            hd_piece_store(a->keep + hd_row_at(&a->of, row, dtype), at, left, dtype, is_whole, &p);
        }
        if (a->gate != 0) {
            hd_floats_load(gate, a->gate + hd_vector_at(&a->of, row) + at, left, per, is_whole);
        }
        hd_gate_piece(&p, y, gate, a->gate != 0, dtype);
        hd_piece_store(x, at, left, dtype, is_whole, &p);
    }
}

#define GATE_KERNEL(name, dtype)                                                                                       \
    HD_KERNEL(name, gate_args, a)                                                                                      \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, gate_row, &a, dtype);                                                                     \
    }
HD_ROWS_KERNELS(GATE_KERNEL, gate_residual)

int hd_rows_gate_residual(const hd_device_rows *of, void *x, const void *y, heddle_dtype y_dtype, const float *gate,
                          void *keep, void *stream)
{
    if (y_dtype != of->dtype && y_dtype != HEDDLE_F32) {
        return (int)cudaErrorInvalidValue;
    }
    gate_args a = {hd_rows_of(of), (char *)x, (const char *)y, gate, (char *)keep, y_dtype != of->dtype, 0};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(x) && hd_is_aligned(y) && hd_is_aligned(keep);
    a.of.is_whole_vector = a.of.is_whole_vector && hd_is_aligned(gate);
    HD_ROWS_LAUNCH(gate_residual, of, &a, stream);
}

int hd_rows_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(norm_modulate), HD_ROWS_ADDRESSES(norm_modulate_long),
                                  HD_ROWS_ADDRESSES(gate_residual)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
