/* Vector sums, included once per instruction set with the types and operations of SUM_VECTOR's uses defined before.
 * The rest after the last whole vector goes through a padded copy, so that it takes the same instructions. */
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
