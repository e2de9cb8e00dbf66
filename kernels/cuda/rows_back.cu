/* Gradients of rows (docs/blocks.md, "Backward"): a warp takes a row, as in rows.cu. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_sum.h"

/* --- the norm's: dx += (g - mean(g) - n mean(g n)) / deviation, n = (x - mean) / deviation, g = dy (1 + scale) */

typedef struct norm_back_args {
    hd_rows_args of;
    char *dx;
    const char *src, *dy;
    const float *scale;    /* NULL: none */
    float *stats;          /* [rows][2] gets mean and 1 / deviation; NULL: not wanted */
    heddle_dtype dy_dtype; /* the rows' or f32 */
    int unused;
} norm_back_args;

/* Of a row. */
typedef struct norm_back_row {
    uint32_t row;
    int64_t vector;
    float mean, inverse;
    float plain, along; /* sums of g and g n, then means */
} norm_back_row;

/* What dy is of a piece: numbers of the type, or of f32. */
typedef struct dy_piece {
    hd_lane_piece part[2];
} dy_piece;

HD_DEV dy_piece dy_load(const norm_back_args *a, uint32_t row, int32_t at, heddle_dtype dtype, heddle_dtype dy_dtype,
                        int is_whole)
{
    const char *from = a->dy + hd_row_at(&a->of, row, dy_dtype);
    dy_piece p;
    p.part[0] = hd_piece_load(from, at, a->of.c - at, dy_dtype, is_whole);
    if (dtype != dy_dtype) {
        p.part[1] = hd_piece_load(from, at + 4, a->of.c - at - 4, HEDDLE_F32, is_whole);
    }
    return p;
}

HD_DEV float dy_get(const dy_piece *p, int i, heddle_dtype dy_dtype)
{
    return dy_dtype == HEDDLE_F32 ? hd_f32_from_bits(p->part[i / 4].word[i % 4])
                                  : hd_piece_get(&p->part[0], i, dy_dtype);
}

/* Its part of the sums; or (is_second) of dx. */
HD_DEV void back_piece(const norm_back_args *a, norm_back_row *r, const hd_lane_piece *x, const dy_piece *dy,
                       const hd_lane_piece *dx, int32_t at, heddle_dtype dtype, heddle_dtype dy_dtype, int is_whole,
                       int is_second)
{
    const int per = hd_piece_elems(dtype);
    const int32_t left = hd_left_at(&a->of, at, dtype, is_whole);
    float scale[HD_PIECE_MOST] = {0}, to[HD_PIECE_MOST];
    if (a->scale != 0) {
        hd_floats_load(scale, a->scale + r->vector + at, left, per, is_whole);
    }
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        const float n = hd_mul(hd_piece_get(x, i, dtype) - r->mean, r->inverse);
        const float d = dy_get(dy, i, dy_dtype), g = hd_fma(d, scale[i], d);
        if (is_second) {
            const float change = hd_fma(-n, r->along, g - r->plain);
            to[i] = hd_fma(change, r->inverse, hd_piece_get(dx, i, dtype));
        } else if (i < left) {
            r->plain = r->plain + g;
            r->along = hd_fma(g, n, r->along);
        }
    }
    if (is_second) {
        hd_values_store(a->dx + hd_row_at(&a->of, r->row, dtype), to, at, left, per, dtype, is_whole);
    }
}

/* What is left of a long row. */
HD_DEV void back_rest(const norm_back_args *a, norm_back_row *r, heddle_dtype dtype, heddle_dtype dy_dtype, int most,
                      int is_whole, int is_second)
{
    HD_NOT_UNROLLED
    for (int32_t at = hd_rest_at(most, dtype); at < a->of.c; at += 32 * hd_piece_elems(dtype)) {
        const int64_t begin = hd_row_at(&a->of, r->row, dtype);
        const int32_t left = a->of.c - at;
        const hd_lane_piece x = hd_piece_load(a->src + begin, at, left, dtype, is_whole);
        const dy_piece dy = dy_load(a, r->row, at, dtype, dy_dtype, is_whole);
        hd_lane_piece dx;
        if (is_second) {
            dx = hd_piece_load(a->dx + begin, at, left, dtype, is_whole);
        }
        back_piece(a, r, &x, &dy, &dx, at, dtype, dy_dtype, is_whole, is_second);
    }
}

HD_DEV void norm_back_row_of(const norm_back_args *a, heddle_dtype dtype, heddle_dtype dy_dtype, int most, int is_whole)
{
    const uint32_t row = hd_row();
    if (row >= a->of.rows) {
        return;
    }
    const float c = (float)a->of.c;
    const char *src = a->src + hd_row_at(&a->of, row, dtype);
    norm_back_row r = {row, hd_vector_at(&a->of, row), 0, 0, 0, 0};
    hd_lane_piece x[HD_ROW_HELD_LONG], dx[HD_ROW_HELD_LONG];
    dy_piece dy[HD_ROW_HELD_LONG];
    hd_row_hold(x, src, &a->of, dtype, most, is_whole);
    HD_UNROLL
    for (int u = 0; u < most; u++) {
        if (hd_held_at(u, dtype) < a->of.c) {
            dy[u] = dy_load(a, row, hd_held_at(u, dtype), dtype, dy_dtype, is_whole);
        }
    }
    hd_row_hold(dx, a->dx + hd_row_at(&a->of, row, dtype), &a->of, dtype, most, is_whole);
    r.mean = hd_row_sum(src, &a->of, x, dtype, most, is_whole, 0, 0) / c;
    r.inverse = 1.0f / sqrtf(hd_row_sum(src, &a->of, x, dtype, most, is_whole, r.mean, 1) / c + HD_ROWS_EPSILON);
    HD_UNROLL
    for (int second = 0; second < 2; second++) {
        HD_UNROLL
        for (int u = 0; u < most; u++) {
            const int32_t at = hd_held_at(u, dtype);
            if (at < a->of.c) {
                back_piece(a, &r, &x[u], &dy[u], &dx[u], at, dtype, dy_dtype, is_whole, second);
            }
        }
        back_rest(a, &r, dtype, dy_dtype, most, is_whole, second);
        if (second == 0) {
            r.plain = hd_group_sum(r.plain, 32) / c;
            r.along = hd_group_sum(r.along, 32) / c;
        }
    }
    if (a->stats != 0 && HD_LANE == 0) {
        hd_store_4(a->stats + 2 * (int64_t)row, hd_f32_bits(r.mean));
        hd_store_4(a->stats + 2 * (int64_t)row + 1, hd_f32_bits(r.inverse));
    }
}

#define NORM_BACK_KERNEL(name, dtype)                                                                                  \
    HD_KERNEL(name, norm_back_args, a)                                                                                 \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, norm_back_row_of, &a, dtype, dtype, HD_ROW_HELD);                                         \
    }
HD_ROWS_KERNELS(NORM_BACK_KERNEL, norm_back)

/* of dy in f32, which takes more registers */
#define NORM_BACK_OF_F32_KERNEL(name, dtype)                                                                           \
    HD_KERNEL(name, norm_back_args, a)                                                                                 \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, norm_back_row_of, &a, dtype, HEDDLE_F32, HD_ROW_HELD);                                    \
    }
#define norm_back_of_f32_f32 norm_back_f32
NORM_BACK_OF_F32_KERNEL(norm_back_of_f32_bf16, HEDDLE_BF16)
NORM_BACK_OF_F32_KERNEL(norm_back_of_f32_f16, HEDDLE_F16)

#define NORM_BACK_LONG_KERNEL(name, dtype)                                                                             \
    HD_KERNEL(name, norm_back_args, a)                                                                                 \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, norm_back_row_of, &a, dtype, a.dy_dtype, HD_ROW_HELD_LONG);                               \
    }
HD_ROWS_KERNELS(NORM_BACK_LONG_KERNEL, norm_back_long)

int hd_rows_norm_back(const hd_device_rows *of, void *dx, const void *src, const void *dy, heddle_dtype dy_dtype,
                      const float *scale, float *stats, void *stream)
{
    if (dy_dtype != of->dtype && dy_dtype != HEDDLE_F32) {
        return (int)cudaErrorInvalidValue;
    }
    norm_back_args a = {hd_rows_of(of), (char *)dx, (const char *)src, (const char *)dy, scale, stats, dy_dtype, 0};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(dx) && hd_is_aligned(src) && hd_is_aligned(dy);
    a.of.is_whole_vector = a.of.is_whole_vector && hd_is_aligned(scale);
    if (dy_dtype == HEDDLE_F32 && !hd_row_is_long(of)) {
        HD_ROWS_LAUNCH(norm_back_of_f32, of, &a, stream);
    }
    HD_ROWS_LAUNCH_HELD(norm_back, of, &a, stream);
}

/* --- what came through a gate */

typedef struct scale_args {
    hd_rows_args of;
    char *dst;
    const char *src;
    const float *gate;
} scale_args;

HD_DEV void scale_row(const scale_args *a, heddle_dtype dtype, int is_whole)
{
    const int32_t per = hd_piece_elems(dtype);
    const uint32_t row = hd_row();
    const int64_t begin = hd_row_at(&a->of, row, dtype), vector = hd_vector_at(&a->of, row);
    HD_NOT_UNROLLED
    for (int32_t at = hd_held_at(0, dtype); at < a->of.c && row < a->of.rows; at += 32 * per) {
        float gate[HD_PIECE_MOST], value[HD_PIECE_MOST];
        hd_values_load(value, a->src + begin, at, a->of.c - at, per, dtype, is_whole);
        hd_floats_load(gate, a->gate + vector + at, a->of.c - at, per, is_whole);
        HD_UNROLL
        for (int i = 0; i < per; i++) {
            value[i] = hd_mul(value[i], gate[i]);
        }
        hd_values_store(a->dst + begin, value, at, a->of.c - at, per, dtype, is_whole);
    }
}

#define SCALE_KERNEL(name, dtype)                                                                                      \
    HD_KERNEL(name, scale_args, a)                                                                                     \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, scale_row, &a, dtype);                                                                    \
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
    const void *const kernel[] = {HD_ROWS_ADDRESSES(norm_back), HD_ROWS_ADDRESSES(norm_back_long),
                                  HD_KERNEL_ADDRESS(norm_back_of_f32_bf16), HD_KERNEL_ADDRESS(norm_back_of_f32_f16),
                                  HD_ROWS_ADDRESSES(scale_rows)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
