/* Every public function with NULL for each pointer in turn: this file has those of values, ranks and plans,
 * test_null2.c the rest; tests/golden/api_null.sh counts that none is missing. */
#include "fake_transport.h"
#include "null_calls.h"
#include <heddle/nccl.h>
#include <heddle/peers.h>
#include <heddle/sys/bench.h>
#include <heddle/sys/device.h>

static char text[HEDDLE_LINE_BYTES];
static int coords[HEDDLE_MAX_AXES];
static int64_t stride[HEDDLE_MAX_DIMS];
static const heddle_comm_options of_pigeons = {.struct_bytes = sizeof of_pigeons, .device = "pigeon"};
static heddle_peer peer_of_this = {.struct_bytes = sizeof peer_of_this};

/* function, arguments, neutral value, call */
#define VALUES(X)                                                                                                      \
    X(heddle_struct_bytes, "name", 0, (long)heddle_struct_bytes(P(0, "heddle_shape")))                                 \
    X(heddle_shape_parse, "out text", NULL_STATUS, heddle_shape_parse(P(0, &(heddle_shape){0}), P(1, "f32[b=1]")))     \
    X(heddle_mesh_parse, "out text", NULL_STATUS, heddle_mesh_parse(P(0, &(heddle_mesh){0}), P(1, "[sp=1]")))          \
    X(heddle_layout_parse, "out text shape mesh", NULL_STATUS,                                                         \
      heddle_layout_parse(P(0, &(heddle_layout){{0}}), P(1, "*"), P(2, SHAPE), P(3, MESH)))                            \
    X(heddle_shape_format, "out shape", NULL_STATUS, heddle_shape_format(P(0, text), sizeof text, P(1, SHAPE)))        \
    X(heddle_mesh_format, "out mesh", NULL_STATUS, heddle_mesh_format(P(0, text), sizeof text, P(1, MESH)))            \
    X(heddle_layout_format, "out layout shape mesh", NULL_STATUS,                                                      \
      heddle_layout_format(P(0, text), sizeof text, P(1, LAYOUT), P(2, SHAPE), P(3, MESH)))                            \
    X(heddle_shape_check, "shape", NULL_STATUS, heddle_shape_check(P(0, SHAPE)))                                       \
    X(heddle_mesh_check, "mesh", NULL_STATUS, heddle_mesh_check(P(0, MESH)))                                           \
    X(heddle_layout_check, "layout shape mesh", NULL_STATUS,                                                           \
      heddle_layout_check(P(0, LAYOUT), P(1, SHAPE), P(2, MESH)))                                                      \
    X(heddle_layout_equal, "a b mesh", 0, heddle_layout_equal(P(0, LAYOUT), P(1, LAYOUT), P(2, MESH)))                 \
    X(heddle_layout_dual, "layout", HEDDLE_PARTIAL, heddle_layout_dual(P(0, LAYOUT)).dim_of_axis[0])                   \
    X(heddle_mesh_size, "mesh", 0, heddle_mesh_size(P(0, MESH)))                                                       \
    X(heddle_mesh_coords, "coords mesh", NULL_STATUS, heddle_mesh_coords(P(0, coords), P(1, MESH), 0))                 \
    X(heddle_dim_index, "shape name", -1, heddle_dim_index(P(0, SHAPE), P(1, "b")))                                    \
    X(heddle_axis_index, "mesh name", -1, heddle_axis_index(P(0, MESH), P(1, "sp")))                                   \
    X(heddle_layout_box, "out shape mesh layout", NULL_STATUS,                                                         \
      heddle_layout_box(P(0, &(heddle_box){0}), P(1, SHAPE), P(2, MESH), P(3, LAYOUT), 0))                             \
    X(heddle_box_elems, "box", 0, heddle_box_elems(P(0, &a->box)))                                                     \
    X(heddle_box_strides, "stride_elems box order?", NULL_NOTHING,                                                     \
      (heddle_box_strides(P(0, stride), P(1, &a->box), P(2, &a->order)), 0))                                           \
    X(heddle_box_reach, "out_bytes box stride_elems shape", NULL_STATUS,                                               \
      heddle_box_reach(P(0, stride), P(1, &a->box), P(2, a->box.len), P(3, SHAPE), 0))                                 \
    X(heddle_tensor_init, "out data shape mesh layout order?", NULL_STATUS,                                            \
      heddle_tensor_init(P(0, &(heddle_tensor){0}), P(1, text), P(2, SHAPE), P(3, MESH), P(4, LAYOUT),                 \
                         P(5, &a->order), 0))

#define RANKS(X)                                                                                                       \
    X(heddle_comm_options_init, "options", NULL_NOTHING,                                                               \
      (heddle_comm_options_init(P(0, &(heddle_comm_options){0})), 0))                                                  \
    X(heddle_comm_open, "out where options?", NULL_STATUS,                                                             \
      heddle_comm_open(P(0, &(heddle_comm *){NULL}), P(1, "self"), P(2, &ranks_options)))                              \
    X(heddle_comm_join, "out key options?", NULL_STATUS,                                                               \
      heddle_comm_join(P(0, &(heddle_comm *){NULL}), P(1, "null"), 0, 1, P(2, &ranks_options)))                        \
    X(heddle_comm_launcher, "launcher? rank? size?", NULL_STATUS,                                                      \
      heddle_comm_launcher(P(0, &(const char *){NULL}), P(1, coords), P(2, coords + 1)))                               \
    X(heddle_comm_destroy, "comm?", NULL_NOTHING, (heddle_comm_destroy(NULL), 0))                                      \
    X(heddle_run_ranks, "transport fn arg?", NULL_STATUS,                                                              \
      heddle_run_ranks(1, P(0, "threads"), P(1, one_rank), P(2, text)))                                                \
    X(heddle_run_ranks_with, "transport options? fn arg?", NULL_STATUS,                                                \
      heddle_run_ranks_with(1, P(0, "threads"), P(1, &ranks_options), P(2, one_rank), P(3, text)))                     \
    X(heddle_comm_rank, "comm", -1, heddle_comm_rank(P(0, a->comm)))                                                   \
    X(heddle_comm_size, "comm", 0, heddle_comm_size(P(0, a->comm)))                                                    \
    X(heddle_comm_describe, "comm", 0, heddle_comm_describe(P(0, a->comm))[0])                                         \
    X(heddle_comm_reaches, "comm", 0, heddle_comm_reaches(P(0, a->comm), 0))                                           \
    X(heddle_comm_get_peer, "out comm", NULL_STATUS, heddle_comm_get_peer(P(0, &peer_of_this), P(1, a->comm), 0))      \
    X(heddle_comm_shared_cache_bytes, "comm?", NULL_NOTHING, (long)heddle_comm_shared_cache_bytes(P(0, a->comm)))      \
    X(heddle_buffer_alloc, "out comm", NULL_STATUS,                                                                    \
      heddle_buffer_alloc(P(0, &(void *){NULL}), P(1, a->comm), 8, HEDDLE_SPACE_HOST))                                 \
    X(heddle_buffer_free, "comm buffer?", NULL_NOTHING, (heddle_buffer_free(P(0, a->comm), P(1, buffer_of(a))), 0))    \
    X(heddle_pool_create, "out comm", NULL_STATUS, heddle_pool_create(P(0, &(heddle_pool *){NULL}), P(1, a->comm)))    \
    X(heddle_pool_destroy, "pool?", NULL_NOTHING, (heddle_pool_destroy(NULL), 0))                                      \
    X(heddle_pool_take, "out pool len", NULL_STATUS,                                                                   \
      heddle_pool_take(P(0, &(heddle_dl_managed *){NULL}), P(1, a->pool), HEDDLE_F32, 1, P(2, &(int64_t){3})))         \
    X(heddle_pool_give_back, "array?", NULL_NOTHING, (heddle_pool_give_back(NULL), 0))                                 \
    X(heddle_pool_trim, "pool?", NULL_NOTHING, (heddle_pool_trim(P(0, a->pool)), 0))                                   \
    X(heddle_pool_held_bytes, "pool", 0, (long)heddle_pool_held_bytes(P(0, a->pool)))                                  \
    X(heddle_comm_attach_device, "!comm device", NULL_STATUS,                                                          \
      heddle_comm_attach_device(P(0, a->comm), P(1, "pigeon"), HEDDLE_WIRE_AUTO))                                      \
    X(heddle_comm_lend_nccl, "!comm device borrowed", NULL_STATUS,                                                     \
      heddle_comm_lend_nccl(P(0, a->comm), P(1, "pigeon"), P(2, (struct ncclComm *)(void *)a->comm)))                  \
    X(heddle_comm_replay, "!comm graph", NULL_STATUS,                                                                  \
      heddle_comm_replay(P(0, a->comm), P(1, (void *)a->comm), HEDDLE_NO_STREAM))                                      \
    X(heddle_comm_lend_peers, "!comm at", NULL_STATUS,                                                                 \
      heddle_comm_lend_peers(P(0, a->comm), P(1, (void *const[]){text}), 8))                                           \
    X(heddle_comm_from_nccl, "!out borrowed", NULL_STATUS,                                                             \
      heddle_comm_from_nccl(P(0, &(heddle_comm *){NULL}), P(1, (struct ncclComm *)(void *)a->comm), &of_pigeons))      \
    X(heddle_comm_device, "comm", -1, heddle_comm_device(P(0, a->comm)))                                               \
    X(heddle_comm_device_table, "comm", NULL_NOTHING, heddle_comm_device_table(P(0, a->comm)) != NULL)                 \
    X(heddle_comm_poll, "comm", NULL_STATUS, heddle_comm_poll(P(0, a->comm)))                                          \
    X(heddle_comm_barrier, "comm", NULL_STATUS, heddle_comm_barrier(P(0, a->comm)))                                    \
    X(heddle_comm_allgather, "comm send recv", NULL_STATUS,                                                            \
      heddle_comm_allgather(P(0, a->comm), P(1, coords), P(2, stride), 4))                                             \
    X(heddle_comm_allreduce_sum, "comm data", NULL_STATUS,                                                             \
      heddle_comm_allreduce_sum(P(0, a->comm), P(1, stride), 2, HEDDLE_I64))                                           \
    X(heddle_comm_sendrecv, "comm send recv", NULL_STATUS,                                                             \
      heddle_comm_sendrecv(P(0, a->comm), P(1, coords), 4, 0, P(2, stride), 4, 0, HEDDLE_NO_STREAM))                   \
    X(heddle_comm_axis_group, "out comm mesh", NULL_STATUS,                                                            \
      heddle_comm_axis_group(P(0, &(heddle_comm *){NULL}), P(1, a->comm), P(2, MESH), 0))                              \
    X(heddle_comm_axes_group, "out comm mesh", NULL_STATUS,                                                            \
      heddle_comm_axes_group(P(0, &(heddle_comm *){NULL}), P(1, a->comm), P(2, MESH), 1))                              \
    X(heddle_comm_abort, "comm why?", NULL_STATUS, heddle_comm_abort(P(0, a->comm), P(1, "enough")))                   \
    X(heddle_comm_reset, "comm", NULL_STATUS, heddle_comm_reset(P(0, a->comm)))                                        \
    X(heddle_comm_from_callbacks, "out transport options?", NULL_STATUS, from_callbacks(null))                         \
    X(heddle_set_error, "format", HEDDLE_ERR_IO, set_error(HEDDLE_ERR_IO, P(0, "why")))

#define PLANS(X)                                                                                                       \
    X(heddle_reshard_parse, "out text", NULL_STATUS,                                                                   \
      heddle_reshard_parse(P(0, &(heddle_reshard_line){{0}}), P(1, api_line_text)))                                    \
    X(heddle_reshard_format, "out line", NULL_STATUS, heddle_reshard_format(P(0, text), sizeof text, P(1, &a->line)))  \
    X(heddle_reshard_sends, "out count line", NULL_STATUS,                                                             \
      heddle_reshard_sends(P(0, &(heddle_peer_bytes){0}), 1, P(1, coords), P(2, &a->line), 0))                         \
    X(heddle_reshard_options_init, "options", NULL_NOTHING,                                                            \
      (heddle_reshard_options_init(P(0, &(heddle_reshard_options){0})), 0))                                            \
    X(heddle_reshard_create, "out comm shape mesh from to options?", NULL_STATUS,                                      \
      heddle_reshard_create(P(0, &(heddle_reshard *){NULL}), P(1, a->comm), P(2, SHAPE), P(3, MESH), P(4, LAYOUT),     \
                            P(5, LAYOUT), P(6, &plan_options)))                                                        \
    X(heddle_reshard_create_line, "out comm line options?", NULL_STATUS,                                               \
      heddle_reshard_create_line(P(0, &(heddle_reshard *){NULL}), P(1, a->comm), P(2, &a->line), P(3, &plan_options))) \
    X(heddle_reshard_create_adjoint, "out reshard", NULL_STATUS,                                                       \
      heddle_reshard_create_adjoint(P(0, &(heddle_reshard *){NULL}), P(1, a->reshard)))                                \
    X(heddle_reshard_destroy, "reshard?", NULL_NOTHING, (heddle_reshard_destroy(NULL), 0))                             \
    X(heddle_reshard_get_info, "out reshard", NULL_STATUS,                                                             \
      heddle_reshard_get_info(P(0, &(heddle_reshard_info){.struct_bytes = sizeof(heddle_reshard_info)}),               \
                              P(1, a->reshard)))                                                                       \
    X(heddle_reshard_execute, "~reshard src dst", NULL_STATUS,                                                         \
      heddle_reshard_execute(P(0, a->reshard), P(1, a->x), P(2, floats), HEDDLE_NO_STREAM))                            \
    X(heddle_reshard_execute_pooled, "~out reshard src pool", NULL_STATUS,                                             \
      heddle_reshard_execute_pooled(P(0, &(heddle_dl_managed *){NULL}), P(1, a->reshard), P(2, a->x), P(3, a->pool),   \
                                    HEDDLE_NO_STREAM))                                                                 \
    X(heddle_reshard_start, "~reshard src dst", NULL_STATUS,                                                           \
      heddle_reshard_start(P(0, a->reshard), P(1, a->x), P(2, floats), HEDDLE_NO_STREAM))                              \
    X(heddle_reshard_test, "!reshard done", NULL_STATUS, heddle_reshard_test(P(0, a->reshard), P(1, coords)))          \
    X(heddle_reshard_wait, "!reshard", NULL_STATUS, heddle_reshard_wait(P(0, a->reshard)))                             \
    X(heddle_reshard_wait_on, "!reshard", NULL_STATUS, heddle_reshard_wait_on(P(0, a->reshard), HEDDLE_NO_STREAM))     \
    X(heddle_bench_options_init, "options", NULL_NOTHING,                                                              \
      (heddle_bench_options_init(P(0, &(heddle_bench_options){0})), 0))                                                \
    X(heddle_bench_reshard, "out comm line options?", NULL_STATUS,                                                     \
      heddle_bench_reshard(P(0, &(heddle_bench_result){.struct_bytes = sizeof(heddle_bench_result)}), P(1, a->comm),   \
                           P(2, &a->line), P(3, short_bench())))                                                       \
    X(heddle_copy_kernel_name, "min_run_bytes?", NULL_NOTHING, heddle_copy_kernel_name(0, P(0, stride)) != NULL)       \
    X(heddle_session_options_init, "options", NULL_NOTHING,                                                            \
      (heddle_session_options_init(P(0, &(heddle_session_options){0})), 0))                                            \
    X(heddle_session_create, "out comm schedule options?", NULL_STATUS,                                                \
      heddle_session_create(P(0, &(heddle_session *){NULL}), P(1, a->comm), P(2, a->schedule), NULL))                  \
    X(heddle_session_destroy, "session?", NULL_NOTHING, (heddle_session_destroy(NULL), 0))                             \
    X(heddle_session_enter, "session stage x dst?", NULL_STATUS,                                                       \
      heddle_session_enter(P(0, a->session), P(1, "s.attn"), P(2, &tensor), P(3, NULL), HEDDLE_NO_STREAM))             \
    X(heddle_session_expect, "like box? session stage", NULL_STATUS,                                                   \
      heddle_session_expect(P(0, &tensor), P(1, &(heddle_box){0}), P(2, a->session), P(3, "s.attn")))                  \
    X(heddle_session_expect_backward, "like box? session stage", NULL_STATUS,                                          \
      heddle_session_expect_backward(P(0, &tensor), P(1, &(heddle_box){0}), P(2, a->session), P(3, "end")))            \
    X(heddle_session_backward, "session stage dx dst?", NULL_STATUS,                                                   \
      heddle_session_backward(P(0, a->session), P(1, "end"), P(2, &tensor), P(3, NULL), HEDDLE_NO_STREAM))             \
    X(heddle_session_get_counters, "out session", NULL_STATUS,                                                         \
      heddle_session_get_counters(P(0, &(heddle_session_counters){.struct_bytes = sizeof(heddle_session_counters)}),   \
                                  P(1, a->session)))                                                                   \
    X(heddle_session_rewind, "session", NULL_STATUS, heddle_session_rewind(P(0, a->session)))                          \
    X(heddle_session_record_at, "!out session", NULL_STATUS,                                                           \
      heddle_session_record_at(P(0, &(heddle_session_record){.struct_bytes = sizeof(heddle_session_record)}),          \
                               P(1, a->session), 0))                                                                   \
    X(heddle_model_load, "!out name", NULL_STATUS, heddle_model_load(P(0, &(heddle_model *){NULL}), P(1, "/no/file"))) \
    X(heddle_model_parse, "out text name", NULL_STATUS,                                                                \
      heddle_model_parse(P(0, &(heddle_model *){NULL}), P(1, api_model_text), sizeof api_model_text - 1,               \
                         P(2, "small.yaml")))                                                                          \
    X(heddle_model_destroy, "model?", NULL_NOTHING, (heddle_model_destroy(NULL), 0))                                   \
    X(heddle_model_preset, "out", NULL_STATUS,                                                                         \
      heddle_model_preset(P(0, &(heddle_preset_info){.struct_bytes = sizeof(heddle_preset_info)}), 0))                 \
    X(heddle_model_find_preset, "index name", NULL_STATUS, heddle_model_find_preset(P(0, &(int){0}), P(1, "latte")))   \
    X(heddle_import_options_init, "options", NULL_NOTHING,                                                             \
      (heddle_import_options_init(P(0, &(heddle_import_options){0})), 0))                                              \
    X(heddle_model_import, "!out path options?", NULL_STATUS,                                                          \
      heddle_model_import(P(0, (char[8]){0}), 8, P(1, "/no/file"), NULL))                                              \
    X(heddle_model_get_info, "out model", NULL_STATUS,                                                                 \
      heddle_model_get_info(P(0, &(heddle_model_info){.struct_bytes = sizeof(heddle_model_info)}), P(1, a->model)))    \
    X(heddle_model_stage, "out model", NULL_STATUS,                                                                    \
      heddle_model_stage(P(0, &(heddle_stage_info){.struct_bytes = sizeof(heddle_stage_info)}), P(1, a->model), 0))    \
    X(heddle_model_resize, "model sizes?", NULL_STATUS, heddle_model_resize(P(0, a->model), P(1, "t=4"), 0))           \
    X(heddle_model_set_dtype, "model", NULL_STATUS, heddle_model_set_dtype(P(0, a->model), HEDDLE_F32))                \
    X(heddle_plan_options_init, "options", NULL_NOTHING,                                                               \
      (heddle_plan_options_init(P(0, &(heddle_plan_options){0})), 0))                                                  \
    X(heddle_plan, "out model mesh options?", NULL_STATUS,                                                             \
      heddle_plan(P(0, &(heddle_schedule *){NULL}), P(1, a->model), P(2, MESH), NULL))                                 \
    X(heddle_schedule_load, "!out path", NULL_STATUS,                                                                  \
      heddle_schedule_load(P(0, &(heddle_schedule *){NULL}), P(1, "/no/file")))                                        \
    X(heddle_schedule_parse, "!out text name", NULL_STATUS,                                                            \
      heddle_schedule_parse(P(0, &(heddle_schedule *){NULL}), P(1, "{}"), 2, P(2, "s.json")))                          \
    X(heddle_schedule_save, "!schedule path", NULL_STATUS,                                                             \
      heddle_schedule_save(P(0, a->schedule), P(1, "/no/folder/file")))                                                \
    X(heddle_schedule_destroy, "schedule?", NULL_NOTHING, (heddle_schedule_destroy(NULL), 0))                          \
    X(heddle_schedule_get_info, "out schedule", NULL_STATUS,                                                           \
      heddle_schedule_get_info(P(0, &(heddle_schedule_info){.struct_bytes = sizeof(heddle_schedule_info)}),            \
                               P(1, a->schedule)))                                                                     \
    X(heddle_schedule_stage_at, "out schedule", NULL_STATUS,                                                           \
      heddle_schedule_stage_at(P(0, &(heddle_schedule_stage){.struct_bytes = sizeof(heddle_schedule_stage)}),          \
                               P(1, a->schedule), 0))                                                                  \
    X(heddle_schedule_edge_at, "out schedule", NULL_STATUS,                                                            \
      heddle_schedule_edge_at(P(0, &(heddle_schedule_edge){.struct_bytes = sizeof(heddle_schedule_edge)}),             \
                              P(1, a->schedule), 0))                                                                   \
    X(heddle_schedule_find, "schedule name", -1, heddle_schedule_find(P(0, a->schedule), P(1, "s.attn"), 0))

/* --- what the calls need besides the objects --- */

#define SHAPE (&a->line.shape)
#define MESH (&a->line.mesh)
#define LAYOUT (&a->line.from)

static heddle_comm_options ranks_options;
static heddle_reshard_options plan_options;
static float floats[API_ELEMS];
static heddle_tensor tensor;

static heddle_status one_rank(heddle_comm *comm, void *arg)
{
    (void)comm;
    (void)arg;
    return HEDDLE_OK;
}

static void *buffer_of(const api_objects *a)
{
    void *buffer = NULL;
    HD_OK(heddle_buffer_alloc(&buffer, a->comm, 8, HEDDLE_SPACE_HOST));
    return buffer;
}

static heddle_status from_callbacks(int null)
{
    heddle_comm *comm = NULL;
    heddle_transport table;
    fake_world *world = fake_world_create(1);
    void *ctx = fake_rank(world, 0, &table);
    return heddle_comm_from_callbacks(P(0, &comm), P(1, &table), ctx, P(2, &ranks_options));
}

/* Without the attribute by which the compiler would refuse the NULL. */
static heddle_status (*const volatile set_error)(heddle_status, const char *, ...) = heddle_set_error;

static const heddle_bench_options *short_bench(void)
{
    static heddle_bench_options options;
    heddle_bench_options_init(&options);
    options.min_rounds = options.max_rounds = 1;
    return &options;
}

VALUES(CALL)
RANKS(CALL)
PLANS(CALL)

static void test_rows(const null_row *rows, size_t count)
{
    static api_objects a;
    heddle_comm_options_init(&ranks_options);
    heddle_reshard_options_init(&plan_options);
    HD_OK(heddle_reshard_parse(&a.line, api_line_text));
    HD_OK(heddle_tensor_init(&tensor, floats, &a.line.shape, &a.line.mesh, &a.line.from, NULL, 0));
    null_calls(rows, count);
}

HD_CASE(values)
{
    const null_row rows[] = {VALUES(ROW)};
    test_rows(rows, sizeof rows / sizeof rows[0]);
}

HD_CASE(ranks)
{
    const null_row rows[] = {RANKS(ROW)};
    test_rows(rows, sizeof rows / sizeof rows[0]);
}

HD_CASE(plans)
{
    const null_row rows[] = {PLANS(ROW)};
    test_rows(rows, sizeof rows / sizeof rows[0]);
}
