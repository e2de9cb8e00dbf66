#include "kernels/cpu/attention/internal.h"
#include "kernels/cpu/slots.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define REAL float
#define REAL_EXP expf
#define REAL_LOG logf
#define REAL_MOST FLT_MAX
#define ATTN(name) f32_##name
#include "kernels/cpu/attention/scalar.h"

#include "kernels/cpu/attention/scalar_rows.h"

#define ATTN_BEST ATTN
#define ATTN_SLOTS hd_attn_slots
#define ATTN_SLOT attn_f32
#define ATTN_NAME "generic"

#include "kernels/cpu/attention/slots.h"
