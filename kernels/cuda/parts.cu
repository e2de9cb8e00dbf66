/* What parts of attention are put together with: tokens brought to another place, type and order, softmax over two sets
 * of keys, and its logarithm. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rows.h"

enum { PER = 8 /* elements of a thread */ };

/* --- arrange ------------------------------------------------------------------------------------------------------ */

typedef struct arrange_args {
    hd_device_tokens dst, src;
    uint32_t inner, heads, n, pieces; /* pieces of PER elements of a token's head */
    uint32_t all;                     /* of everything */
    int32_t d;
    int adds, is_whole;
} arrange_args;

HD_DEV int64_t place_of(const hd_device_tokens *x, uint32_t outer, uint32_t inner, uint32_t token, uint32_t head)
{
    return outer * x->outer + inner * x->inner + token * x->token + head * x->head;
}

HD_DEV void arrange_piece(const arrange_args *a, uint32_t i, heddle_dtype dst_dtype, heddle_dtype src_dtype)
{
    uint32_t rest = i / a->pieces;
    const int32_t at = (int32_t)(i - rest * a->pieces) * PER, left = a->d - at;
    const uint32_t head = rest % a->heads;
    rest /= a->heads;
    const uint32_t inner = rest % a->inner;
    rest /= a->inner;
    const uint32_t token = rest % a->n, outer = rest / a->n;
    char *dst = (char *)a->dst.data + place_of(&a->dst, outer, inner, token, head) * hd_elem_bytes(dst_dtype);
    float value[PER] = {0}, before[PER];
    if (a->src.data != 0) {
        const char *src =
            (const char *)a->src.data + place_of(&a->src, outer, inner, token, head) * hd_elem_bytes(src_dtype);
        hd_values_load(value, src, at, left, PER, src_dtype, a->is_whole);
    }
    if (a->adds) {
        hd_values_load(before, dst, at, left, PER, dst_dtype, a->is_whole);
        HD_UNROLL
        for (int j = 0; j < PER; j++) {
            value[j] = before[j] + value[j];
        }
    }
    hd_values_store(dst, value, at, left, PER, dst_dtype, a->is_whole);
}

#define ARRANGE_PAIRS(X)                                                                                               \
    X(f32, f32, HEDDLE_F32, HEDDLE_F32)                                                                                \
    X(f32, bf16, HEDDLE_F32, HEDDLE_BF16)                                                                              \
    X(f32, f16, HEDDLE_F32, HEDDLE_F16)                                                                                \
    X(bf16, f32, HEDDLE_BF16, HEDDLE_F32)                                                                              \
    X(bf16, bf16, HEDDLE_BF16, HEDDLE_BF16)                                                                            \
    X(f16, f32, HEDDLE_F16, HEDDLE_F32)                                                                                \
    X(f16, f16, HEDDLE_F16, HEDDLE_F16)

#define ARRANGE_KERNEL(to, from, to_dtype, from_dtype)                                                                 \
    HD_KERNEL(arrange_##to##_from_##from, arrange_args, a)                                                             \
    {                                                                                                                  \
        for (uint32_t i = HD_BLOCK * HD_THREADS + HD_THREAD; i < a.all; i += HD_BLOCKS * HD_THREADS) {                 \
            arrange_piece(&a, i, to_dtype, from_dtype);                                                                \
        }                                                                                                              \
    }
ARRANGE_PAIRS(ARRANGE_KERNEL)

static int is_aligned_to(const hd_device_tokens *x, int64_t elems)
{
    return hd_is_aligned(x->data) && x->outer % elems == 0 && x->inner % elems == 0 && x->token % elems == 0 &&
           x->head % elems == 0;
}

static int64_t elems_of_16(heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? 4 : 8;
}

#define ARRANGE_LAUNCH(to, from, to_dtype, from_dtype)                                                                 \
    if (of->dst_dtype == (to_dtype) && of->src_dtype == (from_dtype)) {                                                \
        HD_LAUNCH(arrange_##to##_from_##from, blocks, HD_ROWS_THREADS, stream, &a);                                    \
        return (int)cudaGetLastError();                                                                                \
    }

int hd_parts_arrange(const hd_device_arrange *of, void *stream)
{
    const int64_t pieces = (of->d + PER - 1) / PER;
    const double all = (double)of->outer * (double)of->inner * (double)of->heads * (double)of->n * (double)pieces;
    if (all == 0) {
        return 0;
    }
    if (!(all > 0 && all <= INT32_MAX) || (of->adds && of->dst_dtype != HEDDLE_F32)) {
        return (int)cudaErrorInvalidValue;
    }
    arrange_args a;
    a.dst = of->dst;
    a.src = of->src;
    a.inner = (uint32_t)of->inner;
    a.heads = (uint32_t)of->heads;
    a.n = (uint32_t)of->n;
    a.pieces = (uint32_t)pieces;
    a.all = (uint32_t)all;
    a.d = (int32_t)of->d;
    a.adds = of->adds;
    a.is_whole = of->d % PER == 0 && is_aligned_to(&of->dst, elems_of_16(of->dst_dtype)) &&
                 is_aligned_to(&of->src, elems_of_16(of->src_dtype));
    const double needed = (all + HD_ROWS_THREADS - 1) / HD_ROWS_THREADS;
    const unsigned blocks = needed < HD_ROWS_MOST_BLOCKS ? (unsigned)needed : (unsigned)HD_ROWS_MOST_BLOCKS;
    ARRANGE_PAIRS(ARRANGE_LAUNCH)
    return (int)cudaErrorInvalidValue;
}

/* --- merge: a warp takes a row ------------------------------------------------------------------------------------ */

typedef struct merge_args {
    float *o, *stats;
    const float *other, *other_stats;
    uint32_t rows;
    int32_t d;
    float scale_log2;
} merge_args;

HD_KERNEL(merge, merge_args, a)
{
    const uint32_t row = hd_row();
    if (row >= a.rows) {
        return;
    }
    float *stats = a.stats + 2 * (int64_t)row, *o = a.o + (int64_t)row * a.d;
    const float *other_stats = a.other_stats + 2 * (int64_t)row, *other = a.other + (int64_t)row * a.d;
    const float own_top = hd_float_load(stats), its_top = hd_float_load(other_stats);
    const float top = fmaxf(own_top, its_top), from = top == -INFINITY ? 0 : top;
    const float own = hd_exp2(hd_fma(own_top - from, a.scale_log2, hd_float_load(stats + 1)));
    const float its = hd_exp2(hd_fma(its_top - from, a.scale_log2, hd_float_load(other_stats + 1)));
    const float sum = own + its, inverse = sum > 0 ? 1.0f / sum : sum; /* of no keys 0, of a NaN that */
    const float own_part = hd_mul(own, inverse), its_part = hd_mul(its, inverse);
    hd_sync_warp(); /* all have read the stats */
    for (int32_t at = (int32_t)HD_LANE; at < a.d; at += 32) {
        hd_float_store(o + at, hd_fma(hd_float_load(other + at), its_part, hd_mul(hd_float_load(o + at), own_part)));
    }
    if (HD_LANE == 0) {
        hd_float_store(stats, top);
        hd_float_store(stats + 1, sum > 0 ? hd_log2(sum) : sum);
    }
}

int hd_parts_merge(const hd_device_merge *of, void *stream)
{
    const merge_args a = {of->o,
                          of->stats,
                          of->other,
                          of->other_stats,
                          (uint32_t)of->rows,
                          (int32_t)of->d,
                          of->scale * 1.4426950408889634f};
    if (of->rows < 0 || of->rows > INT32_MAX || of->d < 1 || of->d > HD_DEVICE_MOST_HEAD) {
        return (int)cudaErrorInvalidValue;
    }
    if (of->rows == 0) {
        return 0;
    }
    HD_LAUNCH(merge, hd_rows_blocks(of->rows), HD_ROWS_THREADS, stream, &a);
    return (int)cudaGetLastError();
}

/* --- the logarithm of the sum ------------------------------------------------------------------------------------- */

typedef struct log_sum_args {
    const float *stats;
    hd_device_tokens out;
    uint32_t heads, n, all;
    float scale;
} log_sum_args;

HD_KERNEL(log_sum, log_sum_args, a)
{
    for (uint32_t i = HD_BLOCK * HD_THREADS + HD_THREAD; i < a.all; i += HD_BLOCKS * HD_THREADS) {
        const uint32_t row = i / a.n, token = i - row * a.n, outer = row / a.heads, head = row - outer * a.heads;
        const float *stats = a.stats + 2 * (int64_t)i;
        const float natural = hd_mul(hd_float_load(stats + 1), 0.693147180559945309f);
        hd_float_store((float *)a.out.data + place_of(&a.out, outer, 0, token, head),
                       hd_fma(hd_float_load(stats), a.scale, natural));
    }
}

int hd_parts_log_sum(const hd_device_log_sum *of, void *stream)
{
    const double all = (double)of->outer * (double)of->heads * (double)of->n;
    const log_sum_args a = {of->stats, of->out, (uint32_t)of->heads, (uint32_t)of->n, (uint32_t)(all < 0 ? 0 : all),
                            of->scale};
    if (!(all >= 0 && all <= INT32_MAX)) {
        return (int)cudaErrorInvalidValue;
    }
    if (all == 0) {
        return 0;
    }
    const double needed = (all + HD_ROWS_THREADS - 1) / HD_ROWS_THREADS;
    HD_LAUNCH(log_sum, needed < HD_ROWS_MOST_BLOCKS ? (unsigned)needed : (unsigned)HD_ROWS_MOST_BLOCKS, HD_ROWS_THREADS,
              stream, &a);
    return (int)cudaGetLastError();
}

#define ARRANGE_ADDRESS(to, from, to_dtype, from_dtype) HD_KERNEL_ADDRESS(arrange_##to##_from_##from),

int hd_parts_load(void)
{
    const void *const kernel[] = {ARRANGE_PAIRS(ARRANGE_ADDRESS) HD_KERNEL_ADDRESS(merge), HD_KERNEL_ADDRESS(log_sum)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
