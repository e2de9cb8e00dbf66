/* Timing the products of a block's layers. */
#ifndef HD_BLOCK_BENCH_H
#define HD_BLOCK_BENCH_H

#include "runtime/block/back_internal.h"

#include <heddle/sys/bench.h>

/* *ms: what `repeats` calls back to back take. */
typedef heddle_status (*hd_bench_sample)(double *ms, void *ctx, int64_t repeats);
/* samples, repeats and times of `out`. */
heddle_status hd_bench_times(heddle_bench_product_result *out, hd_bench_sample sample, void *ctx, int64_t budget_ms);
/* Numbers from -1 to below 1. */
void hd_bench_fill(void *dst, heddle_dtype dtype, int64_t elems);

/* device/bench.c: heddle_bench_product behind its checks. */
heddle_status hd_on_bench_product(heddle_bench_product_result *out, heddle_block *block, int layer,
                                  heddle_product_kind kind, int64_t rows, int64_t budget_ms);

#endif
