/* Vector sums for one instruction set: after vec_*.h, with SUM_SLOTS, the vector of doubles `dvec` and its operations,
 * load_f16 and store_f16, and the stores past the caches, stream_* and dvec_stream, defined before. What is no whole
 * vector goes through a padded copy, so that it takes the same instructions. */
#include "kernels/cpu/slots.h"

#include <string.h>

/* Streams without prefetch: with it they are 5 to 20 % slower, several sources keep the memory busy (Zen 4). */
enum { STREAM_ALIGNMENT = 64 };

#define SUM_PART(name, type, lanes, vec, load, add, store)                                                             \
    /* elements i to end */                                                                                            \
    static void part_##name(type *out, const void *const *src, int nsrc, int64_t i, int64_t end)                       \
    {                                                                                                                  \
        for (; i < end; i += (lanes)) {                                                                                \
            type part[lanes] = {0};                                                                                    \
            size_t bytes = sizeof(type) * (size_t)(end - i < (lanes) ? end - i : (lanes));                             \
            memcpy(part, (const type *)src[0] + i, bytes);                                                             \
            vec sum = load(part);                                                                                      \
            for (int k = 1; k < nsrc; k++) {                                                                           \
                memcpy(part, (const type *)src[k] + i, bytes);                                                         \
                sum = add(sum, load(part));                                                                            \
            }                                                                                                          \
            store(part, sum);                                                                                          \
            memcpy(out + i, part, bytes);                                                                              \
        }                                                                                                              \
    }

/* Pairs of vectors from `i` on; returns where it stops. */
#define SUM_PAIRS(name, type, lanes, vec, load, add, store)                                                            \
    static int64_t pairs_##name(type *out, const void *const *src, int nsrc, int64_t i, int64_t elems)                 \
    {                                                                                                                  \
        for (; i + 2 * (lanes) <= elems; i += 2 * (lanes)) {                                                           \
            vec sum0 = load((const type *)src[0] + i);                                                                 \
            vec sum1 = load((const type *)src[0] + i + (lanes));                                                       \
            for (int k = 1; k < nsrc; k++) {                                                                           \
                sum0 = add(sum0, load((const type *)src[k] + i));                                                      \
                sum1 = add(sum1, load((const type *)src[k] + i + (lanes)));                                            \
            }                                                                                                          \
            store(out + i, sum0);                                                                                      \
            store(out + i + (lanes), sum1);                                                                            \
        }                                                                                                              \
        return i;                                                                                                      \
    }

#define SUM_VECTOR(name, type, lanes, vec, load, add, store, stream)                                                   \
    SUM_PART(name, type, lanes, vec, load, add, store)                                                                 \
    SUM_PAIRS(name, type, lanes, vec, load, add, store)                                                                \
    SUM_PAIRS(streamed_##name, type, lanes, vec, load, add, stream)                                                    \
    static void sum_##name(void *dst, const void *const *src, int nsrc, int64_t elems)                                 \
    {                                                                                                                  \
        part_##name(dst, src, nsrc, pairs_##name(dst, src, nsrc, 0, elems), elems);                                    \
    }                                                                                                                  \
    static void sum_streamed_##name(void *dst, const void *const *src, int nsrc, int64_t elems)                        \
    {                                                                                                                  \
        int64_t head = (int64_t)(-(uintptr_t)dst % STREAM_ALIGNMENT / sizeof(type));                                   \
        if ((uintptr_t)dst % sizeof(type) != 0 || head > elems) {                                                      \
            sum_##name(dst, src, nsrc, elems);                                                                         \
            return;                                                                                                    \
        }                                                                                                              \
        part_##name(dst, src, nsrc, 0, head);                                                                          \
        part_##name(dst, src, nsrc, pairs_streamed_##name(dst, src, nsrc, head, elems), elems);                        \
        _mm_sfence();                                                                                                  \
    }

SUM_VECTOR(f64, double, VEC / 2, dvec, dvec_load, dvec_add, dvec_store, dvec_stream)
SUM_VECTOR(f32, float, VEC, vec, vec_load, vec_add, vec_store, stream_f32)
SUM_VECTOR(bf16, uint16_t, VEC, vec, vec_load_bf16, vec_add, vec_store_bf16, stream_bf16)
SUM_VECTOR(f16, uint16_t, VEC, vec, load_f16, vec_add, store_f16, stream_f16)

const hd_kernels SUM_SLOTS = {
    .sum[HEDDLE_F64] = sum_f64,
    .sum[HEDDLE_F32] = sum_f32,
    .sum[HEDDLE_BF16] = sum_bf16,
    .sum[HEDDLE_F16] = sum_f16,
    .sum_streamed[HEDDLE_F64] = sum_streamed_f64,
    .sum_streamed[HEDDLE_F32] = sum_streamed_f32,
    .sum_streamed[HEDDLE_BF16] = sum_streamed_bf16,
    .sum_streamed[HEDDLE_F16] = sum_streamed_f16,
};
