/* Arrays of a run whose blocks compute on a device: made and looked at on the host, and copied before and behind. */
#include "runtime/verify/device_array.h"
#include "runtime/verify/run_pass.h"

#include <stdlib.h>
#include <string.h>

int run_is_there(const run_pass *f)
{
    return f->task->blocks_on_device && heddle_comm_device(f->comm) >= 0;
}

heddle_status run_place(void **there, const run_pass *f, const void *host, size_t bytes)
{
    heddle_status st = *there == NULL ? heddle_buffer_alloc(there, f->comm, bytes + 1, HEDDLE_SPACE_DEVICE) : HEDDLE_OK;
    return st == HEDDLE_OK && bytes > 0 ? judge_device_copy(f->comm, *there, host, bytes, f->stream) : st;
}

heddle_status run_place_tensor(heddle_tensor *x, void **there, const run_pass *f)
{
    const heddle_status st = run_place(there, f, x->data, x->capacity_bytes);
    x->data = *there;
    x->space = HEDDLE_SPACE_DEVICE;
    x->device = heddle_comm_device(f->comm);
    return st;
}

heddle_status run_bring(void **host, const run_pass *f, const heddle_tensor *x, size_t bytes)
{
    *host = malloc(bytes + 1);
    if (*host == NULL) {
        return run_no_memory("a part", (int64_t)bytes);
    }
    return bytes > 0 ? judge_device_copy(f->comm, *host, x->data, bytes, f->stream) : HEDDLE_OK;
}

/* Gradients begin as the bucket's zeros. */
heddle_status run_back_there(run_pass *f, int is_before)
{
    run_back *b = f->back;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < b->nparts && st == HEDDLE_OK; i++) {
        const size_t bytes = (size_t)b->part[i].elems * sizeof(float);
        void *there = i < b->nparts - 2 ? b->grad_there[i] : i == b->nparts - 2 ? b->dvector_there : b->dtext_there;
        if (bytes > 0) {
            st = is_before ? judge_device_copy(f->comm, there, b->part[i].grad, bytes, f->stream)
                           : judge_device_copy(f->comm, b->part[i].grad, there, bytes, f->stream);
        }
    }
    return st;
}
