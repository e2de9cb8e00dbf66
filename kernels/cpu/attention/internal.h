/* What the variants of the attention kernels share. */
#ifndef HD_ATTN_CPU_H
#define HD_ATTN_CPU_H

#include "kernels/attention.h"

#define HD_ROW_DOWN 0x1p-32f              /* of rows that would leave the range: hd_attn_carry */
#define HD_ROW_DOWN_LOG 22.18070977791825 /* -log of it */

#endif
