/* What an executor holds, by what it is for. */
#include "runtime/base/base.h"
#include "runtime/block/inner.h"
#include "runtime/model/executor_internal.h"

heddle_status heddle_executor_get_memory(heddle_executor_memory *out, const heddle_executor *executor)
{
    const heddle_executor *e = executor;
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    hd_block_held held = {0};
    heddle_status st;
    HD_TRY(HD_NEED(out, executor));
    HD_TRY(heddle_session_get_counters(&counters, e->session));
    heddle_executor_memory made = {.switches = counters.buffer_bytes,
                                   .messages = counters.workspace_bytes - counters.buffer_bytes};
    for (int i = 0; i < e->info.nstages; i++) {
        made.kept += e->step[i].kept_bytes;
        if (!e->is_shared[i]) {
            hd_block_measure(&held, e->block[i]);
        }
    }
    hd_block_measure_shared(&held, e->block[0]);
    made.parameters = held.parameters;
    made.gradients = held.gradients;
    made.products = held.products;
    made.methods = held.method;
    made.lent = held.method_lent;
    made.blocks = held.arrays;
    made.threads = held.threads;
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_executor_memory, parameters));
out:
    return st;
}
