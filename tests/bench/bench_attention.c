/* Attention kernels on blocks against the library's sgemm, one thread, by turns in one run.
 *
 *     bench_attention [sequence] [width] [seconds] */
#include "widest.h"

#include "runtime/base/base.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GEMM = 1024 };

typedef struct bench {
    int64_t s, d;
    float *q, *k, *v, *o, *g, *top, *sum, *lse, *delta, *dq, *dk, *dv, *a, *b, *c;
    void *scratch;
    const hd_attn_kernels *kernels;
} bench;

static float *filled(int64_t elems)
{
    float *x = aligned_alloc(64, ((size_t)elems * sizeof(float) + 63) / 64 * 64);
    for (int64_t i = 0; x != NULL && i < elems; i++) {
        x[i] = (float)(i * 7919 % 1999) / 1000 - 1;
    }
    return x;
}

static void run_forward(bench *x, int64_t diagonal)
{
    hd_attn_block block = {x->q, x->k, x->v, x->s, x->s, x->d, diagonal, 0.125};
    hd_attn_carry carry = {x->o, x->top, x->sum};
    memset(x->o, 0, (size_t)(x->s * x->d) * sizeof(float));
    memset(x->sum, 0, (size_t)x->s * sizeof(float));
    for (int64_t i = 0; i < x->s; i++) {
        x->top[i] = -__builtin_inff();
    }
    x->kernels->forward(&block, &carry, x->scratch);
    x->kernels->finish(&carry, x->lse, 1, x->s, x->d);
}

static void run_backward(bench *x)
{
    hd_attn_block block = {x->q, x->k, x->v, x->s, x->s, x->d, INT64_MAX, 0.125};
    hd_attn_grad grad = {x->g, x->top, x->sum, x->delta, x->dq, x->dk, x->dv};
    x->kernels->backward(&block, &grad, x->scratch);
}

int main(int argc, char **argv)
{
    bench x = {.s = argc > 1 ? atoll(argv[1]) : 1024, .d = argc > 2 ? atoll(argv[2]) : 64};
    double seconds = argc > 3 ? atof(argv[3]) : 2;
    float **all[] = {&x.q, &x.k, &x.v, &x.o, &x.g, &x.dq, &x.dk, &x.dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *all[i] = filled(x.s * x.d);
    }
    float **rows[] = {&x.top, &x.sum, &x.lse, &x.delta};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *rows[i] = filled(x.s);
    }
    x.a = filled(GEMM * GEMM);
    x.b = filled(GEMM * GEMM);
    x.c = filled(GEMM * GEMM);
    x.kernels = hd_kernels_attn(widest(), HEDDLE_F32);
    x.scratch = filled((int64_t)(x.kernels->scratch_bytes(x.d) / sizeof(float)));
    double best[4] = {1e30, 1e30, 1e30, 1e30};
    int64_t start_ns = hd_now_ns();
    for (int round = 0; round < 3 || (double)(hd_now_ns() - start_ns) < seconds * 1e9; round++) {
        for (int what = 0; what < 4; what++) {
            int64_t before_ns = hd_now_ns();
            if (what == 0) {
                dnnl_sgemm('N', 'N', GEMM, GEMM, GEMM, 1, x.a, GEMM, x.b, GEMM, 0, x.c, GEMM);
            } else if (what == 1) {
                run_forward(&x, INT64_MAX);
            } else if (what == 2) {
                run_backward(&x);
            } else {
                run_forward(&x, 0);
            }
            double ns = (double)(hd_now_ns() - before_ns);
            best[what] = round > 0 && ns < best[what] ? ns : best[what];
        }
    }
    double s2d = (double)x.s * (double)x.s * (double)x.d, gemm = 2.0 * GEMM * GEMM * GEMM / best[0];
    double forward = 4 * s2d / best[1], backward = 10 * s2d / best[2], causal = 2 * s2d / best[3];
    printf("%s, sequence %lld, width %lld: sgemm %.1f GFLOP/s (OMP_NUM_THREADS=1 for one thread)\n", x.kernels->name,
           (long long)x.s, (long long)x.d, gemm);
    printf("forward  %7.1f GFLOP/s  %.3f of sgemm\n", forward, forward / gemm);
    printf("backward %7.1f GFLOP/s  %.3f of sgemm\n", backward, backward / gemm);
    printf("causal   %7.1f GFLOP/s  %.3f of sgemm (half of the products counted)\n", causal, causal / gemm);
    return 0;
}
