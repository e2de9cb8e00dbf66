#include "kernels/cpu/cpu.h"

#include "runtime/base/base.h"

#include <pthread.h>
#include <string.h>

const char *const hd_isa_name[HD_ISAS] = {"generic", "avx2", "avx512"};

static int widest_wanted(void)
{
    const char *name = hd_env("HEDDLE_CPU");
    int isa = HD_ISAS - 1;
    while (name != NULL && name[0] != '\0' && isa >= 0 && strcmp(name, hd_isa_name[isa]) != 0) {
        isa--;
    }
    return isa;
}

#if defined(__x86_64__)
#include <cpuid.h>

/* Not every compiler's __builtin_cpu_supports knows the name; its registers are those of AVX. */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int look_here(void)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) {
        return HD_ISA_GENERIC;
    }
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
               ? HD_ISA_AVX512
               : HD_ISA_AVX2;
}
#else
static int look_here(void)
{
    return HD_ISA_GENERIC;
}
#endif

static int here;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look_once(void) /* asking a virtual machine what it can takes microseconds */
{
    here = look_here();
}

int hd_cpu_widest(void)
{
    pthread_once(&once, look_once);
    return here;
}

int hd_cpu_isa(void)
{
    int wanted = widest_wanted(), widest = hd_cpu_widest();
    return wanted < widest ? wanted : widest;
}
