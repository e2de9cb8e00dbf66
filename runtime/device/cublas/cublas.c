/* libheddle_cublas: linear layers on CUDA devices by cuBLASLt, behind heddle's table. Nothing of heddle is linked. */
#include "runtime/device/cublas/cublas.h"

#include "runtime/device/cuda/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- errors ------------------------------------------------------------------------------------------------------- */

heddle_status hd_cublas_status(cublasStatus_t result, const char *call)
{
    if (result == CUBLAS_STATUS_SUCCESS) {
        return HEDDLE_OK;
    }
    return hd_cuda_fail(result == CUBLAS_STATUS_ALLOC_FAILED ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_DEVICE,
                        "cuBLAS: %.*s failed with %d, %s", (int)strcspn(call, "("), call, (int)result,
                        cublasLtGetStatusString(result));
}

heddle_status hd_cublas_cuda(cudaError_t error, int device, const char *call)
{
    if (error == cudaSuccess) {
        return HEDDLE_OK;
    }
    (void)cudaGetLastError();
    return hd_cuda_fail(error == cudaErrorMemoryAllocation ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_DEVICE,
                        "device cuda:%d: %s failed with error %d, %s", device, call, (int)error,
                        cudaGetErrorString(error));
}

static heddle_status enter(int *before, int device)
{
    return hd_cublas_cuda(hd_context_enter(before, device), device, "entering its context");
}

/* --- versions ----------------------------------------------------------------------------------------------------- */

/* cublasLtGetVersion has a digit more for the major version than its headers say: 130100 is 13.1.0. */
static void write_version(char *out, size_t bytes, int code)
{
    snprintf(out, bytes, "%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
}

/* A library takes what headers say that are older than itself, not those of another major version. */
static heddle_status describe(char *out, size_t bytes)
{
    char built[24], here[24];
    const int found = (int)cublasLtGetVersion();
    write_version(built, sizeof built, CUBLAS_VERSION);
    write_version(here, sizeof here, found);
    if (found / 10000 != CUBLAS_VER_MAJOR || found / 100 < CUBLAS_VERSION / 100) {
        return hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED,
                            "cuBLAS %s was found, heddle is built for %s: wanted %d.%d or a later one of version %d",
                            here, built, CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_MAJOR);
    }
    snprintf(out, bytes, "cuBLAS %s%s%s", here, found != CUBLAS_VERSION ? ", built for " : "",
             found != CUBLAS_VERSION ? built : "");
    return HEDDLE_OK;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static void close_handle(void *handle)
{
    hd_cublas *cublas = handle;
    int before = 0;
    if (cublas == NULL) {
        return;
    }
    if (cublas->lt != NULL && enter(&before, cublas->device) == HEDDLE_OK) {
        (void)cublasLtDestroy(cublas->lt);
        hd_context_leave(before);
    }
    free(cublas);
}

static heddle_status open_handle(void **out, int device)
{
    hd_cublas *cublas = calloc(1, sizeof *cublas);
    int before = 0;
    if (cublas == NULL) {
        return hd_cuda_fail(HEDDLE_ERR_NOMEM, "a handle of cuBLAS: no %zu bytes", sizeof *cublas);
    }
    cublas->device = device;
    heddle_status st = enter(&before, device);
    if (st == HEDDLE_OK) {
        st = CUBLAS(cublasLtCreate(&cublas->lt));
        hd_context_leave(before);
    }
    if (st == HEDDLE_OK) {
        *out = cublas;
    } else {
        close_handle(cublas);
    }
    return st;
}

static void unmake(void *handle)
{
    if (handle != NULL) {
        hd_cublas_end_product(handle);
        free(handle);
    }
}

static heddle_status make(void **out, void *handle, const heddle_product *of, int64_t *workspace_bytes, char *kernel,
                          size_t kernel_bytes)
{
    const hd_cublas *cublas = handle;
    hd_cublas_product *product = calloc(1, sizeof *product);
    int before = 0;
    if (product == NULL) {
        return hd_cuda_fail(HEDDLE_ERR_NOMEM, "a product of cuBLAS: no %zu bytes", sizeof *product);
    }
    product->of = *of;
    product->cublas = cublas;
    heddle_status st = enter(&before, cublas->device);
    if (st == HEDDLE_OK) {
        st = hd_cublas_describe_product(product);
        st = st == HEDDLE_OK ? hd_cublas_choose(product, kernel, kernel_bytes) : st;
        hd_context_leave(before);
    }
    if (st == HEDDLE_OK) {
        *workspace_bytes = (int64_t)product->workspace_bytes;
        *out = product;
    } else {
        unmake(product);
    }
    return st;
}

static heddle_status run(void *product, const heddle_product_call *call, heddle_stream stream)
{
    return hd_cublas_multiply(product, call, stream);
}

static const heddle_device_products cublas_products = {
    .struct_bytes = sizeof cublas_products,
    .name = "cublas",
    .device = "cuda",
    .describe = describe,
    .open = open_handle,
    .close = close_handle,
    .make = make,
    .run = run,
    .unmake = unmake,
};

/* HEDDLE_DEVICE_PRODUCTS_LIBRARY. */
HEDDLE_API heddle_status heddle_device_products_v1(const heddle_device_products **out, heddle_device_fail_fn say);

heddle_status heddle_device_products_v1(const heddle_device_products **out, heddle_device_fail_fn say)
{
    hd_cuda_fail_by(say);
    *out = &cublas_products;
    return HEDDLE_OK;
}
