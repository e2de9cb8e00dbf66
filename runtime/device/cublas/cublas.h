/* Inside of libheddle_cublas. */
#ifndef HD_CUBLAS_H
#define HD_CUBLAS_H

#include "runtime/device/cuda/fail.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <heddle/sys/device_products.h>

typedef struct hd_cublas {
    cublasLtHandle_t lt;
    int device;
} hd_cublas;

enum { HD_CUBLAS_WAYS = 3 };

/* In cuBLAS's words, where columns of a matrix lie one behind the other, each product is d = op(a) op(b): a is what
 * goes with src, and b is src. */
typedef struct hd_cublas_product {
    heddle_product of;
    const hd_cublas *cublas;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    int64_t rows;                   /* for which the layouts are set */
    cublasLtMatmulAlgo_t algorithm; /* while none is chosen: the one that is tried */
    struct {
        int64_t most_rows;
        cublasLtMatmulAlgo_t algorithm;
    } way[HD_CUBLAS_WAYS]; /* the lower ones first; all give a row the same bits */
    int ways;
    size_t workspace_bytes; /* of any of them */
} hd_cublas_product;

/* cublas.c */
heddle_status hd_cublas_status(cublasStatus_t result, const char *call);
heddle_status hd_cublas_cuda(cudaError_t error, int device, const char *call);

/* `call`, as one expression: its status. */
#define CUBLAS(call) hd_cublas_status((call), #call)

/* product.c */
heddle_status hd_cublas_describe_product(hd_cublas_product *product);
void hd_cublas_end_product(hd_cublas_product *product); /* its descriptors */
heddle_status hd_cublas_set_rows(hd_cublas_product *product, int64_t rows);
/* A row of src, of what goes with it, of dst. */
int64_t hd_cublas_src_elems(const heddle_product *of);
int64_t hd_cublas_dst_elems(const heddle_product *of);
/* To what power of two, 16 bytes at most, arrays whose rows have so many bytes are aligned. */
int64_t hd_cublas_alignment(int64_t row_bytes);
int64_t hd_cublas_bytes(heddle_dtype dtype);
/* On the current device. */
heddle_status hd_cublas_multiply(hd_cublas_product *product, const heddle_product_call *call, cudaStream_t stream);

/* choose.c */
heddle_status hd_cublas_choose(hd_cublas_product *product, char *kernel, size_t kernel_bytes);

/* trial.c: does the algorithm of `product`, which takes all those heights, keep the bits of rows? */
typedef struct hd_cublas_trial hd_cublas_trial;
heddle_status hd_cublas_trial_begin(hd_cublas_trial **out, hd_cublas_product *product);
heddle_status hd_cublas_trial_run(int *keeps, hd_cublas_trial *trial, hd_cublas_product *product);
/* And are they those of the last one that ran so, up to that height? Of no outer product. */
heddle_status hd_cublas_trial_same(int *same, hd_cublas_trial *trial, hd_cublas_product *product, int64_t most_rows);
void hd_cublas_trial_end(hd_cublas_trial *trial); /* NULL is legal */
extern const int64_t hd_cublas_heights[];
extern const int hd_cublas_nheights;

#endif
