#if defined(__x86_64__)

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx512.h"

#include <string.h>

#include "kernels/cpu/attention/head.h"

const hd_kernels hd_head_slots_avx512 = {
    .attention = attention,
    .attention_scratch_bytes = attention_scratch_bytes,
};

#endif
