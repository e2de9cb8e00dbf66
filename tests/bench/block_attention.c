/* Attention of one thread against strided products of oneDNN. */
#include "block_kit.h"
#include "kernels/table.h"

#include <dnnl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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

void bench_attention(double sgemm)
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
