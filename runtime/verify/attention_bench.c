/* A method by turns with the same work alone and the same messages alone, in one run. */
#include "runtime/verify/attention_bench.h"
#include "runtime/verify/device_array.h"
#include "runtime/verify/samples.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { KINDS = 3, METHOD = 0, LOCAL = 1, MOVING = 2 };

/* One of the three things that take turns. */
typedef struct runner {
    heddle_comm *comm;
    int is_there; /* arrays are on its device */
    heddle_stream stream;
    heddle_attention *attention;
    heddle_attention_array array[8]; /* q k v o do dq dk dv */
    double *forward_ms, *backward_ms;
    int samples;
    double forward_ratio, backward_ratio; /* of METHOD: median over rounds against the longer of the other two */
} runner;

/* From the host to the device. */
static heddle_status place(runner *r, int i, size_t bytes)
{
    void *host = r->array[i].data;
    r->array[i].data = NULL;
    heddle_status st = heddle_buffer_alloc(&r->array[i].data, r->comm, bytes, HEDDLE_SPACE_DEVICE);
    st = st == HEDDLE_OK ? judge_device_copy(r->comm, r->array[i].data, host, bytes, r->stream) : st;
    free(host);
    return st;
}

static heddle_status make_arrays(runner *r, const attention_case *c, int kind, int rank)
{
    heddle_box box;
    heddle_attention_rows rows;
    heddle_status st = heddle_layout_box(&box, &c->shape, &c->mesh, &c->layout, rank);
    if (st == HEDDLE_OK) {
        st = heddle_attention_local_rows(&rows, &c->shape, &c->mesh, &c->layout,
                                         kind == LOCAL ? HEDDLE_PLACEMENT_CONTIGUOUS : c->options.placement, rank);
    }
    if (st != HEDDLE_OK) {
        return st;
    }
    size_t elems = (size_t)(box.len[0] * rows.rows * box.len[2] * box.len[3]) + 1;
    size_t elem_bytes = heddle_dtype_bytes(c->shape.dtype);
    for (int i = 0; i < 8; i++) { /* k and v need no more than q */
        char *data = malloc(elems * elem_bytes);
        r->array[i].data = data;
        if (data == NULL) {
            return judge_no_memory("an array to time", (double)elems * (double)elem_bytes);
        }
        for (size_t e = 0; e < elems; e++) {
            judge_store(data + e * elem_bytes, c->shape.dtype, (double)((e * 7919 + (size_t)i) % 1999) / 1000 - 1);
        }
        st = r->is_there ? place(r, i, elems * elem_bytes) : HEDDLE_OK;
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    r->forward_ms = calloc(SAMPLES_AT_MOST, sizeof(double));
    r->backward_ms = calloc(SAMPLES_AT_MOST, sizeof(double));
    return r->forward_ms != NULL && r->backward_ms != NULL
               ? HEDDLE_OK
               : judge_no_memory("samples", 2.0 * SAMPLES_AT_MOST * sizeof(double));
}

static heddle_status make_runner(runner *r, heddle_comm *comm, const attention_case *base, int kind)
{
    attention_case c = *base;
    int64_t *none = calloc((size_t)c.shape.dim[0].extent + 1, sizeof *none);
    if (none == NULL) {
        return judge_no_memory("key lengths", (double)(c.shape.dim[0].extent + 1) * sizeof *none);
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
    r->is_there = c.options.space == HEDDLE_SPACE_DEVICE;
    heddle_status st = r->is_there ? judge_stream_create(&r->stream, comm) : HEDDLE_OK;
    st = st != HEDDLE_OK ? st : heddle_attention_create(&r->attention, comm, &c.shape, &c.mesh, &c.layout, &c.options);
    st = st != HEDDLE_OK ? st : make_arrays(r, &c, kind, heddle_comm_rank(comm));
    free(none);
    return st;
}

static void free_runner(runner *r)
{
    heddle_attention_destroy(r->attention);
    for (int i = 0; i < 8; i++) {
        if (r->is_there) {
            heddle_buffer_free(r->comm, r->array[i].data);
        } else {
            free(r->array[i].data);
        }
    }
    judge_stream_destroy(r->comm, r->stream);
    free(r->forward_ms);
    free(r->backward_ms);
}

static heddle_status settle(const runner *r, heddle_status st)
{
    const heddle_status settled = r->is_there ? judge_device_settle(r->comm, r->stream) : HEDDLE_OK;
    return st == HEDDLE_OK ? settled : st;
}

static heddle_status sample(runner *r, heddle_comm *comm)
{
    heddle_attention_array *x = r->array;
    heddle_status st = heddle_comm_barrier(comm);
    double start = samples_now_ms();
    st = st != HEDDLE_OK ? st : heddle_attention_forward(r->attention, &x[0], &x[1], &x[2], &x[3], NULL, r->stream);
    st = settle(r, st);
    r->forward_ms[r->samples] = samples_now_ms() - start;
    st = st != HEDDLE_OK ? st : heddle_comm_barrier(comm);
    start = samples_now_ms();
    st = st != HEDDLE_OK ? st : heddle_attention_backward(r->attention, &x[4], &x[5], &x[6], &x[7], r->stream);
    st = settle(r, st);
    r->backward_ms[r->samples++] = samples_now_ms() - start;
    return st;
}

/* The method against the longer of the other two, round by round; the samples are still in order. */
static double ratio_of_rounds(const double *method, const double *local, const double *moving, int rounds)
{
    double *ratio = calloc((size_t)rounds + 1, sizeof *ratio), median = 0;
    for (int i = 0; ratio != NULL && i < rounds; i++) {
        ratio[i] = method[i] / fmax(local[i], moving[i]);
    }
    median = ratio != NULL ? samples_median(ratio, rounds) : 0;
    free(ratio);
    return median;
}

static heddle_status run_turns(runner *r, int kinds, heddle_comm *comm, double seconds)
{
    heddle_status st = HEDDLE_OK;
    double start = samples_now_ms();
    int go_on = 1;
    for (int round = 0; st == HEDDLE_OK && go_on && round < SAMPLES_AT_MOST; round++) {
        for (int kind = 0; kind < kinds && st == HEDDLE_OK; kind++) {
            st = sample(&r[kind], comm);
        }
        int64_t more = round < 3 || samples_now_ms() - start < seconds * 1e3;
        st = st != HEDDLE_OK ? st : heddle_comm_allreduce_sum(comm, &more, 1, HEDDLE_I64);
        go_on = more == heddle_comm_size(comm);
    }
    for (int kind = 0; kind < kinds && st == HEDDLE_OK; kind++) {
        st = samples_slowest(r[kind].forward_ms, r[kind].samples, comm);
        st = st != HEDDLE_OK ? st : samples_slowest(r[kind].backward_ms, r[kind].samples, comm);
    }
    r->forward_ratio =
        ratio_of_rounds(r[METHOD].forward_ms, r[LOCAL].forward_ms, r[MOVING].forward_ms, r[METHOD].samples);
    r->backward_ratio =
        ratio_of_rounds(r[METHOD].backward_ms, r[LOCAL].backward_ms, r[MOVING].backward_ms, r[METHOD].samples);
    for (int kind = 0; kind < kinds && st == HEDDLE_OK; kind++) {
        samples_sort(r[kind].forward_ms, r[kind].samples);
        samples_sort(r[kind].backward_ms, r[kind].samples);
    }
    return st;
}

static double overlap(double all, double work, double moving)
{
    double shorter = work < moving ? work : moving;
    double hidden = shorter > 0 ? (work + moving - all) / shorter : 1;
    return hidden < 0 ? 0 : hidden > 1 ? 1 : hidden;
}

static attention_pass summarise(const double *method, const double *local, const double *moving, int samples,
                                double median)
{
    return (attention_pass){method[0],
                            method[samples / 2],
                            local[0],
                            moving[0],
                            overlap(method[0], local[0], moving[0]),
                            method[0] / fmax(local[0], moving[0]),
                            median};
}

static heddle_status take_result(attention_bench *out, const runner *r)
{
    out->info = (heddle_attention_info){.struct_bytes = sizeof out->info};
    heddle_status st = heddle_attention_get_info(&out->info, r[METHOD].attention);
    if (st != HEDDLE_OK) {
        return st;
    }
    snprintf(out->method, sizeof out->method, "%s", out->info.method);
    snprintf(out->kernel, sizeof out->kernel, "%s", out->info.kernel);
    out->info.method = out->info.kernel = out->info.why = NULL; /* the object's */
    out->samples = r[METHOD].samples;
    out->forward =
        summarise(r[METHOD].forward_ms, r[LOCAL].forward_ms, r[MOVING].forward_ms, out->samples, r->forward_ratio);
    out->backward =
        summarise(r[METHOD].backward_ms, r[LOCAL].backward_ms, r[MOVING].backward_ms, out->samples, r->backward_ratio);
    return HEDDLE_OK;
}

heddle_status attention_time(attention_bench *out, heddle_comm *comm, const attention_case *c, double seconds)
{
    runner r[KINDS] = {{.comm = comm}, {.comm = comm}, {.comm = comm}};
    heddle_status st = HEDDLE_OK;
    for (int kind = 0; kind < KINDS && st == HEDDLE_OK; kind++) {
        st = make_runner(&r[kind], comm, c, kind);
    }
    st = st != HEDDLE_OK ? st : run_turns(r, KINDS, comm, seconds);
    st = st != HEDDLE_OK ? st : take_result(out, r);
    st = st != HEDDLE_OK ? st : heddle_comm_barrier(comm);
    for (int kind = 0; kind < KINDS; kind++) {
        free_runner(&r[kind]);
    }
    return st;
}
