/* CPU features for the tables of kernels: 1 when files named *_avx2.c or *_avx512.c may be entered. */
#ifndef HD_CPU_H
#define HD_CPU_H

#include "kernels/copy.h"

int hd_cpu_has_avx2(void);   /* with FMA and F16C */
int hd_cpu_has_avx512(void); /* F, BW, VL, DQ, and everything of avx2 */

#endif
