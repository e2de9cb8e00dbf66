/* Vector sums for one instruction set: after vec_*.h, with SUM_FILL, the vector of doubles `dvec` and its operations,
 * load_f16 and store_f16 defined before. The rest after the last whole vector goes through a padded copy, so that it
 * takes the same instructions. */
#include "kernels/cpu/fill.h"

#include <string.h>

#define SUM_VECTOR(name, type, lanes, vec, load, add, store)                                                           \
    static void sum_##name(void *dst, const void *const *src, int nsrc, int64_t elems)                                 \
    {                                                                                                                  \
        type *out = dst;                                                                                               \
        int64_t i = 0;                                                                                                 \
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
        for (; i < elems; i += (lanes)) {                                                                              \
            type part[lanes] = {0};                                                                                    \
            size_t bytes = sizeof(type) * (size_t)(elems - i < (lanes) ? elems - i : (lanes));                         \
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

SUM_VECTOR(f64, double, VEC / 2, dvec, dvec_load, dvec_add, dvec_store)
SUM_VECTOR(f32, float, VEC, vec, vec_load, vec_add, vec_store)
SUM_VECTOR(bf16, uint16_t, VEC, vec, vec_load_bf16, vec_add, vec_store_bf16)
SUM_VECTOR(f16, uint16_t, VEC, vec, load_f16, vec_add, store_f16)

void SUM_FILL(hd_kernels *table)
{
    table->sum[HEDDLE_F64] = sum_f64;
    table->sum[HEDDLE_F32] = sum_f32;
    table->sum[HEDDLE_BF16] = sum_bf16;
    table->sum[HEDDLE_F16] = sum_f16;
}
