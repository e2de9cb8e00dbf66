/* Whether rows keep their bits: some rows alone, and the same ones among others, at every height that tells kernels
 * apart, first, last and between. Of an outer product: whether equal calls give equal bits.
 *
 * What is summed is such that the first half and the second cancel: what is left is how sums were rounded. Else another
 * order would show in few results of 16 bits. */
#include "runtime/device/cublas/cublas.h"

#include "kernels/small_float.h"

#include <stdlib.h>
#include <string.h>

/* Around the tiles that kernels have, one row, and many. */
const int64_t hd_cublas_heights[] = {1, 8, 63, 64, 65, 127, 128, 129, 255, 1000, 4096};
const int hd_cublas_nheights = (int)(sizeof hd_cublas_heights / sizeof hd_cublas_heights[0]);

enum {
    ROWS = 257 /* that are compared */,
    TALLEST = 4096,
    BEFORE = TALLEST - ROWS,
    CHUNK_BYTES = (4 << 20) - 4036 /* 4 times a prime number */
};

struct hd_cublas_trial {
    int device;
    cudaStream_t stream;
    char *src, *with, *bias, *dst, *workspace; /* of the device */
    size_t workspace_bytes, dst_row_bytes;
    char *wanted, *got; /* ROWS of dst; or all of an outer product */
    size_t result_bytes;
};

#define CUDA(trial, call) hd_cublas_cuda((call), (trial)->device, #call)

/* Numbers of [-64, 64), of no pattern that rows have. */
static void fill(char *to, int64_t elems, heddle_dtype dtype)
{
    uint64_t state = 88172645463325252u;
    const int64_t bytes = hd_cublas_bytes(dtype);
    for (int64_t i = 0; i < elems; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const float value = (float)(int32_t)(state >> 32) * 0x1p-25f;
        const uint16_t half = dtype == HEDDLE_BF16 ? hd_bf16_from_f32(value) : hd_f16_from_f32(value);
        memcpy(to + i * bytes, dtype == HEDDLE_F32 ? (const void *)&value : (const void *)&half, (size_t)bytes);
    }
}

/* Of a matrix [rows][width], what goes with the second half of a row of src is minus what goes with the first; the one
 * in the middle of an odd number is 0. */
static void mirror(char *with, const heddle_product *of)
{
    const int is_forward = of->kind == HEDDLE_PRODUCT_FORWARD;
    const int64_t bytes = hd_cublas_bytes(of->dtype), n = is_forward ? of->k : of->n, half = n / 2;
    const int64_t step = is_forward ? bytes : of->k * bytes, other = is_forward ? of->k * bytes : bytes;
    for (int64_t j = 0; j < (is_forward ? of->n : of->k); j++) {
        char *at = with + j * other;
        for (int64_t i = 0; i < half; i++) {
            memcpy(at + (half + i) * step, at + i * step, (size_t)bytes);
            at[(half + i) * step + bytes - 1] ^= (char)0x80;
        }
        if (n % 2 == 1) {
            memset(at + (n - 1) * step, 0, (size_t)bytes);
        }
    }
}

static heddle_status upload(char *to, const hd_cublas_trial *trial, const char *from, int64_t bytes)
{
    heddle_status st = CUDA(trial, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, trial->stream));
    return st == HEDDLE_OK ? CUDA(trial, cudaStreamSynchronize(trial->stream)) : st;
}

/* From a piece of a length that no row divides. */
static heddle_status make_src(hd_cublas_trial *trial, const heddle_product *of, char *chunk)
{
    const int64_t rows = of->kind == HEDDLE_PRODUCT_OUTER ? (int64_t)TALLEST : (int64_t)BEFORE + TALLEST;
    const int64_t each = hd_cublas_bytes(of->dtype), width = hd_cublas_src_elems(of) * each, bytes = rows * width;
    const size_t half = (size_t)(hd_cublas_src_elems(of) / 2 * each);
    heddle_status st = CUDA(trial, cudaMalloc((void **)&trial->src, (size_t)bytes));
    fill(chunk, CHUNK_BYTES / each, of->dtype);
    for (int64_t at = 0; at < bytes && st == HEDDLE_OK; at += CHUNK_BYTES) {
        st = upload(trial->src + at, trial, chunk, bytes - at < CHUNK_BYTES ? bytes - at : (int64_t)CHUNK_BYTES);
    }
    if (st == HEDDLE_OK && half > 0 && of->kind != HEDDLE_PRODUCT_OUTER) {
        st = CUDA(trial, cudaMemcpy2DAsync(trial->src + half, (size_t)width, trial->src, (size_t)width, half,
                                           (size_t)rows, cudaMemcpyDeviceToDevice, trial->stream));
    }
    return st;
}

static heddle_status make_with(hd_cublas_trial *trial, const heddle_product *of)
{
    const int is_outer = of->kind == HEDDLE_PRODUCT_OUTER;
    const int64_t elems = (is_outer ? (int64_t)TALLEST : of->n) * of->k, bytes = elems * hd_cublas_bytes(of->dtype);
    char *with = malloc((size_t)bytes);
    if (with == NULL) {
        return hd_cuda_fail(HEDDLE_ERR_NOMEM, "a trial of products: no %lld bytes", (long long)bytes);
    }
    fill(with, elems, of->dtype);
    if (!is_outer) {
        mirror(with, of);
    }
    heddle_status st = CUDA(trial, cudaMalloc((void **)&trial->with, (size_t)bytes));
    st = st == HEDDLE_OK ? upload(trial->with, trial, with, bytes) : st;
    free(with);
    return st;
}

static heddle_status make_all(hd_cublas_trial *trial, const heddle_product *of)
{
    const size_t bias_bytes = (size_t)(of->n * hd_cublas_bytes(of->dst_dtype));
    const size_t dst_rows = (size_t)(of->kind == HEDDLE_PRODUCT_OUTER ? of->n : (int64_t)TALLEST);
    char *chunk = malloc(CHUNK_BYTES);
    if (chunk == NULL) {
        return hd_cuda_fail(HEDDLE_ERR_NOMEM, "a trial of products: no %d bytes", (int)CHUNK_BYTES);
    }
    heddle_status st = CUDA(trial, cudaStreamCreateWithFlags(&trial->stream, cudaStreamNonBlocking));
    st = st == HEDDLE_OK ? make_src(trial, of, chunk) : st;
    st = st == HEDDLE_OK ? make_with(trial, of) : st;
    st = st == HEDDLE_OK ? CUDA(trial, cudaMalloc((void **)&trial->bias, bias_bytes)) : st;
    st = st == HEDDLE_OK ? CUDA(trial, cudaMemsetAsync(trial->bias, 0, bias_bytes, trial->stream)) : st;
    st = st == HEDDLE_OK ? CUDA(trial, cudaMalloc((void **)&trial->dst, dst_rows * trial->dst_row_bytes)) : st;
    free(chunk);
    return st;
}

heddle_status hd_cublas_trial_begin(hd_cublas_trial **out, hd_cublas_product *product)
{
    const heddle_product *of = &product->of;
    hd_cublas_trial *trial = calloc(1, sizeof *trial);
    if (trial == NULL) {
        return hd_cuda_fail(HEDDLE_ERR_NOMEM, "a trial of products: no %zu bytes", sizeof *trial);
    }
    *out = trial;
    trial->device = product->cublas->device;
    trial->dst_row_bytes = (size_t)(hd_cublas_dst_elems(of) * hd_cublas_bytes(of->dst_dtype));
    trial->result_bytes = trial->dst_row_bytes * (size_t)(of->kind == HEDDLE_PRODUCT_OUTER ? of->n : (int64_t)ROWS);
    trial->wanted = malloc(trial->result_bytes);
    trial->got = malloc(trial->result_bytes);
    if (trial->wanted == NULL || trial->got == NULL) {
        return hd_cuda_fail(HEDDLE_ERR_NOMEM, "a trial of products: no %zu bytes", 2 * trial->result_bytes);
    }
    return make_all(trial, of);
}

void hd_cublas_trial_end(hd_cublas_trial *trial)
{
    if (trial == NULL) {
        return;
    }
    if (trial->stream != NULL) {
        (void)cudaStreamSynchronize(trial->stream);
        (void)cudaStreamDestroy(trial->stream);
    }
    void *const memory[] = {trial->src, trial->with, trial->bias, trial->dst, trial->workspace};
    for (int i = 0; i < 5; i++) {
        (void)cudaFree(memory[i]);
    }
    free(trial->wanted);
    free(trial->got);
    free(trial);
}

static heddle_status find_workspace(hd_cublas_trial *trial, size_t bytes)
{
    if (bytes <= trial->workspace_bytes) {
        return HEDDLE_OK;
    }
    (void)cudaFree(trial->workspace);
    trial->workspace = NULL;
    trial->workspace_bytes = 0;
    heddle_status st = CUDA(trial, cudaMalloc((void **)&trial->workspace, bytes));
    trial->workspace_bytes = st == HEDDLE_OK ? bytes : 0;
    return st;
}

/* A product of `rows` rows from the one at `first` on; of the result, `bytes` from row `at` on. */
static heddle_status run(char *out, size_t bytes, hd_cublas_trial *trial, hd_cublas_product *product, int64_t first,
                         int64_t rows, int64_t at)
{
    const heddle_product *of = &product->of;
    const int64_t before = first * hd_cublas_src_elems(of) * hd_cublas_bytes(of->dtype);
    const heddle_product_call call = {.dst = trial->dst,
                                      .src = trial->src + before,
                                      .with = trial->with,
                                      .bias = trial->bias,
                                      .rows = rows,
                                      .workspace = trial->workspace};
    heddle_status st = hd_cublas_multiply(product, &call, trial->stream);
    if (st == HEDDLE_OK) {
        st = CUDA(trial, cudaMemcpyAsync(out, trial->dst + (size_t)at * trial->dst_row_bytes, bytes,
                                         cudaMemcpyDeviceToHost, trial->stream));
    }
    return st == HEDDLE_OK ? CUDA(trial, cudaStreamSynchronize(trial->stream)) : st;
}

static heddle_status compare_at(int *keeps, hd_cublas_trial *trial, hd_cublas_product *product, int64_t rows,
                                int64_t at, int64_t compared)
{
    const size_t bytes = (size_t)compared * trial->dst_row_bytes;
    heddle_status st = run(trial->got, bytes, trial, product, BEFORE - at, rows, at);
    *keeps = *keeps && st == HEDDLE_OK && memcmp(trial->got, trial->wanted, bytes) == 0;
    return st;
}

static heddle_status compare_heights(int *keeps, hd_cublas_trial *trial, hd_cublas_product *product, int64_t most_rows)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < hd_cublas_nheights && hd_cublas_heights[i] <= most_rows && st == HEDDLE_OK && *keeps; i++) {
        const int64_t rows = hd_cublas_heights[i], compared = rows < ROWS ? rows : (int64_t)ROWS;
        const int64_t most = rows - compared, place[] = {0, most / 3, most};
        for (int j = 0; j < (most > 0 ? 3 : 1) && st == HEDDLE_OK && *keeps; j++) {
            st = compare_at(keeps, trial, product, rows, place[j], compared);
        }
    }
    return st;
}

static heddle_status compare_rows(int *keeps, hd_cublas_trial *trial, hd_cublas_product *product)
{
    heddle_status st = run(trial->wanted, trial->result_bytes, trial, product, BEFORE, ROWS, 0);
    return st == HEDDLE_OK ? compare_heights(keeps, trial, product, TALLEST) : st;
}

/* Other sums are taken between the two. */
static heddle_status compare_outer(int *keeps, hd_cublas_trial *trial, hd_cublas_product *product)
{
    heddle_status st = run(trial->wanted, trial->result_bytes, trial, product, 0, TALLEST, 0);
    st = st == HEDDLE_OK ? run(trial->got, trial->result_bytes, trial, product, 1, ROWS, 0) : st;
    st = st == HEDDLE_OK ? run(trial->got, trial->result_bytes, trial, product, 0, TALLEST, 0) : st;
    *keeps = st == HEDDLE_OK && memcmp(trial->got, trial->wanted, trial->result_bytes) == 0;
    return st;
}

heddle_status hd_cublas_trial_run(int *keeps, hd_cublas_trial *trial, hd_cublas_product *product)
{
    heddle_status st = find_workspace(trial, product->workspace_bytes);
    *keeps = 1;
    if (st != HEDDLE_OK) {
        return st;
    }
    return product->of.kind == HEDDLE_PRODUCT_OUTER ? compare_outer(keeps, trial, product)
                                                    : compare_rows(keeps, trial, product);
}

heddle_status hd_cublas_trial_same(int *same, hd_cublas_trial *trial, hd_cublas_product *product, int64_t most_rows)
{
    heddle_status st = find_workspace(trial, product->workspace_bytes);
    *same = 1;
    st = st == HEDDLE_OK ? compare_at(same, trial, product, ROWS, 0, ROWS) : st;
    return st == HEDDLE_OK ? compare_heights(same, trial, product, most_rows) : st;
}
