/* The tables, one per instruction set, and the one that is used. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/fill.h"
#include "runtime/base/base.h"

#include <pthread.h>
#include <string.h>

static hd_kernels table[HD_ISAS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_reference(hd_kernels *of)
{
    hd_copy_fill(of);
    hd_sum_fill(of);
    hd_attn_fill(of);
    hd_attn_fill_f64(of);
    hd_linear_fill(of);
    hd_linear_fill_f64(of);
    hd_block_fill(of);
    hd_block_back_fill(of);
    hd_head_norm_fill(of);
    hd_pack_fill(of);
    hd_adamw_fill(of);
    hd_squares_fill(of);
}

#if defined(__x86_64__)
static void fill_avx2(hd_kernels *of)
{
    hd_copy_fill_avx2(of);
    hd_sum_fill_avx2(of);
    hd_attn_fill_avx2(of);
    hd_head_fill_avx2(of);
    hd_linear_fill_avx2(of);
    hd_block_fill_avx2(of);
    hd_block_back_fill_avx2(of);
}

static void fill_avx512(hd_kernels *of)
{
    hd_copy_fill_avx512(of);
    hd_sum_fill_avx512(of);
    hd_attn_fill_avx512(of);
    hd_head_fill_avx512(of);
    hd_linear_fill_avx512(of);
    hd_block_fill_avx512(of);
    hd_block_back_fill_avx512(of);
}
#endif

/* The compiler may use an instruction set anywhere in its files, so even what fills in their slots runs only on CPUs
 * that have it. */
static void fill_all(void)
{
    for (int isa = 0; isa <= hd_cpu_widest(); isa++) {
        table[isa].name = hd_isa_name[isa];
        fill_reference(&table[isa]);
#if defined(__x86_64__)
        if (isa >= HD_ISA_AVX2) {
            fill_avx2(&table[isa]);
        }
        if (isa >= HD_ISA_AVX512) {
            fill_avx512(&table[isa]);
        }
#endif
    }
}

const hd_kernels *hd_kernels_of(int isa)
{
    pthread_once(&once, fill_all);
    return &table[isa];
}

heddle_status hd_kernels_cpu(const hd_kernels **out)
{
    int isa = hd_cpu_isa();
    if (isa < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "HEDDLE_CPU is '%.40s', wanted %s, %s or %s", hd_env("HEDDLE_CPU"),
                       hd_isa_name[HD_ISA_AVX512], hd_isa_name[HD_ISA_AVX2], hd_isa_name[HD_ISA_GENERIC]);
    }
    *out = hd_kernels_of(isa);
    return HEDDLE_OK;
}

const hd_kernels *hd_kernels_named(const char *name)
{
    for (int isa = 0; isa <= hd_cpu_isa(); isa++) {
        if (strcmp(hd_isa_name[isa], name) == 0) {
            return hd_kernels_of(isa);
        }
    }
    return NULL;
}
