/* What bench_longest measures: forward and backward of each method on one rank, and what the process has become. All
 * memory stays held: the caller looks at it, and the process ends. */
#ifndef LONGEST_METHODS_H
#define LONGEST_METHODS_H

#include <heddle/heddle.h>
#include <heddle/train/tape.h>

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

/* --- methods ------------------------------------------------------------------------------------------------------ */

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

static heddle_status make_session(heddle_session **out, heddle_shape *shape, heddle_comm *comm, const probe *p,
                                  const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_plan_options plan;
    heddle_session_options options;
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    char text[512];
    snprintf(
        text, sizeof text,
        "model: pair\ndtype: f32\ndims: {b: {size: 1, role: batch}, t: {size: %d, role: seq}, s: {size: %lld, role: "
        "seq}, c: {size: %lld, role: channel}}\ntensors: {x: [b, t, s, c]}\nrepeat: 1\nstages:\n"
        "  - {name: space, kind: attention, over: s, heads: %lld}\n"
        "  - {name: time, kind: attention, over: t, heads: %lld}\n",
        FRAMES, (long long)(p->length / FRAMES), (long long)(p->heads * p->width), (long long)p->heads,
        (long long)p->heads);
    TRY(heddle_model_parse(&model, text, strlen(text), "pair"));
    heddle_plan_options_init(&plan);
    plan.epilogue = "any"; /* gathered at the end, a session would hold the whole activation */
    plan.methods = "*=local";
    TRY(heddle_plan(&schedule, model, mesh, &plan));
    TRY(heddle_schedule_get_info(&info, schedule));
    *shape = info.shape;
    heddle_session_options_init(&options);
    options.backward = 1;
    TRY(heddle_session_create(out, comm, schedule, &options));
out:
    return st;
}

/* The same pair as whole blocks with their linear layers, tapes and a session. Weights, their packed form and their
 * gradients do not depend on the length. */
static heddle_status run_blocks(heddle_comm *comm, probe *p, float **memory)
{
    static const char *const names[] = {"space", "time"};
    const heddle_conditioning none = {.vector = NULL};
    heddle_status st = HEDDLE_OK;
    heddle_session *session = NULL;
    heddle_mesh mesh = {.naxes = 1, .axis = {{"sp", p->nranks}}};
    heddle_layout layout, back;
    heddle_tensor x, dx;
    heddle_box box[2];
    heddle_block *block[2] = {NULL, NULL};
    heddle_tape *tape[2] = {NULL, NULL};
    heddle_block_options options;
    int rank = heddle_comm_rank(comm);
    heddle_block_options_init(&options);
    options.kind = HEDDLE_STAGE_ATTENTION;
    options.heads = (int)p->heads;
    options.modulate = 0;
    TRY(make_session(&session, &options.shape, comm, p, &mesh));
    TRY(heddle_layout_parse(&layout, "t@sp", &options.shape, &mesh));
    TRY(heddle_layout_box(&box[0], &options.shape, &mesh, &layout, rank));
    TRY(take(&memory[0], comm, box[0].len[1] * box[0].len[2] * box[0].len[3], 1));
    TRY(heddle_tensor_init(&x, memory[0], &options.shape, &mesh, &layout, NULL, rank));
    for (int i = 0; i < 2; i++) {
        options.mixed_dim = 2 - i;
        TRY(heddle_block_create(&block[i], &options));
        TRY(heddle_block_seed(block[i], (uint64_t)i + 1));
        TRY(heddle_tape_create(&tape[i], block[i], NULL));
        TRY(heddle_session_enter(session, names[i], &x, NULL, HEDDLE_NO_STREAM));
        TRY(heddle_layout_box(&box[i], &options.shape, &mesh, &x.layout, rank));
        TRY(heddle_block_forward_tape(block[i], &x, &box[i], &none, tape[i], HEDDLE_NO_STREAM));
    }
    TRY(take(&memory[1], comm, box[1].len[1] * box[1].len[2] * box[1].len[3], 1));
    back = heddle_layout_dual(&x.layout);
    TRY(heddle_tensor_init(&dx, memory[1], &options.shape, &mesh, &back, NULL, rank));
    for (int i = 1; i >= 0; i--) {
        TRY(heddle_block_backward(block[i], &dx, &none, NULL, tape[i], HEDDLE_NO_STREAM));
        TRY(heddle_session_backward(session, names[i], &dx, NULL, HEDDLE_NO_STREAM));
    }
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
                                 {"dsp", run_dsp, "N", FRAMES},
                                 {"dsp-blocks", run_blocks, "N", FRAMES}};
enum { METHODS = sizeof methods / sizeof methods[0] };

#endif
