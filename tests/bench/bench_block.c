/* Blocks against the machine, one thread: rates in GFLOP/s, and ratios inside this run.
 *
 *     bench_block [seconds per measurement] [training]
 *
 * Times are the best of many calls in CPU time of the one thread, so that other processes disturb them less.
 */
#include "kernels/gemm.h"
#include "kernels/small_float.h"
#include "kernels/table.h"
#include "runtime/base/base.h"
#include "runtime/verify/random.h"
#include "tests/support/block_calls.h"

#include <dnnl.h>
#include <heddle/train/tape.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    HEADS = 16,
    WIDTH = 72,
    C = HEADS * WIDTH,
    LONG = 1024,
    SHORT = 16,
    FIBRES = 16,
    /* of T = 16: what a block works on at a time */ CHUNK = 1024
};

static double budget_s = 0.25;

static void *filled(size_t elems, heddle_dtype dtype)
{
    void *memory = aligned_alloc(64, (elems * heddle_dtype_bytes(dtype) + 63) / 64 * 64);
    random_source source = {1};
    if (memory == NULL) {
        exit(1);
    }
    for (size_t i = 0; i < elems; i++) {
        float value = (float)random_unit(&source);
        if (dtype == HEDDLE_BF16) {
            ((uint16_t *)memory)[i] = hd_bf16_from_f32(value);
        } else {
            ((float *)memory)[i] = value;
        }
    }
    return memory;
}

static void must(heddle_status status)
{
    if (status != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        exit(1);
    }
}

static int64_t cpu_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* On a busy machine the best of three calls of 0.1 s can be half as fast as the best of twelve. */
enum { LEAST_CALLS = 12 };

/* Best time of one call, in seconds. */
static double best_of(void (*fn)(void *), void *arg)
{
    double best = 1e30;
    int64_t end = hd_now_ns() + (int64_t)(budget_s * 1e9);
    fn(arg);
    for (int call = 0; call < LEAST_CALLS || hd_now_ns() < end; call++) {
        int64_t start = cpu_now_ns();
        fn(arg);
        double spent = (double)(cpu_now_ns() - start) * 1e-9;
        best = spent < best ? spent : best;
    }
    return best;
}

static double report(const char *what, double flops, double seconds)
{
    double rate = flops / seconds * 1e-9;
    printf("%-58s %9.3f ms %8.1f GFLOP/s\n", what, seconds * 1e3, rate);
    return rate;
}

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

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Fused qkv rows, [fibre][t][3c] as the blocks gather them, or [t][fibre][3c] as the activation lies. */
typedef struct attention_case {
    const hd_kernels *kernels;
    heddle_dtype dtype;
    int64_t t;
    int64_t fibres;
    int64_t token_rows; /* rows from a token to the next, and from a fibre to the next */
    int64_t fibre_rows;
    char *qkv;
    char *out;
    void *scratch;
    float *scores;
} attention_case;

static void run_attention(void *arg)
{
    attention_case *a = arg;
    size_t elem = heddle_dtype_bytes(a->dtype);
    hd_attention_head head = {.dtype = a->dtype,
                              .nq = a->t,
                              .nk = a->t,
                              .d = WIDTH,
                              .q_stride = a->token_rows * 3 * C,
                              .kv_stride = a->token_rows * 3 * C,
                              .out_stride = a->token_rows * C,
                              .scale = 1.0f / sqrtf(WIDTH)};
    for (int64_t fibre = 0; fibre < a->fibres; fibre++) {
        for (int64_t h = 0; h < HEADS; h++) {
            head.q = a->qkv + (size_t)(fibre * a->fibre_rows * 3 * C + h * WIDTH) * elem;
            head.k = (const char *)head.q + C * elem;
            head.v = (const char *)head.k + C * elem;
            head.out = a->out + (size_t)(fibre * a->fibre_rows * C + h * WIDTH) * elem;
            a->kernels->attention(&head, a->scratch);
        }
    }
}

/* The usual way, softmax left out: both products of every fibre and head by strided sgemm. */
static void run_strided_sgemm(void *arg)
{
    attention_case *a = arg;
    dnnl_dim_t ld = a->token_rows * 3 * C;
    for (int64_t fibre = 0; fibre < a->fibres; fibre++) {
        for (int64_t h = 0; h < HEADS; h++) {
            const float *q = (const float *)a->qkv + fibre * a->fibre_rows * 3 * C + h * WIDTH;
            float *out = (float *)a->out + fibre * a->fibre_rows * C + h * WIDTH;
            dnnl_sgemm('N', 'T', a->t, a->t, WIDTH, 0.1f, q, ld, q + C, ld, 0, a->scores, a->t);
            dnnl_sgemm('N', 'N', a->t, WIDTH, a->t, 1, a->scores, a->t, q + 2 * C, ld, 0, out, a->token_rows * C);
        }
    }
}

typedef struct batched_case {
    dnnl_stream_t stream;
    int softmax; /* counted? */
    dnnl_primitive_t soft;
    dnnl_memory_t scores;
    dnnl_primitive_t product[2];
    dnnl_memory_t memory[2][3];
} batched_case;

static void run_batched(void *arg)
{
    batched_case *b = arg;
    for (int i = 0; i < 2; i++) {
        dnnl_exec_arg_t arguments[] = {
            {DNNL_ARG_SRC, b->memory[i][0]}, {DNNL_ARG_WEIGHTS, b->memory[i][1]}, {DNNL_ARG_DST, b->memory[i][2]}};
        dnnl_primitive_execute(b->product[i], b->stream, 3, arguments);
        if (i == 0 && b->softmax) {
            dnnl_exec_arg_t in_place[] = {{DNNL_ARG_SRC, b->scores}, {DNNL_ARG_DST, b->scores}};
            dnnl_primitive_execute(b->soft, b->stream, 2, in_place);
        }
    }
}

static void make_softmax(batched_case *b, const dnnl_memory_desc_t *scores, dnnl_engine_t engine, float *data)
{
    dnnl_softmax_desc_t softmax;
    dnnl_primitive_desc_t descriptor;
    dnnl_softmax_forward_desc_init(&softmax, dnnl_forward_inference, scores, 3);
    dnnl_primitive_desc_create(&descriptor, &softmax, NULL, engine, NULL);
    dnnl_primitive_create(&b->soft, descriptor);
    dnnl_primitive_desc_destroy(descriptor);
    dnnl_memory_create(&b->scores, scores, engine, data);
}

/* The same as two batched matmuls [fibre][head] of oneDNN over the strided tensors, without and with oneDNN's softmax
 * between them. Returns the rate without. */
static double bench_batched(const attention_case *a, double flops)
{
    batched_case b;
    dnnl_engine_t engine;
    dnnl_engine_create(&engine, dnnl_cpu, 0);
    dnnl_stream_create(&b.stream, engine, dnnl_stream_default_flags);
    const dnnl_dim_t t = a->t;
    const dnnl_dim_t row = a->token_rows * 3 * C;
    const dnnl_dim_t next = a->fibre_rows;
    const dnnl_dims_t tall = {a->fibres, HEADS, t, WIDTH}, wide = {a->fibres, HEADS, WIDTH, t};
    const dnnl_dims_t square = {a->fibres, HEADS, t, t};
    const dnnl_dims_t rows = {next * 3 * C, WIDTH, row, 1}, columns = {next * 3 * C, WIDTH, 1, row};
    const dnnl_dims_t dense = {HEADS * t * t, t * t, t, 1}, out = {next * C, WIDTH, row / 3, 1};
    dnnl_memory_desc_t q, k, s, v, o;
    dnnl_memory_desc_init_by_strides(&q, 4, tall, dnnl_f32, rows);
    dnnl_memory_desc_init_by_strides(&k, 4, wide, dnnl_f32, columns);
    dnnl_memory_desc_init_by_strides(&s, 4, square, dnnl_f32, dense);
    dnnl_memory_desc_init_by_strides(&v, 4, tall, dnnl_f32, rows);
    dnnl_memory_desc_init_by_strides(&o, 4, tall, dnnl_f32, out);
    const dnnl_memory_desc_t *desc[2][3] = {{&q, &k, &s}, {&s, &v, &o}};
    float *qkv = (float *)a->qkv;
    float *data[2][3] = {{qkv, qkv + C, a->scores}, {a->scores, qkv + 2 * C, (float *)a->out}};
    for (int i = 0; i < 2; i++) {
        dnnl_matmul_desc_t matmul;
        dnnl_primitive_desc_t descriptor;
        dnnl_matmul_desc_init(&matmul, desc[i][0], desc[i][1], NULL, desc[i][2]);
        if (dnnl_primitive_desc_create(&descriptor, &matmul, NULL, engine, NULL) != dnnl_success) {
            printf("    batched strided matmul: not available\n");
            return 0;
        }
        dnnl_primitive_create(&b.product[i], descriptor);
        dnnl_primitive_desc_destroy(descriptor);
        for (int j = 0; j < 3; j++) {
            dnnl_memory_create(&b.memory[i][j], desc[i][j], engine, data[i][j]);
        }
    }
    make_softmax(&b, &s, engine, a->scores);
    b.softmax = 0;
    double rate = report("    batched strided matmul, softmax not counted", flops, best_of(run_batched, &b));
    b.softmax = 1;
    report("    the same with oneDNN's softmax", flops, best_of(run_batched, &b));
    dnnl_memory_destroy(b.scores);
    dnnl_primitive_destroy(b.soft);
    for (int i = 0; i < 2; i++) {
        dnnl_primitive_destroy(b.product[i]);
        for (int j = 0; j < 3; j++) {
            dnnl_memory_destroy(b.memory[i][j]);
        }
    }
    dnnl_stream_destroy(b.stream);
    dnnl_engine_destroy(engine);
    return rate;
}

static attention_case attention_of(const hd_kernels *kernels, heddle_dtype dtype, int64_t t, int64_t fibres,
                                   int gathered)
{
    attention_case a = {.kernels = kernels, .dtype = dtype, .t = t, .fibres = fibres};
    a.token_rows = gathered ? 1 : fibres;
    a.fibre_rows = gathered ? t : 1;
    a.qkv = filled((size_t)(t * fibres * 3 * C), dtype);
    a.out = filled((size_t)(t * fibres * C), dtype);
    a.scratch = filled(kernels->attention_scratch_bytes(t, WIDTH) / sizeof(float), HEDDLE_F32);
    a.scores = filled((size_t)(fibres * HEADS * t * t), HEDDLE_F32);
    return a;
}

static void free_attention(attention_case *a)
{
    free(a->qkv);
    free(a->out);
    free(a->scratch);
    free(a->scores);
}

static void bench_long(const hd_kernels *kernels, heddle_dtype dtype, double sgemm)
{
    char name[80];
    attention_case a = attention_of(kernels, dtype, LONG, 1, 1);
    snprintf(name, sizeof name, "attention S = 1024, 16 x 72, %s, %s", heddle_dtype_name(dtype), kernels->name);
    double rate = report(name, 4.0 * LONG * LONG * C, best_of(run_attention, &a));
    printf("    %.2f of sgemm\n", rate / sgemm);
    free_attention(&a);
}

static void bench_short(const hd_kernels *kernels, heddle_dtype dtype, int gathered)
{
    char name[80];
    attention_case a = attention_of(kernels, dtype, SHORT, FIBRES, gathered);
    double flops = 4.0 * SHORT * SHORT * C * FIBRES;
    snprintf(name, sizeof name, "attention T = 16, 16 x 72, %s, %s, %s", heddle_dtype_name(dtype), kernels->name,
             gathered ? "fibre by fibre" : "in place");
    double rate = report(name, flops, best_of(run_attention, &a));
    if (dtype == HEDDLE_F32) {
        double strided =
            report("    one strided sgemm each, softmax not counted", flops, best_of(run_strided_sgemm, &a));
        double batched = bench_batched(&a, flops);
        printf("    %.2f x strided sgemm, %.2f x batched matmul\n", rate / strided, rate / batched);
    }
    free_attention(&a);
}

static void bench_attention(double sgemm)
{
    static const char *const names[] = {"avx512", "avx2"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const hd_kernels *kernels = hd_kernels_named(names[i]);
        if (kernels != NULL) {
            bench_long(kernels, HEDDLE_F32, sgemm);
            bench_long(kernels, HEDDLE_BF16, sgemm);
            bench_short(kernels, HEDDLE_F32, 1);
            bench_short(kernels, HEDDLE_F32, 0);
            bench_short(kernels, HEDDLE_BF16, 1);
        }
    }
}

/* --- whole stages ------------------------------------------------------------------------------------------------- */

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

static double bench_stage(heddle_stage_kind kind, int mixed_dim, heddle_dtype dtype)
{
    const int64_t t = 16, s = 256, rows = t * s;
    stage_case stage;
    memset(&stage, 0, sizeof stage);
    heddle_block_options options;
    heddle_block_options_init(&options);
    char text[80];
    snprintf(text, sizeof text, "%s[b=1 t=16 s=256 c=1152]", heddle_dtype_name(dtype));
    must(heddle_shape_parse(&options.shape, text));
    options.kind = kind;
    options.mixed_dim = mixed_dim;
    options.heads = HEADS;
    options.mlp_channels = kind == HEDDLE_STAGE_MLP ? 4 * C : 0;
    options.text_tokens = kind == HEDDLE_STAGE_CROSS ? 300 : 0;
    options.qk_norm = 1;
    options.rope = mixed_dim == 1;
    must(heddle_block_create(&stage.block, &options));
    must(heddle_block_seed(stage.block, 1));
    stage.x = filled((size_t)(rows * C), dtype);
    stage.box = (heddle_box){.ndim = 4, .len = {1, t, s, C}};
    stage.conditioning.vector = filled(6 * C, HEDDLE_F32);
    stage.conditioning.text = filled(300 * C, HEDDLE_F32);
    double fibre = mixed_dim == 1 ? (double)t : (double)s;
    double per_row = kind == HEDDLE_STAGE_ATTENTION ? 8.0 * C * C + 4.0 * fibre * C
                     : kind == HEDDLE_STAGE_MLP     ? 16.0 * C * C
                                                    : 4.0 * C * C + 4.0 * 300 * C + 4.0 * 300 * C * C / (double)rows;
    snprintf(text, sizeof text, "%s stage, %s, t=16 s=256",
             kind == HEDDLE_STAGE_MLP     ? "mlp"
             : kind == HEDDLE_STAGE_CROSS ? "cross"
             : mixed_dim == 1             ? "temporal"
                                          : "spatial",
             heddle_dtype_name(dtype));
    double rate = report(text, per_row * (double)rows, best_of(run_stage, &stage));
    heddle_block_destroy(stage.block);
    free(stage.x);
    free((void *)(uintptr_t)stage.conditioning.vector);
    free((void *)(uintptr_t)stage.conditioning.text);
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
    heddle_block_options options;
    heddle_tape_options tape_options;
    char text[80];
    memset(&t, 0, sizeof t);
    heddle_block_options_init(&options);
    heddle_tape_options_init(&tape_options);
    snprintf(text, sizeof text, "%s[b=1 s=1024 c=1152]", heddle_dtype_name(dtype));
    must(heddle_shape_parse(&options.shape, text));
    options.kind = kind;
    options.mixed_dim = 1;
    options.heads = HEADS;
    options.mlp_channels = 4 * C;
    options.text_tokens = 300;
    options.qk_norm = kind == HEDDLE_STAGE_ATTENTION;
    options.rope = 1;
    tape_options.recompute = recompute;
    must(heddle_block_create(&t.stage.block, &options));
    must(heddle_block_seed(t.stage.block, 1));
    must(heddle_tape_create(&t.tape, t.stage.block, &tape_options));
    t.stage.x = filled(LONG * C, dtype);
    t.dx = filled(LONG * C, dtype);
    t.stage.box = (heddle_box){.ndim = 3, .len = {1, LONG, C}};
    t.stage.conditioning.vector = filled(6 * C, HEDDLE_F32);
    t.stage.conditioning.text = filled(300 * C, HEDDLE_F32);
    t.wanted.vector = filled(6 * C, HEDDLE_F32);
    t.wanted.text = filled(300 * C, HEDDLE_F32);
    double flops = LONG * (kind == HEDDLE_STAGE_ATTENTION || kind == HEDDLE_STAGE_LINEAR ? 8.0 * C * C
                           : kind == HEDDLE_STAGE_MLP                                    ? 16.0 * C * C
                                                      : 4.0 * C * C + 4.0 * 300 * C + 4.0 * 300 * C * C / LONG);
    flops += kind == HEDDLE_STAGE_ATTENTION ? 4.0 * LONG * LONG * C
             : kind == HEDDLE_STAGE_LINEAR  ? 4.0 * LONG * WIDTH * C
                                            : 0;
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
    heddle_block_destroy(t.stage.block);
    free(t.stage.x);
    free(t.dx);
    free((void *)(uintptr_t)t.stage.conditioning.vector);
    free((void *)(uintptr_t)t.stage.conditioning.text);
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
