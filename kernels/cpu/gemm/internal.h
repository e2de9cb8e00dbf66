/* Inside of a linear layer, shared by gemm.c (life, running) and pack.c (kernels for given weights). */
#ifndef HD_GEMM_INTERNAL_H
#define HD_GEMM_INTERNAL_H

#include "kernels/gemm.h"

#include <dnnl.h>

enum { HD_GEMM_ALIGNMENT = 64, HD_GEMM_KERNELS = 2, HD_GEMM_SMALL = 0, HD_GEMM_LARGE = 1 };

/* One oneDNN kernel for one number of rows. */
typedef struct hd_gemm_kernel_slot {
    int64_t rows; /* 0: not there */
    dnnl_primitive_desc_t descriptor;
    dnnl_primitive_t primitive;
} hd_gemm_kernel_slot;

typedef struct hd_gemm_seat {
    dnnl_stream_t stream;
    dnnl_memory_t src[HD_GEMM_KERNELS];
    dnnl_memory_t dst[HD_GEMM_KERNELS];
    dnnl_memory_t scratchpad[HD_GEMM_KERNELS]; /* both on `scratch` */
    void *pad_src;                             /* rows of the small kernel, of its source type */
    void *pad_dst;                             /* of its result type */
    void *scratch;
} hd_gemm_seat;

struct hd_gemm {
    const hd_kernels *kernels;
    int64_t k;
    int64_t n;
    heddle_dtype src_dtype;
    heddle_dtype dst_dtype;
    heddle_dtype kernel_src; /* F32 also for BF16 sources where the CPU has no BF16 multiply */
    heddle_dtype kernel_dst;
    int whole_weights; /* asked for */
    int halves; /* of packed weights: 2, BF16 numbers behind one another along k, and so is each row, twice; or 1 */
    int seats;
    dnnl_engine_t engine;
    hd_gemm_kernel_slot kernel[HD_GEMM_KERNELS];
    dnnl_memory_t weight;
    dnnl_memory_t bias;
    void *bias_data;
    size_t weight_bytes;
    size_t scratch_bytes;
    hd_gemm_seat *seat;
};

/* Of the kernel's rows and weights. */
static inline int64_t hd_gemm_kernel_k(const hd_gemm *gemm)
{
    return gemm->halves * gemm->k;
}
/* Rows go to the kernels from where they are, not by way of a padded block of its type. */
static inline int hd_gemm_direct(const hd_gemm *gemm)
{
    return gemm->halves == 1 && gemm->kernel_src == gemm->src_dtype && gemm->kernel_dst == gemm->dst_dtype;
}
/* `rows` rows of `dtype`, as the kernel wants them. */
void hd_gemm_convert_rows(const hd_gemm *gemm, void *dst, const void *src, heddle_dtype dtype, int64_t rows);
/* HEDDLE_OK, or the sentence about what of the layer oneDNN failed to do. */
heddle_status hd_gemm_check(dnnl_status_t status, const hd_gemm *gemm, const char *what);
/* oneDNN's choice for `rows` rows, into kernel->descriptor. */
heddle_status hd_gemm_describe(const hd_gemm *gemm, hd_gemm_kernel_slot *kernel, int64_t rows);
const dnnl_memory_desc_t *hd_gemm_part(const hd_gemm_kernel_slot *kernel, dnnl_query_t what, int index);
void hd_gemm_release_kernel(hd_gemm_kernel_slot *kernel);
void hd_gemm_release_packed(hd_gemm *gemm);
/* One call of the kernel at HD_GEMM_SMALL or HD_GEMM_LARGE. */
heddle_status hd_gemm_run_block(hd_gemm *gemm, hd_gemm_seat *seat, int which, void *dst, const void *src);

#endif
