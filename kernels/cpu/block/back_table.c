#include "kernels/cpu/block/internal.h"

#include <string.h>

const hd_block_back_kernels *hd_block_back_kernels_named(const char *name)
{
    if (hd_block_kernels_named(name) == NULL) {
        return NULL;
    }
#if defined(__x86_64__)
    if (strcmp(name, hd_block_back_avx512.name) == 0) {
        return &hd_block_back_avx512;
    }
    if (strcmp(name, hd_block_back_avx2.name) == 0) {
        return &hd_block_back_avx2;
    }
#endif
    return &hd_block_back_reference;
}

const hd_block_back_kernels *hd_block_back_kernels_best(void)
{
    return hd_block_back_kernels_named(hd_block_kernels_best()->name);
}
