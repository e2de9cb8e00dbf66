/* In the place of kernels/cpu/gemm in a heddle without oneDNN: no layer is made, so none is ever run. */
#include "kernels/gemm.h"
#include "runtime/base/base.h"

static heddle_status missing(void)
{
    return hd_fail(HEDDLE_ERR_UNSUPPORTED, "products of matrices want oneDNN, which this libheddle was built without "
                                           "(HEDDLE_ONEDNN=OFF)");
}

heddle_status hd_gemm_create(hd_gemm **out, const hd_kernels *kernels, int64_t k, int64_t n, heddle_dtype src_dtype,
                             heddle_dtype dst_dtype, int seats)
{
    (void)kernels, (void)k, (void)n, (void)src_dtype, (void)dst_dtype, (void)seats;
    *out = NULL;
    return missing();
}

void hd_gemm_destroy(hd_gemm *gemm)
{
    (void)gemm;
}

void hd_gemm_whole_weights(hd_gemm *gemm)
{
    (void)gemm;
}

heddle_status hd_gemm_pack(hd_gemm *gemm, const float *weight, const float *bias)
{
    (void)gemm, (void)weight, (void)bias;
    return missing();
}

heddle_status hd_gemm_pack_transposed(hd_gemm *gemm, const float *weight)
{
    (void)gemm, (void)weight;
    return missing();
}

heddle_status hd_gemm_run(hd_gemm *gemm, int seat, void *dst, const void *src, int64_t rows)
{
    (void)gemm, (void)seat, (void)dst, (void)src, (void)rows;
    return missing();
}

heddle_dtype hd_gemm_src_dtype(const hd_gemm *gemm)
{
    (void)gemm;
    return HEDDLE_F32;
}

heddle_dtype hd_gemm_dst_dtype(const hd_gemm *gemm)
{
    (void)gemm;
    return HEDDLE_F32;
}

int hd_gemm_narrow(const hd_gemm *gemm)
{
    (void)gemm;
    return 0;
}

int64_t hd_gemm_bytes(const hd_gemm *gemm)
{
    (void)gemm;
    return 0;
}

int64_t hd_gemm_block_rows(const hd_gemm *gemm)
{
    (void)gemm;
    return 0;
}

const char *hd_gemm_kernel(const hd_gemm *gemm)
{
    (void)gemm;
    return "";
}

heddle_status hd_gemm_outer_f32(const hd_outer_product *product)
{
    (void)product;
    return missing();
}

heddle_status hd_gemm_outer_create(hd_gemm_outer **out, int seats)
{
    (void)seats;
    *out = NULL;
    return missing();
}

void hd_gemm_outer_destroy(hd_gemm_outer *outer)
{
    (void)outer;
}

heddle_status hd_gemm_outer_run(hd_gemm_outer *outer, int seat, const hd_outer_product *product)
{
    (void)outer, (void)seat, (void)product;
    return missing();
}

int hd_gemm_enter(void)
{
    return 0;
}

void hd_gemm_leave(int entered)
{
    (void)entered;
}
