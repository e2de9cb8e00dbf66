/* Sums over rows, column by column, in two stages: of pieces of rows, then of the pieces, in an order that their number
 * says. No atomics. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rows.h"

enum { PIECE_ROWS = 256 };

typedef struct columns_args {
    hd_rows_args of;
    uint32_t sample_rows, pieces, strips; /* pieces: of a sample; strips: of the columns, a warp's breadth each */
    int64_t stride;
    const char *src, *other; /* other NULL: plain sums only */
    const float *stats;
    float *part; /* [samples][pieces][1 or 2][c] */
    int src_is_f32, src_is_whole;
} columns_args;

typedef struct columns_memory {
    float sum[HD_ROWS_WARPS][2][32 * HD_PIECE_MOST];
} columns_memory;

typedef struct columns_sums {
    float plain[HD_PIECE_MOST], times[HD_PIECE_MOST];
} columns_sums;

HD_DEV void add_row(columns_sums *sums, const columns_args *a, uint32_t row, int32_t at, heddle_dtype dtype)
{
    const int per = hd_piece_elems(dtype);
    const int32_t left = a->of.c - at;
    const heddle_dtype src_dtype = a->src_is_f32 ? HEDDLE_F32 : dtype;
    float g[HD_PIECE_MOST];
    hd_values_load_either(g, a->src + (int64_t)row * a->stride * hd_elem_bytes(src_dtype), at, left, dtype,
                          a->src_is_f32, a->src_is_whole);
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        sums->plain[i] = sums->plain[i] + g[i];
    }
    if (a->other != 0) {
        const hd_lane_piece x =
            hd_piece_load(a->other + hd_row_at(&a->of, row, dtype), at, left, dtype, a->of.is_whole);
        const float *stats = a->stats + 2 * (int64_t)row;
        const float mean = a->stats != 0 ? hd_f32_from_bits(hd_load_constant_4(stats)) : 0.0f;
        const float inverse = a->stats != 0 ? hd_f32_from_bits(hd_load_constant_4(stats + 1)) : 1.0f;
        HD_UNROLL
        for (int i = 0; i < per; i++) {
            sums->times[i] = hd_fma(g[i], hd_mul(hd_piece_get(&x, i, dtype) - mean, inverse), sums->times[i]);
        }
    }
}

/* The warps' sums, in their order, by the first one. */
HD_DEV void store_part(const columns_sums *sums, const columns_args *a, int64_t part, int32_t at, heddle_dtype dtype)
{
    const int per = hd_piece_elems(dtype), kinds = a->other != 0 ? 2 : 1;
    HD_SHARED(columns_memory, memory);
    for (int i = 0; i < per; i++) {
        memory->sum[HD_WARP][0][(int)HD_LANE * per + i] = sums->plain[i];
        memory->sum[HD_WARP][1][(int)HD_LANE * per + i] = sums->times[i];
    }
    hd_sync();
    for (int kind = 0; kind < kinds && HD_WARP == 0 && at < a->of.c; kind++) {
        float *to = a->part + (part * kinds + kind) * a->of.c;
        float sum[HD_PIECE_MOST];
        HD_UNROLL
        for (int i = 0; i < per; i++) {
            sum[i] = memory->sum[0][kind][(int)HD_LANE * per + i];
            for (int warp = 1; warp < HD_ROWS_WARPS; warp++) {
                sum[i] = sum[i] + memory->sum[warp][kind][(int)HD_LANE * per + i];
            }
        }
        hd_values_store((char *)to, sum, at, a->of.c - at, per, HEDDLE_F32, a->of.is_whole_vector);
    }
}

HD_DEV void sum_pieces(const columns_args *a, heddle_dtype dtype)
{
    const uint32_t strip = HD_BLOCK % a->strips, part = HD_BLOCK / a->strips;
    const uint32_t piece = part % a->pieces, sample = part / a->pieces;
    const uint32_t begin = piece * PIECE_ROWS, in_sample = a->sample_rows;
    const uint32_t end = begin + PIECE_ROWS < in_sample ? begin + PIECE_ROWS : in_sample;
    const int32_t at = (int32_t)(strip * 32 + HD_LANE) * hd_piece_elems(dtype);
    columns_sums sums = {{0}, {0}};
    for (uint32_t row = begin + HD_WARP; row < end && at < a->of.c; row += HD_WARPS) {
        add_row(&sums, a, sample * in_sample + row, at, dtype);
    }
    store_part(&sums, a, part, at, dtype);
}

#define COLUMNS_KERNEL(name, dtype)                                                                                    \
    HD_KERNEL(name, columns_args, a)                                                                                   \
    {                                                                                                                  \
        sum_pieces(&a, dtype);                                                                                         \
    }
HD_ROWS_KERNELS(COLUMNS_KERNEL, add_columns)

typedef struct parts_args {
    const float *part; /* [samples][pieces][kinds][n] */
    uint32_t samples, pieces, kinds, n;
    float *dst[2]; /* of each kind; samples lie dst_stride apart */
    int64_t dst_stride;
} parts_args;

/* A warp has every PARTS_WARPS-th piece of 32 columns, one a lane; the warps' sums are added in their order. */
enum { PARTS_WARPS = HD_CUDA_GROUPS, PARTS_AT_ONCE = 8 };

typedef struct parts_memory {
    float sum[PARTS_WARPS][32];
} parts_memory;

HD_KERNEL(add_parts, parts_args, a)
{
    HD_SHARED(parts_memory, memory);
    const uint32_t strips = (a.n + 31) / 32, strip = HD_BLOCK % strips, rest = HD_BLOCK / strips;
    const uint32_t kind = rest % a.kinds, sample = rest / a.kinds, column = strip * 32 + HD_LANE;
    const float *part = a.part + ((int64_t)sample * a.pieces * a.kinds + kind) * a.n + column;
    float *dst = kind == 0 ? a.dst[0] : a.dst[1];
    float sum = 0;
    if (dst == 0) {
        return; /* all of the block */
    }
    for (uint32_t first = HD_WARP; first < a.pieces && column < a.n; first += PARTS_WARPS * PARTS_AT_ONCE) {
        float next[PARTS_AT_ONCE];
        HD_UNROLL
        for (uint32_t u = 0; u < PARTS_AT_ONCE; u++) {
            const uint32_t piece = first + u * PARTS_WARPS;
            next[u] =
                piece < a.pieces ? hd_f32_from_bits(hd_load_constant_4(part + (int64_t)piece * a.kinds * a.n)) : 0;
        }
        HD_UNROLL
        for (uint32_t u = 0; u < PARTS_AT_ONCE; u++) {
            sum = sum + next[u];
        }
    }
    memory->sum[HD_WARP][HD_LANE] = sum;
    hd_sync();
    if (HD_WARP == 0 && column < a.n) {
        for (int warp = 1; warp < PARTS_WARPS; warp++) {
            sum = sum + memory->sum[warp][HD_LANE];
        }
        dst += sample * a.dst_stride + column;
        hd_store_4(dst, hd_f32_bits(hd_f32_from_bits(hd_load_4(dst)) + sum));
    }
}

int hd_columns_add_parts(const float *part, int64_t samples, int64_t pieces, int64_t kinds, int64_t n,
                         float *const *dst, int64_t dst_stride, void *stream)
{
    parts_args a = {part,        (uint32_t)samples, (uint32_t)pieces, (uint32_t)kinds,
                    (uint32_t)n, {dst[0], dst[1]},  dst_stride};
    HD_LAUNCH(add_parts, samples * kinds * ((n + 31) / 32), PARTS_WARPS * 32, stream, &a);
    return (int)cudaGetLastError();
}

static int64_t sample_rows_of(const hd_device_columns *of)
{
    return of->sample_rows > 0 ? of->sample_rows : of->rows;
}

static int64_t pieces_of(const hd_device_columns *of)
{
    return (sample_rows_of(of) + PIECE_ROWS - 1) / PIECE_ROWS;
}

static int is_right(const hd_device_columns *of)
{
    const hd_device_rows rows = {of->dtype, of->rows, of->n, of->sample_rows, 0};
    const int64_t in_sample = of->rows > 0 ? sample_rows_of(of) : 1;
    return hd_rows_are_right(&rows) && of->rows % in_sample == 0 && of->stride >= of->n &&
           (of->src_dtype == of->dtype || of->src_dtype == HEDDLE_F32) &&
           of->rows / in_sample * 2 * of->n <= INT32_MAX &&
           of->rows / in_sample * pieces_of(of) * (of->n / 128 + 1) <= INT32_MAX;
}

size_t hd_columns_bytes(const hd_device_columns *of)
{
    if (!is_right(of) || of->rows == 0) {
        return 0;
    }
    return (size_t)(of->rows / sample_rows_of(of) * pieces_of(of) * (of->other != NULL ? 2 : 1) * of->n) * 4;
}

static int sum_stage(const hd_device_columns *of, float *scratch, void *stream)
{
    const hd_device_rows rows = {of->dtype, of->rows, of->n, of->sample_rows, 0};
    const int64_t per = of->dtype == HEDDLE_F32 ? 4 : 8, src_per = of->src_dtype == HEDDLE_F32 ? 4 : 8;
    columns_args a = {hd_rows_of(&rows),
                      (uint32_t)sample_rows_of(of),
                      (uint32_t)pieces_of(of),
                      (uint32_t)((of->n + 32 * per - 1) / (32 * per)),
                      of->stride,
                      (const char *)of->src,
                      (const char *)of->other,
                      of->stats,
                      scratch,
                      of->src_dtype != of->dtype,
                      0};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(of->other);
    a.of.is_whole_vector = a.of.is_whole_vector && hd_is_aligned(scratch);
    a.src_is_whole = of->n % per == 0 && of->stride % src_per == 0 && hd_is_aligned(of->src);
    HD_ROWS_LAUNCH_OF(add_columns, of->dtype, (unsigned)(of->rows / a.sample_rows * a.pieces * a.strips), &a, stream);
}

int hd_columns_add(const hd_device_columns *of, float *dst, float *dst_times, int64_t dst_stride, void *scratch,
                   void *stream)
{
    float *const to[2] = {dst, dst_times};
    if (!is_right(of)) {
        return (int)cudaErrorInvalidValue;
    }
    if (of->rows == 0) {
        return 0;
    }
    const int error = sum_stage(of, (float *)scratch, stream);
    return error != 0 ? error
                      : hd_columns_add_parts((float *)scratch, of->rows / sample_rows_of(of), pieces_of(of),
                                             of->other != NULL ? 2 : 1, of->n, to, dst_stride, stream);
}

int hd_columns_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(add_columns), HD_KERNEL_ADDRESS(add_parts)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
