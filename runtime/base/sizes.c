/* How large the public structs are in this library. */
#include "runtime/base/base.h"

#include <heddle/forecast.h>
#include <heddle/heddle.h>
#include <string.h>

#define STRUCTS(X)                                                                                                     \
    X(heddle_attention_array)                                                                                          \
    X(heddle_attention_info)                                                                                           \
    X(heddle_attention_options)                                                                                        \
    X(heddle_attention_rows)                                                                                           \
    X(heddle_attention_traffic)                                                                                        \
    X(heddle_axis)                                                                                                     \
    X(heddle_block_options)                                                                                            \
    X(heddle_block_traffic)                                                                                            \
    X(heddle_box)                                                                                                      \
    X(heddle_comm_options)                                                                                             \
    X(heddle_conditioning)                                                                                             \
    X(heddle_dim)                                                                                                      \
    X(heddle_forecast_info)                                                                                            \
    X(heddle_forecast_link)                                                                                            \
    X(heddle_forecast_memory)                                                                                          \
    X(heddle_forecast_options)                                                                                         \
    X(heddle_forecast_executor)                                                                                        \
    X(heddle_forecast_step)                                                                                            \
    X(heddle_host_info)                                                                                                \
    X(heddle_import_info)                                                                                              \
    X(heddle_import_row)                                                                                               \
    X(heddle_import_options)                                                                                           \
    X(heddle_layout)                                                                                                   \
    X(heddle_linear_attention_info)                                                                                    \
    X(heddle_linear_attention_options)                                                                                 \
    X(heddle_machine_info)                                                                                             \
    X(heddle_mesh)                                                                                                     \
    X(heddle_model_info)                                                                                               \
    X(heddle_order)                                                                                                    \
    X(heddle_param)                                                                                                    \
    X(heddle_peer)                                                                                                     \
    X(heddle_peer_bytes)                                                                                               \
    X(heddle_plan_options)                                                                                             \
    X(heddle_preset_info)                                                                                              \
    X(heddle_reshard_info)                                                                                             \
    X(heddle_reshard_line)                                                                                             \
    X(heddle_reshard_options)                                                                                          \
    X(heddle_schedule_edge)                                                                                            \
    X(heddle_schedule_info)                                                                                            \
    X(heddle_schedule_stage)                                                                                           \
    X(heddle_session_counters)                                                                                         \
    X(heddle_session_options)                                                                                          \
    X(heddle_session_record)                                                                                           \
    X(heddle_shape)                                                                                                    \
    X(heddle_stage_info)                                                                                               \
    X(heddle_tensor)

size_t heddle_struct_bytes(const char *name)
{
#define SIZE_OF(type) {#type, sizeof(type)},
    static const struct {
        const char *name;
        size_t bytes;
    } known[] = {STRUCTS(SIZE_OF)};
#undef SIZE_OF
    for (size_t i = 0; name != NULL && i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, name) == 0) {
            return known[i].bytes;
        }
    }
    return 0;
}
