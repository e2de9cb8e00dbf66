/* Handles, descriptors, and what tests ask of the fake. */
#include "cudasim.h"
#include "inside.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t fail_in, products;
static _Atomic int fail_status, objects;
static const char *_Atomic kinds = "xhrspfg", *_Atomic kinds_of_few = NULL;

void cublassim_fail_at(int64_t n, int status)
{
    atomic_store(&fail_status, status);
    atomic_store(&fail_in, n);
}

void cublassim_recommend(const char *wanted)
{
    atomic_store(&kinds, wanted);
}

void cublassim_recommend_few(const char *wanted)
{
    atomic_store(&kinds_of_few, wanted);
}

int cublassim_objects(void)
{
    return atomic_load(&objects);
}

int64_t cublassim_products(void)
{
    return atomic_load(&products);
}

cublasStatus_t cublassim_begin(const char *call)
{
    hd_sim_count_call(call);
    return atomic_load(&fail_in) > 0 && atomic_fetch_sub(&fail_in, 1) == 1 ? (cublasStatus_t)atomic_load(&fail_status)
                                                                           : CUBLAS_STATUS_SUCCESS;
}

const char *cublassim_kinds(uint64_t rows)
{
    const char *few = atomic_load(&kinds_of_few);
    return few != NULL && rows <= 1024 ? few : atomic_load(&kinds);
}

void cublassim_count(int more)
{
    atomic_fetch_add(&objects, more);
}

void cublassim_count_product(void)
{
    atomic_fetch_add(&products, 1);
}

size_t cublasLtGetVersion(void)
{
    const char *text = getenv("HEDDLE_CUBLASSIM_VERSION");
    return text != NULL ? (size_t)atoi(text) : CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "an absent feature of the architecture is required";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the GPU program failed to execute";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality is not supported";
    }
    return "unknown status";
}

static cublasStatus_t make(const char *call, void *out, size_t bytes)
{
    cublasStatus_t status = cublassim_begin(call);
    if (status == CUBLAS_STATUS_SUCCESS) {
        void *made = calloc(1, bytes);
        memcpy(out, &made, sizeof made);
        cublassim_count(1);
    }
    return status;
}

static cublasStatus_t destroy(void *object)
{
    cublassim_count(-1);
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

/* Into a member of `wanted` bytes. */
static cublasStatus_t set(const char *call, void *member, size_t wanted, const void *value, size_t bytes)
{
    cublasStatus_t status = cublassim_begin(call);
    if (status == CUBLAS_STATUS_SUCCESS && (member == NULL || bytes != wanted)) {
        status = CUBLAS_STATUS_INVALID_VALUE;
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        memcpy(member, value, bytes);
    }
    return status;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return make(__func__, handle, 1);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    _Static_assert(sizeof(fake_desc) <= sizeof(cublasLtMatmulDescOpaque_t), "it lies there");
    cublasStatus_t status = make(__func__, out, sizeof **out);
    if (status == CUBLAS_STATUS_SUCCESS) {
        const fake_desc made = {compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL};
        memcpy(*out, &made, sizeof made);
    }
    return status == CUBLAS_STATUS_SUCCESS && scale != CUDA_R_32F ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes)
{
    fake_desc *of = (fake_desc *)(void *)desc;
    if (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER) {
        return set(__func__, &of->bias, sizeof of->bias, value, bytes);
    }
    return set(__func__,
               which == CUBLASLT_MATMUL_DESC_TRANSA     ? &of->turned_a
               : which == CUBLASLT_MATMUL_DESC_TRANSB   ? &of->turned_b
               : which == CUBLASLT_MATMUL_DESC_EPILOGUE ? &of->epilogue
                                                        : NULL,
               4, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    _Static_assert(sizeof(fake_layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "it lies there");
    cublasStatus_t status = make(__func__, out, sizeof **out);
    if (status == CUBLAS_STATUS_SUCCESS) {
        const fake_layout made = {type, rows, cols, ld};
        memcpy(*out, &made, sizeof made);
    }
    return status;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which,
                                                const void *value, size_t bytes)
{
    fake_layout *of = (fake_layout *)(void *)layout;
    return set(__func__, which == CUBLASLT_MATRIX_LAYOUT_COLS ? &of->cols : NULL, 8, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    _Static_assert(sizeof(fake_preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "it lies there");
    cublasStatus_t status = make(__func__, out, sizeof **out);
    if (status == CUBLAS_STATUS_SUCCESS) {
        const fake_preference made = {0, 7, {256, 256, 256, 256}};
        memcpy(*out, &made, sizeof made);
    }
    return status;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which, const void *value,
                                                    size_t bytes)
{
    fake_preference *of = (fake_preference *)(void *)preference;
    switch (which) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(__func__, &of->workspace_bytes, 8, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(__func__, &of->scheme, 4, value, bytes);
    default:
        return set(__func__, &of->alignment[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], 4, value, bytes);
    }
}
