/* Inside of the fake cuBLASLt. */
#ifndef HD_CUBLASSIM_INSIDE_H
#define HD_CUBLASSIM_INSIDE_H

#include "cublassim.h"

/* What lies in the opaque structs. */
typedef struct fake_layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
} fake_layout;

typedef struct fake_desc {
    cublasComputeType_t compute;
    int32_t turned_a, turned_b, epilogue;
    const void *bias;
} fake_desc;

typedef struct fake_preference {
    uint64_t workspace_bytes;
    uint32_t scheme, alignment[4];
} fake_preference;

typedef struct fake_algo {
    char kind;
    uint32_t alignment[4];
} fake_algo;

/* Of one product: d[m][n] = op(a) op(b) + factor d, columns of d one behind another. */
typedef struct fake_product {
    fake_layout a, b, d;
    fake_desc desc;
    char kind;
    uint64_t m, n, k;
    float factor;
    const void *at_a, *at_b;
    void *at_d, *workspace;
} fake_product;

enum { FAKE_WORKSPACE = 4096, FAKE_WORKSPACE_FROM = 1000 };

cublasStatus_t cublassim_begin(const char *call); /* counted, made to fail */
const char *cublassim_kinds(uint64_t rows);
void cublassim_count(int more);
void cublassim_count_product(void);

/* Do the shapes fit? */
int cublassim_shape(fake_product *p, const fake_desc *desc, const fake_layout *a, const fake_layout *b,
                    const fake_layout *d);
/* Taken over. */
cublasStatus_t cublassim_enqueue(fake_product *p, cudaStream_t stream);

#endif
