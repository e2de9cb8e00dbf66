#if defined(__x86_64__)

#define HD_VEC_COLUMNS 2

#include "kernels/cpu/vec_avx2.h"

#define ATTN_SLOTS hd_attn_slots_avx2
#define ATTN_NAME "avx2"

#include "kernels/cpu/attention/variant.h"

#endif
