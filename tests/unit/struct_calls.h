/* One call for every public struct that begins with struct_bytes: it takes or fills in the struct it is given. */
#ifndef STRUCT_CALLS_H
#define STRUCT_CALLS_H

#include "api_objects.h"
#include "fake_transport.h"

#include <heddle/sys/bench.h>

static api_objects a;

/* --- one call per struct: with the struct as the caller has it --- */

static heddle_status open_with(void *s)
{
    heddle_comm *comm = NULL;
    heddle_status st = heddle_comm_open(&comm, "self", s);
    heddle_comm_destroy(comm);
    return st;
}

static heddle_status run_with(void *s)
{
    heddle_reshard *reshard = NULL;
    heddle_status st = heddle_reshard_create_line(&reshard, a.comm, &a.line, s);
    heddle_reshard_destroy(reshard);
    return st;
}

static heddle_status plan_with(void *s)
{
    heddle_schedule *schedule = NULL;
    heddle_status st = heddle_plan(&schedule, a.model, &a.line.mesh, s);
    heddle_schedule_destroy(schedule);
    return st;
}

static heddle_status session_with(void *s)
{
    heddle_session *session = NULL;
    heddle_status st = heddle_session_create(&session, a.comm, a.schedule, s);
    heddle_session_destroy(session);
    return st;
}

static heddle_status attention_with(void *s)
{
    heddle_attention *attention = NULL;
    heddle_status st = heddle_attention_create(&attention, a.comm, &a.line.shape, &a.line.mesh, &a.line.from, s);
    heddle_attention_destroy(attention);
    return st;
}

static heddle_status linear_with(void *s)
{
    heddle_linear_attention *linear = NULL;
    heddle_status st = heddle_linear_attention_create(&linear, a.comm, &a.line.shape, &a.line.mesh, &a.line.from, s);
    heddle_linear_attention_destroy(linear);
    return st;
}

static heddle_status pair_with(void *s)
{
    heddle_dense_pair *pair = NULL;
    heddle_status st = heddle_dense_pair_create(&pair, a.comm, &a.line.shape, &a.line.mesh, &a.line.from, 0, s);
    heddle_dense_pair_destroy(pair);
    return st;
}

static heddle_status bucket_with(void *s)
{
    heddle_bucket *bucket = NULL;
    heddle_status st = heddle_bucket_create(&bucket, a.comm, &a.line.mesh, &a.part, 1, s);
    heddle_bucket_destroy(bucket);
    return st;
}

static heddle_status adamw_with(void *s)
{
    heddle_adamw *adamw = NULL;
    heddle_status st = heddle_adamw_create(&adamw, a.bucket, s);
    heddle_adamw_destroy(adamw);
    return st;
}

static heddle_status block_with(void *s)
{
    heddle_block *block = NULL;
    heddle_status st = heddle_block_create(&block, s);
    heddle_block_destroy(block);
    return st;
}

static heddle_status tape_with(void *s)
{
    heddle_tape *tape = NULL;
    heddle_status st = heddle_tape_create(&tape, a.block, s);
    heddle_tape_destroy(tape);
    return st;
}

static heddle_status executor_with(void *s)
{
    heddle_executor *executor = NULL;
    heddle_status st = heddle_executor_create(&executor, a.comm, a.schedule, &a.stage, s);
    heddle_executor_destroy(executor);
    return st;
}

static heddle_status bench_with(void *s)
{
    heddle_bench_result result = {.struct_bytes = sizeof result};
    return heddle_bench_reshard(&result, a.comm, &a.line, s);
}

static heddle_status bench_into(void *s)
{
    heddle_bench_options options;
    heddle_bench_options_init(&options);
    options.min_rounds = options.max_rounds = 1;
    return heddle_bench_reshard(s, a.comm, &a.line, &options);
}

/* A transport of one rank, whose every slot would be missed. */
static heddle_status transport_with(void *s)
{
    heddle_comm *comm = NULL;
    fake_world *world = fake_world_create(1);
    heddle_transport real;
    void *ctx = fake_rank(world, 0, &real);
    heddle_status st = heddle_comm_from_callbacks(&comm, s, ctx, NULL);
    if (comm == NULL) {
        real.destroy(ctx);
    }
    heddle_comm_destroy(comm);
    fake_world_destroy(world);
    return st;
}

static heddle_status reshard_into(void *s)
{
    return heddle_reshard_get_info(s, a.reshard);
}

static heddle_status counters_into(void *s)
{
    return heddle_session_get_counters(s, a.session);
}

static heddle_status schedule_into(void *s)
{
    return heddle_schedule_get_info(s, a.schedule);
}

static heddle_status model_into(void *s)
{
    return heddle_model_get_info(s, a.model);
}

static heddle_status attention_into(void *s)
{
    return heddle_attention_get_info(s, a.attention);
}

static heddle_status linear_into(void *s)
{
    return heddle_linear_attention_get_info(s, a.linear);
}

static heddle_status pair_into(void *s)
{
    return heddle_dense_pair_get_info(s, a.pair);
}

static heddle_status bucket_into(void *s)
{
    return heddle_bucket_get_info(s, a.bucket);
}

static heddle_status executor_into(void *s)
{
    return heddle_executor_get_info(s, a.executor);
}

static heddle_status executor_step_into(void *s)
{
    return heddle_executor_step_at(s, a.executor, 0, 1);
}

static heddle_status traffic_into(void *s)
{
    return heddle_block_get_traffic(s, a.block);
}

/* --- what a caller of today has in each --- */

#endif
