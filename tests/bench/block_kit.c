#include "block_kit.h"

#include "kernels/small_float.h"
#include "runtime/base/base.h"
#include "runtime/verify/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

double budget_s = 0.25;

void *filled(size_t elems, heddle_dtype dtype)
{
    void *memory = aligned_alloc(64, (elems * heddle_dtype_bytes(dtype) + 63) / 64 * 64);
    random_source source = {1};
    if (memory == NULL) {
        exit(1);
    }
    for (size_t i = 0; i < elems; i++) {
        float value = (float)random_unit(&source);
        if (dtype == HEDDLE_BF16) {
            ((uint16_t *)memory)[i] = hd_bf16_from_f32(value);
        } else {
            ((float *)memory)[i] = value;
        }
    }
    return memory;
}

void must(heddle_status status)
{
    if (status != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        exit(1);
    }
}

static int64_t cpu_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* On a busy machine the best of three calls of 0.1 s can be half as fast as the best of twelve. */
enum { LEAST_CALLS = 12 };

double best_of(void (*fn)(void *), void *arg)
{
    double best = 1e30;
    int64_t end = hd_now_ns() + (int64_t)(budget_s * 1e9);
    fn(arg);
    for (int call = 0; call < LEAST_CALLS || hd_now_ns() < end; call++) {
        int64_t start = cpu_now_ns();
        fn(arg);
        double spent = (double)(cpu_now_ns() - start) * 1e-9;
        best = spent < best ? spent : best;
    }
    return best;
}

double report(const char *what, double flops, double seconds)
{
    double rate = flops / seconds * 1e-9;
    printf("%-58s %9.3f ms %8.1f GFLOP/s\n", what, seconds * 1e3, rate);
    return rate;
}
