#if defined(__x86_64__)

#define HD_VEC_COLUMNS 2

#include "kernels/cpu/vec_avx2.h"

#include <string.h>

#include "kernels/cpu/attention/head.h"

void hd_head_fill_avx2(hd_kernels *table)
{
    table->attention = attention;
    table->attention_scratch_bytes = attention_scratch_bytes;
}

#endif
