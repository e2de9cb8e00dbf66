#include "kernels/cpu/attention/internal.h"
#include "kernels/cpu/slots.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define REAL double
#define REAL_EXP exp
#define REAL_LOG log
#define REAL_MOST DBL_MAX
#define ATTN(name) f64_##name
#include "kernels/cpu/attention/scalar.h"

#include "kernels/cpu/attention/scalar_rows.h"

#define ATTN_BEST ATTN
#define ATTN_SLOTS hd_attn_slots_f64
#define ATTN_SLOT attn_f64
#define ATTN_NAME "f64"

#include "kernels/cpu/attention/slots.h"
