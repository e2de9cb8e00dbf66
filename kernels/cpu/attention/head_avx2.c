#if defined(__x86_64__)

#define HD_VEC_COLUMNS 2

#include "kernels/cpu/vec_avx2.h"

#include <string.h>

#include "kernels/cpu/attention/head.h"

const hd_kernels hd_head_slots_avx2 = {
    .attention = attention,
    .attention_scratch_bytes = attention_scratch_bytes,
};

#endif
