#if defined(__x86_64__)

#define HD_VEC_COLUMNS 2

#include "kernels/cpu/vec_avx2.h"

#define BLOCK_BACK_SLOTS hd_block_back_slots_avx2

#include "kernels/cpu/block/back_body.h"

#endif
