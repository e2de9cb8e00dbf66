#include "runtime/block/gemm.h"

#include "kernels/kernels_block.h"
#include "runtime/base/base.h"

#include <dnnl.h>
#include <string.h>

enum { EXEC_ARGS = 5, ALIGNMENT = 64, KERNELS = 2, SMALL = 0, LARGE = 1 };

/* One oneDNN kernel for one number of rows. */
typedef struct gemm_kernel {
    int64_t rows; /* 0: not there */
    dnnl_primitive_desc_t descriptor;
    dnnl_primitive_t primitive;
} gemm_kernel;

typedef struct gemm_seat {
    dnnl_stream_t stream;
    dnnl_memory_t src[KERNELS];
    dnnl_memory_t dst[KERNELS];
    dnnl_memory_t scratchpad[KERNELS]; /* both on `scratch` */
    void *pad_src;                     /* rows of the small kernel, of its source type */
    void *pad_dst;                     /* of its result type */
    void *scratch;
} gemm_seat;

struct hd_gemm {
    int64_t k;
    int64_t n;
    heddle_dtype src_dtype;
    heddle_dtype dst_dtype;
    heddle_dtype kernel_src; /* F32 also for BF16 sources where the CPU has no BF16 multiply */
    heddle_dtype kernel_dst;
    int seats;
    dnnl_engine_t engine;
    gemm_kernel kernel[KERNELS];
    dnnl_memory_t weight;
    dnnl_memory_t bias;
    void *bias_data;
    size_t weight_bytes;
    size_t scratch_bytes;
    gemm_seat *seat;
};

static dnnl_data_type_t dnnl_type(heddle_dtype dtype)
{
    return dtype == HEDDLE_BF16 ? dnnl_bf16 : dnnl_f32;
}

static heddle_status dnnl_check(dnnl_status_t status, const hd_gemm *gemm, const char *what)
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

static void release_seat(gemm_seat *seat)
{
    for (int i = 0; i < KERNELS; i++) {
        dnnl_memory_destroy(seat->src[i]);
        dnnl_memory_destroy(seat->dst[i]);
        dnnl_memory_destroy(seat->scratchpad[i]);
    }
    dnnl_stream_destroy(seat->stream);
    hd_free(seat->pad_src);
    hd_free(seat->pad_dst);
    hd_free(seat->scratch);
    memset(seat, 0, sizeof *seat);
}

static void release_kernel(gemm_kernel *kernel)
{
    dnnl_primitive_destroy(kernel->primitive);
    dnnl_primitive_desc_destroy(kernel->descriptor);
    memset(kernel, 0, sizeof *kernel);
}

static void release_packed(hd_gemm *gemm)
{
    for (int i = 0; gemm->seat != NULL && i < gemm->seats; i++) {
        release_seat(&gemm->seat[i]);
    }
    dnnl_memory_destroy(gemm->weight);
    dnnl_memory_destroy(gemm->bias);
    gemm->weight = NULL;
    gemm->bias = NULL;
    release_kernel(&gemm->kernel[SMALL]);
    release_kernel(&gemm->kernel[LARGE]);
}

void hd_gemm_destroy(hd_gemm *gemm)
{
    if (gemm == NULL) {
        return;
    }
    release_packed(gemm);
    dnnl_engine_destroy(gemm->engine);
    hd_free(gemm->bias_data);
    hd_free(gemm->seat);
    hd_free(gemm);
}

/* oneDNN's choice for `rows` rows. */
static heddle_status describe(const hd_gemm *gemm, gemm_kernel *kernel, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    dnnl_memory_desc_t src, weight, bias, dst;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attributes = NULL;
    const dnnl_dims_t src_dims = {rows, gemm->k};
    const dnnl_dims_t weight_dims = {gemm->k, gemm->n};
    const dnnl_dims_t bias_dims = {1, gemm->n};
    const dnnl_dims_t dst_dims = {rows, gemm->n};
    HD_TRY(dnnl_check(dnnl_memory_desc_init_by_tag(&src, 2, src_dims, dnnl_type(gemm->kernel_src), dnnl_ab), gemm,
                      "source"));
    HD_TRY(dnnl_check(
        dnnl_memory_desc_init_by_tag(&weight, 2, weight_dims, dnnl_type(gemm->kernel_src), dnnl_format_tag_any), gemm,
        "weights"));
    HD_TRY(dnnl_check(dnnl_memory_desc_init_by_tag(&bias, 2, bias_dims, dnnl_f32, dnnl_ab), gemm, "bias"));
    HD_TRY(dnnl_check(dnnl_memory_desc_init_by_tag(&dst, 2, dst_dims, dnnl_type(gemm->kernel_dst), dnnl_ab), gemm,
                      "result"));
    HD_TRY(dnnl_check(dnnl_matmul_desc_init(&matmul, &src, &weight, &bias, &dst), gemm, "operation"));
    HD_TRY(dnnl_check(dnnl_primitive_attr_create(&attributes), gemm, "attributes"));
    /* The library's own scratchpad belongs to the thread that made the primitive. */
    HD_TRY(dnnl_check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), gemm,
                      "scratchpad mode"));
    HD_TRY(dnnl_check(dnnl_primitive_desc_create(&kernel->descriptor, &matmul, attributes, gemm->engine, NULL), gemm,
                      "kernel choice"));
out:
    dnnl_primitive_attr_destroy(attributes);
    return st;
}

/* BF16 stays BF16 only with a real BF16 kernel: oneDNN's emulation is slower than converting to F32. */
static void choose_types(hd_gemm *gemm)
{
    gemm_kernel kernel = {0};
    const char *name = "";
    gemm->kernel_src = gemm->src_dtype;
    gemm->kernel_dst = gemm->dst_dtype;
    if (gemm->src_dtype == HEDDLE_BF16) {
        if (describe(gemm, &kernel, HD_GEMM_ROWS) == HEDDLE_OK) {
            dnnl_primitive_desc_query(kernel.descriptor, dnnl_query_impl_info_str, 0, &name);
        }
        if (strncmp(name, "brg", 3) == 0) {
            release_kernel(&kernel);
            return;
        }
        release_kernel(&kernel);
        gemm->kernel_src = HEDDLE_F32;
    }
    gemm->kernel_dst = HEDDLE_F32;
}

heddle_status hd_gemm_create(hd_gemm **out, int64_t k, int64_t n, heddle_dtype src_dtype, heddle_dtype dst_dtype,
                             int seats)
{
    heddle_status st = HEDDLE_OK;
    hd_gemm *gemm = NULL;
    if (k < 1 || n < 1 || k > INT32_MAX || n > INT32_MAX) {
        return hd_fail(HEDDLE_ERR_ARG, "a linear layer needs 1 to %d inputs and outputs, not %lld and %lld", INT32_MAX,
                       (long long)k, (long long)n);
    }
    HD_TRY(hd_alloc((void **)&gemm, 1, sizeof *gemm, "a linear layer"));
    gemm->k = k;
    gemm->n = n;
    gemm->src_dtype = src_dtype;
    gemm->dst_dtype = dst_dtype;
    gemm->seats = seats;
    HD_TRY(hd_alloc((void **)&gemm->seat, (size_t)seats, sizeof *gemm->seat, "a linear layer's seats"));
    HD_TRY(hd_alloc_aligned(&gemm->bias_data, ALIGNMENT, (size_t)n * sizeof(float), "a bias"));
    HD_TRY(dnnl_check(dnnl_engine_create(&gemm->engine, dnnl_cpu, 0), gemm, "engine"));
    choose_types(gemm);
    *out = gemm;
    gemm = NULL;
out:
    hd_gemm_destroy(gemm);
    return st;
}

static const dnnl_memory_desc_t *part_of(const gemm_kernel *kernel, dnnl_query_t what, int index)
{
    return dnnl_primitive_desc_query_md(kernel->descriptor, what, index);
}

static size_t scratchpad_bytes(const gemm_kernel *kernel)
{
    const dnnl_memory_desc_t *scratchpad = part_of(kernel, dnnl_query_scratchpad_md, 0);
    return scratchpad != NULL ? dnnl_memory_desc_get_size(scratchpad) : 0;
}

static heddle_status make_kernel(hd_gemm *gemm, int which, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    gemm_kernel *kernel = &gemm->kernel[which];
    HD_TRY(describe(gemm, kernel, rows));
    HD_TRY(dnnl_check(dnnl_primitive_create(&kernel->primitive, kernel->descriptor), gemm, "kernel"));
    kernel->rows = rows;
out:
    return st;
}

static heddle_status make_seat(hd_gemm *gemm, gemm_seat *seat)
{
    heddle_status st = HEDDLE_OK;
    const gemm_kernel *small = &gemm->kernel[SMALL];
    size_t src_bytes = dnnl_memory_desc_get_size(part_of(small, dnnl_query_src_md, 0));
    size_t dst_bytes = dnnl_memory_desc_get_size(part_of(small, dnnl_query_dst_md, 0));
    HD_TRY(hd_alloc_aligned(&seat->pad_src, ALIGNMENT, src_bytes, "padded rows"));
    HD_TRY(hd_alloc_aligned(&seat->pad_dst, ALIGNMENT, dst_bytes, "padded rows"));
    HD_TRY(hd_alloc_aligned(&seat->scratch, ALIGNMENT, gemm->scratch_bytes, "oneDNN's scratchpad"));
    HD_TRY(dnnl_check(dnnl_stream_create(&seat->stream, gemm->engine, dnnl_stream_default_flags), gemm, "stream"));
    for (int i = 0; i < KERNELS && gemm->kernel[i].rows > 0; i++) {
        const gemm_kernel *kernel = &gemm->kernel[i];
        const dnnl_memory_desc_t *scratchpad = part_of(kernel, dnnl_query_scratchpad_md, 0);
        HD_TRY(dnnl_check(
            dnnl_memory_create(&seat->src[i], part_of(kernel, dnnl_query_src_md, 0), gemm->engine, seat->pad_src), gemm,
            "source"));
        HD_TRY(dnnl_check(
            dnnl_memory_create(&seat->dst[i], part_of(kernel, dnnl_query_dst_md, 0), gemm->engine, seat->pad_dst), gemm,
            "result"));
        if (scratchpad != NULL) {
            HD_TRY(dnnl_check(dnnl_memory_create(&seat->scratchpad[i], scratchpad, gemm->engine, seat->scratch), gemm,
                              "scratchpad"));
        }
    }
out:
    return st;
}

static heddle_status pack_weight(hd_gemm *gemm, const float *weight)
{
    heddle_status st = HEDDLE_OK;
    dnnl_memory_desc_t plain;
    dnnl_memory_t source = NULL;
    dnnl_primitive_desc_t descriptor = NULL;
    dnnl_primitive_t reorder = NULL;
    const dnnl_memory_desc_t *packed = part_of(&gemm->kernel[SMALL], dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *bias = part_of(&gemm->kernel[SMALL], dnnl_query_weights_md, 1);
    const dnnl_dims_t dims = {gemm->k, gemm->n};
    gemm->weight_bytes = dnnl_memory_desc_get_size(packed);
    HD_TRY(dnnl_check(dnnl_memory_create(&gemm->bias, bias, gemm->engine, gemm->bias_data), gemm, "bias"));
    HD_TRY(dnnl_check(dnnl_memory_desc_init_by_tag(&plain, 2, dims, dnnl_f32, dnnl_ba), gemm, "weights"));
    HD_TRY(dnnl_check(dnnl_memory_create(&source, &plain, gemm->engine, (void *)(uintptr_t)weight), gemm, "weights"));
    HD_TRY(dnnl_check(dnnl_memory_create(&gemm->weight, packed, gemm->engine, DNNL_MEMORY_ALLOCATE), gemm,
                      "packed weights"));
    HD_TRY(dnnl_check(dnnl_reorder_primitive_desc_create(&descriptor, &plain, gemm->engine, packed, gemm->engine, NULL),
                      gemm, "packing"));
    HD_TRY(dnnl_check(dnnl_primitive_create(&reorder, descriptor), gemm, "packing"));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, gemm->weight}};
    HD_TRY(dnnl_check(dnnl_primitive_execute(reorder, gemm->seat[0].stream, 2, arguments), gemm, "packing"));
    HD_TRY(dnnl_check(dnnl_stream_wait(gemm->seat[0].stream), gemm, "packing"));
out:
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(descriptor);
    dnnl_memory_destroy(source);
    return st;
}

static heddle_status run_block(hd_gemm *gemm, gemm_seat *seat, int which, void *dst, const void *src)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(dnnl_check(dnnl_memory_set_data_handle(seat->src[which], (void *)(uintptr_t)src), gemm, "source"));
    HD_TRY(dnnl_check(dnnl_memory_set_data_handle(seat->dst[which], dst), gemm, "result"));
    const dnnl_exec_arg_t arguments[EXEC_ARGS] = {{DNNL_ARG_SRC, seat->src[which]},
                                                  {DNNL_ARG_WEIGHTS, gemm->weight},
                                                  {DNNL_ARG_BIAS, gemm->bias},
                                                  {DNNL_ARG_DST, seat->dst[which]},
                                                  {DNNL_ARG_SCRATCHPAD, seat->scratchpad[which]}};
    int count = seat->scratchpad[which] != NULL ? EXEC_ARGS : EXEC_ARGS - 1;
    HD_TRY(
        dnnl_check(dnnl_primitive_execute(gemm->kernel[which].primitive, seat->stream, count, arguments), gemm, "run"));
    HD_TRY(dnnl_check(dnnl_stream_wait(seat->stream), gemm, "run"));
out:
    return st;
}

/* The same row in every place of a block must give the same bits everywhere; they are left in `wanted` (small kernel)
 * or compared to it (large kernel). */
static heddle_status check_rows(int *independent, hd_gemm *gemm, int which, const float *row, void *wanted)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_kernels *kernels = hd_block_kernels_best();
    size_t src_bytes = (size_t)gemm->k * heddle_dtype_bytes(gemm->kernel_src);
    size_t dst_bytes = (size_t)gemm->n * heddle_dtype_bytes(gemm->kernel_dst);
    size_t rows = (size_t)gemm->kernel[which].rows;
    char *src = NULL;
    char *dst = NULL;
    HD_TRY(hd_alloc_aligned((void **)&src, ALIGNMENT, rows * src_bytes, "rows to check a linear layer with"));
    HD_TRY(hd_alloc_aligned((void **)&dst, ALIGNMENT, rows * dst_bytes, "rows to check a linear layer with"));
    for (size_t r = 0; r < rows; r++) {
        kernels->convert(src + r * src_bytes, gemm->kernel_src, row, HEDDLE_F32, gemm->k);
    }
    HD_TRY(run_block(gemm, &gemm->seat[0], which, dst, src));
    if (which == SMALL) {
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
    if (gemm->kernel_src != gemm->src_dtype || gemm->kernel_dst != gemm->dst_dtype) {
        return HEDDLE_OK; /* every row is converted, block by block */
    }
    HD_TRY(make_kernel(gemm, LARGE, HD_GEMM_LARGE_ROWS));
    if (!dnnl_memory_desc_equal(part_of(&gemm->kernel[SMALL], dnnl_query_weights_md, 0),
                                part_of(&gemm->kernel[LARGE], dnnl_query_weights_md, 0))) {
        release_kernel(&gemm->kernel[LARGE]);
    }
out:
    return st;
}

static heddle_status pack_for(hd_gemm *gemm, int64_t rows, const float *weight)
{
    heddle_status st = HEDDLE_OK;
    release_packed(gemm);
    HD_TRY(make_kernel(gemm, SMALL, rows));
    gemm->scratch_bytes = scratchpad_bytes(&gemm->kernel[SMALL]);
    if (rows == HD_GEMM_ROWS) {
        HD_TRY(make_large(gemm));
    }
    if (gemm->kernel[LARGE].rows > 0 && scratchpad_bytes(&gemm->kernel[LARGE]) > gemm->scratch_bytes) {
        gemm->scratch_bytes = scratchpad_bytes(&gemm->kernel[LARGE]);
    }
    for (int i = 0; i < gemm->seats; i++) {
        HD_TRY(make_seat(gemm, &gemm->seat[i]));
    }
    HD_TRY(pack_weight(gemm, weight));
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

heddle_status hd_gemm_pack(hd_gemm *gemm, const float *weight, const float *bias)
{
    static const int64_t candidate[] = {HD_GEMM_ROWS, 48, 16, 1};
    heddle_status st = HEDDLE_OK;
    float *row = NULL;
    void *wanted = NULL;
    int independent = 0;
    int entered = hd_gemm_enter();
    HD_TRY(make_row(&row, gemm->k));
    HD_TRY(hd_alloc(&wanted, (size_t)gemm->n, sizeof(float), "a result to check a linear layer with"));
    memset(gemm->bias_data, 0, (size_t)gemm->n * sizeof(float));
    if (bias != NULL) {
        memcpy(gemm->bias_data, bias, (size_t)gemm->n * sizeof(float));
    }
    for (size_t i = 0; i < sizeof candidate / sizeof candidate[0] && !independent; i++) {
        HD_TRY(pack_for(gemm, candidate[i], weight));
        HD_TRY(check_rows(&independent, gemm, SMALL, row, wanted));
    }
    if (gemm->kernel[LARGE].rows > 0) {
        HD_TRY(check_rows(&independent, gemm, LARGE, row, wanted));
        gemm->kernel[LARGE].rows = independent ? gemm->kernel[LARGE].rows : 0;
    }
out:
    hd_gemm_leave(entered);
    hd_free(row);
    hd_free(wanted);
    if (st != HEDDLE_OK) {
        release_packed(gemm);
    }
    return st;
}

/* `count` rows by way of the seat's padded block: a part of a block, or rows of another type. */
static heddle_status run_padded(hd_gemm *gemm, gemm_seat *seat, char *dst, const char *src, int64_t count)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_kernels *kernels = hd_block_kernels_best();
    size_t elem = heddle_dtype_bytes(gemm->kernel_src);
    int64_t missing = gemm->kernel[SMALL].rows - count;
    kernels->convert(seat->pad_src, gemm->kernel_src, src, gemm->src_dtype, count * gemm->k);
    memset((char *)seat->pad_src + (size_t)(count * gemm->k) * elem, 0, (size_t)(missing * gemm->k) * elem);
    HD_TRY(run_block(gemm, seat, SMALL, seat->pad_dst, seat->pad_src));
    kernels->convert(dst, gemm->dst_dtype, seat->pad_dst, gemm->kernel_dst, count * gemm->n);
out:
    return st;
}

heddle_status hd_gemm_run(hd_gemm *gemm, int seat_index, void *dst, const void *src, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    gemm_seat *seat = &gemm->seat[seat_index];
    size_t src_bytes = heddle_dtype_bytes(gemm->src_dtype);
    size_t dst_bytes = heddle_dtype_bytes(gemm->dst_dtype);
    int64_t small = gemm->kernel[SMALL].rows;
    int64_t large = gemm->kernel[LARGE].rows;
    int direct = gemm->kernel_src == gemm->src_dtype && gemm->kernel_dst == gemm->dst_dtype;
    int64_t count;
    for (int64_t r = 0; r < rows; r += count) {
        const char *from = (const char *)src + (size_t)(r * gemm->k) * src_bytes;
        char *to = (char *)dst + (size_t)(r * gemm->n) * dst_bytes;
        if (large > 0 && rows - r >= large) {
            count = large;
            HD_TRY(run_block(gemm, seat, LARGE, to, from));
        } else if (direct && rows - r >= small) {
            count = small;
            HD_TRY(run_block(gemm, seat, SMALL, to, from));
        } else {
            count = rows - r < small ? rows - r : small;
            HD_TRY(run_padded(gemm, seat, to, from, count));
        }
    }
out:
    return st;
}

int64_t hd_gemm_bytes(const hd_gemm *gemm)
{
    if (gemm == NULL || gemm->kernel[SMALL].rows == 0) {
        return 0;
    }
    size_t rows = (size_t)gemm->kernel[SMALL].rows;
    size_t seat_bytes = rows * (size_t)gemm->k * heddle_dtype_bytes(gemm->kernel_src) +
                        rows * (size_t)gemm->n * heddle_dtype_bytes(gemm->kernel_dst) + gemm->scratch_bytes;
    return (int64_t)(gemm->weight_bytes + (size_t)gemm->seats * seat_bytes);
}

int64_t hd_gemm_block_rows(const hd_gemm *gemm)
{
    return gemm->kernel[LARGE].rows > 0 ? gemm->kernel[LARGE].rows : gemm->kernel[SMALL].rows;
}

const char *hd_gemm_kernel(const hd_gemm *gemm)
{
    const char *name = "";
    if (gemm->kernel[SMALL].rows > 0) {
        dnnl_primitive_desc_query(gemm->kernel[SMALL].descriptor, dnnl_query_impl_info_str, 0, &name);
    }
    return name;
}
