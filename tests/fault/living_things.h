/* Everything that ranks make together and then use again and again, each by the same three calls. */
#ifndef HD_TEST_LIVING_THINGS_H
#define HD_TEST_LIVING_THINGS_H

#include "../contract/executor_fixture.h"
#include "session_of.h"

#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <heddle/train/dense_pair.h>
#include <heddle/train/pipeline.h>

enum { FLOATS = 4096 };

typedef struct thing {
    heddle_reshard *reshard;
    heddle_attention *attention;
    heddle_linear_attention *linear;
    heddle_bucket *bucket;
    heddle_adamw *adamw;
    heddle_dense_pair *pair;
    heddle_pipeline *pipeline;
    session_of session;
    bench bench;
    heddle_attention_array array[8];
    float data[8][FLOATS];
} thing;

typedef struct living {
    const char *name;
    int ranks;
    int has_option; /* a deadline of its own */
    int way;        /* what `make` and `use` of several make of it */
    heddle_status (*make)(thing *t, heddle_comm *comm, const struct living *of, int64_t deadline_ms);
    heddle_status (*use)(thing *t, heddle_comm *comm, const struct living *of);
    const char *line; /* a reshard's, the mesh and layout of attention */
} living;

static inline void unmake(thing *t)
{
    heddle_reshard_destroy(t->reshard);
    heddle_attention_destroy(t->attention);
    heddle_linear_attention_destroy(t->linear);
    heddle_adamw_destroy(t->adamw);
    heddle_bucket_destroy(t->bucket);
    heddle_dense_pair_destroy(t->pair);
    heddle_pipeline_destroy(t->pipeline);
    session_of_end(&t->session);
    free_bench(&t->bench);
    free(t);
}

/* --- reshards: way 0 executes, 1 starts and waits --------------------------------------------------------------- */

static inline heddle_status make_reshard(thing *t, heddle_comm *comm, const living *of, int64_t deadline_ms)
{
    heddle_status st;
    heddle_reshard_line l;
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.deadline_ms = deadline_ms;
    options.memory = HEDDLE_MEMORY_ANY;
    HD_TRY(heddle_reshard_parse(&l, of->line));
    HD_TRY(heddle_reshard_create(&t->reshard, comm, &l.shape, &l.mesh, &l.from, &l.to, &options));
out:
    return st;
}

static inline heddle_status use_reshard(thing *t, heddle_comm *comm, const living *of)
{
    heddle_status st;
    (void)comm;
    if (of->way == 0) {
        return heddle_reshard_execute(t->reshard, t->data[0], t->data[1], HEDDLE_NO_STREAM);
    }
    HD_TRY(heddle_reshard_start(t->reshard, t->data[0], t->data[1], HEDDLE_NO_STREAM));
    HD_TRY(heddle_reshard_wait(t->reshard));
out:
    return st;
}

/* --- attention, linear attention: way is the method, 100 more a variant of it ----------------------------------- */

static inline heddle_status take_layout(heddle_shape *shape, heddle_mesh *mesh, heddle_layout *layout, const char *line)
{
    heddle_status st;
    char mesh_text[40], layout_text[40];
    CHECK(sscanf(line, "%39[^;]; %39[^;]", mesh_text, layout_text) == 2);
    HD_TRY(heddle_shape_parse(shape, "f32[b=1 s=24 h=4 d=8]"));
    HD_TRY(heddle_mesh_parse(mesh, mesh_text));
    HD_TRY(heddle_layout_parse(layout, layout_text, shape, mesh));
out:
    return st;
}

static inline void set_arrays(thing *t)
{
    for (int i = 0; i < 8; i++) {
        t->array[i] = (heddle_attention_array){.data = t->data[i]};
    }
}

static inline heddle_status make_attention(thing *t, heddle_comm *comm, const living *of, int64_t deadline_ms)
{
    heddle_status st;
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    options.method = (heddle_attention_method)(of->way % 100);
    options.rsa_all_reduce = of->way / 100 == 1;
    options.projected_length = of->way / 100 == 2 ? 3 : 0;
    options.log_sum_exp = 1;
    options.deadline_ms = deadline_ms;
    set_arrays(t);
    HD_TRY(take_layout(&shape, &mesh, &layout, of->line));
    HD_TRY(heddle_attention_create(&t->attention, comm, &shape, &mesh, &layout, &options));
    if (options.projected_length > 0) {
        HD_TRY(heddle_attention_set_projection(t->attention, t->data[4], t->data[4], t->data[5], t->data[6]));
    }
out:
    return st;
}

static inline heddle_status use_attention(thing *t, heddle_comm *comm, const living *of)
{
    heddle_status st;
    const heddle_attention_array *x = t->array;
    (void)comm;
    (void)of;
    HD_TRY(heddle_attention_forward(t->attention, &x[0], &x[1], &x[2], &x[3], t->data[7], HEDDLE_NO_STREAM));
    HD_TRY(heddle_attention_backward(t->attention, &x[3], &x[0], &x[1], &x[2], HEDDLE_NO_STREAM));
out:
    return st;
}

static inline heddle_status make_linear(thing *t, heddle_comm *comm, const living *of, int64_t deadline_ms)
{
    heddle_status st;
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_linear_attention_options options;
    heddle_linear_attention_options_init(&options);
    options.method = (heddle_linear_method)(of->way % 100);
    options.bidirectional = of->way / 100 == 1;
    options.deadline_ms = deadline_ms;
    set_arrays(t);
    HD_TRY(take_layout(&shape, &mesh, &layout, of->line));
    HD_TRY(heddle_linear_attention_create(&t->linear, comm, &shape, &mesh, &layout, &options));
out:
    return st;
}

static inline heddle_status use_linear(thing *t, heddle_comm *comm, const living *of)
{
    heddle_status st;
    const heddle_attention_array *x = t->array;
    (void)comm;
    (void)of;
    HD_TRY(heddle_linear_attention_forward(t->linear, &x[0], &x[1], &x[2], &x[3], HEDDLE_NO_STREAM));
    HD_TRY(
        heddle_linear_attention_backward(t->linear, &x[0], &x[1], &x[2], &x[3], &x[4], &x[5], &x[6], HEDDLE_NO_STREAM));
out:
    return st;
}

/* --- training: a bucket is whole (0) or sharded (1) ------------------------------------------------------------- */

static inline heddle_status make_bucket(thing *t, heddle_comm *comm, const living *of, int64_t deadline_ms)
{
    heddle_status st;
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"dp", heddle_comm_size(comm)}}};
    const heddle_bucket_part part = {t->data[0], t->data[1], 40, 1};
    heddle_bucket_options options;
    heddle_bucket_options_init(&options);
    options.sum_axes = 1;
    options.shard_axis = of->way == 1 ? 0 : -1;
    options.deadline_ms = deadline_ms;
    HD_TRY(heddle_bucket_create(&t->bucket, comm, &mesh, &part, 1, &options));
    HD_TRY(heddle_adamw_create(&t->adamw, t->bucket, NULL));
out:
    return st;
}

static inline heddle_status use_bucket(thing *t, heddle_comm *comm, const living *of)
{
    heddle_status st;
    (void)comm;
    (void)of;
    HD_TRY(heddle_bucket_reduce(t->bucket, HEDDLE_NO_STREAM));
    HD_TRY(heddle_adamw_step(t->adamw, 0.01, HEDDLE_NO_STREAM)); /* gathers */
out:
    return st;
}

static inline heddle_status make_pair(thing *t, heddle_comm *comm, const living *of, int64_t deadline_ms)
{
    heddle_status st;
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"tp", heddle_comm_size(comm)}}};
    heddle_shape shape;
    heddle_layout layout;
    heddle_dense_pair_options options;
    heddle_dense_pair_options_init(&options);
    options.hidden = 6;
    options.keep_gathered = of->way;
    options.deadline_ms = deadline_ms;
    HD_TRY(heddle_shape_parse(&shape, "f32[n=16 c=4]"));
    HD_TRY(heddle_layout_parse(&layout, "n@tp", &shape, &mesh));
    HD_TRY(heddle_dense_pair_create(&t->pair, comm, &shape, &mesh, &layout, 0, &options));
    HD_TRY(heddle_dense_pair_commit(t->pair));
out:
    return st;
}

static inline heddle_status use_pair(thing *t, heddle_comm *comm, const living *of)
{
    heddle_status st;
    (void)comm;
    (void)of;
    HD_TRY(heddle_dense_pair_forward(t->pair, t->data[1], t->data[0], HEDDLE_NO_STREAM));
    HD_TRY(heddle_dense_pair_backward(t->pair, t->data[2], t->data[1], t->data[0], HEDDLE_NO_STREAM));
out:
    return st;
}

static inline heddle_status make_pipeline(thing *t, heddle_comm *comm, const living *of, int64_t deadline_ms)
{
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"pp", heddle_comm_size(comm)}}};
    (void)of;
    (void)deadline_ms;
    return heddle_pipeline_create(&t->pipeline, comm, &mesh, 0);
}

static inline heddle_status use_pipeline(thing *t, heddle_comm *comm, const living *of)
{
    heddle_status st;
    const size_t bytes = sizeof t->data[0];
    (void)of;
    if (heddle_comm_rank(comm) == 0) {
        HD_TRY(heddle_pipeline_send_next(t->pipeline, t->data[0], bytes, HEDDLE_NO_STREAM));
        HD_TRY(heddle_pipeline_recv_next(t->pipeline, t->data[0], bytes, HEDDLE_NO_STREAM));
    } else {
        HD_TRY(heddle_pipeline_recv_prev(t->pipeline, t->data[0], bytes, HEDDLE_NO_STREAM));
        HD_TRY(heddle_pipeline_send_prev(t->pipeline, t->data[0], bytes, HEDDLE_NO_STREAM));
    }
out:
    return st;
}

/* --- what has no deadline of its own ---------------------------------------------------------------------------- */

static inline heddle_status make_session(thing *t, heddle_comm *comm, const living *of, int64_t deadline_ms)
{
    (void)of;
    (void)deadline_ms;
    return session_of_make(&t->session, comm);
}

static inline heddle_status use_session(thing *t, heddle_comm *comm, const living *of)
{
    heddle_status st;
    session_of *f = &t->session;
    heddle_tensor x, dx;
    const int rank = heddle_comm_rank(comm);
    (void)of;
    HD_TRY(heddle_tensor_init(&x, t->data[0], &f->shape, &f->mesh, &f->before, NULL, rank));
    HD_TRY(heddle_session_enter(f->session, "s.attn", &x, NULL, HEDDLE_NO_STREAM));
    HD_TRY(heddle_session_enter(f->session, "end", &x, NULL, HEDDLE_NO_STREAM));
    dx = x;
    dx.data = t->data[1];
    HD_TRY(heddle_session_backward(f->session, "end", &dx, NULL, HEDDLE_NO_STREAM));
    HD_TRY(heddle_session_backward(f->session, "s.attn", &dx, NULL, HEDDLE_NO_STREAM));
    HD_TRY(heddle_session_rewind(f->session));
out:
    return st;
}

static inline heddle_status make_executor(thing *t, heddle_comm *comm, const living *of, int64_t deadline_ms)
{
    heddle_status st;
    bench *b = &t->bench;
    heddle_executor_options options = options_on(comm);
    (void)of;
    (void)deadline_ms;
    options.backward = 1;
    HD_TRY(make_bench(b, comm));
    HD_TRY(heddle_executor_create(&b->executor, comm, b->schedule, b->stage, &options));
out:
    return st;
}

static inline heddle_status use_executor(thing *t, heddle_comm *comm, const living *of)
{
    heddle_status st;
    bench *b = &t->bench;
    (void)comm;
    (void)of;
    HD_TRY(fill(b));
    HD_TRY(heddle_executor_forward(b->executor, &b->x, &b->conditioning, HEDDLE_NO_STREAM));
    HD_TRY(heddle_executor_backward(b->executor, &b->x, &b->conditioning, NULL, HEDDLE_NO_STREAM));
out:
    return st;
}

static inline heddle_status make_calls(thing *t, heddle_comm *comm, const living *of, int64_t deadline_ms)
{
    (void)t;
    (void)comm;
    (void)of;
    (void)deadline_ms;
    return HEDDLE_OK;
}

/* way: 0 barrier, 1 allgather, 2 allreduce, 3 sendrecv */
static inline heddle_status use_calls(thing *t, heddle_comm *comm, const living *of)
{
    const int n = heddle_comm_size(comm), me = heddle_comm_rank(comm);
    const size_t bytes = sizeof t->data[0];
    switch (of->way) {
    case 0:
        return heddle_comm_barrier(comm);
    case 1:
        return heddle_comm_allgather(comm, t->data[0], t->data[1], bytes / (size_t)n);
    case 2:
        return heddle_comm_allreduce_sum(comm, t->data[0], FLOATS, HEDDLE_F32);
    default:
        return heddle_comm_sendrecv(comm, t->data[0], bytes, (me + 1) % n, t->data[1], bytes, (me + n - 1) % n,
                                    HEDDLE_NO_STREAM);
    }
}

static const living all_living[] = {
    {"switch", 2, 1, 0, make_reshard, use_reshard, "f32[b=1 t=8 s=8] on [sp=2]: s@sp -> t@sp"},
    {"started switch", 2, 1, 1, make_reshard, use_reshard, "f32[b=1 t=8 s=8] on [sp=2]: s@sp -> t@sp"},
    {"gather", 2, 1, 0, make_reshard, use_reshard, "f32[b=1 t=8 s=8] on [sp=2]: s@sp -> *"},
    {"sum", 2, 1, 0, make_reshard, use_reshard, "f32[b=1 t=8 s=8] on [sp=2]: sum@sp -> s@sp"},
    {"ulysses", 2, 1, HEDDLE_ATTENTION_ULYSSES, make_attention, use_attention, "[sp=2]; s@sp"},
    {"ring", 2, 1, HEDDLE_ATTENTION_RING, make_attention, use_attention, "[sp=2]; s@sp"},
    {"rsa", 2, 1, HEDDLE_ATTENTION_RSA, make_attention, use_attention, "[sp=2]; s@sp"},
    {"rsa by all-reduce", 2, 1, 100 + HEDDLE_ATTENTION_RSA, make_attention, use_attention, "[sp=2]; s@sp"},
    {"rsa projected", 2, 1, 200 + HEDDLE_ATTENTION_RSA, make_attention, use_attention, "[sp=2]; s@sp"},
    {"usp", 4, 1, HEDDLE_ATTENTION_USP, make_attention, use_attention, "[a=2 b=2]; s@a,s@b"},
    {"gather-kv", 2, 1, HEDDLE_ATTENTION_GATHER_KV, make_attention, use_attention, "[sp=2]; s@sp"},
    {"lasp", 2, 1, HEDDLE_LINEAR_LASP, make_linear, use_linear, "[sp=2]; s@sp"},
    {"lasp both ways", 2, 1, 100 + HEDDLE_LINEAR_LASP, make_linear, use_linear, "[sp=2]; s@sp"},
    {"lasp2", 2, 1, HEDDLE_LINEAR_LASP2, make_linear, use_linear, "[sp=2]; s@sp"},
    {"scan", 2, 1, HEDDLE_LINEAR_SCAN, make_linear, use_linear, "[sp=2]; s@sp"},
    {"bucket", 2, 1, 0, make_bucket, use_bucket, NULL},
    {"sharded bucket", 2, 1, 1, make_bucket, use_bucket, NULL},
    {"dense pair", 2, 1, 0, make_pair, use_pair, NULL},
    {"dense pair that keeps", 2, 1, 1, make_pair, use_pair, NULL},
    {"pipeline", 2, 0, 0, make_pipeline, use_pipeline, NULL},
    {"session", 2, 0, 0, make_session, use_session, NULL},
    {"executor", 2, 0, 0, make_executor, use_executor, NULL},
    {"barrier", 2, 0, 0, make_calls, use_calls, NULL},
    {"allgather", 2, 0, 1, make_calls, use_calls, NULL},
    {"allreduce", 2, 0, 2, make_calls, use_calls, NULL},
    {"sendrecv", 2, 0, 3, make_calls, use_calls, NULL},
};
enum { LIVING = sizeof all_living / sizeof *all_living };

#endif
