/* The tables, one per instruction set, and the one that is used. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/slots.h"
#include "runtime/base/base.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

static hd_kernels table[HD_ISAS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const hd_kernels *const reference[] = {&hd_copy_slots,
                                              &hd_sum_slots,
                                              &hd_attn_slots,
                                              &hd_attn_slots_f64,
                                              &hd_linear_slots,
                                              &hd_linear_slots_f64,
                                              &hd_block_slots,
                                              &hd_block_back_slots,
                                              &hd_head_norm_slots,
                                              &hd_pack_slots,
                                              &hd_adamw_slots,
                                              &hd_squares_slots,
                                              NULL};
#if defined(__x86_64__)
static const hd_kernels *const avx2[] = {
    &hd_copy_slots_avx2,   &hd_sum_slots_avx2,   &hd_attn_slots_avx2,       &hd_head_slots_avx2,
    &hd_linear_slots_avx2, &hd_block_slots_avx2, &hd_block_back_slots_avx2, NULL};
static const hd_kernels *const avx512[] = {
    &hd_copy_slots_avx512,   &hd_sum_slots_avx512,   &hd_attn_slots_avx512,       &hd_head_slots_avx512,
    &hd_linear_slots_avx512, &hd_block_slots_avx512, &hd_block_back_slots_avx512, NULL};
#else
static const hd_kernels *const avx2[] = {NULL}, *const avx512[] = {NULL};
#endif

/* What a file has, over what is there; its copies, behind those that are there. Data and no function of the file: the
 * compiler may use an instruction set anywhere in its files, and not every CPU has it. */
static void put(hd_kernels *of, const hd_kernels *slots)
{
    for (int i = 0; slots->copy[i].name != NULL; i++) {
        of->copy[of->copies++] = slots->copy[i];
    }
    for (size_t at = offsetof(hd_kernels, clear); at < sizeof *of; at += sizeof(void *)) {
        void *slot;
        memcpy(&slot, (const char *)slots + at, sizeof slot);
        if (slot != NULL) {
            memcpy((char *)of + at, &slot, sizeof slot);
        }
    }
}

static void put_all(hd_kernels *of, const hd_kernels *const *slots)
{
    for (; *slots != NULL; slots++) {
        put(of, *slots);
    }
}

static void fill_all(void)
{
    static const hd_kernels *const *const of_isa[HD_ISAS] = {
        [HD_ISA_GENERIC] = reference, [HD_ISA_AVX2] = avx2, [HD_ISA_AVX512] = avx512};
    for (int isa = 0; isa <= hd_cpu_widest(); isa++) {
        table[isa].name = hd_isa_name[isa];
        for (int narrower = 0; narrower <= isa; narrower++) {
            put_all(&table[isa], of_isa[narrower]);
        }
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
