/* Every kind of call in which a rank waits for others, on one communicator: what ranks do at the same time. */
#ifndef CROSSED_CALLS_H
#define CROSSED_CALLS_H

#include "check.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <string.h>

typedef enum crossed_call {
    CALL_EXECUTE,       /* plan[0] */
    CALL_EXECUTE_OTHER, /* plan[1], of as many bytes */
    CALL_START_WAIT,    /* plan[2] */
    CALL_TWO_STARTED,   /* plan[0] and plan[2], waited for in another order on every second rank */
    CALL_ON_AXIS,       /* a plan of the group along the first axis */
    CALL_CREATE,
    CALL_CREATE_OTHER,
    CALL_AXIS_GROUP,
    CALL_ATTENTION, /* forward */
    CALL_CREATE_ATTENTION,
    CALL_LASP,  /* linear attention, forward */
    CALL_LASP2, /* likewise */
    CALL_BARRIER,
    CALL_ALLGATHER,
    CALL_ALLREDUCE,
    CALL_SENDRECV, /* round a ring */
    CALLS
} crossed_call;

enum { CROSSED_PLANS = 3, CROSSED_ELEMS = 4096, CROSSED_SHORT_MS = 400 };

typedef struct crossed {
    heddle_comm *comm, *group;
    heddle_reshard *plan[CROSSED_PLANS], *of_group, *short_plan; /* short_plan: its deadline is */
    heddle_attention *attention;
    heddle_linear_attention *linear[2];
    float *src, *dst, *more; /* CROSSED_ELEMS each */
} crossed;

static inline heddle_status crossed_plan_within(heddle_reshard **out, heddle_comm *comm, const char *what,
                                                int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    char text[256];
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.tuning = HEDDLE_TUNING_RULES;
    options.memory = HEDDLE_MEMORY_ANY;
    options.deadline_ms = deadline_ms;
    snprintf(text, sizeof text, what, heddle_comm_size(comm));
    HD_TRY(heddle_reshard_parse(&line, text));
    HD_TRY(heddle_reshard_create_line(out, comm, &line, &options));
out:
    return st;
}

static inline heddle_status crossed_plan(heddle_reshard **out, heddle_comm *comm, const char *what)
{
    return crossed_plan_within(out, comm, what, 0);
}

/* What attention is asked about: its sequence over all ranks. */
static inline heddle_status crossed_line(heddle_reshard_line *line, const heddle_comm *comm)
{
    char text[256];
    snprintf(text, sizeof text, "f32[b=1 s=16 h=4 d=8] on [sp=%d]: s@sp -> s@sp", heddle_comm_size(comm));
    return heddle_reshard_parse(line, text);
}

static inline heddle_status crossed_attention(heddle_attention **out, heddle_comm *comm, heddle_attention_method method)
{
    heddle_reshard_line l;
    heddle_attention_options options;
    const heddle_status st = crossed_line(&l, comm);
    heddle_attention_options_init(&options);
    options.method = method;
    return st != HEDDLE_OK ? st : heddle_attention_create(out, comm, &l.shape, &l.mesh, &l.from, &options);
}

static inline heddle_status crossed_linear(heddle_linear_attention **out, heddle_comm *comm,
                                           heddle_linear_method method)
{
    heddle_reshard_line l;
    heddle_linear_attention_options options;
    const heddle_status st = crossed_line(&l, comm);
    heddle_linear_attention_options_init(&options);
    options.method = method;
    return st != HEDDLE_OK ? st : heddle_linear_attention_create(out, comm, &l.shape, &l.mesh, &l.from, &options);
}

/* Two axes where the number of ranks is even. */
static inline heddle_mesh crossed_mesh(const heddle_comm *comm)
{
    const int n = heddle_comm_size(comm), up = n % 2 == 0 ? 2 : n;
    return (heddle_mesh){.naxes = 2, .axis = {{"up", up}, {"on", n / up}}};
}

static inline heddle_status crossed_open(crossed *c, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    const heddle_mesh mesh = crossed_mesh(comm);
    memset(c, 0, sizeof *c);
    c->comm = comm;
    HD_TRY(heddle_buffer_alloc((void **)&c->src, comm, CROSSED_ELEMS * sizeof(float), HEDDLE_SPACE_HOST));
    HD_TRY(heddle_buffer_alloc((void **)&c->dst, comm, CROSSED_ELEMS * sizeof(float), HEDDLE_SPACE_HOST));
    HD_TRY(heddle_buffer_alloc((void **)&c->more, comm, CROSSED_ELEMS * sizeof(float), HEDDLE_SPACE_HOST));
    HD_TRY(heddle_comm_axis_group(&c->group, comm, &mesh, 0));
    HD_TRY(crossed_plan(&c->plan[0], comm, "f32[t=32 s=16] on [sp=%d]: t@sp -> s@sp"));
    HD_TRY(crossed_plan(&c->plan[1], comm, "f32[t=16 s=32] on [sp=%d]: t@sp -> s@sp"));
    HD_TRY(crossed_plan(&c->plan[2], comm, "f32[t=10 s=7] on [sp=%d]: s@sp -> t@sp"));
    HD_TRY(crossed_plan_within(&c->short_plan, comm, "f32[t=8 s=8] on [sp=%d]: t@sp -> s@sp", CROSSED_SHORT_MS));
    HD_TRY(crossed_plan(&c->of_group, c->group, "f32[t=12 s=8] on [up=%d]: t@up -> s@up"));
    HD_TRY(crossed_attention(&c->attention, comm, HEDDLE_ATTENTION_RING));
    HD_TRY(crossed_linear(&c->linear[0], comm, HEDDLE_LINEAR_LASP));
    HD_TRY(crossed_linear(&c->linear[1], comm, HEDDLE_LINEAR_LASP2));
out:
    return st;
}

static inline void crossed_close(crossed *c)
{
    heddle_attention_destroy(c->attention);
    heddle_linear_attention_destroy(c->linear[0]);
    heddle_linear_attention_destroy(c->linear[1]);
    heddle_reshard_destroy(c->of_group);
    heddle_reshard_destroy(c->short_plan);
    for (int i = 0; i < CROSSED_PLANS; i++) {
        heddle_reshard_destroy(c->plan[i]);
    }
    heddle_comm_destroy(c->group);
    heddle_buffer_free(c->comm, c->src);
    heddle_buffer_free(c->comm, c->dst);
    heddle_buffer_free(c->comm, c->more);
}

static inline heddle_status crossed_forward(crossed *c)
{
    heddle_attention_array x[4];
    for (int i = 0; i < 4; i++) {
        x[i] = (heddle_attention_array){.data = (i < 3 ? c->src : c->dst) + i * 512};
    }
    return heddle_attention_forward(c->attention, &x[0], &x[1], &x[2], &x[3], NULL, HEDDLE_NO_STREAM);
}

static inline heddle_status crossed_flow(crossed *c, int method)
{
    heddle_attention_array x[4];
    for (int i = 0; i < 4; i++) {
        x[i] = (heddle_attention_array){.data = (i < 3 ? c->src : c->dst) + i * 512};
    }
    return heddle_linear_attention_forward(c->linear[method], &x[0], &x[1], &x[2], &x[3], HEDDLE_NO_STREAM);
}

static inline heddle_status crossed_started(crossed *c)
{
    heddle_status st = HEDDLE_OK;
    const int odd = heddle_comm_rank(c->comm) % 2;
    HD_TRY(heddle_reshard_start(c->plan[0], c->src, c->dst, HEDDLE_NO_STREAM));
    HD_TRY(heddle_reshard_start(c->plan[2], c->src, c->more, HEDDLE_NO_STREAM));
    HD_TRY(heddle_reshard_wait(c->plan[odd ? 0 : 2]));
    HD_TRY(heddle_reshard_wait(c->plan[odd ? 2 : 0]));
out:
    return st;
}

static inline heddle_status crossed_make(crossed *c, crossed_call call)
{
    const heddle_mesh mesh = crossed_mesh(c->comm);
    heddle_reshard *plan = NULL;
    heddle_attention *attention = NULL;
    heddle_comm *group = NULL;
    heddle_status st = call == CALL_AXIS_GROUP ? heddle_comm_axis_group(&group, c->comm, &mesh, 1)
                       : call == CALL_CREATE_ATTENTION
                           ? crossed_attention(&attention, c->comm, HEDDLE_ATTENTION_ULYSSES)
                           : crossed_plan(&plan, c->comm,
                                          call == CALL_CREATE ? "f32[t=6 s=9] on [sp=%d]: t@sp -> s@sp"
                                                              : "f32[t=9 s=9] on [sp=%d]: t@sp -> *");
    heddle_reshard_destroy(plan);
    heddle_attention_destroy(attention);
    heddle_comm_destroy(group);
    return st;
}

static inline heddle_status crossed_do(crossed *c, crossed_call call)
{
    heddle_status st = HEDDLE_OK;
    const int me = heddle_comm_rank(c->comm), n = heddle_comm_size(c->comm);
    double data[8 * 64] = {0};
    switch (call) {
    case CALL_EXECUTE:
    case CALL_EXECUTE_OTHER:
        return heddle_reshard_execute(c->plan[call - CALL_EXECUTE], c->src, c->dst, HEDDLE_NO_STREAM);
    case CALL_START_WAIT:
        HD_TRY(heddle_reshard_start(c->plan[2], c->src, c->dst, HEDDLE_NO_STREAM));
        return heddle_reshard_wait(c->plan[2]);
    case CALL_TWO_STARTED:
        return crossed_started(c);
    case CALL_ON_AXIS:
        return heddle_reshard_execute(c->of_group, c->src, c->dst, HEDDLE_NO_STREAM);
    case CALL_ATTENTION:
        return crossed_forward(c);
    case CALL_LASP:
    case CALL_LASP2:
        return crossed_flow(c, call - CALL_LASP);
    case CALL_BARRIER:
        return heddle_comm_barrier(c->comm);
    case CALL_ALLGATHER:
        return heddle_comm_allgather(c->comm, data, data + 8, 8);
    case CALL_ALLREDUCE:
        return heddle_comm_allreduce_sum(c->comm, data, 3, HEDDLE_F64);
    case CALL_SENDRECV:
        return heddle_comm_sendrecv(c->comm, data, 2048, (me + 1) % n, data + 256, 2048, (me + n - 1) % n,
                                    HEDDLE_NO_STREAM);
    default:
        return crossed_make(c, call);
    }
out:
    return st;
}

#endif
