#include "kernels/cpu/gemm/internal.h"
#include "runtime/base/base.h"

#include <string.h>

enum { EXEC_ARGS = 5 };

static dnnl_data_type_t dnnl_type(heddle_dtype dtype)
{
    return dtype == HEDDLE_BF16 ? dnnl_bf16 : dnnl_f32;
}

heddle_status hd_gemm_check(dnnl_status_t status, const hd_gemm *gemm, const char *what)
{
    if (status == dnnl_success) {
        return HEDDLE_OK;
    }
    heddle_status code = status == dnnl_out_of_memory   ? HEDDLE_ERR_NOMEM
                         : status == dnnl_unimplemented ? HEDDLE_ERR_UNSUPPORTED
                                                        : HEDDLE_ERR_INTERNAL;
    return hd_fail(code, "oneDNN failed with status %d: %s of the %lld to %lld linear layer", (int)status, what,
                   (long long)gemm->k, (long long)gemm->n);
}

static void release_seat(hd_gemm_seat *seat)
{
    for (int i = 0; i < HD_GEMM_KERNELS; i++) {
        dnnl_memory_destroy(seat->src[i]);
        dnnl_memory_destroy(seat->dst[i]);
        dnnl_memory_destroy(seat->scratchpad[i]);
    }
    dnnl_stream_destroy(seat->stream);
    HD_FREE_ALL(seat->pad_src, seat->pad_dst, seat->scratch);
    memset(seat, 0, sizeof *seat);
}

void hd_gemm_release_kernel(hd_gemm_kernel_slot *kernel)
{
    dnnl_primitive_destroy(kernel->primitive);
    dnnl_primitive_desc_destroy(kernel->descriptor);
    memset(kernel, 0, sizeof *kernel);
}

void hd_gemm_release_packed(hd_gemm *gemm)
{
    for (int i = 0; gemm->seat != NULL && i < gemm->seats; i++) {
        release_seat(&gemm->seat[i]);
    }
    dnnl_memory_destroy(gemm->weight);
    dnnl_memory_destroy(gemm->bias);
    gemm->weight = NULL;
    gemm->bias = NULL;
    hd_gemm_release_kernel(&gemm->kernel[HD_GEMM_SMALL]);
    hd_gemm_release_kernel(&gemm->kernel[HD_GEMM_LARGE]);
}

void hd_gemm_destroy(hd_gemm *gemm)
{
    if (gemm == NULL) {
        return;
    }
    hd_gemm_release_packed(gemm);
    dnnl_engine_destroy(gemm->engine);
    HD_FREE_ALL(gemm->bias_data, gemm->seat, gemm);
}

/* Weights in plain rows begin an odd number of cache lines apart. oneDNN's gemm walks down their columns, and rows of
 * 4 KiB or a large part of it fall onto each other in the cache: half the speed. Returns 0 where `weight`, which a
 * kernel has chosen, is laid out in another way or apart already. */
static int spread_rows(dnnl_memory_desc_t *weight)
{
    enum { LINE = 64 };
    const dnnl_blocking_desc_t *form = &weight->format_desc.blocking;
    const dnnl_dim_t per_line = LINE / (dnnl_dim_t)dnnl_data_type_size(weight->data_type);
    const dnnl_dims_t dims = {weight->dims[0], weight->dims[1]};
    const dnnl_dims_t strides = {((dims[1] + per_line - 1) / per_line | 1) * per_line, 1};
    if (weight->format_kind != dnnl_blocked || form->inner_nblks != 0 || form->strides[1] != 1 ||
        form->strides[0] != dims[1] || strides[0] == dims[1]) {
        return 0;
    }
    return dnnl_memory_desc_init_by_strides(weight, 2, dims, weight->data_type, strides) == dnnl_success;
}

/* The kernel for `weight`, and for rows that are apart, where oneDNN has one for these, too. */
static dnnl_status_t choose_kernel(dnnl_primitive_desc_t *descriptor, dnnl_matmul_desc_t *matmul,
                                   dnnl_primitive_attr_t attributes, dnnl_engine_t engine)
{
    const dnnl_status_t status = dnnl_primitive_desc_create(descriptor, matmul, attributes, engine, NULL);
    dnnl_primitive_desc_t spread = NULL;
    if (status != dnnl_success) {
        return status;
    }
    matmul->weights_desc = *dnnl_primitive_desc_query_md(*descriptor, dnnl_query_weights_md, 0);
    if (spread_rows(&matmul->weights_desc) &&
        dnnl_primitive_desc_create(&spread, matmul, attributes, engine, NULL) == dnnl_success) {
        dnnl_primitive_desc_destroy(*descriptor);
        *descriptor = spread;
    }
    return dnnl_success;
}

heddle_status hd_gemm_describe(const hd_gemm *gemm, hd_gemm_kernel_slot *kernel, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    dnnl_memory_desc_t src, weight, bias, dst;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attributes = NULL;
    const dnnl_dims_t src_dims = {rows, hd_gemm_kernel_k(gemm)};
    const dnnl_dims_t weight_dims = {hd_gemm_kernel_k(gemm), gemm->n};
    const dnnl_dims_t bias_dims = {1, gemm->n};
    const dnnl_dims_t dst_dims = {rows, gemm->n};
    HD_TRY(hd_gemm_check(dnnl_memory_desc_init_by_tag(&src, 2, src_dims, dnnl_type(gemm->kernel_src), dnnl_ab), gemm,
                         "source"));
    HD_TRY(hd_gemm_check(
        dnnl_memory_desc_init_by_tag(&weight, 2, weight_dims, dnnl_type(gemm->kernel_src), dnnl_format_tag_any), gemm,
        "weights"));
    HD_TRY(hd_gemm_check(dnnl_memory_desc_init_by_tag(&bias, 2, bias_dims, dnnl_f32, dnnl_ab), gemm, "bias"));
    HD_TRY(hd_gemm_check(dnnl_memory_desc_init_by_tag(&dst, 2, dst_dims, dnnl_type(gemm->kernel_dst), dnnl_ab), gemm,
                         "result"));
    HD_TRY(hd_gemm_check(dnnl_matmul_desc_init(&matmul, &src, &weight, &bias, &dst), gemm, "operation"));
    HD_TRY(hd_gemm_check(dnnl_primitive_attr_create(&attributes), gemm, "attributes"));
    /* The library's own scratchpad belongs to the thread that made the primitive. */
    HD_TRY(hd_gemm_check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), gemm,
                         "scratchpad mode"));
    HD_TRY(hd_gemm_check(choose_kernel(&kernel->descriptor, &matmul, attributes, gemm->engine), gemm, "kernel choice"));
out:
    dnnl_primitive_attr_destroy(attributes);
    return st;
}

/* BF16 stays BF16 only with a real BF16 kernel: oneDNN's emulation is slower than converting to F32. */
static void choose_types(hd_gemm *gemm)
{
    hd_gemm_kernel_slot kernel = {0};
    const char *name = "";
    gemm->kernel_src = gemm->src_dtype;
    gemm->kernel_dst = gemm->dst_dtype;
    if (gemm->src_dtype == HEDDLE_BF16) {
        if (hd_gemm_describe(gemm, &kernel, HD_GEMM_ROWS) == HEDDLE_OK) {
            dnnl_primitive_desc_query(kernel.descriptor, dnnl_query_impl_info_str, 0, &name);
        }
        if (strncmp(name, "brg", 3) == 0) {
            hd_gemm_release_kernel(&kernel);
            return;
        }
        hd_gemm_release_kernel(&kernel);
        gemm->kernel_src = HEDDLE_F32;
    }
    gemm->kernel_dst = HEDDLE_F32;
}

heddle_status hd_gemm_create(hd_gemm **out, const hd_kernels *kernels, int64_t k, int64_t n, heddle_dtype src_dtype,
                             heddle_dtype dst_dtype, int seats)
{
    heddle_status st = HEDDLE_OK;
    hd_gemm *gemm = NULL;
    if (k < 1 || n < 1 || k > INT32_MAX || n > INT32_MAX) {
        return hd_fail(HEDDLE_ERR_ARG, "a linear layer needs 1 to %d inputs and outputs, not %lld and %lld", INT32_MAX,
                       (long long)k, (long long)n);
    }
    HD_TRY(hd_alloc((void **)&gemm, 1, sizeof *gemm, "a linear layer"));
    gemm->kernels = kernels;
    gemm->k = k;
    gemm->n = n;
    gemm->src_dtype = src_dtype;
    gemm->dst_dtype = dst_dtype;
    gemm->halves = 1;
    gemm->seats = seats;
    HD_TRY(hd_alloc((void **)&gemm->seat, (size_t)seats, sizeof *gemm->seat, "a linear layer's seats"));
    HD_TRY(hd_alloc_aligned(&gemm->bias_data, HD_GEMM_ALIGNMENT, (size_t)n * sizeof(float), "a bias"));
    HD_TRY(hd_gemm_check(dnnl_engine_create(&gemm->engine, dnnl_cpu, 0), gemm, "engine"));
    choose_types(gemm);
    *out = gemm;
    gemm = NULL;
out:
    hd_gemm_destroy(gemm);
    return st;
}

void hd_gemm_whole_weights(hd_gemm *gemm)
{
    gemm->whole_weights = 1;
}

const dnnl_memory_desc_t *hd_gemm_part(const hd_gemm_kernel_slot *kernel, dnnl_query_t what, int index)
{
    return dnnl_primitive_desc_query_md(kernel->descriptor, what, index);
}

heddle_status hd_gemm_run_block(hd_gemm *gemm, hd_gemm_seat *seat, int which, void *dst, const void *src)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_gemm_check(dnnl_memory_set_data_handle(seat->src[which], (void *)(uintptr_t)src), gemm, "source"));
    HD_TRY(hd_gemm_check(dnnl_memory_set_data_handle(seat->dst[which], dst), gemm, "result"));
    const dnnl_exec_arg_t arguments[EXEC_ARGS] = {{DNNL_ARG_SRC, seat->src[which]},
                                                  {DNNL_ARG_WEIGHTS, gemm->weight},
                                                  {DNNL_ARG_BIAS, gemm->bias},
                                                  {DNNL_ARG_DST, seat->dst[which]},
                                                  {DNNL_ARG_SCRATCHPAD, seat->scratchpad[which]}};
    int count = seat->scratchpad[which] != NULL ? EXEC_ARGS : EXEC_ARGS - 1;
    HD_TRY(hd_gemm_check(dnnl_primitive_execute(gemm->kernel[which].primitive, seat->stream, count, arguments), gemm,
                         "run"));
    HD_TRY(hd_gemm_check(dnnl_stream_wait(seat->stream), gemm, "run"));
out:
    return st;
}

void hd_gemm_convert_rows(const hd_gemm *gemm, void *dst, const void *src, heddle_dtype dtype, int64_t rows)
{
    size_t src_bytes = (size_t)gemm->k * heddle_dtype_bytes(dtype);
    size_t dst_bytes = (size_t)gemm->k * heddle_dtype_bytes(gemm->kernel_src);
    if (gemm->halves == 1) {
        gemm->kernels->convert(dst, gemm->kernel_src, src, dtype, rows * gemm->k);
        return;
    }
    for (int64_t r = 0; r < 2 * rows; r++) {
        gemm->kernels->convert((char *)dst + (size_t)r * dst_bytes, gemm->kernel_src,
                               (const char *)src + (size_t)(r / 2) * src_bytes, dtype, gemm->k);
    }
}

/* `count` rows by way of the seat's padded block: a part of a block, or rows of another kind. */
static heddle_status run_padded(hd_gemm *gemm, hd_gemm_seat *seat, char *dst, const char *src, int64_t count)
{
    heddle_status st = HEDDLE_OK;
    size_t row_bytes = (size_t)hd_gemm_kernel_k(gemm) * heddle_dtype_bytes(gemm->kernel_src);
    int64_t missing = gemm->kernel[HD_GEMM_SMALL].rows - count;
    hd_gemm_convert_rows(gemm, seat->pad_src, src, gemm->src_dtype, count);
    memset((char *)seat->pad_src + (size_t)count * row_bytes, 0, (size_t)missing * row_bytes);
    HD_TRY(hd_gemm_run_block(gemm, seat, HD_GEMM_SMALL, seat->pad_dst, seat->pad_src));
    gemm->kernels->convert(dst, gemm->dst_dtype, seat->pad_dst, gemm->kernel_dst, count * gemm->n);
out:
    return st;
}

heddle_status hd_gemm_run(hd_gemm *gemm, int seat_index, void *dst, const void *src, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    hd_gemm_seat *seat = &gemm->seat[seat_index];
    size_t src_bytes = heddle_dtype_bytes(gemm->src_dtype);
    size_t dst_bytes = heddle_dtype_bytes(gemm->dst_dtype);
    int64_t small = gemm->kernel[HD_GEMM_SMALL].rows;
    int64_t large = gemm->kernel[HD_GEMM_LARGE].rows;
    int64_t count;
    for (int64_t r = 0; r < rows; r += count) {
        const char *from = (const char *)src + (size_t)(r * gemm->k) * src_bytes;
        char *to = (char *)dst + (size_t)(r * gemm->n) * dst_bytes;
        if (large > 0 && rows - r >= large) {
            count = large;
            HD_TRY(hd_gemm_run_block(gemm, seat, HD_GEMM_LARGE, to, from));
        } else if (hd_gemm_direct(gemm) && rows - r >= small) {
            count = small;
            HD_TRY(hd_gemm_run_block(gemm, seat, HD_GEMM_SMALL, to, from));
        } else {
            count = rows - r < small ? rows - r : small;
            HD_TRY(run_padded(gemm, seat, to, from, count));
        }
    }
out:
    return st;
}

heddle_dtype hd_gemm_src_dtype(const hd_gemm *gemm)
{
    return gemm->src_dtype;
}

heddle_dtype hd_gemm_dst_dtype(const hd_gemm *gemm)
{
    return gemm->dst_dtype;
}

int hd_gemm_narrow(const hd_gemm *gemm)
{
    return gemm->kernel_src == HEDDLE_BF16;
}

int64_t hd_gemm_bytes(const hd_gemm *gemm)
{
    if (gemm == NULL || gemm->kernel[HD_GEMM_SMALL].rows == 0) {
        return 0;
    }
    size_t rows = (size_t)gemm->kernel[HD_GEMM_SMALL].rows;
    size_t seat_bytes = rows * (size_t)hd_gemm_kernel_k(gemm) * heddle_dtype_bytes(gemm->kernel_src) +
                        rows * (size_t)gemm->n * heddle_dtype_bytes(gemm->kernel_dst) + gemm->scratch_bytes;
    return (int64_t)(gemm->weight_bytes + (size_t)gemm->seats * seat_bytes);
}

int64_t hd_gemm_block_rows(const hd_gemm *gemm)
{
    return gemm->kernel[HD_GEMM_LARGE].rows > 0 ? gemm->kernel[HD_GEMM_LARGE].rows : gemm->kernel[HD_GEMM_SMALL].rows;
}

const char *hd_gemm_kernel(const hd_gemm *gemm)
{
    const char *name = "";
    if (gemm->kernel[HD_GEMM_SMALL].rows > 0) {
        dnnl_primitive_desc_query(gemm->kernel[HD_GEMM_SMALL].descriptor, dnnl_query_impl_info_str, 0, &name);
    }
    return name;
}
