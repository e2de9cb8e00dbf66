/* Which instruction sets may be used: what the CPU and the operating system can, and what HEDDLE_CPU leaves. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

enum { ISA_GENERIC, ISA_AVX2, ISA_AVX512 };

/* A room without dependencies reads the one variable that concerns it by itself. Read at every question: the answers go
 * into tables that are filled once. */
static int widest_wanted(void)
{
    const char *name = getenv("HEDDLE_CPU");
    if (name != NULL && strcmp(name, "generic") == 0) {
        return ISA_GENERIC;
    }
    return name != NULL && strcmp(name, "avx2") == 0 ? ISA_AVX2 : ISA_AVX512;
}

#if defined(__x86_64__)
#include <cpuid.h>

/* Not every compiler's __builtin_cpu_supports knows the name; its registers are those of AVX. */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const char *hd_cpu_isa(void)
{
    return hd_cpu_has_avx512() ? "avx512" : hd_cpu_has_avx2() ? "avx2" : "generic";
}

int hd_cpu_has_avx2(void)
{
#if defined(__x86_64__)
    return widest_wanted() >= ISA_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#else
    return 0;
#endif
}

int hd_cpu_has_avx512(void)
{
#if defined(__x86_64__)
    return widest_wanted() >= ISA_AVX512 && hd_cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
#else
    return 0;
#endif
}
