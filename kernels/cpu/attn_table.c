#include "kernels/cpu/attn_cpu.h"

#include <string.h>

const hd_attn_kernels *hd_attn_kernels_best(heddle_dtype real)
{
    return real == HEDDLE_F64 ? &hd_attn_f64 : &hd_attn_reference;
}

const hd_attn_kernels *hd_attn_kernels_named(const char *name)
{
    static const hd_attn_kernels *const all[] = {&hd_attn_f64, &hd_attn_reference};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i]->name, name) == 0) {
            return all[i];
        }
    }
    return NULL;
}
