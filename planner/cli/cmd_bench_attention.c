/* heddle bench attention: a method against the same work without communication, by turns in one run. */
#include "launch.h"
#include "problem.h"

#include <heddle/heddle.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KINDS = 3, METHOD = 0, LOCAL = 1, MOVING = 2, MOST_SAMPLES = 100000 };

typedef struct request {
    attention_case problem;
    double seconds;
    int json;
} request;

/* One of the three things that take turns. */
typedef struct runner {
    heddle_attention *attention;
    heddle_attention_array array[8]; /* q k v o do dq dk dv */
    double *forward_ms, *backward_ms;
    int samples;
    double forward_ratio, backward_ratio; /* of METHOD: median over rounds against the longer of the other two */
} runner;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static int64_t rows_of(const attention_case *c, int kind, int rank)
{
    heddle_attention_rows rows;
    heddle_status st =
        heddle_attention_local_rows(&rows, &c->shape, &c->mesh, &c->layout,
                                    kind == LOCAL ? HEDDLE_PLACEMENT_CONTIGUOUS : c->options.placement, rank);
    return st == HEDDLE_OK ? rows.rows : 0;
}

static heddle_status make_arrays(runner *r, const attention_case *c, int kind, int rank)
{
    heddle_box box;
    heddle_status st = heddle_layout_box(&box, &c->shape, &c->mesh, &c->layout, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    size_t elems = (size_t)(box.len[0] * rows_of(c, kind, rank) * box.len[2] * box.len[3]) + 1;
    size_t elem_bytes = heddle_dtype_bytes(c->shape.dtype);
    for (int i = 0; i < 8; i++) { /* k and v need no more than q */
        char *data = malloc(elems * elem_bytes);
        r->array[i].data = data;
        if (data == NULL) {
            return HEDDLE_ERR_NOMEM;
        }
        for (size_t e = 0; e < elems; e++) {
            judge_store(data + e * elem_bytes, c->shape.dtype, (double)((e * 7919 + (size_t)i) % 1999) / 1000 - 1);
        }
    }
    r->forward_ms = calloc(MOST_SAMPLES, sizeof(double));
    r->backward_ms = calloc(MOST_SAMPLES, sizeof(double));
    return r->forward_ms != NULL && r->backward_ms != NULL ? HEDDLE_OK : HEDDLE_ERR_NOMEM;
}

static heddle_status make_runner(runner *r, heddle_comm *comm, const attention_case *base, int kind)
{
    attention_case c = *base;
    int64_t *none = calloc((size_t)c.shape.dim[0].extent + 1, sizeof *none);
    if (none == NULL) {
        return HEDDLE_ERR_NOMEM;
    }
    c.options.key_lengths = kind == MOVING ? none : c.has_key_lengths ? c.key_length : NULL;
    if (kind == LOCAL) {
        c.options.method = HEDDLE_ATTENTION_LOCAL;
        c.options.placement = HEDDLE_PLACEMENT_CONTIGUOUS;
        c.options.rsa_all_reduce = 0;
        for (int a = 0; a < c.mesh.naxes; a++) {
            if (c.layout.dim_of_axis[a] == 1) {
                c.layout.dim_of_axis[a] = 2;
                c.layout.nshards[a] = 0;
            }
        }
    }
    heddle_status st = heddle_attention_create(&r->attention, comm, &c.shape, &c.mesh, &c.layout, &c.options);
    st = st != HEDDLE_OK ? st : make_arrays(r, &c, kind, heddle_comm_rank(comm));
    free(none);
    return st;
}

static void free_runner(runner *r)
{
    heddle_attention_destroy(r->attention);
    for (int i = 0; i < 8; i++) {
        free(r->array[i].data);
    }
    free(r->forward_ms);
    free(r->backward_ms);
}

static heddle_status sample(runner *r, heddle_comm *comm)
{
    heddle_attention_array *x = r->array;
    heddle_status st = heddle_comm_barrier(comm);
    double start = now_ms();
    st = st != HEDDLE_OK ? st
                         : heddle_attention_forward(r->attention, &x[0], &x[1], &x[2], &x[3], NULL, HEDDLE_NO_STREAM);
    r->forward_ms[r->samples] = now_ms() - start;
    st = st != HEDDLE_OK ? st : heddle_comm_barrier(comm);
    start = now_ms();
    st = st != HEDDLE_OK ? st : heddle_attention_backward(r->attention, &x[4], &x[5], &x[6], &x[7], HEDDLE_NO_STREAM);
    r->backward_ms[r->samples++] = now_ms() - start;
    return st;
}

/* Every sample becomes that of the slowest rank; then ascending. */
static heddle_status slowest(double *ms, int samples, heddle_comm *comm)
{
    int n = heddle_comm_size(comm);
    double *all = calloc((size_t)n, sizeof *all);
    heddle_status st = all != NULL ? HEDDLE_OK : HEDDLE_ERR_NOMEM;
    for (int i = 0; i < samples && st == HEDDLE_OK; i++) {
        st = heddle_comm_allgather(comm, &ms[i], all, sizeof ms[i]);
        for (int r = 0; r < n && st == HEDDLE_OK; r++) {
            ms[i] = fmax(ms[i], all[r]);
        }
    }
    free(all);
    return st;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *value, int n)
{
    qsort(value, (size_t)n, sizeof *value, ascending);
    return n > 0 ? value[n / 2] : 0;
}

/* The method against the longer of the other two, round by round; the samples are still in order. */
static double ratio_of_rounds(const double *method, const double *local, const double *moving, int rounds)
{
    double *ratio = calloc((size_t)rounds + 1, sizeof *ratio), median = 0;
    for (int i = 0; ratio != NULL && i < rounds; i++) {
        ratio[i] = method[i] / fmax(local[i], moving[i]);
    }
    median = ratio != NULL ? median_of(ratio, rounds) : 0;
    free(ratio);
    return median;
}

static heddle_status run_turns(runner *r, int kinds, heddle_comm *comm, double seconds)
{
    heddle_status st = HEDDLE_OK;
    double start = now_ms();
    int go_on = 1;
    for (int round = 0; st == HEDDLE_OK && go_on && round < MOST_SAMPLES; round++) {
        for (int kind = 0; kind < kinds && st == HEDDLE_OK; kind++) {
            st = sample(&r[kind], comm);
        }
        int64_t more = round < 3 || now_ms() - start < seconds * 1e3;
        st = st != HEDDLE_OK ? st : heddle_comm_allreduce_sum(comm, &more, 1, HEDDLE_I64);
        go_on = more == heddle_comm_size(comm);
    }
    for (int kind = 0; kind < kinds && st == HEDDLE_OK; kind++) {
        st = slowest(r[kind].forward_ms, r[kind].samples, comm);
        st = st != HEDDLE_OK ? st : slowest(r[kind].backward_ms, r[kind].samples, comm);
    }
    r->forward_ratio =
        ratio_of_rounds(r[METHOD].forward_ms, r[LOCAL].forward_ms, r[MOVING].forward_ms, r[METHOD].samples);
    r->backward_ratio =
        ratio_of_rounds(r[METHOD].backward_ms, r[LOCAL].backward_ms, r[MOVING].backward_ms, r[METHOD].samples);
    for (int kind = 0; kind < kinds && st == HEDDLE_OK; kind++) {
        qsort(r[kind].forward_ms, (size_t)r[kind].samples, sizeof(double), ascending);
        qsort(r[kind].backward_ms, (size_t)r[kind].samples, sizeof(double), ascending);
    }
    return st;
}

static double overlap(double all, double work, double moving)
{
    double shorter = work < moving ? work : moving;
    double hidden = shorter > 0 ? (work + moving - all) / shorter : 1;
    return hidden < 0 ? 0 : hidden > 1 ? 1 : hidden;
}

static heddle_status report(runner *r, const request *q, heddle_comm *comm)
{
    heddle_attention_info info = {.struct_bytes = sizeof info};
    heddle_status st = heddle_attention_get_info(&info, r[METHOD].attention);
    if (st != HEDDLE_OK || heddle_comm_rank(comm) != 0) {
        return st;
    }
    const char *format =
        q->json ? "{\"method\": \"%s\", \"ranks\": %d, \"kernel\": \"%s\",\n \"min_ms\": %.4f, \"median_ms\": %.4f, "
                  "\"local_min_ms\": %.4f, \"moving_min_ms\": %.4f,\n \"backward_min_ms\": %.4f, "
                  "\"backward_median_ms\": %.4f, \"backward_local_min_ms\": %.4f, \"backward_moving_min_ms\": %.4f,\n "
                  "\"bytes_per_rank\": %lld, \"messages_per_rank\": %lld, \"backward_bytes_per_rank\": %lld, "
                  "\"backward_messages_per_rank\": %lld,\n \"flops_per_rank\": %lld, "
                  "\"backward_flops_per_rank\": %lld,\n \"peak_bytes\": %lld, \"overlap\": %.3f, "
                  "\"backward_overlap\": %.3f, \"samples\": %d,\n "
                  "\"times_longer_min\": %.3f, \"times_longer_median\": %.3f, \"backward_times_longer_min\": %.3f, "
                  "\"backward_times_longer_median\": %.3f}\n"
                : "%s on %d ranks, kernel %s\nforward   min %.4f  median %.4f  local %.4f  moving %.4f ms\n"
                  "backward  min %.4f  median %.4f  local %.4f  moving %.4f ms\n"
                  "rank 0 sends forward %lld bytes in %lld messages, backward %lld in %lld\n"
                  "rank 0 does %lld products and sums forward, %lld backward\n"
                  "%lld bytes held, overlap %.3f forward, %.3f backward, %d samples\n"
                  "times the longer: forward %.3f of minima, %.3f median; backward %.3f, %.3f\n";
    int n = r[METHOD].samples;
    const double *f = r[METHOD].forward_ms, *b = r[METHOD].backward_ms;
    double f_local = r[LOCAL].forward_ms[0], b_local = r[LOCAL].backward_ms[0];
    double f_moving = r[MOVING].forward_ms[0], b_moving = r[MOVING].backward_ms[0];
    printf(format, info.method, heddle_comm_size(comm), info.kernel, f[0], f[n / 2], f_local, f_moving, b[0], b[n / 2],
           b_local, b_moving, (long long)info.planned.forward_bytes, (long long)info.planned.forward_messages,
           (long long)info.planned.backward_bytes, (long long)info.planned.backward_messages,
           (long long)info.forward_flops, (long long)info.backward_flops,
           (long long)(info.saved_bytes + info.workspace_bytes), overlap(f[0], f_local, f_moving),
           overlap(b[0], b_local, b_moving), n, f[0] / fmax(f_local, f_moving), r->forward_ratio,
           b[0] / fmax(b_local, b_moving), r->backward_ratio);
    fflush(stdout);
    return HEDDLE_OK;
}

static heddle_status bench_main(heddle_comm *comm, void *arg)
{
    const request *q = arg;
    runner r[KINDS] = {{.samples = 0}};
    heddle_status st = HEDDLE_OK;
    for (int kind = 0; kind < KINDS && st == HEDDLE_OK; kind++) {
        st = make_runner(&r[kind], comm, &q->problem, kind);
    }
    st = st != HEDDLE_OK ? st : run_turns(r, KINDS, comm, q->seconds);
    st = st != HEDDLE_OK ? st : report(r, q, comm);
    st = st != HEDDLE_OK ? st : heddle_comm_barrier(comm);
    for (int kind = 0; kind < KINDS; kind++) {
        free_runner(&r[kind]);
    }
    return st;
}

static int run(const cli_arguments *a)
{
    request r = {.seconds = (double)a->seconds, .json = a->json};
    if (a->projected > 0) {
        return cli_usage_error("heddle bench attention times no projected keys");
    }
    int ranks = 0, code = cli_attention_problem(&r.problem, &ranks, a);
    return code == CLI_OK ? cli_with_ranks(a, ranks, bench_main, &r) : code;
}

const cli_command cli_bench_attention = {
    .name = "bench attention",
    .bit = CLI_BENCH_ATTENTION,
    .has_ranks = 1,
    .operand = "problem",
    .synopsis = "usage: heddle bench attention 'bf16[b=1 s=8192 h=16 d=72] on [sp=2]' --method M [options]\n",
    .notes = "Times are those of the slowest rank. local: the same heads, samples and keys in total, each rank some "
             "whole\n"
             "heads, so that nothing moves. moving: the method with no key to see, so that it only moves. overlap = "
             "the share\n"
             "of the shorter of the two that is hidden behind the other. times the longer: the method / the longer of "
             "the two,\n"
             "of the fastest samples and as the median over rounds in which each had its turn.\n",
    .run = run,
};
