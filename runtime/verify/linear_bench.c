/* Linear attention by a method on all ranks, and the same work on one rank with as many threads. */
#include "runtime/verify/attention_bench.h"
#include "runtime/verify/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MIN_SAMPLES = 10 };

/* While rank 0 works alone the others watch: they come along after every step of it, so that none of them waits longer
 * than one step takes. Collective: does rank 0 go on? watchers NULL: nobody works alone. */
static heddle_status take_step(heddle_comm *watchers, int64_t *goes_on)
{
    return watchers == NULL ? HEDDLE_OK : heddle_comm_allreduce_sum(watchers, goes_on, 1, HEDDLE_I64);
}

static heddle_status step_done(heddle_comm *watchers)
{
    int64_t goes_on = 1;
    return take_step(watchers, &goes_on);
}

static heddle_status watch(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    for (int64_t goes_on = 1; st == HEDDLE_OK && goes_on;) {
        goes_on = 0;
        st = take_step(comm, &goes_on);
    }
    return st;
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

static heddle_status fill_array(void **out, random_source *source, heddle_dtype dtype, int64_t elems)
{
    const size_t elem_bytes = heddle_dtype_bytes(dtype);
    char *to = calloc((size_t)elems + 1, elem_bytes);
    *out = to;
    if (to == NULL) {
        return judge_no_memory("an array to time", (double)(elems + 1) * (double)elem_bytes);
    }
    for (int64_t e = 0; e < elems; e++) {
        judge_store(to + (size_t)e * elem_bytes, dtype,
                    (double)(int64_t)(random_bits(source) >> 40) / (double)(1 << 23) - 1);
    }
    return HEDDLE_OK;
}

static heddle_status make_arrays(bench_arrays *x, const linear_case *c, const heddle_box *box, heddle_comm *watchers)
{
    int64_t dk = box->len[3], dv = c->options.dv > 0 ? c->options.dv : dk;
    int64_t rows = box->len[0] * box->len[1] * box->len[2];
    random_source source = {c->seed};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 8 && st == HEDDLE_OK; i++) {
        st =
            fill_array(&x->memory[i], &source, c->shape.dtype, rows * (i == 2 || i == 3 || i == 4 || i == 7 ? dv : dk));
        st = st == HEDDLE_OK ? step_done(watchers) : st;
        x->array[i].data = x->memory[i];
    }
    return st;
}

/* What is timed, and by whom. */
typedef struct bench_calls {
    heddle_comm *comm, *watchers;
    heddle_linear_attention *attention;
    bench_arrays arrays;
    const linear_bench_options *options;
} bench_calls;

static heddle_status call(double *ms, bench_calls *b, int backward)
{
    heddle_attention_array *t = b->arrays.array;
    const double start = samples_now_ms();
    heddle_status st =
        backward ? heddle_linear_attention_backward(b->attention, &t[0], &t[1], &t[2], &t[3], &t[5], &t[6], &t[7],
                                                    HEDDLE_NO_STREAM)
                 : heddle_linear_attention_forward(b->attention, &t[0], &t[1], &t[2], &t[4], HEDDLE_NO_STREAM);
    *ms = samples_now_ms() - start;
    return st == HEDDLE_OK ? step_done(b->watchers) : st;
}

/* Rank 0 says how many calls there are to be. */
static heddle_status count_samples(int *out, heddle_comm *comm, const linear_bench_options *o, double first_ms)
{
    int n = heddle_comm_size(comm);
    int64_t fits = (int64_t)((double)o->seconds * 1e3 / (first_ms > 1e-3 ? first_ms : 1e-3));
    int64_t own = o->iterations > 0        ? o->iterations
                  : fits < MIN_SAMPLES     ? MIN_SAMPLES
                  : fits > SAMPLES_AT_MOST ? SAMPLES_AT_MOST
                                           : fits;
    int64_t *all = calloc((size_t)n, sizeof *all);
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

/* Warm, and how many calls there are to be. */
static heddle_status prepare(linear_times *out, bench_calls *b)
{
    const int backward = b->options->backward;
    double ms = 0;
    heddle_status st = call(&ms, b, 0);
    st = st == HEDDLE_OK ? call(&ms, b, backward) : st;
    st = st == HEDDLE_OK ? call(&ms, b, backward) : st;
    st = st == HEDDLE_OK ? count_samples(&out->samples, b->comm, b->options, ms) : st;
    out->info.struct_bytes = sizeof out->info;
    return st == HEDDLE_OK ? heddle_linear_attention_get_info(&out->info, b->attention) : st;
}

static heddle_status time_calls(linear_times *out, bench_calls *b)
{
    heddle_status st = prepare(out, b);
    const int64_t waited_before = out->info.wait_ns;
    double *sample = calloc((size_t)out->samples + 1, sizeof *sample);
    if (st == HEDDLE_OK && sample == NULL) {
        st = judge_no_memory("samples", (double)(out->samples + 1) * sizeof *sample);
    }
    for (int i = 0; i < out->samples && st == HEDDLE_OK; i++) {
        st = heddle_comm_barrier(b->comm);
        st = st == HEDDLE_OK ? call(&sample[i], b, b->options->backward) : st;
        st = st == HEDDLE_OK ? samples_slowest(&sample[i], 1, b->comm) : st;
        out->mean_ms += sample[i] / out->samples;
    }
    st = st == HEDDLE_OK ? take_info(out, b->attention, waited_before) : st;
    if (st == HEDDLE_OK) {
        out->median_ms = samples_median(sample, out->samples);
        out->min_ms = sample[0];
    }
    free(sample);
    return st;
}

static heddle_status bench_problem(linear_times *out, heddle_comm *comm, const linear_case *c,
                                   const linear_bench_options *o, heddle_comm *watchers)
{
    heddle_box box;
    bench_calls b = {.comm = comm, .watchers = watchers, .options = o};
    linear_case copy = *c;
    memset(out, 0, sizeof *out);
    copy.options.decay = copy.decay;
    heddle_status st =
        heddle_linear_attention_create(&b.attention, comm, &copy.shape, &copy.mesh, &copy.layout, &copy.options);
    st = st == HEDDLE_OK ? heddle_layout_box(&box, &copy.shape, &copy.mesh, &copy.layout, heddle_comm_rank(comm)) : st;
    st = st == HEDDLE_OK ? make_arrays(&b.arrays, &copy, &box, watchers) : st;
    st = st == HEDDLE_OK ? time_calls(out, &b) : st;
    free_arrays(&b.arrays);
    heddle_linear_attention_destroy(b.attention);
    return st;
}

/* One rank, as many threads as there were ranks. */
static heddle_status bench_local(linear_times *out, const linear_case *problem, const linear_bench_options *o,
                                 heddle_comm *watchers)
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
    st = st == HEDDLE_OK ? bench_problem(out, self, &c, o, watchers) : st;
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
    heddle_status st = bench_problem(&out->ranks, comm, c, o, NULL);
    double waited = st == HEDDLE_OK ? (double)out->ranks.info.wait_ns * 1e-6 / out->ranks.samples : 0;
    double flops = 0;
    st = st == HEDDLE_OK ? samples_slowest(&waited, 1, comm) : st;
    st = st == HEDDLE_OK ? count_flops(&flops, &out->ranks, comm, o->backward) : st;
    if (st == HEDDLE_OK && heddle_comm_rank(comm) != 0) {
        st = watch(comm);
    } else if (st == HEDDLE_OK) {
        int64_t goes_on = 0;
        out->overlap = out->ranks.mean_ms > waited ? 1 - waited / out->ranks.mean_ms : 0;
        out->gflops = flops / out->ranks.min_ms * 1e-6;
        st = bench_local(&out->local, c, o, comm);
        getrusage(RUSAGE_SELF, &used);
        out->peak_bytes = (long long)used.ru_maxrss * 1024;
        st = st == HEDDLE_OK ? take_step(comm, &goes_on) : st;
    }
    return st == HEDDLE_OK ? heddle_comm_barrier(comm) : st;
}
