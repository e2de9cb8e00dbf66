#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear/internal.h"

#include <string.h>

static int runs_here(const hd_linear_kernels *kernels)
{
#if defined(__x86_64__)
    if (kernels == &hd_linear_avx512) {
        return hd_cpu_has_avx512();
    }
    if (kernels == &hd_linear_avx2) {
        return hd_cpu_has_avx2();
    }
#endif
    return kernels == &hd_linear_reference || kernels == &hd_linear_f64;
}

/* Best first. */
static const hd_linear_kernels *const variant[] = {
#if defined(__x86_64__)
    &hd_linear_avx512,
    &hd_linear_avx2,
#endif
    &hd_linear_reference,
    &hd_linear_f64,
};

enum { VARIANTS = sizeof variant / sizeof variant[0] };

const hd_linear_kernels *hd_linear_kernels_best(heddle_dtype real)
{
    for (int i = 0; i < VARIANTS && real != HEDDLE_F64; i++) {
        if (runs_here(variant[i])) {
            return variant[i];
        }
    }
    return &hd_linear_f64;
}

const hd_linear_kernels *hd_linear_kernels_named(const char *name)
{
    for (int i = 0; i < VARIANTS; i++) {
        if (strcmp(variant[i]->name, name) == 0) {
            return runs_here(variant[i]) ? variant[i] : NULL;
        }
    }
    return NULL;
}
