/* Which algorithms there are, which of them take what, and what a call asks for. */
#include "inside.h"

#include <stdlib.h>
#include <string.h>

static int bytes_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

int cublassim_shape(fake_product *p, const fake_desc *desc, const fake_layout *a, const fake_layout *b,
                    const fake_layout *d)
{
    p->desc = *desc;
    p->a = *a;
    p->b = *b;
    p->d = *d;
    p->m = desc->turned_a ? a->cols : a->rows;
    p->k = desc->turned_a ? a->rows : a->cols;
    p->n = desc->turned_b ? b->rows : b->cols;
    return d->rows == p->m && d->cols == p->n && (desc->turned_b ? b->cols : b->rows) == p->k && a->type == b->type &&
           (d->type == a->type || d->type == CUDA_R_32F) && a->ld >= (int64_t)a->rows && b->ld >= (int64_t)b->rows &&
           d->ld >= (int64_t)d->rows && p->m > 0 && p->n > 0 && p->k > 0 && desc->compute == CUBLAS_COMPUTE_32F;
}

static fake_algo algo_of(const cublasLtMatmulAlgo_t *algo)
{
    fake_algo of;
    memcpy(&of, algo, sizeof of);
    return of;
}

/* What varies with the rows of heddle's is the columns of b, but where b is turned. */
static int takes(char kind, const fake_product *p)
{
    return kind != 'r' || p->b.cols % 8 == 0;
}

static size_t workspace_of(const fake_product *p)
{
    return p->n >= FAKE_WORKSPACE_FROM ? FAKE_WORKSPACE : 0;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *out, int *nout)
{
    _Static_assert(sizeof(fake_algo) <= sizeof(cublasLtMatmulAlgo_t), "it lies there");
    const fake_preference *wanted = (const fake_preference *)(const void *)preference;
    fake_product p;
    cublasStatus_t status = cublassim_begin(__func__);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    if (handle == NULL || c != d || wanted->scheme != CUBLASLT_REDUCTION_SCHEME_NONE ||
        !cublassim_shape(&p, (const fake_desc *)(const void *)desc, (const fake_layout *)(const void *)a,
                         (const fake_layout *)(const void *)b, (const fake_layout *)(const void *)d)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const char *kinds = cublassim_kinds(p.b.cols);
    for (*nout = 0; *nout < most && kinds[*nout] != 0; ++*nout) {
        fake_algo made = {kinds[*nout], {0}};
        cublasLtMatmulHeuristicResult_t *to = &out[*nout];
        memcpy(made.alignment, wanted->alignment, sizeof made.alignment);
        memset(to, 0, sizeof *to);
        memcpy(&to->algo, &made, sizeof made);
        to->workspaceSize = workspace_of(&p);
        to->state = made.kind == 'f' ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    return *nout > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    fake_product p;
    cublasStatus_t status = cublassim_begin(__func__);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    if (handle == NULL || c != d ||
        !cublassim_shape(&p, (const fake_desc *)(const void *)desc, (const fake_layout *)(const void *)a,
                         (const fake_layout *)(const void *)b, (const fake_layout *)(const void *)d)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!takes(algo_of(algo).kind, &p)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    result->algo = *algo;
    result->workspaceSize = workspace_of(&p);
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t which, void *value,
                                                    size_t bytes, size_t *written)
{
    const char kind = algo_of(algo).kind;
    const int32_t answer = which == CUBLASLT_ALGO_CONFIG_ID           ? 100 + kind
                           : which == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? (kind == 's' ? 2 : 1)
                           : which == CUBLASLT_ALGO_CONFIG_TILE_ID    ? 20
                           : which == CUBLASLT_ALGO_CONFIG_STAGES_ID  ? 8
                                                                      : CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasStatus_t status = cublassim_begin(__func__);
    if (status == CUBLAS_STATUS_SUCCESS && (bytes != sizeof answer || written == NULL)) {
        status = CUBLAS_STATUS_INVALID_VALUE;
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        memcpy(value, &answer, sizeof answer);
        *written = sizeof answer;
    }
    return status;
}

static int is_aligned(const void *at, uint32_t bytes)
{
    return (uintptr_t)at % bytes == 0;
}

static int are_aligned(const fake_algo *algo, const fake_product *p)
{
    return is_aligned(p->at_a, algo->alignment[0]) && is_aligned(p->at_b, algo->alignment[1]) &&
           is_aligned(p->at_d, algo->alignment[2]) && is_aligned(p->at_d, algo->alignment[3]) &&
           is_aligned(p->workspace, 256) && is_aligned(p->desc.bias, (uint32_t)bytes_of(p->d.type));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    fake_algo chosen = {cublassim_kinds(0)[0], {1, 1, 1, 1}};
    float one = 0;
    cublasStatus_t status = cublassim_begin(__func__);
    fake_product *p = status == CUBLAS_STATUS_SUCCESS ? calloc(1, sizeof *p) : NULL;
    if (p == NULL) {
        return status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_ALLOC_FAILED : status;
    }
    chosen = algo != NULL ? algo_of(algo) : chosen;
    memcpy(&one, alpha, sizeof one);
    memcpy(&p->factor, beta, sizeof p->factor);
    p->at_a = a;
    p->at_b = b;
    p->at_d = d;
    p->kind = chosen.kind;
    const int fits =
        cublassim_shape(p, (const fake_desc *)(const void *)desc, (const fake_layout *)(const void *)a_layout,
                        (const fake_layout *)(const void *)b_layout, (const fake_layout *)(const void *)d_layout);
    p->workspace = workspace_of(p) > 0 ? workspace : NULL;
    if (handle == NULL || !fits || c != d || c_layout != d_layout || one != 1 || !are_aligned(&chosen, p) ||
        workspace_bytes < workspace_of(p) || (workspace_of(p) > 0 && workspace == NULL) ||
        (p->desc.epilogue == CUBLASLT_EPILOGUE_BIAS) != (p->desc.bias != NULL)) {
        free(p);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!takes(chosen.kind, p)) {
        free(p);
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return cublassim_enqueue(p, stream);
}
