/* One call for every public struct that begins with struct_bytes: it takes or fills in the struct it is given. */
#ifndef STRUCT_CALLS_H
#define STRUCT_CALLS_H

#include "api_objects.h"
#include "fake_transport.h"

#include <heddle/sys/bench.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static api_objects a;

/* `s` is the struct as the caller has it. */
#define MAKES(name, type, call)                                                                                        \
    static heddle_status name(void *s)                                                                                 \
    {                                                                                                                  \
        type *made = NULL;                                                                                             \
        heddle_status st = call;                                                                                       \
        type##_destroy(made);                                                                                          \
        return st;                                                                                                     \
    }
#define GETS(name, call)                                                                                               \
    static heddle_status name(void *s)                                                                                 \
    {                                                                                                                  \
        return call;                                                                                                   \
    }

MAKES(open_with, heddle_comm, heddle_comm_open(&made, "self", s))
MAKES(run_with, heddle_reshard, heddle_reshard_create_line(&made, a.comm, &a.line, s))
MAKES(plan_with, heddle_schedule, heddle_plan(&made, a.model, &a.line.mesh, s))
MAKES(session_with, heddle_session, heddle_session_create(&made, a.comm, a.schedule, s))
MAKES(attention_with, heddle_attention,
      heddle_attention_create(&made, a.comm, &a.line.shape, &a.line.mesh, &a.line.from, s))
MAKES(linear_with, heddle_linear_attention,
      heddle_linear_attention_create(&made, a.comm, &a.line.shape, &a.line.mesh, &a.line.from, s))
MAKES(pair_with, heddle_dense_pair,
      heddle_dense_pair_create(&made, a.comm, &a.line.shape, &a.line.mesh, &a.line.from, 0, s))
MAKES(bucket_with, heddle_bucket, heddle_bucket_create(&made, a.comm, &a.line.mesh, &a.part, 1, s))
MAKES(adamw_with, heddle_adamw, heddle_adamw_create(&made, a.bucket, s))
MAKES(block_with, heddle_block, heddle_block_create(&made, s))
MAKES(tape_with, heddle_tape, heddle_tape_create(&made, a.block, s))
MAKES(executor_with, heddle_executor, heddle_executor_create(&made, a.comm, a.schedule, &a.stage, s))

static heddle_status bench_with(void *s)
{
    heddle_bench_result result = HEDDLE_EMPTY(heddle_bench_result);
    return heddle_bench_reshard(&result, a.comm, &a.line, s);
}

static heddle_status bench_into(void *s)
{
    heddle_bench_options options;
    heddle_bench_options_init(&options);
    options.min_rounds = options.max_rounds = 1;
    return heddle_bench_reshard(s, a.comm, &a.line, &options);
}

/* A config that lies in no folder. */
static heddle_status import_with(void *s)
{
    static const char config[] = "{_class_name: WanTransformer3DModel, num_attention_heads: 2, attention_head_dim: 8, "
                                 "in_channels: 4, num_layers: 1, patch_size: [1, 2, 2]}";
    char text[HEDDLE_IMPORT_BYTES], path[64];
    int fd = memfd_create("config", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    heddle_status st = write(fd, config, sizeof config - 1) == (ssize_t)sizeof config - 1
                           ? heddle_model_import(text, sizeof text, path, s)
                           : HEDDLE_ERR_IO;
    close(fd);
    return st;
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

GETS(reshard_into, heddle_reshard_get_info(s, a.reshard))
GETS(counters_into, heddle_session_get_counters(s, a.session))
GETS(schedule_into, heddle_schedule_get_info(s, a.schedule))
GETS(model_into, heddle_model_get_info(s, a.model))
GETS(preset_into, heddle_model_preset(s, 0))
GETS(machine_into, heddle_machine_get_info(s, api_machine()))
GETS(host_into, heddle_host_get_info(s, NULL))
GETS(import_into, heddle_machine_import(api_machine(), "galvatron", api_times(), s))
GETS(attention_into, heddle_attention_get_info(s, a.attention))
GETS(linear_into, heddle_linear_attention_get_info(s, a.linear))
GETS(pair_into, heddle_dense_pair_get_info(s, a.pair))
GETS(bucket_into, heddle_bucket_get_info(s, a.bucket))
GETS(executor_into, heddle_executor_get_info(s, a.executor))
GETS(executor_memory_into, heddle_executor_get_memory(s, a.executor))
GETS(executor_plan_into, heddle_forecast_of_executor(s, a.model, a.schedule, NULL))
GETS(executor_step_into, heddle_executor_step_at(s, a.executor, 0, 1))
GETS(traffic_into, heddle_block_get_traffic(s, a.block))

#endif
