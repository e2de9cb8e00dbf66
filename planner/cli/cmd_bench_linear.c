/* heddle bench linear-attention: a method on real ranks against the same work on one rank with as many threads. */
#include "launch.h"
#include "planner/report/text.h"
#include "problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_SAMPLES = 100000, MIN_SAMPLES = 10 };

typedef struct request {
    linear_case problem;
    int ranks, backward, json;
    int64_t iterations, seconds;
} request;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

typedef struct bench_arrays {
    void *memory[8]; /* q k v d_o o dq dk dv */
    heddle_attention_array array[8];
} bench_arrays;

static void free_arrays(bench_arrays *x)
{
    for (int i = 0; i < 8; i++) {
        free(x->memory[i]);
    }
}

static heddle_status make_arrays(bench_arrays *x, const linear_case *c, const heddle_box *box)
{
    int64_t dk = box->len[3], dv = c->options.dv > 0 ? c->options.dv : dk;
    int64_t rows = box->len[0] * box->len[1] * box->len[2];
    random_source source = {c->seed};
    memset(x, 0, sizeof *x);
    for (int i = 0; i < 8; i++) {
        int64_t elems = rows * (i == 2 || i == 3 || i == 4 || i == 7 ? dv : dk);
        size_t elem_bytes = heddle_dtype_bytes(c->shape.dtype);
        x->memory[i] = calloc((size_t)elems + 1, elem_bytes);
        if (x->memory[i] == NULL) {
            free_arrays(x);
            return HEDDLE_ERR_NOMEM;
        }
        for (int64_t e = 0; e < elems; e++) {
            double value = (double)(int64_t)(random_bits(&source) >> 40) / (double)(1 << 23) - 1;
            float narrow = (float)value;
            const void *from = c->shape.dtype == HEDDLE_F64 ? (const void *)&value : &narrow;
            const char *top = (const char *)from + (c->shape.dtype == HEDDLE_BF16 ? 2 : 0); /* upper half: bf16 */
            memcpy((char *)x->memory[i] + (size_t)e * elem_bytes, top, elem_bytes);
        }
        x->array[i].data = x->memory[i];
    }
    return HEDDLE_OK;
}

static heddle_status call(heddle_linear_attention *a, bench_arrays *x, int backward)
{
    heddle_attention_array *t = x->array;
    return backward
               ? heddle_linear_attention_backward(a, &t[0], &t[1], &t[2], &t[3], &t[5], &t[6], &t[7], HEDDLE_NO_STREAM)
               : heddle_linear_attention_forward(a, &t[0], &t[1], &t[2], &t[4], HEDDLE_NO_STREAM);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct bench_result {
    double min_ms, median_ms, mean_ms;
    int samples;
    heddle_linear_attention_info info;
} bench_result;

/* Rank 0 says how many calls there are to be. */
static heddle_status count_samples(int *out, heddle_comm *comm, const request *r, double first_ms)
{
    int n = heddle_comm_size(comm);
    int64_t fits = (int64_t)((double)r->seconds * 1e3 / (first_ms > 1e-3 ? first_ms : 1e-3));
    int64_t own = r->iterations > 0 ? r->iterations : fits < MIN_SAMPLES ? MIN_SAMPLES : fits;
    int64_t *all = calloc((size_t)n, sizeof *all);
    own = own > MAX_SAMPLES ? MAX_SAMPLES : own;
    heddle_status st = all == NULL ? HEDDLE_ERR_NOMEM : heddle_comm_allgather(comm, &own, all, sizeof own);
    *out = st == HEDDLE_OK ? (int)all[0] : 0;
    free(all);
    return st;
}

static heddle_status time_calls(bench_result *out, heddle_comm *comm, heddle_linear_attention *a, bench_arrays *x,
                                const request *r)
{
    int n = heddle_comm_size(comm);
    double *sample = NULL, *all = calloc((size_t)n, sizeof *all);
    heddle_status st = all == NULL ? HEDDLE_ERR_NOMEM : call(a, x, 0);
    st = st == HEDDLE_OK ? call(a, x, r->backward) : st;
    double start = now_ms();
    st = st == HEDDLE_OK ? call(a, x, r->backward) : st;
    st = st == HEDDLE_OK ? count_samples(&out->samples, comm, r, now_ms() - start) : st;
    out->info.struct_bytes = sizeof out->info;
    st = st == HEDDLE_OK ? heddle_linear_attention_get_info(&out->info, a) : st;
    int64_t waited_before = out->info.wait_ns;
    sample = calloc((size_t)out->samples + 1, sizeof *sample);
    st = sample == NULL ? HEDDLE_ERR_NOMEM : st;
    for (int i = 0; i < out->samples && st == HEDDLE_OK; i++) {
        st = heddle_comm_barrier(comm);
        start = now_ms();
        st = st == HEDDLE_OK ? call(a, x, r->backward) : st;
        double took = now_ms() - start;
        st = st == HEDDLE_OK ? heddle_comm_allgather(comm, &took, all, sizeof took) : st;
        for (int p = 0; p < n && st == HEDDLE_OK; p++) {
            sample[i] = all[p] > sample[i] ? all[p] : sample[i];
        }
        out->mean_ms += sample[i] / out->samples;
    }
    st = st == HEDDLE_OK ? heddle_linear_attention_get_info(&out->info, a) : st;
    if (st == HEDDLE_OK) {
        qsort(sample, (size_t)out->samples, sizeof *sample, compare_doubles);
        out->min_ms = sample[0];
        out->median_ms = sample[out->samples / 2];
        out->info.wait_ns -= waited_before;
    }
    free(sample);
    free(all);
    return st;
}

static heddle_status bench_problem(bench_result *out, heddle_comm *comm, const linear_case *c, const request *r)
{
    heddle_linear_attention *a = NULL;
    heddle_box box;
    bench_arrays x;
    linear_case copy = *c;
    memset(out, 0, sizeof *out);
    copy.options.decay = copy.decay;
    heddle_status st = heddle_linear_attention_create(&a, comm, &copy.shape, &copy.mesh, &copy.layout, &copy.options);
    st = st == HEDDLE_OK ? heddle_layout_box(&box, &copy.shape, &copy.mesh, &copy.layout, heddle_comm_rank(comm)) : st;
    if (st == HEDDLE_OK) {
        st = make_arrays(&x, &copy, &box);
        if (st == HEDDLE_OK) {
            st = time_calls(out, comm, a, &x, r);
            free_arrays(&x);
        }
    }
    heddle_linear_attention_destroy(a);
    return st;
}

/* One rank, as many threads as there were ranks. */
static heddle_status bench_local(bench_result *out, const request *r)
{
    heddle_comm *self = NULL;
    linear_case c = r->problem;
    c.layout = heddle_layout_replicated();
    c.mesh.naxes = 1;
    c.mesh.axis[0].size = 1;
    c.options.method = HEDDLE_LINEAR_LOCAL;
    c.options.receive_first = 0;
    c.options.threads = (int)r->ranks * (c.options.threads > 0 ? c.options.threads : 1);
    c.options.threads = c.options.threads > 256 ? 256 : c.options.threads;
    heddle_status st = heddle_comm_open(&self, "self", NULL);
    st = st == HEDDLE_OK ? bench_problem(out, self, &c, r) : st;
    heddle_comm_destroy(self);
    return st;
}

static double flops_of(const request *r, int64_t chunk)
{
    const heddle_shape *s = &r->problem.shape;
    double rows = (double)(s->dim[0].extent * s->dim[1].extent * s->dim[2].extent), dk = (double)s->dim[3].extent;
    double dv = r->problem.options.dv > 0 ? (double)r->problem.options.dv : dk;
    double both = r->problem.options.bidirectional ? 2 : 1;
    double seen = both == 2 ? (double)chunk : ((double)chunk + 1) / 2;
    return r->backward ? rows * (2 * seen * (3 * dk + 2 * dv) + both * 8 * dk * dv)
                       : rows * (2 * seen * (dk + dv) + both * 4 * dk * dv);
}

static void print_result(const request *r, const heddle_comm *comm, const bench_result *ranks,
                         const bench_result *local, double overlap)
{
    char text[2048];
    struct rusage usage_now;
    getrusage(RUSAGE_SELF, &usage_now);
    heddle_attention_traffic most, all;
    linear_traffic(&most, &all, &r->problem); /* has been planned before: cannot fail */
    long long bytes = r->backward ? most.backward_bytes : most.forward_bytes;
    long long messages = r->backward ? most.backward_messages : most.forward_messages;
    long long peak = (long long)usage_now.ru_maxrss * 1024;
    double gflops = flops_of(r, ranks->info.chunk_rows) / ranks->min_ms * 1e-6;
    linear_describe(text, sizeof text, &r->problem);
    if (r->json) {
        printf("{\"problem\": ");
        report_json_text(stdout, text);
        printf(", \"pass\": \"%s\", \"ranks\": %d, \"comm\": ", r->backward ? "backward" : "forward",
               heddle_comm_size(comm));
        report_json_text(stdout, heddle_comm_describe(comm));
        printf(",\n");
        printf(" \"min_ms\": %.6f, \"median_ms\": %.6f, \"local_min_ms\": %.6f, \"local_median_ms\": %.6f,\n",
               ranks->min_ms, ranks->median_ms, local->min_ms, local->median_ms);
        printf(
            " \"bytes_per_rank\": %lld, \"messages_per_rank\": %lld, \"serial_steps\": %lld, \"peak_bytes\": %lld,\n",
            bytes, messages, (long long)ranks->info.serial_steps, peak);
        printf(" \"saved_bytes\": %lld, \"workspace_bytes\": %lld, \"overlap\": %.4f, \"gflops\": %.3f,\n",
               (long long)ranks->info.saved_bytes, (long long)ranks->info.workspace_bytes, overlap, gflops);
        printf(" \"samples\": %d, \"chunk_rows\": %lld, \"kernel\": \"%s\", \"why\": ", ranks->samples,
               (long long)ranks->info.chunk_rows, ranks->info.kernel);
        report_json_text(stdout, ranks->info.why);
        printf("}\n");
    } else {
        printf("%s\n%s, %s\n", text, heddle_comm_describe(comm), r->backward ? "backward" : "forward");
        printf("%-8s %12s %12s\n", "", "min ms", "median ms");
        printf("%-8s %12.4f %12.4f   %.2f GFLOP/s, chunks of %lld rows, %s\n", "ranks", ranks->min_ms, ranks->median_ms,
               gflops, (long long)ranks->info.chunk_rows, ranks->info.kernel);
        printf("%-8s %12.4f %12.4f\n", "local", local->min_ms, local->median_ms);
        printf(
            "a rank sends up to %lld bytes in %lld messages, %lld follow one another; overlap %.3f; peak %lld bytes\n",
            bytes, messages, (long long)ranks->info.serial_steps, overlap, peak);
        printf("why: %s\n", ranks->info.why);
    }
    fflush(stdout);
}

static heddle_status bench_main(heddle_comm *comm, void *arg)
{
    const request *r = arg;
    bench_result ranks, local;
    double waited = 0, *all = calloc((size_t)heddle_comm_size(comm), sizeof *all);
    heddle_status st = all == NULL ? HEDDLE_ERR_NOMEM : bench_problem(&ranks, comm, &r->problem, r);
    if (st == HEDDLE_OK) {
        waited = (double)ranks.info.wait_ns * 1e-6 / ranks.samples;
        st = heddle_comm_allgather(comm, &waited, all, sizeof waited);
    }
    for (int i = 0; i < heddle_comm_size(comm) && st == HEDDLE_OK; i++) {
        waited = all[i] > waited ? all[i] : waited;
    }
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        st = bench_local(&local, r);
        if (st == HEDDLE_OK) {
            print_result(r, comm, &ranks, &local, ranks.mean_ms > waited ? 1 - waited / ranks.mean_ms : 0);
        }
    }
    free(all);
    return st == HEDDLE_OK ? heddle_comm_barrier(comm) : st;
}

static int run(const cli_arguments *a)
{
    request r = {.backward = a->backward, .json = a->json, .iterations = a->iterations, .seconds = a->seconds};
    int code = cli_linear_problem(&r.problem, &r.ranks, a);
    return code == CLI_OK ? cli_with_ranks(a, r.ranks, bench_main, &r) : code;
}

const cli_command cli_bench_linear = {
    .name = "bench linear-attention",
    .bit = CLI_BENCH_LINEAR,
    .has_ranks = 1,
    .operand = "problem",
    .synopsis = "usage: heddle bench linear-attention 'f32[b=1 s=8192 h=4 d=128] on [sp=2]' --method M [options]\n",
    .notes =
        "A call's time is that of the slowest rank. local: the same total work on one rank with as many threads as "
        "there\n"
        "are ranks. overlap: the part of a call in which the rank that waited longest did not wait. gflops counts "
        "what\n"
        "the chunked form needs (half of a chunk's square when causal). bytes and messages are those of the rank "
        "that\n"
        "sends most; peak_bytes: resident size of rank 0's process.\n",
    .run = run,
};
