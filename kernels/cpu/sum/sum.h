/* Sums of rows per instruction set. Element-wise in source order, so every variant gives the same bits (of a NaN only
 * that it is one). */
#ifndef HD_SUM_INTERNAL_H
#define HD_SUM_INTERNAL_H

#include "kernels/copy.h"

typedef void (*hd_sum_fn)(void *dst, const void *const *src, int nsrc, int64_t elems);

/* One slot per dtype that gains from vectors; NULL: the scalar code serves. */
typedef struct hd_sum_table {
    hd_sum_fn f64, f32, bf16, f16;
} hd_sum_table;

/* The judge. nsrc >= 1. */
void hd_sum_rows_reference(void *dst, const void *const *src, int nsrc, int64_t elems, heddle_dtype dtype);

#if defined(__x86_64__)
extern const hd_sum_table hd_sum_avx2;
extern const hd_sum_table hd_sum_avx512;
#endif

#endif
