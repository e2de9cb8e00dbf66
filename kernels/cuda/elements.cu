/* What is done to every element alone, from one type to another: a thread takes 8 elements, and has several times as
 * many under way. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/piece.h"
#include "kernels/cuda/rows.h"

enum {
    PER = 8,
    AT_ONCE = 2,
    BATCH = PER * AT_ONCE * HD_ROWS_THREADS,
    MOST_ELEMENTS = 1 << 30 /* of a launch; more are several */
};

typedef struct elements_args {
    const char *src;
    char *dst;
    int32_t elems;
    int is_whole; /* all lie at multiples of 16 bytes */
} elements_args;

/* x (1 + tanh u) / 2 = x / (1 + e^-2u) */
HD_DEV float gelu_of(float x)
{
    const float power = hd_exp2(hd_mul(x, hd_fma(hd_mul(x, x), HD_GELU_EXPONENT_CUBIC, HD_GELU_EXPONENT)));
    return x / (power + 1.0f);
}

/* A block's elements lie beside one another; where the u-th 8 of this thread begin. */
HD_DEV int32_t thread_at(int u)
{
    return (int32_t)HD_BLOCK * BATCH + (u * HD_ROWS_THREADS + (int32_t)HD_THREAD) * PER;
}

/* All that this thread has under way. */
HD_DEV void load_all(float value[AT_ONCE][PER], const char *src, int32_t elems, heddle_dtype dtype, int is_whole)
{
    HD_UNROLL
    for (int u = 0; u < AT_ONCE; u++) {
        const int32_t at = thread_at(u), left = elems - at;
        if (left > 0) {
            hd_values_load(value[u], src, at, left, PER, dtype, is_whole && left >= PER);
        }
    }
}

HD_DEV void each(const elements_args *a, heddle_dtype dst_dtype, heddle_dtype src_dtype, int is_gelu)
{
    float value[AT_ONCE][PER];
    load_all(value, a->src, a->elems, src_dtype, a->is_whole);
    HD_UNROLL
    for (int u = 0; u < AT_ONCE; u++) {
        const int32_t at = thread_at(u), left = a->elems - at;
        HD_UNROLL
        for (int i = 0; i < PER && is_gelu && left > 0; i++) {
            value[u][i] = gelu_of(value[u][i]);
        }
        if (left > 0) {
            hd_values_store(a->dst, value[u], at, left, PER, dst_dtype, a->is_whole && left >= PER);
        }
    }
}

#define EACH_PAIR(X, name)                                                                                             \
    X(name, f32, f32, HEDDLE_F32, HEDDLE_F32)                                                                          \
    X(name, f32, bf16, HEDDLE_F32, HEDDLE_BF16)                                                                        \
    X(name, f32, f16, HEDDLE_F32, HEDDLE_F16)                                                                          \
    X(name, bf16, f32, HEDDLE_BF16, HEDDLE_F32)                                                                        \
    X(name, bf16, bf16, HEDDLE_BF16, HEDDLE_BF16)                                                                      \
    X(name, bf16, f16, HEDDLE_BF16, HEDDLE_F16)                                                                        \
    X(name, f16, f32, HEDDLE_F16, HEDDLE_F32)                                                                          \
    X(name, f16, bf16, HEDDLE_F16, HEDDLE_BF16)                                                                        \
    X(name, f16, f16, HEDDLE_F16, HEDDLE_F16)

#define ELEMENTS_KERNEL(name, dst, src, dst_dtype, src_dtype)                                                          \
    HD_KERNEL(name##_##dst##_from_##src, elements_args, a)                                                             \
    {                                                                                                                  \
        each(&a, dst_dtype, src_dtype, IS_GELU_##name);                                                                \
    }
#define IS_GELU_gelu 1
#define IS_GELU_convert 0
EACH_PAIR(ELEMENTS_KERNEL, gelu)
EACH_PAIR(ELEMENTS_KERNEL, convert)

/* --- a number as two of a shorter type */

typedef struct split_args {
    const char *src;
    char *high, *low;
    int32_t elems;
    int is_whole;
} split_args;

HD_DEV void each_split(const split_args *a, heddle_dtype dtype)
{
    float value[AT_ONCE][PER];
    load_all(value, a->src, a->elems, HEDDLE_F32, a->is_whole);
    HD_UNROLL
    for (int u = 0; u < AT_ONCE; u++) {
        const int32_t at = thread_at(u), left = a->elems - at;
        const int is_whole = a->is_whole && left >= PER;
        if (left > 0) {
            hd_values_store(a->high, value[u], at, left, PER, dtype, is_whole);
            HD_UNROLL
            for (int i = 0; i < PER; i++) {
                value[u][i] -= hd_half_get(hd_half_of(value[u][i], dtype), dtype);
            }
            hd_values_store(a->low, value[u], at, left, PER, dtype, is_whole);
        }
    }
}

#define SPLIT_KERNEL(name, dtype)                                                                                      \
    HD_KERNEL(name, split_args, a)                                                                                     \
    {                                                                                                                  \
        each_split(&a, dtype);                                                                                         \
    }
SPLIT_KERNEL(split_bf16, HEDDLE_BF16)
SPLIT_KERNEL(split_f16, HEDDLE_F16)

/* --- the gradient: gelu(x) = x s, s the logistic function of 2 u, u = slope (x + cubic x^3); its slope is
 * s + 2 u' x s (1 - s). */

typedef struct gelu_back_args {
    const char *src;
    char *dy, *active;
    int32_t elems;
    int is_whole;
} gelu_back_args;

HD_DEV void gelu_back_of(float *dy, float *active, float x)
{
    const float square = hd_mul(x, x);
    const float power = hd_exp2(hd_mul(x, hd_fma(square, HD_GELU_EXPONENT_CUBIC, HD_GELU_EXPONENT)));
    const float s = 1.0f / (power + 1.0f), y = hd_mul(x, s);
    const float turn = hd_fma(square, 6.0f * HD_GELU_SLOPE * HD_GELU_CUBIC, 2.0f * HD_GELU_SLOPE);
    *active = y;
    *dy = hd_mul(*dy, hd_fma(hd_mul(turn, y), 1.0f - s, s));
}

HD_DEV void each_back(const gelu_back_args *a, heddle_dtype dtype)
{
    float x[AT_ONCE][PER], dy[AT_ONCE][PER];
    HD_UNROLL
    for (int u = 0; u < AT_ONCE; u++) {
        const int32_t at = thread_at(u), left = a->elems - at;
        if (left > 0) {
            hd_values_load(x[u], a->src, at, left, PER, dtype, a->is_whole && left >= PER);
            hd_values_load(dy[u], a->dy, at, left, PER, dtype, a->is_whole && left >= PER);
        }
    }
    HD_UNROLL
    for (int u = 0; u < AT_ONCE; u++) {
        const int32_t at = thread_at(u), left = a->elems - at;
        const int is_whole = a->is_whole && left >= PER;
        float active[PER];
        if (left > 0) {
            HD_UNROLL
            for (int i = 0; i < PER; i++) {
                gelu_back_of(&dy[u][i], &active[i], x[u][i]);
            }
            hd_values_store(a->dy, dy[u], at, left, PER, dtype, is_whole);
            hd_values_store(a->active, active, at, left, PER, dtype, is_whole);
        }
    }
}

#define GELU_BACK_KERNEL(name, dtype)                                                                                  \
    HD_KERNEL(name, gelu_back_args, a)                                                                                 \
    {                                                                                                                  \
        each_back(&a, dtype);                                                                                          \
    }
HD_ROWS_KERNELS(GELU_BACK_KERNEL, gelu_back)

static int is_float(heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 || dtype == HEDDLE_BF16 || dtype == HEDDLE_F16;
}

static int64_t bytes_of(heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? 4 : 2;
}

static unsigned blocks_of(int32_t elems)
{
    return (unsigned)((elems + BATCH - 1) / BATCH);
}

static int32_t elems_of(int64_t left)
{
    return (int32_t)(left < MOST_ELEMENTS ? left : (int64_t)MOST_ELEMENTS);
}

/* The next stretch of what is left, and how many blocks it takes. */
static unsigned stretch(elements_args *a, int64_t at, int64_t elems, void *dst, int64_t dst_bytes, const void *src,
                        int64_t src_bytes)
{
    a->dst = (char *)dst + at * dst_bytes;
    a->src = (const char *)src + at * src_bytes;
    a->elems = elems_of(elems - at);
    a->is_whole = hd_is_aligned(a->dst) && hd_is_aligned(a->src);
    return blocks_of(a->elems);
}

#define LAUNCH_PAIR(name, to, from, to_dtype, from_dtype)                                                              \
    if (dst_dtype == (to_dtype) && src_dtype == (from_dtype)) {                                                        \
        HD_LAUNCH(name##_##to##_from_##from, blocks, HD_ROWS_THREADS, stream, &a);                                     \
    }
#define ELEMENTS_LAUNCHER(name)                                                                                        \
    int hd_elements_##name(void *dst, heddle_dtype dst_dtype, const void *src, heddle_dtype src_dtype, int64_t elems,  \
                           void *stream)                                                                               \
    {                                                                                                                  \
        int error = is_float(dst_dtype) && is_float(src_dtype) && elems >= 0 ? 0 : (int)cudaErrorInvalidValue;         \
        for (int64_t at = 0; at < elems && error == 0; at += MOST_ELEMENTS) {                                          \
            elements_args a;                                                                                           \
            const unsigned blocks = stretch(&a, at, elems, dst, bytes_of(dst_dtype), src, bytes_of(src_dtype));        \
            EACH_PAIR(LAUNCH_PAIR, name)                                                                               \
            error = (int)cudaGetLastError();                                                                           \
        }                                                                                                              \
        return error;                                                                                                  \
    }
ELEMENTS_LAUNCHER(gelu)
ELEMENTS_LAUNCHER(convert)

int hd_elements_split(void *dst, heddle_dtype dtype, const float *src, int64_t elems, void *stream)
{
    int error = is_float(dtype) && dtype != HEDDLE_F32 && elems >= 0 ? 0 : (int)cudaErrorInvalidValue;
    for (int64_t at = 0; at < elems && error == 0; at += MOST_ELEMENTS) {
        split_args a = {(const char *)(src + at), (char *)dst + at * 2, (char *)dst + (elems + at) * 2,
                        elems_of(elems - at), 0};
        a.is_whole = hd_is_aligned(a.src) && hd_is_aligned(a.high) && hd_is_aligned(a.low);
        if (dtype == HEDDLE_BF16) {
            HD_LAUNCH(split_bf16, blocks_of(a.elems), HD_ROWS_THREADS, stream, &a);
        } else {
            HD_LAUNCH(split_f16, blocks_of(a.elems), HD_ROWS_THREADS, stream, &a);
        }
        error = (int)cudaGetLastError();
    }
    return error;
}

static int launch_back(const gelu_back_args *a, heddle_dtype dtype, void *stream)
{
    HD_ROWS_LAUNCH_OF(gelu_back, dtype, blocks_of(a->elems), a, stream);
}

int hd_elements_gelu_back(void *dy, void *active, const void *src, heddle_dtype dtype, int64_t elems, void *stream)
{
    int error = is_float(dtype) && elems >= 0 ? 0 : (int)cudaErrorInvalidValue;
    for (int64_t at = 0; at < elems && error == 0; at += MOST_ELEMENTS) {
        const int64_t behind = at * bytes_of(dtype);
        const gelu_back_args a = {(const char *)src + behind, (char *)dy + behind, (char *)active + behind,
                                  elems_of(elems - at),
                                  hd_is_aligned(src) && hd_is_aligned(dy) && hd_is_aligned(active)};
        error = launch_back(&a, dtype, stream);
    }
    return error;
}

#define ADDRESS_PAIR(name, to, from, to_dtype, from_dtype) HD_KERNEL_ADDRESS(name##_##to##_from_##from),

int hd_elements_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(gelu_back), HD_KERNEL_ADDRESS(split_bf16),
                                  HD_KERNEL_ADDRESS(split_f16),
                                  EACH_PAIR(ADDRESS_PAIR, gelu) EACH_PAIR(ADDRESS_PAIR, convert)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
