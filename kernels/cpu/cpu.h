/* Instruction sets: which files named avx2.c or avx512.c may be entered. */
#ifndef HD_CPU_H
#define HD_CPU_H

enum {
    HD_ISA_GENERIC,
    HD_ISA_AVX2,   /* with FMA and F16C */
    HD_ISA_AVX512, /* F, BW, VL, DQ, and everything of AVX2 */
    HD_ISAS
};

extern const char *const hd_isa_name[HD_ISAS]; /* as HEDDLE_CPU spells them */

struct hd_kernels;

/* The table of one that this CPU can (hd_cpu_widest). */
const struct hd_kernels *hd_kernels_of(int isa);

/* The widest that the CPU and the operating system can. */
int hd_cpu_widest(void);
/* That, or less where HEDDLE_CPU says so; -1: HEDDLE_CPU is misspelt. */
int hd_cpu_isa(void);

#endif
