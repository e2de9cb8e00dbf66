/* The kernels that a measurement times. */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include "kernels/table.h"

#include <stdio.h>
#include <stdlib.h>

/* The CPU's kernels, or the end. */
static inline const hd_kernels *widest(void)
{
    const hd_kernels *kernels = NULL;
    if (hd_kernels_cpu(&kernels) != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        exit(1);
    }
    return kernels;
}

#endif
