/* The one rule of struct_bytes, for every public struct that has it: the whole struct and that of an older header are
 * taken or filled, and nothing behind an older one is read or written; a larger one and nonsense are refused with both
 * numbers. */
#include "struct_calls.h"

#include <stdio.h>

enum { ROOM = 8192, CANARY = 0xA5 };

static void fill_transport(void *s)
{
    fake_world *world = fake_world_create(1);
    heddle_transport *table = s;
    void *ctx = fake_rank(world, 0, table);
    table->destroy(ctx);
    fake_world_destroy(world);
}

GETS(stage_into, heddle_schedule_stage_at(s, a.schedule, 0))
GETS(edge_into, heddle_schedule_edge_at(s, a.schedule, 0))
GETS(model_stage_into, heddle_model_stage(s, a.model, 0))

static heddle_status record_into(void *s)
{
    heddle_tensor x = a.tensor;
    heddle_status st = heddle_session_enter(a.session, "end", &x, NULL, HEDDLE_NO_STREAM); /* may be repeated */
    return st == HEDDLE_OK ? heddle_session_record_at(s, a.session, 0) : st;
}

GETS(param_into, heddle_block_param(s, a.block, 0))
GETS(gradient_into, heddle_block_gradient(s, a.block, 0))
GETS(pair_param_into, heddle_dense_pair_param(s, a.pair, 0))
GETS(pair_gradient_into, heddle_dense_pair_gradient(s, a.pair, 0))

static void fill_block(void *s)
{
    api_options_of_block(s, &a);
}

static void fill_pair(void *s)
{
    heddle_dense_pair_options *options = s;
    heddle_dense_pair_options_init(options);
    options->hidden = 2;
}

static void fill_bench(void *s)
{
    heddle_bench_options *options = s;
    heddle_bench_options_init(options);
    options->min_rounds = options->max_rounds = 1;
}

#define FILL(name)                                                                                                     \
    static void fill_##name(void *s)                                                                                   \
    {                                                                                                                  \
        heddle_##name##_options_init(s);                                                                               \
    }
FILL(comm)
FILL(reshard)
FILL(plan)
FILL(session)
FILL(attention)
FILL(linear_attention)
FILL(bucket)
FILL(adamw)
FILL(executor)
FILL(import)
FILL(tape)

static const struct row {
    const char *name;
    size_t bytes, least_bytes; /* of today; of the oldest header that a caller may have */
    void (*fill)(void *s);     /* NULL: an output, which has no other input than its size */
    heddle_status (*call)(void *s);
} rows[] = {
#define END(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define OPTIONS(type, least, fill, call)                                                                               \
    {                                                                                                                  \
#type, sizeof(type), END(type, least), fill, call                                                              \
    }
#define RESULT(type, least, call)                                                                                      \
    {                                                                                                                  \
#type, sizeof(type), END(type, least), NULL, call                                                              \
    }
    OPTIONS(heddle_comm_options, deadline_ms, fill_comm, open_with),
    OPTIONS(heddle_reshard_options, to_order, fill_reshard, run_with),
    OPTIONS(heddle_plan_options, prologue, fill_plan, plan_with),
    OPTIONS(heddle_session_options, backward, fill_session, session_with),
    OPTIONS(heddle_attention_options, method, fill_attention, attention_with),
    OPTIONS(heddle_linear_attention_options, method, fill_linear_attention, linear_with),
    OPTIONS(heddle_dense_pair_options, hidden, fill_pair, pair_with),
    OPTIONS(heddle_bucket_options, average_axes, fill_bucket, bucket_with),
    OPTIONS(heddle_adamw_options, beta2, fill_adamw, adamw_with),
    OPTIONS(heddle_block_options, mixed_dim, fill_block, block_with),
    OPTIONS(heddle_tape_options, recompute, fill_tape, tape_with),
    OPTIONS(heddle_executor_options, ctx, fill_executor, executor_with),
    OPTIONS(heddle_import_options, width, fill_import, import_with),
    OPTIONS(heddle_bench_options, min_rounds, fill_bench, bench_with),
    OPTIONS(heddle_transport, destroy, fill_transport, transport_with),
    RESULT(heddle_bench_result, samples, bench_into),
    RESULT(heddle_reshard_info, nranks, reshard_into),
    RESULT(heddle_session_counters, enters, counters_into),
    RESULT(heddle_schedule_info, model, schedule_into),
    RESULT(heddle_schedule_stage, name, stage_into),
    RESULT(heddle_schedule_edge, to, edge_into),
    RESULT(heddle_stage_info, name, model_stage_into),
    RESULT(heddle_session_record, backward, record_into),
    RESULT(heddle_param, name, param_into),
    RESULT(heddle_param, name, gradient_into),
    RESULT(heddle_param, name, pair_param_into),
    RESULT(heddle_param, name, pair_gradient_into),
    RESULT(heddle_model_info, name, model_into),
    RESULT(heddle_preset_info, text, preset_into),
    RESULT(heddle_machine_info, name, machine_into),
    RESULT(heddle_host_info, packages, host_into),
    RESULT(heddle_import_info, nrows, import_into),
    RESULT(heddle_attention_info, method, attention_into),
    RESULT(heddle_linear_attention_info, method, linear_into),
    RESULT(heddle_dense_pair_info, planned_forward_bytes, pair_into),
    RESULT(heddle_bucket_info, elems, bucket_into),
    RESULT(heddle_executor_info, backward_ns, executor_into),
    RESULT(heddle_executor_step, kept_bytes, executor_step_into),
    RESULT(heddle_executor_memory, parameters, executor_memory_into),
    RESULT(heddle_forecast_executor, parameters, executor_plan_into),
    RESULT(heddle_block_traffic, planned_forward_bytes, traffic_into),
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static _Alignas(16) unsigned char room[ROOM];

/* A caller's struct of `bytes`; what lies behind it is none of the library's business. */
static heddle_status call(const struct row *row, size_t bytes)
{
    assert_true(row->bytes < ROOM - 64);
    memset(room, CANARY, sizeof room);
    if (row->fill != NULL) {
        memset(room, 0, row->bytes);
        row->fill(room);
    }
    memcpy(room, &bytes, sizeof bytes);
    if (bytes >= sizeof bytes && bytes < row->bytes) {
        memset(room + bytes, CANARY, sizeof room - bytes);
    }
    return row->call(room);
}

static int canary_lives(size_t from)
{
    for (size_t i = from; i < sizeof room; i++) {
        if (room[i] != CANARY) {
            return 0;
        }
    }
    return 1;
}

static int refused(const struct row *row, size_t bytes)
{
    char given[32], known[32];
    heddle_status st = call(row, bytes);
    snprintf(given, sizeof given, "%zu", bytes);
    snprintf(known, sizeof known, "%zu", row->bytes);
    const char *why = heddle_last_error();
    if (st == HEDDLE_ERR_ARG && strstr(why, given) != NULL && strstr(why, known) != NULL &&
        strstr(why, row->name) != NULL && canary_lives(row->bytes)) {
        return 1;
    }
    print_error("%s with struct_bytes %zu of %zu: %s: %s\n", row->name, bytes, row->bytes, heddle_status_name(st), why);
    return 0;
}

static int accepted(const struct row *row, size_t bytes)
{
    size_t after = 0;
    heddle_status st = call(row, bytes);
    memcpy(&after, room, sizeof after);
    if (st == HEDDLE_OK && canary_lives(bytes) && after == bytes) {
        return 1;
    }
    print_error("%s with struct_bytes %zu of %zu: %s, %s behind it, struct_bytes %zu afterwards: %s\n", row->name,
                bytes, row->bytes, heddle_status_name(st), canary_lives(bytes) ? "nothing written" : "WRITTEN", after,
                st != HEDDLE_OK ? heddle_last_error() : "");
    return 0;
}

HD_CASE(today)
{
    int wrong = 0;
    api_make(&a);
    for (size_t i = 0; i < ROWS; i++) {
        wrong += !accepted(&rows[i], rows[i].bytes);
    }
    assert_int_equal(wrong, 0);
}

/* Every size that an older header may have had. */
HD_CASE(older_callers)
{
    int wrong = 0, tried = 0;
    api_make(&a);
    for (size_t i = 0; i < ROWS; i++) {
        size_t least = (rows[i].least_bytes + 7) / 8 * 8;
        for (size_t bytes = least; bytes < rows[i].bytes; bytes += 8) {
            wrong += !accepted(&rows[i], bytes);
            tried++;
        }
    }
    assert_int_equal(wrong, 0);
    assert_true(tried > 100);
}

HD_CASE(newer_callers_and_nonsense)
{
    int wrong = 0;
    api_make(&a);
    for (size_t i = 0; i < ROWS; i++) {
        const size_t bad[] = {0, 1, 5, 8, rows[i].bytes - 1, rows[i].bytes + 8, 4096, SIZE_MAX};
        for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
            wrong += !refused(&rows[i], bad[k]);
        }
    }
    assert_int_equal(wrong, 0);
}
