/* What bench_longest measures: forward and backward of each method on one rank, and what the process has become. All
 * memory stays held: the caller looks at it, and the process ends. */
#ifndef LONGEST_METHODS_H
#define LONGEST_METHODS_H

#include <heddle/heddle.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 64, FRAMES = 16, ARRAYS = 12, DEADLINE_MS = 600000 };

/* One measurement; shared with the ranks. */
typedef struct probe {
    const char *method;
    int nranks;
    int64_t length, heads, width, projected;
    volatile double pss[MOST_RANKS], peak[MOST_RANKS]; /* bytes */
} probe;

typedef struct method {
    const char *name;
    heddle_status (*run)(heddle_comm *comm, probe *p, float **memory);
    const char *law; /* of the length against N */
    int step;        /* lengths tried are multiples of this and the ranks */
} method;

/* --- memory of this process -------------------------------------------------------------------------------------- */

/* Bytes behind `key` ("Pss:") in a file of lines "key  number kB"; -1: not there. */
static double kilobytes_of(const char *path, const char *key)
{
    char line[256];
    double found = -1;
    FILE *file = fopen(path, "r");
    while (file != NULL && found < 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            found = strtod(line + strlen(key), NULL) * 1024;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

/* n floats of a caller; peers: memory that they can reach. */
static heddle_status take(float **out, heddle_comm *comm, int64_t elems, int peers)
{
    heddle_status st = HEDDLE_OK;
    size_t bytes = (size_t)(elems + 1) * sizeof(float);
    if (peers) {
        st = heddle_buffer_alloc((void **)out, comm, bytes, HEDDLE_SPACE_HOST);
    } else {
        *out = malloc(bytes);
        st = *out == NULL ? HEDDLE_ERR_NOMEM : HEDDLE_OK;
    }
    for (int64_t i = 0; st == HEDDLE_OK && i < elems; i++) {
        (*out)[i] = (float)(i * 7919 % 1999) / 2000 - 0.5f;
    }
    return st;
}

static void note(heddle_comm *comm, probe *p, const double *before)
{
    int rank = heddle_comm_rank(comm);
    p->pss[rank] = kilobytes_of("/proc/self/smaps_rollup", "Pss:") - before[0];
    p->peak[rank] = kilobytes_of("/proc/self/status", "VmHWM:") - before[1];
}

/* --- methods -------------------------------------------------------------------------------------------------------
 */

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        st = (call);                                                                                                   \
        if (st != HEDDLE_OK) {                                                                                         \
            goto out;                                                                                                  \
        }                                                                                                              \
    } while (0)

typedef struct problem {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
} problem;

static heddle_status make_problem(problem *out, int nranks, int64_t batch, int64_t length, const probe *p,
                                  const char *layout)
{
    heddle_status st = HEDDLE_OK;
    char text[128];
    snprintf(text, sizeof text, "f32[b=%lld s=%lld h=%lld d=%lld]", (long long)batch, (long long)length,
             (long long)p->heads, (long long)p->width);
    TRY(heddle_shape_parse(&out->shape, text));
    snprintf(text, sizeof text, "[sp=%d]", nranks);
    TRY(heddle_mesh_parse(&out->mesh, text));
    TRY(heddle_layout_parse(&out->layout, layout, &out->shape, &out->mesh));
out:
    return st;
}

static heddle_status take_all(float **memory, int count, heddle_comm *comm, const problem *x)
{
    heddle_status st = HEDDLE_OK;
    heddle_box box;
    TRY(heddle_layout_box(&box, &x->shape, &x->mesh, &x->layout, heddle_comm_rank(comm)));
    for (int i = 0; i < count; i++) {
        TRY(take(&memory[i], comm, box.len[0] * box.len[1] * box.len[2] * box.len[3], 0));
    }
out:
    return st;
}

static heddle_status run_softmax(heddle_comm *comm, probe *p, float **memory)
{
    heddle_status st = HEDDLE_OK;
    problem x;
    heddle_attention *attention = NULL;
    heddle_attention_options options;
    int linformer = strcmp(p->method, "linformer") == 0;
    heddle_attention_options_init(&options);
    options.deadline_ms = DEADLINE_MS;
    TRY(make_problem(&x, p->nranks, 1, p->length, p, "s@sp"));
    TRY(heddle_attention_method_parse(&options.method, linformer ? "rsa" : p->method));
    options.projected_length = linformer ? p->projected : 0;
    TRY(take_all(memory, 8, comm, &x));
    TRY(heddle_attention_create(&attention, comm, &x.shape, &x.mesh, &x.layout, &options));
    heddle_attention_array a[8];
    memset(a, 0, sizeof a);
    for (int i = 0; i < 8; i++) {
        a[i].data = memory[i];
    }
    if (linformer) {
        heddle_box box;
        TRY(heddle_layout_box(&box, &x.shape, &x.mesh, &x.layout, heddle_comm_rank(comm)));
        for (int i = 8; i < 12; i++) {
            TRY(take(&memory[i], comm, p->projected * box.len[1], 0));
        }
        TRY(heddle_attention_set_projection(attention, memory[8], memory[9], memory[10], memory[11]));
    }
    TRY(heddle_attention_forward(attention, &a[0], &a[1], &a[2], &a[3], NULL, HEDDLE_NO_STREAM));
    TRY(heddle_attention_backward(attention, &a[4], &a[5], &a[6], &a[7], HEDDLE_NO_STREAM));
    TRY(heddle_comm_barrier(comm));
    return HEDDLE_OK; /* held: the caller measures, and the process ends */
out:
    heddle_attention_destroy(attention);
    return st;
}

static heddle_status run_linear(heddle_comm *comm, probe *p, float **memory)
{
    heddle_status st = HEDDLE_OK;
    problem x;
    heddle_linear_attention *attention = NULL;
    heddle_linear_attention_options options;
    heddle_linear_attention_options_init(&options);
    options.deadline_ms = DEADLINE_MS;
    TRY(heddle_linear_method_parse(&options.method, p->method));
    TRY(make_problem(&x, p->nranks, 1, p->length, p, "s@sp"));
    TRY(take_all(memory, 8, comm, &x));
    TRY(heddle_linear_attention_create(&attention, comm, &x.shape, &x.mesh, &x.layout, &options));
    heddle_attention_array a[8];
    memset(a, 0, sizeof a);
    for (int i = 0; i < 8; i++) {
        a[i].data = memory[i];
    }
    TRY(heddle_linear_attention_forward(attention, &a[0], &a[1], &a[2], &a[3], HEDDLE_NO_STREAM));
    TRY(heddle_linear_attention_backward(attention, &a[0], &a[1], &a[2], &a[4], &a[5], &a[6], &a[7], HEDDLE_NO_STREAM));
    TRY(heddle_comm_barrier(comm));
    return HEDDLE_OK;
out:
    heddle_linear_attention_destroy(attention);
    return st;
}

/* A stage: attention over one dim of x, which is q, k and v at once; the other dim is the batch and sharded. */
typedef struct stage {
    heddle_attention *attention;
    heddle_attention_array x, o, d_o, d[3];
} stage;

static heddle_status make_stage(stage *s, heddle_comm *comm, const probe *p, int64_t batch, int64_t length,
                                int64_t batch_stride, int64_t length_stride, float **memory)
{
    heddle_status st = HEDDLE_OK;
    problem x;
    heddle_attention_options options;
    heddle_attention_array *array[] = {&s->x, &s->o, &s->d_o, &s->d[0], &s->d[1], &s->d[2]};
    heddle_attention_options_init(&options);
    options.deadline_ms = DEADLINE_MS;
    TRY(make_problem(&x, p->nranks, batch, length, p, "b@sp"));
    heddle_box box;
    TRY(heddle_layout_box(&box, &x.shape, &x.mesh, &x.layout, heddle_comm_rank(comm)));
    int64_t row = p->heads * p->width;
    for (int i = 0; i < 6; i++) { /* a stride of 0: as far as the local part of the batch reaches */
        TRY(take(&memory[i], comm, box.len[0] * length * row, 1));
        *array[i] = (heddle_attention_array){
            memory[i], {batch_stride, length_stride != 0 ? length_stride : box.len[0] * row, p->width, 1}};
    }
    TRY(heddle_attention_create(&s->attention, comm, &x.shape, &x.mesh, &x.layout, &options));
out:
    return st;
}

static heddle_status stage_forward(const stage *s)
{
    return heddle_attention_forward(s->attention, &s->x, &s->x, &s->x, &s->o, NULL, HEDDLE_NO_STREAM);
}

/* d[0] becomes the gradient of x. */
static heddle_status stage_backward(const stage *s, int64_t elems)
{
    heddle_status st = heddle_attention_backward(s->attention, &s->d_o, &s->d[0], &s->d[1], &s->d[2], HEDDLE_NO_STREAM);
    float *sum = s->d[0].data, *dk = s->d[1].data, *dv = s->d[2].data;
    for (int64_t i = 0; st == HEDDLE_OK && i < elems; i++) {
        sum[i] += dk[i] + dv[i];
    }
    return st;
}

/* Dynamic sequence parallelism: [t s c], spatial attention with t sharded, a switch, temporal attention with s sharded;
 * backward with the switch back. */
static heddle_status run_dsp(heddle_comm *comm, probe *p, float **memory)
{
    heddle_status st = HEDDLE_OK;
    int64_t frames = FRAMES, places = p->length / FRAMES, row = p->heads * p->width;
    stage spatial = {.attention = NULL}, temporal = {.attention = NULL};
    heddle_reshard *there = NULL, *back = NULL;
    heddle_reshard_line line;
    char text[128];
    TRY(make_stage(&spatial, comm, p, frames, places, places * row, row, memory));
    TRY(make_stage(&temporal, comm, p, places, frames, row, 0, memory + 6));
    snprintf(text, sizeof text, "f32[t=%lld s=%lld c=%lld] on [sp=%d]: t@sp -> s@sp", (long long)frames,
             (long long)places, (long long)row, p->nranks);
    TRY(heddle_reshard_parse(&line, text));
    TRY(heddle_reshard_create_line(&there, comm, &line, NULL));
    TRY(heddle_reshard_create_adjoint(&back, there));
    heddle_box own[2];
    TRY(heddle_layout_box(&own[0], &line.shape, &line.mesh, &line.from, heddle_comm_rank(comm)));
    TRY(heddle_layout_box(&own[1], &line.shape, &line.mesh, &line.to, heddle_comm_rank(comm)));
    TRY(stage_forward(&spatial));
    TRY(heddle_reshard_execute(there, spatial.o.data, temporal.x.data, HEDDLE_NO_STREAM));
    TRY(stage_forward(&temporal));
    TRY(stage_backward(&temporal, own[1].len[0] * own[1].len[1] * row));
    TRY(heddle_reshard_execute(back, temporal.d[0].data, spatial.d_o.data, HEDDLE_NO_STREAM));
    TRY(stage_backward(&spatial, own[0].len[0] * own[0].len[1] * row));
    TRY(heddle_comm_barrier(comm));
    return HEDDLE_OK;
out:
    return st;
}

static const method methods[] = {{"local", run_softmax, "one rank only", 4},
                                 {"rsa", run_softmax, "sqrt(N) while the scores decide", 4},
                                 {"linformer", run_softmax, "N", 4},
                                 {"ring", run_softmax, "N", 4},
                                 {"ulysses", run_softmax, "N", 4},
                                 {"gather-kv", run_softmax, "bounded: every rank holds all keys", 4},
                                 {"lasp", run_linear, "N", 4},
                                 {"dsp", run_dsp, "N", FRAMES}};
enum { METHODS = sizeof methods / sizeof methods[0] };

#endif
