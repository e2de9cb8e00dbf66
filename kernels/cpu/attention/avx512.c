#if defined(__x86_64__)

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx512.h"

#define ATTN_SLOTS hd_attn_slots_avx512
#define ATTN_NAME "avx512"

#include "kernels/cpu/attention/variant.h"

#endif
