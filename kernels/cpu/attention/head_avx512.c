#if defined(__x86_64__)

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx512.h"

#include <string.h>

#include "kernels/cpu/attention/head.h"

void hd_head_fill_avx512(hd_kernels *table)
{
    table->attention = attention;
    table->attention_scratch_bytes = attention_scratch_bytes;
}

#endif
