/* As test_null.c, for attention, blocks, gradients and pipelines. */
#include "null_calls.h"

#include <heddle/forecast.h>
#include <heddle/sys/bench.h>
#include <heddle/sys/calibrate.h>

#define SHAPE (&a->line.shape)
#define MESH (&a->line.mesh)
#define LAYOUT (&a->line.from)
#define ARRAY(index, memory) P(index, (&(heddle_attention_array){.data = (void *)(uintptr_t)(memory)}))
#define OUT(type) (&(type *){NULL})

/* A call may move what it is given. */
static heddle_tensor *tensor_of(const api_objects *a)
{
    static heddle_tensor tensor;
    tensor = a->tensor;
    return &tensor;
}

static float out1[API_ELEMS], out2[API_ELEMS], out3[API_ELEMS], out4[API_ELEMS];
static double wide[4][API_ELEMS];
static float square[API_ELEMS * API_ELEMS]; /* room for any state */

/* function, arguments, neutral value, call */
#define MACHINES(X)                                                                                                    \
    X(heddle_host_get_info, "out xml?", NULL_STATUS,                                                                   \
      heddle_host_get_info(P(0, &(heddle_host_info){.struct_bytes = sizeof(heddle_host_info)}), NULL))                 \
    X(heddle_machine_load, "!out name", NULL_STATUS,                                                                   \
      heddle_machine_load(P(0, &(heddle_machine *){NULL}), P(1, "/no/file")))                                          \
    X(heddle_machine_parse, "!out text name", NULL_STATUS,                                                             \
      heddle_machine_parse(P(0, &(heddle_machine *){NULL}), P(1, "x"), 1, P(2, "m")))                                  \
    X(heddle_machine_discover, "!out xml? matrix? gpu?", NULL_STATUS,                                                  \
      heddle_machine_discover(P(0, &(heddle_machine *){NULL}), P(1, "/no/file"), P(2, "/no/file"), "h100"))            \
    X(heddle_machine_import, "!machine format path info?", NULL_STATUS,                                                \
      heddle_machine_import(P(0, api_machine()), P(1, "galvatron"), P(2, "/no/file"), NULL))                           \
    X(heddle_machine_get_info, "out machine", NULL_STATUS,                                                             \
      heddle_machine_get_info(P(0, &(heddle_machine_info){.struct_bytes = sizeof(heddle_machine_info)}),               \
                              P(1, api_machine())))                                                                    \
    X(heddle_machine_resize, "machine", NULL_STATUS, heddle_machine_resize(P(0, api_machine()), 2))                    \
    X(heddle_machine_scaled, "!out machine link?", NULL_STATUS,                                                        \
      heddle_machine_scaled(P(0, &(heddle_machine *){NULL}), P(1, api_machine()), NULL, 0))                            \
    X(heddle_machine_save, "!machine path", NULL_STATUS,                                                               \
      heddle_machine_save(P(0, api_machine()), P(1, "/no/folder/file")))                                               \
    X(heddle_machine_destroy, "machine?", NULL_NOTHING, (heddle_machine_destroy(NULL), 0))                             \
    X(heddle_machine_fit, "!out measured about", NULL_STATUS,                                                          \
      heddle_machine_fit(P(0, &(heddle_machine *){NULL}), P(1, &(heddle_measured){0}), 1, P(2, &api_calibration)))     \
    X(heddle_plan_ranks, "out model options?", NULL_STATUS,                                                            \
      heddle_plan_ranks(P(0, &(heddle_schedule *){NULL}), P(1, a->model), 1, NULL))                                    \
    X(heddle_forecast_options_init, "options", NULL_NOTHING,                                                           \
      (heddle_forecast_options_init(P(0, &(heddle_forecast_options){0})), 0))                                          \
    X(heddle_forecast_create, "out model schedule machine options?", NULL_STATUS,                                      \
      heddle_forecast_create(P(0, &(heddle_forecast *){NULL}), P(1, a->model), P(2, a->schedule), P(3, api_machine()), \
                             NULL))                                                                                    \
    X(heddle_forecast_of_executor, "out model schedule options?", NULL_STATUS,                                         \
      heddle_forecast_of_executor(P(0, &(heddle_forecast_executor){.struct_bytes = sizeof(heddle_forecast_executor)}), \
                                  P(1, a->model), P(2, a->schedule), NULL))                                            \
    X(heddle_forecast_destroy, "forecast?", NULL_NOTHING, (heddle_forecast_destroy(NULL), 0))                          \
    X(heddle_forecast_get_info, "out forecast", NULL_STATUS,                                                           \
      heddle_forecast_get_info(P(0, &(heddle_forecast_info){.struct_bytes = sizeof(heddle_forecast_info)}),            \
                               P(1, api_forecast(a))))                                                                 \
    X(heddle_forecast_stage, "out forecast", NULL_STATUS,                                                              \
      heddle_forecast_stage(P(0, &(heddle_forecast_step){.struct_bytes = sizeof(heddle_forecast_step)}),               \
                            P(1, api_forecast(a)), 0))                                                                 \
    X(heddle_forecast_edge, "out forecast", NULL_STATUS,                                                               \
      heddle_forecast_edge(P(0, &(heddle_forecast_step){.struct_bytes = sizeof(heddle_forecast_step)}),                \
                           P(1, api_forecast(a)), 0))                                                                  \
    X(heddle_forecast_link_at, "out forecast", NULL_STATUS,                                                            \
      heddle_forecast_link_at(P(0, &(heddle_forecast_link){.struct_bytes = sizeof(heddle_forecast_link)}),             \
                              P(1, api_forecast(a)), 0))

#define SOFTMAX(X)                                                                                                     \
    X(heddle_attention_method_parse, "out text", NULL_STATUS,                                                          \
      heddle_attention_method_parse(P(0, &(heddle_attention_method){0}), P(1, "ring")))                                \
    X(heddle_attention_options_init, "options", NULL_NOTHING,                                                          \
      (heddle_attention_options_init(P(0, &(heddle_attention_options){0})), 0))                                        \
    X(heddle_attention_local_rows, "out shape mesh layout", NULL_STATUS,                                               \
      heddle_attention_local_rows(P(0, &(heddle_attention_rows){0}), P(1, SHAPE), P(2, MESH), P(3, LAYOUT),            \
                                  HEDDLE_PLACEMENT_CONTIGUOUS, 0))                                                     \
    X(heddle_attention_plan_traffic, "out shape mesh layout options?", NULL_STATUS,                                    \
      heddle_attention_plan_traffic(P(0, &(heddle_attention_traffic){0}), P(1, SHAPE), P(2, MESH), P(3, LAYOUT), NULL, \
                                    0))                                                                                \
    X(heddle_attention_create, "out comm shape mesh layout options?", NULL_STATUS,                                     \
      heddle_attention_create(P(0, OUT(heddle_attention)), P(1, a->comm), P(2, SHAPE), P(3, MESH), P(4, LAYOUT),       \
                              NULL))                                                                                   \
    X(heddle_attention_destroy, "attention?", NULL_NOTHING, (heddle_attention_destroy(NULL), 0))                       \
    X(heddle_attention_forward, "attention q k v o lse?", NULL_STATUS,                                                 \
      heddle_attention_forward(P(0, a->attention), ARRAY(1, a->x), ARRAY(2, a->x), ARRAY(3, a->x), ARRAY(4, out1),     \
                               NULL, HEDDLE_NO_STREAM))                                                                \
    X(heddle_attention_backward, "attention d_o dq dk dv", NULL_STATUS,                                                \
      heddle_attention_backward(null == 0 ? NULL : gone_forward(a), ARRAY(1, a->x), ARRAY(2, out1), ARRAY(3, out2),    \
                                ARRAY(4, out3), HEDDLE_NO_STREAM))                                                     \
    X(heddle_attention_set_projection, "attention e f de? df?", NULL_STATUS,                                           \
      heddle_attention_set_projection(null == 0 ? NULL : projected(a), P(1, out1), P(2, out2), P(3, out3),             \
                                      P(4, out4)))                                                                     \
    X(heddle_attention_get_info, "out attention", NULL_STATUS,                                                         \
      heddle_attention_get_info(P(0, &(heddle_attention_info){.struct_bytes = sizeof(heddle_attention_info)}),         \
                                P(1, a->attention)))

#define LINEAR(X)                                                                                                      \
    X(heddle_linear_method_parse, "out text", NULL_STATUS,                                                             \
      heddle_linear_method_parse(P(0, &(heddle_linear_method){0}), P(1, "lasp")))                                      \
    X(heddle_linear_attention_options_init, "options", NULL_NOTHING,                                                   \
      (heddle_linear_attention_options_init(P(0, &(heddle_linear_attention_options){0})), 0))                          \
    X(heddle_linear_attention_slopes, "out", NULL_STATUS, heddle_linear_attention_slopes(P(0, wide[0]), 2))            \
    X(heddle_linear_attention_plan_traffic, "out shape mesh layout options?", NULL_STATUS,                             \
      heddle_linear_attention_plan_traffic(P(0, &(heddle_attention_traffic){0}), P(1, SHAPE), P(2, MESH),              \
                                           P(3, LAYOUT), NULL, 0))                                                     \
    X(heddle_linear_attention_create, "out comm shape mesh layout options?", NULL_STATUS,                              \
      heddle_linear_attention_create(P(0, OUT(heddle_linear_attention)), P(1, a->comm), P(2, SHAPE), P(3, MESH),       \
                                     P(4, LAYOUT), NULL))                                                              \
    X(heddle_linear_attention_destroy, "attention?", NULL_NOTHING, (heddle_linear_attention_destroy(NULL), 0))         \
    X(heddle_linear_attention_forward, "attention q k v o", NULL_STATUS,                                               \
      heddle_linear_attention_forward(P(0, a->linear), ARRAY(1, a->x), ARRAY(2, a->x), ARRAY(3, a->x), ARRAY(4, out1), \
                                      HEDDLE_NO_STREAM))                                                               \
    X(heddle_linear_attention_backward, "attention q k v d_o dq dk dv", NULL_STATUS,                                   \
      heddle_linear_attention_backward(null == 0 ? NULL : linear_forward(a), ARRAY(1, a->x), ARRAY(2, a->x),           \
                                       ARRAY(3, a->x), ARRAY(4, a->x), ARRAY(5, out1), ARRAY(6, out2), ARRAY(7, out3), \
                                       HEDDLE_NO_STREAM))                                                              \
    X(heddle_linear_attention_state, "out attention", NULL_STATUS,                                                     \
      heddle_linear_attention_state(P(0, square), null == 1 ? NULL : linear_forward(a), HEDDLE_LINEAR_STATE_PLAIN,     \
                                    HEDDLE_NO_STREAM))                                                                 \
    X(heddle_linear_attention_get_info, "out attention", NULL_STATUS,                                                  \
      heddle_linear_attention_get_info(                                                                                \
          P(0, &(heddle_linear_attention_info){.struct_bytes = sizeof(heddle_linear_attention_info)}),                 \
          P(1, a->linear)))

#define BLOCKS(X)                                                                                                      \
    X(heddle_block_options_init, "options", NULL_NOTHING,                                                              \
      (heddle_block_options_init(P(0, &(heddle_block_options){0})), 0))                                                \
    X(heddle_block_create, "out options", NULL_STATUS,                                                                 \
      heddle_block_create(P(0, OUT(heddle_block)), P(1, block_options(a))))                                            \
    X(heddle_block_destroy, "block?", NULL_NOTHING, (heddle_block_destroy(NULL), 0))                                   \
    X(heddle_block_nparams, "block", 0, heddle_block_nparams(P(0, a->block)))                                          \
    X(heddle_block_param, "out block", NULL_STATUS,                                                                    \
      heddle_block_param(P(0, &(heddle_param){.struct_bytes = sizeof(heddle_param)}), P(1, a->block), 0))              \
    X(heddle_block_lend_param, "!block data?", NULL_STATUS,                                                            \
      heddle_block_lend_param(P(0, a->block), 0, P(1, a->x), HEDDLE_F32))                                              \
    X(heddle_block_agree, "block comm", NULL_STATUS, heddle_block_agree(P(0, a->block), P(1, a->comm)))                \
    X(heddle_block_seed, "block", NULL_STATUS, heddle_block_seed(P(0, a->block), 1))                                   \
    X(heddle_block_commit, "block", NULL_STATUS, heddle_block_commit(P(0, a->block)))                                  \
    X(heddle_block_refresh, "block", NULL_STATUS, heddle_block_refresh(P(0, a->block), HEDDLE_NO_STREAM))              \
    X(heddle_rows_dense, "!comm out x weight bias?", NULL_STATUS,                                                      \
      heddle_rows_dense(P(0, a->comm), P(1, out1), P(2, a->x), 1, 1, P(3, a->x), P(4, a->x), 1, HEDDLE_F32,            \
                        HEDDLE_NO_STREAM))                                                                             \
    X(heddle_rows_add, "!comm x y", NULL_STATUS,                                                                       \
      heddle_rows_add(P(0, a->comm), P(1, out1), P(2, a->x), 1, 1, HEDDLE_F32, HEDDLE_NO_STREAM))                      \
    X(heddle_rows_norm, "!comm out x shift? scale?", NULL_STATUS,                                                      \
      heddle_rows_norm(P(0, a->comm), P(1, out1), P(2, a->x), 1, 1, P(3, a->y), P(4, a->z), 0, 0, HEDDLE_F32,          \
                       HEDDLE_NO_STREAM))                                                                              \
    X(heddle_block_reserve, "block box", NULL_STATUS, heddle_block_reserve(P(0, a->block), P(1, &a->box)))             \
    X(heddle_block_forward, "block x box conditioning", NULL_STATUS,                                                   \
      heddle_block_forward(P(0, a->block), P(1, &a->tensor), P(2, &a->box), P(3, &a->conditioning), HEDDLE_NO_STREAM)) \
    X(heddle_block_shard_attention, "block comm mesh layout method", NULL_STATUS,                                      \
      heddle_block_shard_attention(P(0, a->block), P(1, a->comm), P(2, MESH), P(3, LAYOUT), P(4, "local")))            \
    X(heddle_block_get_traffic, "out block", NULL_STATUS,                                                              \
      heddle_block_get_traffic(P(0, &(heddle_block_traffic){.struct_bytes = sizeof(heddle_block_traffic)}),            \
                               P(1, a->block)))                                                                        \
    X(heddle_bench_product, "out block", NULL_STATUS,                                                                  \
      heddle_bench_product(P(0, &(heddle_bench_product_result){.struct_bytes = sizeof(heddle_bench_product_result)}),  \
                           P(1, a->block), 0, HEDDLE_PRODUCT_FORWARD, 1, 0))                                           \
    X(heddle_block_workspace_bytes, "block", 0, heddle_block_workspace_bytes(P(0, a->block)))                          \
    X(heddle_dense_forward, "out x weight bias?", NULL_STATUS,                                                         \
      heddle_dense_forward(P(0, out1), P(1, a->x), 2, 3, P(2, a->y), P(3, a->z), 4, 1, HEDDLE_NO_STREAM))              \
    X(heddle_tape_options_init, "options", NULL_NOTHING,                                                               \
      (heddle_tape_options_init(P(0, &(heddle_tape_options){0})), 0))                                                  \
    X(heddle_tape_create, "out block options?", NULL_STATUS,                                                           \
      heddle_tape_create(P(0, OUT(heddle_tape)), P(1, a->block), NULL))                                                \
    X(heddle_tape_destroy, "tape?", NULL_NOTHING, (heddle_tape_destroy(NULL), 0))                                      \
    X(heddle_tape_bytes, "tape", 0, heddle_tape_bytes(P(0, a->tape)))                                                  \
    X(heddle_tape_reserve, "tape box", NULL_STATUS, heddle_tape_reserve(P(0, a->tape), P(1, &a->box)))                 \
    X(heddle_executor_options_init, "options", NULL_NOTHING,                                                           \
      (heddle_executor_options_init(P(0, &(heddle_executor_options){0})), 0))                                          \
    X(heddle_executor_create, "out comm schedule stages options?", NULL_STATUS,                                        \
      heddle_executor_create(P(0, OUT(heddle_executor)), P(1, a->comm), P(2, a->schedule), P(3, &a->stage), NULL))     \
    X(heddle_executor_destroy, "executor?", NULL_NOTHING, (heddle_executor_destroy(NULL), 0))                          \
    X(heddle_executor_forward, "executor x conditioning", NULL_STATUS,                                                 \
      heddle_executor_forward(P(0, a->executor), P(1, tensor_of(a)), P(2, &a->conditioning), HEDDLE_NO_STREAM))        \
    X(heddle_executor_backward, "executor dx conditioning dconditioning?", NULL_STATUS,                                \
      heddle_executor_backward(P(0, a->executor), P(1, tensor_of(a)), P(2, &a->conditioning), NULL, HEDDLE_NO_STREAM)) \
    X(heddle_executor_set_timed, "executor", NULL_STATUS, heddle_executor_set_timed(P(0, a->executor), 0))             \
    X(heddle_executor_block, "executor", 0, heddle_executor_block(P(0, a->executor), 0) != NULL)                       \
    X(heddle_executor_get_info, "out executor", NULL_STATUS,                                                           \
      heddle_executor_get_info(P(0, &(heddle_executor_info){.struct_bytes = sizeof(heddle_executor_info)}),            \
                               P(1, a->executor)))                                                                     \
    X(heddle_executor_get_memory, "out executor", NULL_STATUS,                                                         \
      heddle_executor_get_memory(P(0, &(heddle_executor_memory){.struct_bytes = sizeof(heddle_executor_memory)}),      \
                                 P(1, a->executor)))                                                                   \
    X(heddle_executor_step_at, "out executor", NULL_STATUS,                                                            \
      heddle_executor_step_at(P(0, &(heddle_executor_step){.struct_bytes = sizeof(heddle_executor_step)}),             \
                              P(1, a->executor), 0, 0))                                                                \
    X(heddle_block_forward_tape, "block x box conditioning tape", NULL_STATUS,                                         \
      heddle_block_forward_tape(P(0, a->block), P(1, &a->tensor), P(2, &a->box), P(3, &a->conditioning),               \
                                P(4, a->tape), HEDDLE_NO_STREAM))                                                      \
    X(heddle_block_backward, "block dx conditioning dconditioning? tape", NULL_STATUS,                                 \
      heddle_block_backward(P(0, a->block), P(1, &a->tensor), P(2, &a->conditioning),                                  \
                            P(3, &(heddle_conditioning_gradient){0}), P(4, a->tape), HEDDLE_NO_STREAM))                \
    X(heddle_block_gradient, "out block", NULL_STATUS,                                                                 \
      heddle_block_gradient(P(0, &(heddle_param){.struct_bytes = sizeof(heddle_param)}), P(1, a->block), 0))           \
    X(heddle_block_zero_gradients, "block?", NULL_NOTHING,                                                             \
      (heddle_block_zero_gradients(P(0, a->block), HEDDLE_NO_STREAM), 0))                                              \
    X(heddle_block_share_workspace, "block with", NULL_STATUS,                                                         \
      heddle_block_share_workspace(P(0, a->block), P(1, another_block(a))))                                            \
    X(heddle_dense_backward, "dx? dweight dbias? dout x weight", NULL_STATUS,                                          \
      heddle_dense_backward(P(0, out1), P(1, out2), P(2, out3), P(3, a->x), P(4, a->y), 2, 3, P(5, a->z), 4, 1,        \
                            HEDDLE_NO_STREAM))

#define TRAINING(X)                                                                                                    \
    X(heddle_bucket_options_init, "options", NULL_NOTHING,                                                             \
      (heddle_bucket_options_init(P(0, &(heddle_bucket_options){0})), 0))                                              \
    X(heddle_bucket_create, "out comm mesh parts options?", NULL_STATUS,                                               \
      heddle_bucket_create(P(0, OUT(heddle_bucket)), P(1, a->comm), P(2, MESH), P(3, &a->part), 1, NULL))              \
    X(heddle_bucket_destroy, "bucket?", NULL_NOTHING, (heddle_bucket_destroy(NULL), 0))                                \
    X(heddle_bucket_reduce, "bucket", NULL_STATUS, heddle_bucket_reduce(P(0, a->bucket), HEDDLE_NO_STREAM))            \
    X(heddle_bucket_gather, "bucket", NULL_STATUS, heddle_bucket_gather(P(0, a->bucket), HEDDLE_NO_STREAM))            \
    X(heddle_bucket_norm, "out bucket", NULL_STATUS,                                                                   \
      heddle_bucket_norm(P(0, wide[0]), P(1, a->bucket), HEDDLE_NO_STREAM))                                            \
    X(heddle_bucket_zero, "bucket?", NULL_NOTHING, (heddle_bucket_zero(P(0, a->bucket), HEDDLE_NO_STREAM), 0))         \
    X(heddle_bucket_get_info, "out bucket", NULL_STATUS,                                                               \
      heddle_bucket_get_info(P(0, &(heddle_bucket_info){.struct_bytes = sizeof(heddle_bucket_info)}),                  \
                             P(1, a->bucket)))                                                                         \
    X(heddle_adamw_options_init, "options", NULL_NOTHING,                                                              \
      (heddle_adamw_options_init(P(0, &(heddle_adamw_options){0})), 0))                                                \
    X(heddle_adamw_create, "out bucket options?", NULL_STATUS,                                                         \
      heddle_adamw_create(P(0, OUT(heddle_adamw)), P(1, a->bucket), NULL))                                             \
    X(heddle_adamw_destroy, "adamw?", NULL_NOTHING, (heddle_adamw_destroy(NULL), 0))                                   \
    X(heddle_adamw_step, "adamw", NULL_STATUS, heddle_adamw_step(P(0, a->adamw), 0.1, HEDDLE_NO_STREAM))               \
    X(heddle_adamw_step_clipped, "adamw", NULL_STATUS,                                                                 \
      heddle_adamw_step_clipped(P(0, a->adamw), 0.1, 1, HEDDLE_NO_STREAM))                                             \
    X(heddle_adamw_state_bytes, "adamw", 0, heddle_adamw_state_bytes(P(0, a->adamw)))                                  \
    X(heddle_dense_pair_options_init, "options", NULL_NOTHING,                                                         \
      (heddle_dense_pair_options_init(P(0, &(heddle_dense_pair_options){0})), 0))                                      \
    X(heddle_dense_pair_create, "!out comm shape mesh layout options?", NULL_STATUS,                                   \
      heddle_dense_pair_create(P(0, OUT(heddle_dense_pair)), P(1, a->comm), P(2, SHAPE), P(3, MESH), P(4, LAYOUT), 0,  \
                               P(5, pair_options())))                                                                  \
    X(heddle_dense_pair_destroy, "pair?", NULL_NOTHING, (heddle_dense_pair_destroy(NULL), 0))                          \
    X(heddle_dense_pair_nparams, "pair", 0, heddle_dense_pair_nparams(P(0, a->pair)))                                  \
    X(heddle_dense_pair_param, "out pair", NULL_STATUS,                                                                \
      heddle_dense_pair_param(P(0, &(heddle_param){.struct_bytes = sizeof(heddle_param)}), P(1, a->pair), 0))          \
    X(heddle_dense_pair_gradient, "out pair", NULL_STATUS,                                                             \
      heddle_dense_pair_gradient(P(0, &(heddle_param){.struct_bytes = sizeof(heddle_param)}), P(1, a->pair), 0))       \
    X(heddle_dense_pair_zero_gradients, "pair?", NULL_NOTHING,                                                         \
      (heddle_dense_pair_zero_gradients(P(0, a->pair), HEDDLE_NO_STREAM), 0))                                          \
    X(heddle_dense_pair_rows, "lo? len? pair", NULL_NOTHING,                                                           \
      (heddle_dense_pair_rows(P(0, &(int64_t){0}), P(1, &(int64_t){0}), P(2, a->pair)), 0))                            \
    X(heddle_dense_pair_commit, "pair", NULL_STATUS, heddle_dense_pair_commit(P(0, a->pair)))                          \
    X(heddle_dense_pair_forward, "pair y x", NULL_STATUS,                                                              \
      heddle_dense_pair_forward(P(0, a->pair), P(1, out1), P(2, a->x), HEDDLE_NO_STREAM))                              \
    X(heddle_dense_pair_backward, "pair dx dy x", NULL_STATUS,                                                         \
      heddle_dense_pair_backward(P(0, a->pair), P(1, out1), P(2, a->y), P(3, a->x), HEDDLE_NO_STREAM))                 \
    X(heddle_dense_pair_get_info, "out pair", NULL_STATUS,                                                             \
      heddle_dense_pair_get_info(P(0, &(heddle_dense_pair_info){.struct_bytes = sizeof(heddle_dense_pair_info)}),      \
                                 P(1, a->pair)))                                                                       \
    X(heddle_pipeline_create, "out comm mesh", NULL_STATUS,                                                            \
      heddle_pipeline_create(P(0, OUT(heddle_pipeline)), P(1, a->comm), P(2, MESH), 0))                                \
    X(heddle_pipeline_destroy, "pipeline?", NULL_NOTHING, (heddle_pipeline_destroy(NULL), 0))                          \
    X(heddle_pipeline_stage, "pipeline", -1, heddle_pipeline_stage(P(0, a->pipeline)))                                 \
    X(heddle_pipeline_stages, "pipeline", 0, heddle_pipeline_stages(P(0, a->pipeline)))                                \
    X(heddle_pipeline_send_next, "!pipeline data", NULL_STATUS,                                                        \
      heddle_pipeline_send_next(P(0, a->pipeline), P(1, out1), 4, HEDDLE_NO_STREAM))                                   \
    X(heddle_pipeline_recv_prev, "!pipeline data", NULL_STATUS,                                                        \
      heddle_pipeline_recv_prev(P(0, a->pipeline), P(1, out1), 4, HEDDLE_NO_STREAM))                                   \
    X(heddle_pipeline_send_prev, "!pipeline data", NULL_STATUS,                                                        \
      heddle_pipeline_send_prev(P(0, a->pipeline), P(1, out1), 4, HEDDLE_NO_STREAM))                                   \
    X(heddle_pipeline_recv_next, "!pipeline data", NULL_STATUS,                                                        \
      heddle_pipeline_recv_next(P(0, a->pipeline), P(1, out1), 4, HEDDLE_NO_STREAM))                                   \
    X(heddle_pipeline_bytes_sent, "pipeline", 0, heddle_pipeline_bytes_sent(P(0, a->pipeline)))

/* --- what the calls need besides the objects --- */

static heddle_attention *gone_forward(const api_objects *a)
{
    const heddle_attention_array in = {.data = (void *)(uintptr_t)a->x}, out = {.data = out4};
    HD_OK(heddle_attention_forward(a->attention, &in, &in, &in, &out, NULL, HEDDLE_NO_STREAM));
    return a->attention;
}

static heddle_attention *projected(const api_objects *a)
{
    heddle_attention *attention = NULL;
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    options.method = HEDDLE_ATTENTION_RSA;
    options.projected_length = 2;
    HD_OK(heddle_attention_create(&attention, a->comm, SHAPE, MESH, LAYOUT, &options));
    return attention;
}

static heddle_linear_attention *linear_forward(const api_objects *a)
{
    const heddle_attention_array in = {.data = (void *)(uintptr_t)a->x}, out = {.data = out4};
    HD_OK(heddle_linear_attention_forward(a->linear, &in, &in, &in, &out, HEDDLE_NO_STREAM));
    return a->linear;
}

static const heddle_block_options *block_options(const api_objects *a)
{
    static heddle_block_options options;
    api_options_of_block(&options, a);
    return &options;
}

static heddle_block *another_block(const api_objects *a)
{
    heddle_block *block = NULL;
    HD_OK(heddle_block_create(&block, block_options(a)));
    return block;
}

static const heddle_calibration api_calibration = {
    .struct_bytes = sizeof(heddle_calibration), .name = "one", .source = "none", .link = "shm", .ranks = 1};

static const heddle_forecast *api_forecast(const api_objects *a)
{
    static heddle_forecast *forecast;
    if (forecast == NULL) {
        HD_OK(heddle_forecast_create(&forecast, a->model, a->schedule, api_machine(), NULL));
    }
    return forecast;
}

static const heddle_dense_pair_options *pair_options(void)
{
    static heddle_dense_pair_options options;
    heddle_dense_pair_options_init(&options);
    options.hidden = 2;
    return &options;
}

SOFTMAX(CALL)
MACHINES(CALL)
LINEAR(CALL)
BLOCKS(CALL)
TRAINING(CALL)

#define CASE(name, LIST)                                                                                               \
    HD_CASE(name)                                                                                                      \
    {                                                                                                                  \
        const null_row rows[] = {LIST(ROW)};                                                                           \
        null_calls(rows, sizeof rows / sizeof rows[0]);                                                                \
    }

CASE(softmax, SOFTMAX)
CASE(machines, MACHINES)
CASE(linear, LINEAR)
CASE(blocks, BLOCKS)
CASE(training, TRAINING)
