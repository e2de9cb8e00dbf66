#include "kernels/cpu/linear_cpu.h"

#include "kernels/cpu/small_float.h"

#include <math.h>
#include <string.h>

#define REAL float

#include "kernels/cpu/linear_gemm.h"

#include "kernels/cpu/linear_scalar.h"

#define LINEAR_TABLE hd_linear_reference
#define LINEAR_NAME "reference"

#include "kernels/cpu/linear_body.h"
