#include "kernels/cpu/linear/internal.h"

#include "kernels/small_float.h"

#include <math.h>
#include <string.h>

#define REAL double

#include "kernels/cpu/linear/product.h"

#include "kernels/cpu/linear/scalar.h"

#define LINEAR_SLOTS hd_linear_slots_f64
#define LINEAR_SLOT linear_f64
#define LINEAR_NAME "f64"

#include "kernels/cpu/linear/body.h"
