#if defined(__x86_64__)

#include "kernels/cpu/linear/internal.h"

#include "kernels/small_float.h"

#include <math.h>
#include <string.h>

#define HD_VEC_COLUMNS 4

#include "kernels/cpu/vec_avx2.h"

#define REAL float
#define TILE_ROWS 6
#define TILE_ROWS_LEFT_8 0

#include "kernels/cpu/linear/product.h"

#include "kernels/cpu/linear/vector.h"

#define LINEAR_SLOTS hd_linear_slots_avx2
#define LINEAR_SLOT linear_f32
#define LINEAR_NAME "avx2"

#include "kernels/cpu/linear/body.h"

#endif
