/* Linear attention by a method on all ranks, and the same work on one rank with as many threads. */
#include "runtime/verify/attention_bench.h"
#include "runtime/verify/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MIN_SAMPLES = 10 };

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
            return judge_no_memory("an array to time", (double)(elems + 1) * (double)elem_bytes);
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

/* Rank 0 says how many calls there are to be. */
static heddle_status count_samples(int *out, heddle_comm *comm, const linear_bench_options *o, double first_ms)
{
    int n = heddle_comm_size(comm);
    int64_t fits = (int64_t)((double)o->seconds * 1e3 / (first_ms > 1e-3 ? first_ms : 1e-3));
    int64_t own = o->iterations > 0 ? o->iterations : fits < MIN_SAMPLES ? MIN_SAMPLES : fits;
    int64_t *all = calloc((size_t)n, sizeof *all);
    own = own > SAMPLES_AT_MOST ? SAMPLES_AT_MOST : own;
    heddle_status st = all == NULL ? judge_no_memory("counts of the ranks", (double)n * sizeof *all)
                                   : heddle_comm_allgather(comm, &own, all, sizeof own);
    *out = st == HEDDLE_OK ? (int)all[0] : 0;
    free(all);
    return st;
}

static heddle_status take_info(linear_times *out, const heddle_linear_attention *a, int64_t waited_before)
{
    heddle_status st = heddle_linear_attention_get_info(&out->info, a);
    if (st == HEDDLE_OK) {
        snprintf(out->kernel, sizeof out->kernel, "%s", out->info.kernel);
        snprintf(out->why, sizeof out->why, "%s", out->info.why);
        out->info.method = out->info.kernel = out->info.why = NULL; /* the object's */
        out->info.wait_ns -= waited_before;
    }
    return st;
}

static heddle_status time_calls(linear_times *out, heddle_comm *comm, heddle_linear_attention *a, bench_arrays *x,
                                const linear_bench_options *o)
{
    heddle_status st = call(a, x, 0);
    st = st == HEDDLE_OK ? call(a, x, o->backward) : st;
    double start = samples_now_ms();
    st = st == HEDDLE_OK ? call(a, x, o->backward) : st;
    st = st == HEDDLE_OK ? count_samples(&out->samples, comm, o, samples_now_ms() - start) : st;
    out->info.struct_bytes = sizeof out->info;
    st = st == HEDDLE_OK ? heddle_linear_attention_get_info(&out->info, a) : st;
    int64_t waited_before = out->info.wait_ns;
    double *sample = calloc((size_t)out->samples + 1, sizeof *sample);
    if (st == HEDDLE_OK && sample == NULL) {
        st = judge_no_memory("samples", (double)(out->samples + 1) * sizeof *sample);
    }
    for (int i = 0; i < out->samples && st == HEDDLE_OK; i++) {
        st = heddle_comm_barrier(comm);
        start = samples_now_ms();
        st = st == HEDDLE_OK ? call(a, x, o->backward) : st;
        sample[i] = samples_now_ms() - start;
        st = st == HEDDLE_OK ? samples_slowest(&sample[i], 1, comm) : st;
        out->mean_ms += sample[i] / out->samples;
    }
    st = st == HEDDLE_OK ? take_info(out, a, waited_before) : st;
    if (st == HEDDLE_OK) {
        out->median_ms = samples_median(sample, out->samples);
        out->min_ms = sample[0];
    }
    free(sample);
    return st;
}

static heddle_status bench_problem(linear_times *out, heddle_comm *comm, const linear_case *c,
                                   const linear_bench_options *o)
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
            st = time_calls(out, comm, a, &x, o);
            free_arrays(&x);
        }
    }
    heddle_linear_attention_destroy(a);
    return st;
}

/* One rank, as many threads as there were ranks. */
static heddle_status bench_local(linear_times *out, const linear_case *problem, const linear_bench_options *o)
{
    heddle_comm *self = NULL;
    linear_case c = *problem;
    c.layout = heddle_layout_replicated();
    c.mesh.naxes = 1;
    c.mesh.axis[0].size = 1;
    c.options.method = HEDDLE_LINEAR_LOCAL;
    c.options.receive_first = 0;
    c.options.threads = o->ranks * (c.options.threads > 0 ? c.options.threads : 1);
    c.options.threads = c.options.threads > 256 ? 256 : c.options.threads;
    heddle_status st = heddle_comm_open(&self, "self", NULL);
    st = st == HEDDLE_OK ? bench_problem(out, self, &c, o) : st;
    heddle_comm_destroy(self);
    return st;
}

/* Operations of one call on all ranks together. */
static heddle_status count_flops(double *out, const linear_times *times, heddle_comm *comm, int backward)
{
    int64_t flops = backward ? times->info.backward_flops : times->info.forward_flops;
    heddle_status st = heddle_comm_allreduce_sum(comm, &flops, 1, HEDDLE_I64);
    *out = (double)flops;
    return st;
}

heddle_status linear_time(linear_bench *out, heddle_comm *comm, const linear_case *c, const linear_bench_options *o)
{
    struct rusage used;
    memset(out, 0, sizeof *out);
    heddle_status st = bench_problem(&out->ranks, comm, c, o);
    double waited = st == HEDDLE_OK ? (double)out->ranks.info.wait_ns * 1e-6 / out->ranks.samples : 0;
    double flops = 0;
    st = st == HEDDLE_OK ? samples_slowest(&waited, 1, comm) : st;
    st = st == HEDDLE_OK ? count_flops(&flops, &out->ranks, comm, o->backward) : st;
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        out->overlap = out->ranks.mean_ms > waited ? 1 - waited / out->ranks.mean_ms : 0;
        out->gflops = flops / out->ranks.min_ms * 1e-6;
        st = bench_local(&out->local, c, o);
        getrusage(RUSAGE_SELF, &used);
        out->peak_bytes = (long long)used.ru_maxrss * 1024;
    }
    return st == HEDDLE_OK ? heddle_comm_barrier(comm) : st;
}
