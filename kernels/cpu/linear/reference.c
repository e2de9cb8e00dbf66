#include "kernels/cpu/linear/internal.h"

#include "kernels/small_float.h"

#include <math.h>
#include <string.h>

#define REAL float

#include "kernels/cpu/linear/product.h"

#include "kernels/cpu/linear/scalar.h"

#define LINEAR_SLOTS hd_linear_slots
#define LINEAR_SLOT linear_f32
#define LINEAR_NAME "generic"

#include "kernels/cpu/linear/body.h"
