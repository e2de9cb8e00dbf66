#if defined(__x86_64__)

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx512.h"

#define BLOCK_BACK_SLOTS hd_block_back_slots_avx512

#include "kernels/cpu/block/back_body.h"

#endif
