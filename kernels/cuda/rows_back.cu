/* Gradients of rows (docs/blocks.md, "Backward"): a warp takes a row, as in rows.cu. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_sum.h"

/* --- the norm's: dx += (g - mean(g) - n mean(g n)) / deviation, n = (x - mean) / deviation, g = dy (1 + scale) */

typedef struct norm_back_args {
    hd_rows_args of;
    char *dx;
    const char *src, *dy;
    const float *scale; /* NULL: none */
    float *stats;       /* [rows][2] gets mean and 1 / deviation; NULL: not wanted */
    int dy_is_f32, unused;
} norm_back_args;

/* Of a row. */
typedef struct norm_back_row {
    uint32_t row;
    int64_t vector;
    float mean, inverse;
    float plain, along; /* sums of g and g n, then means */
} norm_back_row;

HD_DEV void back_piece(const norm_back_args *a, norm_back_row *r, const hd_lane_piece *x, int32_t at,
                       heddle_dtype dtype, int is_second)
{
    const int per = hd_piece_elems(dtype);
    const int32_t left = a->of.c - at;
    float g[HD_PIECE_MOST], scale[HD_PIECE_MOST] = {0};
    hd_lane_piece dx;
    hd_numbers_load(g, a->dy, &a->of, r->row, at, dtype, a->dy_is_f32);
    if (a->scale != 0) {
        hd_floats_load(scale, a->scale + r->vector + at, left, per, a->of.is_whole_vector);
    }
    if (is_second) {
        dx = hd_piece_load(a->dx + hd_row_at(&a->of, r->row, dtype), at, left, dtype, a->of.is_whole);
    }
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        const float n = hd_mul(hd_piece_get(x, i, dtype) - r->mean, r->inverse);
        g[i] = hd_fma(g[i], scale[i], g[i]);
        if (is_second) {
            const float change = hd_fma(-n, r->along, g[i] - r->plain);
            hd_piece_set(&dx, i, dtype, hd_fma(change, r->inverse, hd_piece_get(&dx, i, dtype)));
        } else if (i < left) {
            r->plain = r->plain + g[i];
            r->along = hd_fma(g[i], n, r->along);
        }
    }
    if (is_second) {
        hd_piece_store(a->dx + hd_row_at(&a->of, r->row, dtype), at, left, dtype, a->of.is_whole, &dx);
    }
}

HD_DEV void back_pass(const norm_back_args *a, norm_back_row *r, const hd_lane_piece *held, heddle_dtype dtype,
                      int is_second)
{
    const int32_t per = hd_piece_elems(dtype), first = (int32_t)HD_LANE * per;
    const char *src = a->src + hd_row_at(&a->of, r->row, dtype);
    HD_UNROLL
    for (int u = 0; u < HD_ROW_HELD; u++) {
        if (first + u * 32 * per < a->of.c) {
            back_piece(a, r, &held[u], first + u * 32 * per, dtype, is_second);
        }
    }
    HD_NOT_UNROLLED
    for (int32_t at = first + HD_ROW_HELD * 32 * per; at < a->of.c; at += 32 * per) {
        const hd_lane_piece p = hd_piece_load(src, at, a->of.c - at, dtype, a->of.is_whole);
        back_piece(a, r, &p, at, dtype, is_second);
    }
}

HD_DEV void norm_back_rows(const norm_back_args *a, heddle_dtype dtype)
{
    const float c = (float)a->of.c;
    for (uint32_t row = hd_first_row(); row < a->of.rows; row += hd_step_rows()) {
        const char *src = a->src + hd_row_at(&a->of, row, dtype);
        norm_back_row r = {row, hd_vector_at(&a->of, row), 0, 0, 0, 0};
        hd_lane_piece held[HD_ROW_HELD];
        r.mean = hd_row_sum(src, &a->of, held, dtype, 0, 0) / c;
        r.inverse = 1.0f / sqrtf(hd_row_sum(src, &a->of, held, dtype, r.mean, 1) / c + HD_ROWS_EPSILON);
        back_pass(a, &r, held, dtype, 0);
        r.plain = hd_group_sum(r.plain, 32) / c;
        r.along = hd_group_sum(r.along, 32) / c;
        back_pass(a, &r, held, dtype, 1);
        if (a->stats != 0 && HD_LANE == 0) {
            hd_store_4(a->stats + 2 * (int64_t)row, hd_f32_bits(r.mean));
            hd_store_4(a->stats + 2 * (int64_t)row + 1, hd_f32_bits(r.inverse));
        }
    }
}

#define NORM_BACK_KERNEL(name, dtype)                                                                                  \
    HD_KERNEL(name, norm_back_args, a)                                                                                 \
    {                                                                                                                  \
        norm_back_rows(&a, dtype);                                                                                     \
    }
HD_ROWS_KERNELS(NORM_BACK_KERNEL, norm_back)

int hd_rows_norm_back(const hd_device_rows *of, void *dx, const void *src, const void *dy, heddle_dtype dy_dtype,
                      const float *scale, float *stats, void *stream)
{
    if (dy_dtype != of->dtype && dy_dtype != HEDDLE_F32) {
        return (int)cudaErrorInvalidValue;
    }
    norm_back_args a = {hd_rows_of(of), (char *)dx, (const char *)src,     (const char *)dy,
                        scale,          stats,      dy_dtype != of->dtype, 0};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(dx) && hd_is_aligned(src) && hd_is_aligned(dy);
    a.of.is_whole_vector = a.of.is_whole_vector && hd_is_aligned(scale);
    HD_ROWS_LAUNCH(norm_back, of, &a, stream);
}

/* --- what came through a gate */

typedef struct scale_args {
    hd_rows_args of;
    char *dst;
    const char *src;
    const float *gate;
} scale_args;

HD_DEV void scale_each(const scale_args *a, heddle_dtype dtype)
{
    const int32_t per = hd_piece_elems(dtype);
    for (uint32_t row = hd_first_row(); row < a->of.rows; row += hd_step_rows()) {
        const int64_t begin = hd_row_at(&a->of, row, dtype), vector = hd_vector_at(&a->of, row);
        for (int32_t at = (int32_t)HD_LANE * per; at < a->of.c; at += 32 * per) {
            float gate[HD_PIECE_MOST];
            hd_lane_piece p = hd_piece_load(a->src + begin, at, a->of.c - at, dtype, a->of.is_whole);
            hd_floats_load(gate, a->gate + vector + at, a->of.c - at, per, a->of.is_whole_vector);
            HD_UNROLL
            for (int i = 0; i < per; i++) {
                hd_piece_set(&p, i, dtype, hd_mul(hd_piece_get(&p, i, dtype), gate[i]));
            }
            hd_piece_store(a->dst + begin, at, a->of.c - at, dtype, a->of.is_whole, &p);
        }
    }
}

#define SCALE_KERNEL(name, dtype)                                                                                      \
    HD_KERNEL(name, scale_args, a)                                                                                     \
    {                                                                                                                  \
        scale_each(&a, dtype);                                                                                         \
    }
HD_ROWS_KERNELS(SCALE_KERNEL, scale_rows)

int hd_rows_scale(const hd_device_rows *of, void *dst, const void *src, const float *gate, void *stream)
{
    scale_args a = {hd_rows_of(of), (char *)dst, (const char *)src, gate};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(dst) && hd_is_aligned(src);
    a.of.is_whole_vector = a.of.is_whole_vector && hd_is_aligned(gate);
    HD_ROWS_LAUNCH(scale_rows, of, &a, stream);
}

int hd_rows_back_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(norm_back), HD_ROWS_ADDRESSES(scale_rows)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
