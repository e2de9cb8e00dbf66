#include "kernels/cpu/block/internal.h"

#include <string.h>

/* Best first. */
static const hd_block_kernels *const variant[] = {
#if defined(__x86_64__)
    &hd_block_avx512,
    &hd_block_avx2,
#endif
    &hd_block_reference,
};

enum { VARIANTS = sizeof variant / sizeof variant[0] };

static int runs_here(const hd_block_kernels *kernels)
{
#if defined(__x86_64__)
    if (kernels == &hd_block_avx512) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("fma");
    }
    if (kernels == &hd_block_avx2) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
#endif
    return kernels == &hd_block_reference;
}

const hd_block_kernels *hd_block_kernels_best(void)
{
    for (int i = 0; i < VARIANTS - 1; i++) {
        if (runs_here(variant[i])) {
            return variant[i];
        }
    }
    return &hd_block_reference;
}

const hd_block_kernels *hd_block_kernels_named(const char *name)
{
    for (int i = 0; i < VARIANTS; i++) {
        if (strcmp(variant[i]->name, name) == 0) {
            return runs_here(variant[i]) ? variant[i] : NULL;
        }
    }
    return NULL;
}
