/* A product as cuBLAS is told of it, and one execution of it. */
#include "runtime/device/cublas/cublas.h"

#include <stdint.h>

int64_t hd_cublas_bytes(heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? 4 : 2;
}

int64_t hd_cublas_src_elems(const heddle_product *of)
{
    return of->kind == HEDDLE_PRODUCT_FORWARD ? of->k : of->n;
}

int64_t hd_cublas_dst_elems(const heddle_product *of)
{
    return of->kind == HEDDLE_PRODUCT_FORWARD ? of->n : of->k;
}

int64_t hd_cublas_alignment(int64_t row_bytes)
{
    const int64_t power = row_bytes & -row_bytes;
    return power < 16 ? power : 16;
}

static cudaDataType_t type_of(heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? CUDA_R_32F : dtype == HEDDLE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static heddle_status layout(cublasLtMatrixLayout_t *out, heddle_dtype dtype, int64_t column_elems, int64_t columns)
{
    return CUBLAS(
        cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)column_elems, (uint64_t)columns, column_elems));
}

static heddle_status set(hd_cublas_product *product, cublasLtMatmulDescAttributes_t what, int32_t value)
{
    return CUBLAS(cublasLtMatmulDescSetAttribute(product->operation, what, &value, sizeof value));
}

/* f32 is multiplied as it is: COMPUTE_32F neither rounds it to TF32 nor takes it apart. */
heddle_status hd_cublas_describe_product(hd_cublas_product *product)
{
    const heddle_product *of = &product->of;
    const int is_outer = of->kind == HEDDLE_PRODUCT_OUTER;
    const int64_t dst_columns = is_outer ? of->n : 1, with_columns = is_outer ? 1 : of->n;
    heddle_status st = CUBLAS(cublasLtMatmulDescCreate(&product->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    product->rows = 1;
    if (st == HEDDLE_OK && of->kind == HEDDLE_PRODUCT_FORWARD) {
        st = set(product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    }
    if (st == HEDDLE_OK && is_outer) {
        st = set(product, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
    }
    if (st == HEDDLE_OK && of->has_bias) {
        st = set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    }
    st = st == HEDDLE_OK ? layout(&product->a, of->dtype, of->k, with_columns) : st;
    st = st == HEDDLE_OK ? layout(&product->b, of->dtype, hd_cublas_src_elems(of), 1) : st;
    return st == HEDDLE_OK ? layout(&product->d, of->dst_dtype, hd_cublas_dst_elems(of), dst_columns) : st;
}

void hd_cublas_end_product(hd_cublas_product *product)
{
    const cublasLtMatrixLayout_t layouts[] = {product->a, product->b, product->d};
    for (int i = 0; i < 3; i++) {
        if (layouts[i] != NULL) {
            (void)cublasLtMatrixLayoutDestroy(layouts[i]);
        }
    }
    if (product->operation != NULL) {
        (void)cublasLtMatmulDescDestroy(product->operation);
    }
}

heddle_status hd_cublas_set_rows(hd_cublas_product *product, int64_t rows)
{
    const uint64_t columns = (uint64_t)rows;
    const cublasLtMatrixLayout_t other = product->of.kind == HEDDLE_PRODUCT_OUTER ? product->a : product->d;
    heddle_status st = HEDDLE_OK;
    if (product->rows == rows) {
        return HEDDLE_OK;
    }
    product->rows = -1;
    st = CUBLAS(cublasLtMatrixLayoutSetAttribute(product->b, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns));
    if (st == HEDDLE_OK) {
        st = CUBLAS(cublasLtMatrixLayoutSetAttribute(other, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns));
    }
    if (st == HEDDLE_OK) {
        product->rows = rows;
    }
    return st;
}

/* The algorithm was chosen for arrays that are aligned so. */
static heddle_status check_address(const void *data, int64_t row_elems, heddle_dtype dtype, const char *what)
{
    const int64_t wanted = hd_cublas_alignment(row_elems * hd_cublas_bytes(dtype));
    if ((uintptr_t)data % (uintptr_t)wanted == 0) {
        return HEDDLE_OK;
    }
    return hd_cuda_fail(HEDDLE_ERR_ARG, "a product by cuBLAS: %s lies at %p, wanted a multiple of %d bytes", what, data,
                        (int)wanted);
}

static heddle_status check_addresses(const heddle_product *of, const heddle_product_call *call)
{
    heddle_status st = check_address(call->src, hd_cublas_src_elems(of), of->dtype, "src");
    st = st == HEDDLE_OK ? check_address(call->with, of->k, of->dtype, "what goes with src") : st;
    return st == HEDDLE_OK ? check_address(call->dst, hd_cublas_dst_elems(of), of->dst_dtype, "dst") : st;
}

static const cublasLtMatmulAlgo_t *way_of(const hd_cublas_product *product, int64_t rows)
{
    for (int i = 0; i < product->ways; i++) {
        if (rows <= product->way[i].most_rows) {
            return &product->way[i].algorithm;
        }
    }
    return &product->algorithm;
}

heddle_status hd_cublas_multiply(hd_cublas_product *product, const heddle_product_call *call, cudaStream_t stream)
{
    const heddle_product *of = &product->of;
    const float one = 1, factor = of->kind == HEDDLE_PRODUCT_OUTER && call->add ? 1.0f : 0.0f;
    heddle_status st = check_addresses(of, call);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (call->rows == 0) {
        return of->kind != HEDDLE_PRODUCT_OUTER || call->add
                   ? HEDDLE_OK
                   : hd_cublas_cuda(cudaMemsetAsync(call->dst, 0, (size_t)(of->n * of->k) * 4, stream),
                                    product->cublas->device, "cudaMemsetAsync");
    }
    st = hd_cublas_set_rows(product, call->rows);
    if (st == HEDDLE_OK && of->has_bias) {
        st = CUBLAS(cublasLtMatmulDescSetAttribute(product->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call->bias,
                                                   sizeof call->bias));
    }
    if (st == HEDDLE_OK) {
        st = CUBLAS(cublasLtMatmul(product->cublas->lt, product->operation, &one, call->with, product->a, call->src,
                                   product->b, &factor, call->dst, product->d, call->dst, product->d,
                                   way_of(product, call->rows), call->workspace, product->workspace_bytes, stream));
    }
    return st;
}
