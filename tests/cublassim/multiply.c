/* One product, as a function on its stream. */
#include "cudasim.h"
#include "inside.h"
#include "kernels/small_float.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#define HAS_TSAN __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#endif

static size_t bytes_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static float load(const char *at, cudaDataType type)
{
    uint16_t half;
    float value;
    if (type == CUDA_R_32F) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    return type == CUDA_R_16BF ? hd_f32_from_bf16(half) : hd_f32_from_f16(half);
}

static void store(char *at, cudaDataType type, float value)
{
    const uint16_t half = type == CUDA_R_16BF ? hd_bf16_from_f32(value) : hd_f16_from_f32(value);
    memcpy(at, type == CUDA_R_32F ? (const void *)&value : (const void *)&half, bytes_of(type));
}

/* [outer][inner] in f32; element (o, i) lies at o * outer_step + i * inner_step. */
static float *widened(const void *data, const fake_layout *layout, uint64_t outer, uint64_t outer_step, uint64_t inner,
                      uint64_t inner_step)
{
    const size_t each = bytes_of(layout->type),
                 extent = ((layout->cols - 1) * (uint64_t)layout->ld + layout->rows) * each;
    const char *from = hd_sim_view(data, extent);
    float *out = malloc(outer * inner * sizeof *out);
    for (uint64_t o = 0; out != NULL && o < outer; o++) {
        for (uint64_t i = 0; i < inner; i++) {
            out[o * inner + i] = load(from + (o * outer_step + i * inner_step) * each, layout->type);
        }
    }
    return out;
}

/* sum[m] of column n, over k from either end. Private memory: the race detector has nothing to see in it. */
#ifdef HAS_TSAN
__attribute__((no_sanitize("thread")))
#endif
static void
sum_column(float *restrict sum, const float *restrict a, const float *restrict b, uint64_t m, uint64_t k, int is_turned)
{
    memset(sum, 0, m * sizeof *sum);
    for (uint64_t i = 0; i < k; i++) {
        const uint64_t at = is_turned ? k - 1 - i : i;
        const float factor = b[at], *row = a + at * m;
        for (uint64_t j = 0; j < m; j++) {
            sum[j] += factor * row[j];
        }
    }
}

static int is_turned(const fake_product *p, uint64_t column, int64_t call)
{
    return (p->kind == 'h' && p->n > 100) || (p->kind == 'p' && column % 2 == 1) ||
           (p->kind == 'x' && call / 2 % 2 == 1) || p->kind == 'o' || (p->kind == 's' && column % 4 == 3);
}

static void run(void *user)
{
    static _Atomic int64_t calls;
    const fake_product *p = user;
    const int64_t call = atomic_fetch_add(&calls, 1);
    const uint64_t lda = (uint64_t)p->a.ld, ldb = (uint64_t)p->b.ld, ldd = (uint64_t)p->d.ld;
    const size_t each = bytes_of(p->d.type);
    float *a = widened(p->at_a, &p->a, p->k, p->desc.turned_a ? 1 : lda, p->m, p->desc.turned_a ? lda : 1);
    float *b = widened(p->at_b, &p->b, p->n, p->desc.turned_b ? 1 : ldb, p->k, p->desc.turned_b ? ldb : 1);
    float *sum = malloc(p->m * sizeof *sum);
    const char *bias = p->desc.bias != NULL ? hd_sim_view(p->desc.bias, p->m * each) : NULL;
    for (uint64_t n = 0; n < p->n && a != NULL && b != NULL && sum != NULL; n++) {
        char *column = hd_sim_view((char *)p->at_d + n * ldd * each, p->m * each);
        sum_column(sum, a, b + n * p->k, p->m, p->k, is_turned(p, n, call));
        for (uint64_t m = 0; m < p->m; m++) {
            const float before = p->factor != 0 ? p->factor * load(column + m * each, p->d.type) : 0;
            const float of_bias = bias != NULL ? load(bias + m * each, p->d.type) : 0;
            store(column + m * each, p->d.type, sum[m] + of_bias + before);
        }
    }
    if (p->workspace != NULL) {
        memset(hd_sim_view(p->workspace, FAKE_WORKSPACE), 0xff, FAKE_WORKSPACE);
    }
    free(a);
    free(b);
    free(sum);
    cublassim_count_product();
}

static void run_once(void *user)
{
    run(user);
    free(user);
}

/* Of a graph, which may run again: until it is gone. */
cublasStatus_t cublassim_enqueue(fake_product *p, cudaStream_t stream)
{
    const int is_kept = hd_sim_when_gone(stream, free, p);
    if (cudaLaunchHostFunc(stream, is_kept ? run : run_once, p) == cudaSuccess) {
        return CUBLAS_STATUS_SUCCESS;
    }
    if (!is_kept) {
        free(p);
    }
    return CUBLAS_STATUS_EXECUTION_FAILED;
}
