#include "kernels/cpu/attention/internal.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

static int runs_here(const hd_attn_kernels *kernels)
{
#if defined(__x86_64__)
    if (kernels == &hd_attn_avx512) {
        return hd_cpu_has_avx512();
    }
    if (kernels == &hd_attn_avx2) {
        return hd_cpu_has_avx2();
    }
#endif
    return kernels != NULL;
}

/* Best first; f64 has one. */
static const hd_attn_kernels *const all[] = {
#if defined(__x86_64__)
    &hd_attn_avx512,
    &hd_attn_avx2,
#endif
    &hd_attn_reference,
    &hd_attn_f64,
};

const hd_attn_kernels *hd_attn_kernels_best(heddle_dtype real)
{
    const hd_attn_kernels *const *at = all;
    while (real != HEDDLE_F64 && !runs_here(*at)) {
        at++;
    }
    return real == HEDDLE_F64 ? &hd_attn_f64 : *at;
}

const hd_attn_kernels *hd_attn_kernels_named(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i]->name, name) == 0) {
            return runs_here(all[i]) ? all[i] : NULL;
        }
    }
    return NULL;
}
