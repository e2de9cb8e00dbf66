/* Sums of rows, for every dtype. The vector ones are element-wise in source order, too: every variant gives the same
 * bits (of a NaN only that it is one). */
#include "kernels/cpu/slots.h"
#include "kernels/small_float.h"

#include <string.h>

/* `type` elements are widened to `wide`, added in source order, and narrowed once. */
#define SUM_ROWS(name, type, wide, widen, narrow)                                                                      \
    static void sum_##name(void *dst, const void *const *src, int nsrc, int64_t elems)                                 \
    {                                                                                                                  \
        type *out = dst;                                                                                               \
        for (int64_t i = 0; i < elems; i++) {                                                                          \
            wide sum = widen(((const type *)src[0])[i]);                                                               \
            for (int k = 1; k < nsrc; k++) {                                                                           \
                sum = (wide)(sum + widen(((const type *)src[k])[i]));                                                  \
            }                                                                                                          \
            out[i] = narrow(sum);                                                                                      \
        }                                                                                                              \
    }

#define AS_IS(x) (x)
SUM_ROWS(f64, double, double, AS_IS, AS_IS)
SUM_ROWS(f32, float, float, AS_IS, AS_IS)
SUM_ROWS(f16, uint16_t, float, hd_f32_from_f16, hd_f16_from_f32)
SUM_ROWS(bf16, uint16_t, float, hd_f32_from_bf16, hd_bf16_from_f32)
SUM_ROWS(f8e4m3, uint8_t, float, hd_f32_from_f8e4m3, hd_f8e4m3_from_f32)
SUM_ROWS(f8e5m2, uint8_t, float, hd_f32_from_f8e5m2, hd_f8e5m2_from_f32)

/* Integers: row by row over a piece of dst that stays in the cache, which the compiler turns into vectors. Unsigned, so
 * that they wrap. */
enum { PIECE_BYTES = 8192 };

#define ADD_ROWS(name, type, op)                                                                                       \
    static void sum_##name(void *dst, const void *const *src, int nsrc, int64_t elems)                                 \
    {                                                                                                                  \
        const int64_t piece = PIECE_BYTES / (int64_t)sizeof(type);                                                     \
        for (int64_t at = 0; at < elems; at += piece) {                                                                \
            int64_t n = elems - at < piece ? elems - at : piece;                                                       \
            type *restrict out = (type *)dst + at;                                                                     \
            memcpy(out, (const type *)src[0] + at, (size_t)n * sizeof(type));                                          \
            for (int k = 1; k < nsrc; k++) {                                                                           \
                const type *restrict in = (const type *)src[k] + at;                                                   \
                for (int64_t i = 0; i < n; i++) {                                                                      \
                    out[i] = (type)(out[i] op in[i]);                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

ADD_ROWS(i64, uint64_t, +)
ADD_ROWS(i32, uint32_t, +)
ADD_ROWS(i8, uint8_t, +)
ADD_ROWS(bool, uint8_t, |)

#define SUMS                                                                                                           \
    {                                                                                                                  \
        [HEDDLE_F64] = sum_f64, [HEDDLE_F32] = sum_f32, [HEDDLE_F16] = sum_f16, [HEDDLE_BF16] = sum_bf16,              \
        [HEDDLE_F8E4M3] = sum_f8e4m3, [HEDDLE_F8E5M2] = sum_f8e5m2, [HEDDLE_I64] = sum_i64, [HEDDLE_I32] = sum_i32,    \
        [HEDDLE_I8] = sum_i8, [HEDDLE_U8] = sum_i8, [HEDDLE_BOOL] = sum_bool,                                          \
    }

const hd_kernels hd_sum_slots = {.sum = SUMS, .sum_streamed = SUMS};
