#include "kernels/cpu/block_cpu.h"

#include <string.h>

static const hd_block_kernels *const variant[] = {&hd_block_reference};

enum { VARIANTS = sizeof variant / sizeof variant[0] };

static int runs_here(const hd_block_kernels *kernels)
{
    return kernels == &hd_block_reference;
}

const hd_block_kernels *hd_block_kernels_best(void)
{
    for (int i = 0; i < VARIANTS; i++) {
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
