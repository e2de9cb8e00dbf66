/* Blocks against the machine, one thread: rates in GFLOP/s, and ratios inside this run.
 *
 *     bench_block [seconds per measurement] [training]
 *
 * Times are the best of many calls in CPU time of the one thread, so that other processes disturb them less.
 */
#include "block_kit.h"
#include "kernels/gemm.h"
#include "runtime/base/base.h"
#include "tests/support/block_calls.h"

#include <dnnl.h>
#include <heddle/train/tape.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- oneDNN ------------------------------------------------------------------------------------------------------- */

typedef struct sgemm_case {
    dnnl_dim_t m, n, k;
    float *a, *b, *c;
} sgemm_case;

static void run_sgemm(void *arg)
{
    sgemm_case *s = arg;
    dnnl_sgemm('N', 'N', s->m, s->n, s->k, 1, s->a, s->k, s->b, s->n, 0, s->c, s->n);
}

static double bench_sgemm(dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k)
{
    char name[80];
    sgemm_case s = {m,
                    n,
                    k,
                    filled((size_t)(m * k), HEDDLE_F32),
                    filled((size_t)(k * n), HEDDLE_F32),
                    filled((size_t)(m * n), HEDDLE_F32)};
    snprintf(name, sizeof name, "dnnl_sgemm %lld x %lld x %lld", (long long)m, (long long)n, (long long)k);
    double rate = report(name, 2.0 * (double)m * (double)n * (double)k, best_of(run_sgemm, &s));
    free(s.a);
    free(s.b);
    free(s.c);
    return rate;
}

typedef struct linear_case {
    hd_gemm *gemm;
    void *dst;
    void *src;
} linear_case;

static void run_linear(void *arg)
{
    linear_case *l = arg;
    must(hd_gemm_run(l->gemm, 0, l->dst, l->src, CHUNK));
}

static double bench_linear(int64_t k, int64_t n, heddle_dtype dtype)
{
    char name[80];
    linear_case l = {NULL, filled((size_t)(CHUNK * n), HEDDLE_F32), filled((size_t)(CHUNK * k), dtype)};
    float *weight = filled((size_t)(n * k), HEDDLE_F32);
    const hd_kernels *kernels = NULL;
    must(hd_kernels_cpu(&kernels));
    must(hd_gemm_create(&l.gemm, kernels, k, n, dtype, HEDDLE_F32, 1));
    must(hd_gemm_pack(l.gemm, weight, NULL));
    snprintf(name, sizeof name, "linear %s %lld to %lld, blocks of %lld rows (%s)", heddle_dtype_name(dtype),
             (long long)k, (long long)n, (long long)hd_gemm_block_rows(l.gemm), hd_gemm_kernel(l.gemm));
    double rate = report(name, 2.0 * CHUNK * (double)k * (double)n, best_of(run_linear, &l));
    hd_gemm_destroy(l.gemm);
    free(weight);
    free(l.dst);
    free(l.src);
    return rate;
}

/* --- whole stages ------------------------------------------------------------------------------------------------- */

enum { TOKENS = 300 };

typedef struct stage_case {
    heddle_block *block;
    void *x;
    heddle_box box;
    heddle_conditioning conditioning;
} stage_case;

static void run_stage(void *arg)
{
    stage_case *s = arg;
    must(forward_on(s->block, s->x, &s->box, &s->conditioning));
}

/* `rope` and text for whoever takes them. */
static void open_stage(stage_case *s, heddle_stage_kind kind, int mixed_dim, heddle_dtype dtype, const char *dims,
                       int rope)
{
    heddle_block_options options;
    char text[80];
    memset(s, 0, sizeof *s);
    heddle_block_options_init(&options);
    snprintf(text, sizeof text, "%s%s", heddle_dtype_name(dtype), dims);
    must(heddle_shape_parse(&options.shape, text));
    options.kind = kind;
    options.mixed_dim = mixed_dim;
    options.heads = HEADS;
    options.mlp_channels = 4 * C;
    options.text_tokens = TOKENS;
    options.qk_norm = kind == HEDDLE_STAGE_ATTENTION;
    options.rope = rope;
    must(heddle_block_create(&s->block, &options));
    must(heddle_block_seed(s->block, 1));
    s->box.ndim = options.shape.ndim;
    size_t elems = 1;
    for (int d = 0; d < s->box.ndim; d++) {
        s->box.len[d] = options.shape.dim[d].extent;
        elems *= (size_t)s->box.len[d];
    }
    s->x = filled(elems, dtype);
    s->conditioning.vector = filled(6 * C, HEDDLE_F32);
    s->conditioning.text = filled(TOKENS * C, HEDDLE_F32);
}

static void close_stage(stage_case *s)
{
    heddle_block_destroy(s->block);
    free(s->x);
    free((void *)(uintptr_t)s->conditioning.vector);
    free((void *)(uintptr_t)s->conditioning.text);
}

/* Operations of a forward over `rows` rows in fibres of `fibre`. */
static double flops_of(heddle_stage_kind kind, double rows, double fibre)
{
    switch (kind) {
    case HEDDLE_STAGE_ATTENTION:
        return rows * (8.0 * C * C + 4.0 * fibre * C);
    case HEDDLE_STAGE_LINEAR:
        return rows * (8.0 * C * C + 4.0 * WIDTH * C);
    case HEDDLE_STAGE_MLP:
        return rows * 16.0 * C * C;
    default:
        return rows * (4.0 * C * C + 4.0 * TOKENS * C) + 4.0 * TOKENS * C * C;
    }
}

static double bench_stage(heddle_stage_kind kind, int mixed_dim, heddle_dtype dtype)
{
    const int64_t t = 16, s = 256;
    stage_case stage;
    char text[80];
    open_stage(&stage, kind, mixed_dim, dtype, "[b=1 t=16 s=256 c=1152]", mixed_dim == 1);
    snprintf(text, sizeof text, "%s stage, %s, t=16 s=256",
             kind == HEDDLE_STAGE_MLP     ? "mlp"
             : kind == HEDDLE_STAGE_CROSS ? "cross"
             : mixed_dim == 1             ? "temporal"
                                          : "spatial",
             heddle_dtype_name(dtype));
    double flops = flops_of(kind, (double)(t * s), mixed_dim == 1 ? (double)t : (double)s);
    double rate = report(text, flops, best_of(run_stage, &stage));
    close_stage(&stage);
    return rate;
}

/* --- training ----------------------------------------------------------------------------------------------------- */

typedef struct train_case {
    stage_case stage;
    heddle_tape *tape;
    void *dx;
    heddle_conditioning_gradient wanted;
} train_case;

static void run_tape(void *arg)
{
    train_case *t = arg;
    must(forward_tape_on(t->stage.block, t->stage.x, &t->stage.box, &t->stage.conditioning, t->tape));
}

static void run_backward(void *arg)
{
    train_case *t = arg;
    must(backward_on(t->stage.block, t->dx, &t->stage.conditioning, &t->wanted, t->tape));
}

/* 1024 tokens of one fibre: forward, forward with a tape, backward, which counts twice the forward's operations. */
static void bench_training(heddle_stage_kind kind, heddle_dtype dtype, int recompute, double sgemm)
{
    train_case t;
    heddle_tape_options tape_options;
    char text[80];
    memset(&t, 0, sizeof t);
    heddle_tape_options_init(&tape_options);
    tape_options.recompute = recompute;
    open_stage(&t.stage, kind, 1, dtype, "[b=1 s=1024 c=1152]", 1);
    must(heddle_tape_create(&t.tape, t.stage.block, &tape_options));
    t.dx = filled(LONG * C, dtype);
    t.wanted.vector = filled(6 * C, HEDDLE_F32);
    t.wanted.text = filled(TOKENS * C, HEDDLE_F32);
    double flops = flops_of(kind, LONG, LONG);
    static const char *const name[] = {"attention", "cross", "mlp", "linear"};
    snprintf(text, sizeof text, "%s forward, %s, 1024 tokens", name[kind], heddle_dtype_name(dtype));
    double forward = best_of(run_stage, &t.stage);
    report(text, flops, forward);
    report("    with a tape", flops, best_of(run_tape, &t));
    double backward = best_of(run_backward, &t);
    double rate = report(recompute ? "    backward, recomputing" : "    backward", 2 * flops, backward);
    printf("    backward %.2f x forward, %.2f of sgemm; the tape keeps %.1f MiB\n", backward / forward, rate / sgemm,
           (double)heddle_tape_bytes(t.tape) / 0x1p20);
    heddle_tape_destroy(t.tape);
    close_stage(&t.stage);
    free(t.dx);
    free(t.wanted.vector);
    free(t.wanted.text);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        budget_s = strtod(argv[1], NULL);
    }
    int training_only = argc > 2 && strcmp(argv[2], "training") == 0;
    hd_gemm_enter();
    double sgemm = bench_sgemm(1024, 3 * C, C);
    sgemm = fmax(sgemm, bench_sgemm(2048, 2048, 2048));
    sgemm = fmax(sgemm, bench_linear(C, 3 * C, HEDDLE_F32));
    printf("    sgemm of this run: %.1f GFLOP/s\n", sgemm);
    for (int kind = HEDDLE_STAGE_ATTENTION; kind <= HEDDLE_STAGE_LINEAR; kind++) {
        bench_training((heddle_stage_kind)kind, HEDDLE_F32, 0, sgemm);
        bench_training((heddle_stage_kind)kind, HEDDLE_F32, 1, sgemm);
        bench_training((heddle_stage_kind)kind, HEDDLE_BF16, 0, sgemm);
    }
    if (training_only) {
        return 0;
    }
    bench_linear(C, C, HEDDLE_F32);
    bench_linear(C, 4 * C, HEDDLE_F32);
    bench_linear(4 * C, C, HEDDLE_F32);
    bench_linear(C, 3 * C, HEDDLE_BF16);
    bench_linear(4 * C, C, HEDDLE_BF16);
    bench_attention(sgemm);
    static const struct {
        heddle_stage_kind kind;
        int mixed_dim;
    } stage[] = {
        {HEDDLE_STAGE_ATTENTION, 2}, {HEDDLE_STAGE_ATTENTION, 1}, {HEDDLE_STAGE_CROSS, -1}, {HEDDLE_STAGE_MLP, -1}};
    for (size_t i = 0; i < sizeof stage / sizeof stage[0]; i++) {
        double plain = bench_stage(stage[i].kind, stage[i].mixed_dim, HEDDLE_F32);
        double narrow = bench_stage(stage[i].kind, stage[i].mixed_dim, HEDDLE_BF16);
        printf("    bf16 %.2f x as fast as f32\n", narrow / plain);
    }
    return 0;
}
