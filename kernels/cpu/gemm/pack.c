/* Kernels, seats and packed weights of a linear layer, and the check that its rows are independent. */
#include "kernels/cpu/gemm/internal.h"
#include "kernels/small_float.h"
#include "runtime/base/base.h"

#include <math.h>
#include <string.h>

static size_t scratchpad_bytes(const hd_gemm_kernel_slot *kernel)
{
    const dnnl_memory_desc_t *scratchpad = hd_gemm_part(kernel, dnnl_query_scratchpad_md, 0);
    return scratchpad != NULL ? dnnl_memory_desc_get_size(scratchpad) : 0;
}

static heddle_status make_kernel(hd_gemm *gemm, int which, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    hd_gemm_kernel_slot *kernel = &gemm->kernel[which];
    HD_TRY(hd_gemm_describe(gemm, kernel, rows));
    HD_TRY(hd_gemm_check(dnnl_primitive_create(&kernel->primitive, kernel->descriptor), gemm, "kernel"));
    kernel->rows = rows;
out:
    return st;
}

static heddle_status make_seat(hd_gemm *gemm, hd_gemm_seat *seat)
{
    heddle_status st = HEDDLE_OK;
    const hd_gemm_kernel_slot *small = &gemm->kernel[HD_GEMM_SMALL];
    size_t src_bytes = dnnl_memory_desc_get_size(hd_gemm_part(small, dnnl_query_src_md, 0));
    size_t dst_bytes = dnnl_memory_desc_get_size(hd_gemm_part(small, dnnl_query_dst_md, 0));
    HD_TRY(hd_alloc_aligned(&seat->pad_src, HD_GEMM_ALIGNMENT, src_bytes, "padded rows"));
    HD_TRY(hd_alloc_aligned(&seat->pad_dst, HD_GEMM_ALIGNMENT, dst_bytes, "padded rows"));
    HD_TRY(hd_alloc_aligned(&seat->scratch, HD_GEMM_ALIGNMENT, gemm->scratch_bytes, "oneDNN's scratchpad"));
    HD_TRY(hd_gemm_check(dnnl_stream_create(&seat->stream, gemm->engine, dnnl_stream_default_flags), gemm, "stream"));
    for (int i = 0; i < HD_GEMM_KERNELS && gemm->kernel[i].rows > 0; i++) {
        const hd_gemm_kernel_slot *kernel = &gemm->kernel[i];
        const dnnl_memory_desc_t *scratchpad = hd_gemm_part(kernel, dnnl_query_scratchpad_md, 0);
        HD_TRY(hd_gemm_check(
            dnnl_memory_create(&seat->src[i], hd_gemm_part(kernel, dnnl_query_src_md, 0), gemm->engine, seat->pad_src),
            gemm, "source"));
        HD_TRY(hd_gemm_check(
            dnnl_memory_create(&seat->dst[i], hd_gemm_part(kernel, dnnl_query_dst_md, 0), gemm->engine, seat->pad_dst),
            gemm, "result"));
        if (scratchpad != NULL) {
            HD_TRY(hd_gemm_check(dnnl_memory_create(&seat->scratchpad[i], scratchpad, gemm->engine, seat->scratch),
                                 gemm, "scratchpad"));
        }
    }
out:
    return st;
}

static heddle_status pack_weight(hd_gemm *gemm, const float *weight, dnnl_format_tag_t order)
{
    heddle_status st = HEDDLE_OK;
    dnnl_memory_desc_t plain;
    dnnl_memory_t source = NULL;
    dnnl_primitive_desc_t descriptor = NULL;
    dnnl_primitive_t reorder = NULL;
    const dnnl_memory_desc_t *packed = hd_gemm_part(&gemm->kernel[HD_GEMM_SMALL], dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *bias = hd_gemm_part(&gemm->kernel[HD_GEMM_SMALL], dnnl_query_weights_md, 1);
    const dnnl_dims_t dims = {hd_gemm_kernel_k(gemm), gemm->n};
    gemm->weight_bytes = dnnl_memory_desc_get_size(packed);
    HD_TRY(hd_gemm_check(dnnl_memory_create(&gemm->bias, bias, gemm->engine, gemm->bias_data), gemm, "bias"));
    HD_TRY(hd_gemm_check(dnnl_memory_desc_init_by_tag(&plain, 2, dims, dnnl_f32, order), gemm, "weights"));
    HD_TRY(
        hd_gemm_check(dnnl_memory_create(&source, &plain, gemm->engine, (void *)(uintptr_t)weight), gemm, "weights"));
    HD_TRY(hd_gemm_check(dnnl_memory_create(&gemm->weight, packed, gemm->engine, DNNL_MEMORY_ALLOCATE), gemm,
                         "packed weights"));
    HD_TRY(
        hd_gemm_check(dnnl_reorder_primitive_desc_create(&descriptor, &plain, gemm->engine, packed, gemm->engine, NULL),
                      gemm, "packing"));
    HD_TRY(hd_gemm_check(dnnl_primitive_create(&reorder, descriptor), gemm, "packing"));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, gemm->weight}};
    HD_TRY(hd_gemm_check(dnnl_primitive_execute(reorder, gemm->seat[0].stream, 2, arguments), gemm, "packing"));
    HD_TRY(hd_gemm_check(dnnl_stream_wait(gemm->seat[0].stream), gemm, "packing"));
out:
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(descriptor);
    dnnl_memory_destroy(source);
    return st;
}

/* The same row in every place of a block must give the same bits everywhere; they are left in `wanted` (small kernel)
 * or compared to it (large kernel). */
static heddle_status check_rows(int *independent, hd_gemm *gemm, int which, const float *row, void *wanted)
{
    heddle_status st = HEDDLE_OK;
    size_t src_bytes = (size_t)hd_gemm_kernel_k(gemm) * heddle_dtype_bytes(gemm->kernel_src);
    size_t dst_bytes = (size_t)gemm->n * heddle_dtype_bytes(gemm->kernel_dst);
    size_t rows = (size_t)gemm->kernel[which].rows;
    char *src = NULL;
    char *dst = NULL;
    HD_TRY(hd_alloc_aligned((void **)&src, HD_GEMM_ALIGNMENT, rows * src_bytes, "rows to check a linear layer with"));
    HD_TRY(hd_alloc_aligned((void **)&dst, HD_GEMM_ALIGNMENT, rows * dst_bytes, "rows to check a linear layer with"));
    for (size_t r = 0; r < rows; r++) {
        hd_gemm_convert_rows(gemm, src + r * src_bytes, row, HEDDLE_F32, 1);
    }
    HD_TRY(hd_gemm_run_block(gemm, &gemm->seat[0], which, dst, src));
    if (which == HD_GEMM_SMALL) {
        memcpy(wanted, dst, dst_bytes);
    }
    *independent = 1;
    for (size_t r = 0; r < rows; r++) {
        *independent &= memcmp(wanted, dst + r * dst_bytes, dst_bytes) == 0;
    }
out:
    hd_free(src);
    hd_free(dst);
    return st;
}

/* The large kernel works on the small one's packed weights, so it must want them in the same order. */
static heddle_status make_large(hd_gemm *gemm)
{
    heddle_status st = HEDDLE_OK;
    if (!hd_gemm_direct(gemm)) {
        return HEDDLE_OK; /* every row is converted, block by block */
    }
    HD_TRY(make_kernel(gemm, HD_GEMM_LARGE, HD_GEMM_LARGE_ROWS));
    if (!dnnl_memory_desc_equal(hd_gemm_part(&gemm->kernel[HD_GEMM_SMALL], dnnl_query_weights_md, 0),
                                hd_gemm_part(&gemm->kernel[HD_GEMM_LARGE], dnnl_query_weights_md, 0))) {
        hd_gemm_release_kernel(&gemm->kernel[HD_GEMM_LARGE]);
    }
out:
    return st;
}

static heddle_status pack_for(hd_gemm *gemm, int64_t rows, const float *weight, dnnl_format_tag_t order)
{
    heddle_status st = HEDDLE_OK;
    hd_gemm_release_packed(gemm);
    HD_TRY(make_kernel(gemm, HD_GEMM_SMALL, rows));
    gemm->scratch_bytes = scratchpad_bytes(&gemm->kernel[HD_GEMM_SMALL]);
    if (rows == HD_GEMM_ROWS) {
        HD_TRY(make_large(gemm));
    }
    if (gemm->kernel[HD_GEMM_LARGE].rows > 0 && scratchpad_bytes(&gemm->kernel[HD_GEMM_LARGE]) > gemm->scratch_bytes) {
        gemm->scratch_bytes = scratchpad_bytes(&gemm->kernel[HD_GEMM_LARGE]);
    }
    for (int i = 0; i < gemm->seats; i++) {
        HD_TRY(make_seat(gemm, &gemm->seat[i]));
    }
    HD_TRY(pack_weight(gemm, weight, order));
out:
    return st;
}

static heddle_status make_row(float **out, int64_t k)
{
    heddle_status st = HEDDLE_OK;
    uint64_t state = 88172645463325252u;
    HD_TRY(hd_alloc((void **)out, (size_t)k, sizeof **out, "a row to check a linear layer with"));
    for (int64_t i = 0; i < k; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        (*out)[i] = (float)(int32_t)(state >> 32) * 0x1p-31f;
    }
out:
    return st;
}

/* [n][2][k]: the BF16 numbers nearest to a row of weights, then what is left of each. */
static heddle_status cut_weight(float **out, const hd_gemm *gemm, const float *weight)
{
    heddle_status st = HEDDLE_OK;
    int64_t k = gemm->k;
    HD_TRY(hd_alloc((void **)out, (size_t)(gemm->n * k), 2 * sizeof **out, "weights in two halves"));
    for (int64_t i = 0; i < gemm->n * k; i++) {
        float *nearest = *out + i / k * 2 * k + i % k;
        *nearest = hd_f32_from_bf16(hd_bf16_from_f32(weight[i]));
        nearest[k] = isfinite(*nearest) ? weight[i] - *nearest : 0;
    }
out:
    return st;
}

static int all_bf16(const hd_gemm *gemm, const float *weight)
{
    uint32_t below = 0;
    for (int64_t i = 0; i < gemm->k * gemm->n; i++) {
        below |= hd_f32_bits(weight[i]) & 0xffffu;
    }
    return below == 0;
}

static heddle_status pack(hd_gemm *gemm, const float *weight, const float *bias, dnnl_format_tag_t order)
{
    static const int64_t candidate[] = {HD_GEMM_ROWS, 48, 16, 1};
    heddle_status st = HEDDLE_OK;
    float *row = NULL, *halves = NULL;
    void *wanted = NULL;
    int independent = 0;
    int entered = hd_gemm_enter();
    gemm->halves = 1;
    if (gemm->whole_weights && order == dnnl_ba && gemm->kernel_src == HEDDLE_BF16 && !all_bf16(gemm, weight)) {
        HD_TRY(cut_weight(&halves, gemm, weight));
        weight = halves;
        gemm->halves = 2;
    }
    HD_TRY(make_row(&row, gemm->k));
    HD_TRY(hd_alloc(&wanted, (size_t)gemm->n, sizeof(float), "a result to check a linear layer with"));
    memset(gemm->bias_data, 0, (size_t)gemm->n * sizeof(float));
    if (bias != NULL) {
        memcpy(gemm->bias_data, bias, (size_t)gemm->n * sizeof(float));
    }
    for (size_t i = 0; i < sizeof candidate / sizeof candidate[0] && !independent; i++) {
        HD_TRY(pack_for(gemm, candidate[i], weight, order));
        HD_TRY(check_rows(&independent, gemm, HD_GEMM_SMALL, row, wanted));
    }
    if (gemm->kernel[HD_GEMM_LARGE].rows > 0) {
        HD_TRY(check_rows(&independent, gemm, HD_GEMM_LARGE, row, wanted));
        gemm->kernel[HD_GEMM_LARGE].rows = independent ? gemm->kernel[HD_GEMM_LARGE].rows : 0;
    }
out:
    hd_gemm_leave(entered);
    HD_FREE_ALL(row, wanted, halves);
    if (st != HEDDLE_OK) {
        hd_gemm_release_packed(gemm);
    }
    return st;
}

heddle_status hd_gemm_pack(hd_gemm *gemm, const float *weight, const float *bias)
{
    return pack(gemm, weight, bias, dnnl_ba);
}

heddle_status hd_gemm_pack_transposed(hd_gemm *gemm, const float *weight)
{
    return pack(gemm, weight, NULL, dnnl_ab);
}
