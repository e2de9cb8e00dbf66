/* Threads of a call whose jobs are products. */
#ifndef HD_BLOCK_PRODUCTS_H
#define HD_BLOCK_PRODUCTS_H

#include "kernels/gemm.h"
#include "runtime/base/threads.h"

/* hd_threads_run; fn may call hd_gemm_run and hd_gemm_outer_f32. */
static inline heddle_status hd_products_run(const char *name, int count, int64_t jobs, hd_thread_job fn, void *ctx)
{
    const hd_threads threads = {.name = name,
                                .count = count,
                                .jobs = jobs,
                                .fn = fn,
                                .ctx = ctx,
                                .enter = hd_gemm_enter,
                                .leave = hd_gemm_leave};
    return hd_threads_run(&threads);
}

#endif
