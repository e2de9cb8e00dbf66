/* Sums of dense rows in the order of the terms, with the bits of kernels/cpu/sum. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/list.h"
#include "kernels/cuda/warp.h"
#include "kernels/small_float.h"

#include <string.h>

enum { THREADS = HD_CUDA_THREADS / 2 /* 128 */, AT_ONCE = 4 /* terms whose loads are under way together */ };
static const int64_t MOST_BLOCKS = 1024;

typedef struct sum_args {
    char *dst;
    int64_t elems, first_of_tail; /* elements from there on are added one by one */
    int nterms, unused;
    const char *term[HD_DEVICE_MAX_PEERS];
} sum_args;

/* As kernels/cpu/sum: widened, added from the first term to the last, narrowed once. Terms may be the destination, so
 * nothing here is a constant load. */
#define SUM_KERNEL(name, type, bytes, wide, widen, narrow, op)                                                         \
    typedef union name##_vector {                                                                                      \
        hd_v16 whole;                                                                                                  \
        type part[16 / bytes];                                                                                         \
    } name##_vector;                                                                                                   \
    HD_DEV type name##_from(uint##bytes##_bits bits)                                                                   \
    {                                                                                                                  \
        type value;                                                                                                    \
        memcpy(&value, &bits, sizeof value);                                                                           \
        return value;                                                                                                  \
    }                                                                                                                  \
    HD_DEV uint##bytes##_bits name##_bits(type value)                                                                  \
    {                                                                                                                  \
        uint##bytes##_bits bits;                                                                                       \
        memcpy(&bits, &value, sizeof bits);                                                                            \
        return bits;                                                                                                   \
    }                                                                                                                  \
    HD_DEV void name##_sixteen(const sum_args *a, int64_t at)                                                          \
    {                                                                                                                  \
        wide sum[16 / bytes] = {0};                                                                                    \
        name##_vector v[AT_ONCE] = {{{0, 0}}};                                                                         \
        for (int k = 0; k < a->nterms; k += AT_ONCE) {                                                                 \
            HD_UNROLL                                                                                                  \
            for (int u = 0; u < AT_ONCE; u++) {                                                                        \
                if (k + u < a->nterms) {                                                                               \
                    v[u].whole = hd_load_16(a->term[k + u] + at);                                                      \
                }                                                                                                      \
            }                                                                                                          \
            HD_UNROLL                                                                                                  \
            for (int u = 0; u < AT_ONCE && k + u < a->nterms; u++) {                                                   \
                HD_UNROLL                                                                                              \
                for (int i = 0; i < 16 / bytes; i++) {                                                                 \
                    sum[i] = k + u == 0 ? widen(v[u].part[i]) : (wide)(sum[i] op widen(v[u].part[i]));                 \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        HD_UNROLL                                                                                                      \
        for (int i = 0; i < 16 / bytes; i++) {                                                                         \
            v[0].part[i] = narrow(sum[i]);                                                                             \
        }                                                                                                              \
        hd_store_16(a->dst + at, v[0].whole);                                                                          \
    }                                                                                                                  \
    HD_KERNEL(name, sum_args, a)                                                                                       \
    {                                                                                                                  \
        const int64_t first = (int64_t)HD_BLOCK * HD_THREADS + HD_THREAD, step = (int64_t)HD_BLOCKS * HD_THREADS;      \
        for (int64_t at = first * 16; at < a.first_of_tail * bytes; at += step * 16) {                                 \
            name##_sixteen(&a, at);                                                                                    \
        }                                                                                                              \
        for (int64_t i = a.first_of_tail + first; i < a.elems; i += step) {                                            \
            wide sum = widen(name##_from(hd_load_##bytes(a.term[0] + i * bytes)));                                     \
            for (int k = 1; k < a.nterms; k++) {                                                                       \
                sum = (wide)(sum op widen(name##_from(hd_load_##bytes(a.term[k] + i * bytes))));                       \
            }                                                                                                          \
            hd_store_##bytes(a.dst + i * bytes, name##_bits(narrow(sum)));                                             \
        }                                                                                                              \
    }

#define AS_IS(x) (x)
typedef uint64_t uint8_bits; /* of so many bytes */
typedef uint32_t uint4_bits;
typedef uint16_t uint2_bits;
typedef uint8_t uint1_bits;

SUM_KERNEL(sum_f64, double, 8, double, AS_IS, AS_IS, +)
SUM_KERNEL(sum_f32, float, 4, float, AS_IS, AS_IS, +)
SUM_KERNEL(sum_f16, uint16_t, 2, float, hd_f32_from_f16, hd_f16_from_f32, +)
SUM_KERNEL(sum_bf16, uint16_t, 2, float, hd_f32_from_bf16, hd_bf16_from_f32, +)
SUM_KERNEL(sum_f8e4m3, uint8_t, 1, float, hd_f32_from_f8e4m3, hd_f8e4m3_from_f32, +)
SUM_KERNEL(sum_f8e5m2, uint8_t, 1, float, hd_f32_from_f8e5m2, hd_f8e5m2_from_f32, +)
SUM_KERNEL(sum_i64, uint64_t, 8, uint64_t, AS_IS, AS_IS, +)
SUM_KERNEL(sum_i32, uint32_t, 4, uint32_t, AS_IS, AS_IS, +)
SUM_KERNEL(sum_i8, uint8_t, 1, uint8_t, AS_IS, AS_IS, +)
SUM_KERNEL(sum_bool, uint8_t, 1, uint8_t, AS_IS, AS_IS, |)

static int64_t bytes_of(heddle_dtype dtype)
{
    switch (dtype) {
    case HEDDLE_F64:
    case HEDDLE_I64:
        return 8;
    case HEDDLE_F32:
    case HEDDLE_I32:
        return 4;
    case HEDDLE_F16:
    case HEDDLE_BF16:
        return 2;
    default:
        return 1;
    }
}

static sum_args args_of(void *dst, const void *const *term, int nterms, int64_t elems, int64_t elem_bytes)
{
    sum_args a;
    memset(&a, 0, sizeof a);
    uintptr_t all = (uintptr_t)dst;
    a.dst = (char *)dst;
    a.elems = elems;
    a.nterms = nterms;
    for (int k = 0; k < nterms; k++) {
        a.term[k] = (const char *)term[k];
        all |= (uintptr_t)term[k];
    }
    int64_t in_vector = 16 / elem_bytes;
    a.first_of_tail = all % 16 == 0 ? elems / in_vector * in_vector : 0;
    return a;
}

/* Every thread has a vector, if there are so many. */
static unsigned blocks_of(const sum_args *a, int64_t elem_bytes)
{
    int64_t vectors = a->first_of_tail * elem_bytes / 16, tail = a->elems - a->first_of_tail;
    int64_t blocks = ((vectors > tail ? vectors : tail) + THREADS - 1) / THREADS;
    return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

#define SUM_CASE(dtype, name)                                                                                          \
    case dtype:                                                                                                        \
        HD_LAUNCH(name, blocks, THREADS, stream, &a);                                                                  \
        break

int hd_cuda_sum(void *dst, const void *const *term, int nterms, int64_t elems, heddle_dtype dtype, void *stream)
{
    if (nterms < 1 || nterms > HD_DEVICE_MAX_PEERS || elems < 0) {
        return (int)cudaErrorInvalidValue;
    }
    if (elems == 0) {
        return 0;
    }
    const sum_args a = args_of(dst, term, nterms, elems, bytes_of(dtype));
    const unsigned blocks = blocks_of(&a, bytes_of(dtype));
    switch (dtype) {
        SUM_CASE(HEDDLE_F64, sum_f64);
        SUM_CASE(HEDDLE_F32, sum_f32);
        SUM_CASE(HEDDLE_F16, sum_f16);
        SUM_CASE(HEDDLE_BF16, sum_bf16);
        SUM_CASE(HEDDLE_F8E4M3, sum_f8e4m3);
        SUM_CASE(HEDDLE_F8E5M2, sum_f8e5m2);
        SUM_CASE(HEDDLE_I64, sum_i64);
        SUM_CASE(HEDDLE_I32, sum_i32);
        SUM_CASE(HEDDLE_I8, sum_i8);
        SUM_CASE(HEDDLE_U8, sum_i8);
        SUM_CASE(HEDDLE_BOOL, sum_bool);
    default:
        return (int)cudaErrorInvalidValue;
    }
    return (int)cudaGetLastError();
}

int hd_cuda_sum_load(void)
{
    const void *const kernel[] = {HD_KERNEL_ADDRESS(sum_f64),    HD_KERNEL_ADDRESS(sum_f32),
                                  HD_KERNEL_ADDRESS(sum_f16),    HD_KERNEL_ADDRESS(sum_bf16),
                                  HD_KERNEL_ADDRESS(sum_f8e4m3), HD_KERNEL_ADDRESS(sum_f8e5m2),
                                  HD_KERNEL_ADDRESS(sum_i64),    HD_KERNEL_ADDRESS(sum_i32),
                                  HD_KERNEL_ADDRESS(sum_i8),     HD_KERNEL_ADDRESS(sum_bool)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
