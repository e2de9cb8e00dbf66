/* What a run holds on this rank. */
#include "runtime/verify/run_pass.h"

enum { VECTOR_ROWS = 6 };

/* Input, conditioning and their gradients, sums of gradients; of a device's blocks what is on the host. */
static heddle_status ends(int64_t *bytes, const run_pass *f)
{
    const heddle_shape *shape = &f->task->info.shape;
    const int64_t batch = shape->dim[0].extent, channels = shape->dim[f->task->info.channel_dim].extent;
    const int64_t conditioning = batch * channels * (VECTOR_ROWS + f->task->info.text_tokens) * (int64_t)sizeof(float);
    heddle_bucket_info bucket = HEDDLE_EMPTY(heddle_bucket_info);
    *bytes = f->first_bytes + conditioning;
    if (f->back == NULL) {
        return HEDDLE_OK;
    }
    *bytes += conditioning + f->back->loss_bytes;
    const heddle_status st = heddle_bucket_get_info(&bucket, f->back->bucket);
    *bytes += bucket.workspace_bytes;
    return st;
}

heddle_status run_take_memory(run_result *out, const run_pass *f)
{
    heddle_executor_memory m = HEDDLE_EMPTY(heddle_executor_memory);
    const heddle_status st = heddle_executor_get_memory(&m, f->executor);
    if (st != HEDDLE_OK) {
        return st;
    }
    out->memory[RUN_MEMORY_PARAMETERS] = m.parameters;
    out->memory[RUN_MEMORY_GRADIENTS] = m.gradients;
    out->memory[RUN_MEMORY_KEPT] = m.kept;
    out->memory[RUN_MEMORY_METHODS] = m.methods;
    out->memory[RUN_MEMORY_BLOCKS] = m.blocks;
    out->memory[RUN_MEMORY_SWITCHES] = m.switches;
    out->memory[RUN_MEMORY_PRODUCTS] = m.products;
    out->memory[RUN_MEMORY_THREADS] = m.threads;
    out->memory[RUN_MEMORY_MESSAGES] = m.messages;
    out->lent = m.lent;
    return ends(&out->memory[RUN_MEMORY_ENDS], f);
}
