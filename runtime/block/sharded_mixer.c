/* The mixer of a sharded mixed dim: the rows between the linear layers, handed to an attention object of the group. */
#include "runtime/base/base.h"
#include "runtime/block/back_internal.h"
#include "runtime/block/sharded.h"

static int64_t rows_of(const hd_block_view *view)
{
    return view->outer * view->inner * view->t;
}

/* LINEAR's factors [rows][heads]. */
static size_t kept_bytes(const heddle_block *block, const hd_block_view *view)
{
    int64_t factors = block->options.kind == HEDDLE_STAGE_LINEAR ? rows_of(view) * block->options.heads : 0;
    return (size_t)factors * sizeof(float);
}

/* --- arrays of the object in the block's buffers ------------------------------------------------------------------ */

/* [fibres][t][columns] of which the array's heads begin at `first`. */
static heddle_attention_array array_of(const hd_mixer_call *call, const void *data, int64_t columns, int64_t first,
                                       size_t elem)
{
    uintptr_t at = (uintptr_t)data + (size_t)first * elem;
    return (heddle_attention_array){.data = data == NULL ? NULL : (void *)at,
                                    .stride_elems = {call->view->t * columns, columns, call->block->head_channels, 1}};
}

typedef struct three_arrays {
    heddle_attention_array q, k, v;
} three_arrays;

static three_arrays three_of(const hd_mixer_call *call, const void *data, size_t elem)
{
    int64_t c = call->block->channels;
    return (three_arrays){array_of(call, data, 3 * c, 0, elem), array_of(call, data, 3 * c, c, elem),
                          array_of(call, data, 3 * c, 2 * c, elem)};
}

static heddle_status object_forward(const hd_mixer_call *call, void *o)
{
    const hd_block_sharded *s = call->block->sharded;
    size_t elem = heddle_dtype_bytes(s->shape.dtype);
    three_arrays x = three_of(call, call->qkv, elem);
    heddle_attention_array out = array_of(call, o, call->block->channels, 0, elem);
    return s->linear != NULL ? heddle_linear_attention_forward(s->linear, &x.q, &x.k, &x.v, &out, HEDDLE_NO_STREAM)
                             : heddle_attention_forward(s->attention, &x.q, &x.k, &x.v, &out, NULL, HEDDLE_NO_STREAM);
}

/* Of the results of LINEAR before their norm. */
static heddle_status reserve_raw(const hd_mixer_call *call)
{
    return hd_back_reserve(call->block, HD_WORK_RAW,
                           (size_t)(rows_of(call->view) * call->block->channels) * sizeof(float));
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static heddle_status forward(const hd_mixer_call *call)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = call->block->sharded;
    if (s->fibres == 0) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_sharded_make(call->block, call->back));
    s->held = ++s->forwards;
    if (s->linear != NULL) {
        HD_TRY(reserve_raw(call));
    }
    HD_TRY(object_forward(call, s->linear != NULL ? hd_back_work(call->block, HD_WORK_RAW) : call->o));
    if (call->forward != NULL) {
        *call->forward = s->held;
    }
    if (s->linear != NULL) {
        hd_linear_norm(call->block, call->o, call->kept, hd_back_work(call->block, HD_WORK_RAW), rows_of(call->view));
    }
out:
    return st == HEDDLE_OK ? st : hd_sharded_give_up(call->block, st);
}

/* The object's own backward on gradients of its dtype, both of them in `d_o` and `d_qkv`. */
static heddle_status object_backward(const hd_mixer_call *call, const void *d_o, void *d_qkv)
{
    const hd_block_sharded *s = call->block->sharded;
    size_t elem = heddle_dtype_bytes(s->shape.dtype);
    three_arrays x = three_of(call, call->qkv, elem), dx = three_of(call, d_qkv, elem);
    heddle_attention_array d_out = array_of(call, d_o, call->block->channels, 0, elem);
    return s->linear != NULL ? heddle_linear_attention_backward(s->linear, &x.q, &x.k, &x.v, &d_out, &dx.q, &dx.k,
                                                                &dx.v, HEDDLE_NO_STREAM)
                             : heddle_attention_backward(s->attention, &d_out, &dx.q, &dx.k, &dx.v, HEDDLE_NO_STREAM);
}

static heddle_status backward_linear(const hd_mixer_call *call)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(reserve_raw(call));
    float *raw = hd_back_work(call->block, HD_WORK_RAW);
    hd_linear_norm_back(call->block, raw, call->d_o, call->o, call->kept, rows_of(call->view));
    HD_TRY(object_backward(call, raw, call->d_qkv));
out:
    return st;
}

/* bf16: gradients in the storage type lie in the workspace, [rows][3][c] behind [rows][c]. */
static heddle_status backward_softmax(const hd_mixer_call *call)
{
    heddle_status st = HEDDLE_OK;
    heddle_block *block = call->block;
    heddle_dtype dtype = block->sharded->shape.dtype;
    int64_t elems = rows_of(call->view) * block->channels;
    size_t bytes = (size_t)elems * heddle_dtype_bytes(dtype);
    if (dtype == HEDDLE_F32) {
        return object_backward(call, call->d_o, call->d_qkv);
    }
    HD_TRY(hd_back_reserve(block, HD_WORK_RAW, 4 * bytes));
    char *d_o = hd_back_work(block, HD_WORK_RAW), *d_qkv = d_o != NULL ? d_o + bytes : NULL;
    block->kernels->convert(d_o, dtype, call->d_o, HEDDLE_F32, elems);
    HD_TRY(object_backward(call, d_o, d_qkv));
    block->kernels->convert(call->d_qkv, HEDDLE_F32, d_qkv, dtype, 3 * elems);
out:
    return st;
}

static heddle_status backward(const hd_mixer_call *call)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = call->block->sharded;
    if (s->fibres == 0) {
        return HEDDLE_OK;
    }
    if (*call->forward != s->held) { /* the object holds a later forward; the gradients' memory takes the results */
        HD_TRY(object_forward(call, call->d_qkv));
        s->held = *call->forward;
    }
    HD_TRY(s->linear != NULL ? backward_linear(call) : backward_softmax(call));
out:
    return st == HEDDLE_OK ? st : hd_sharded_give_up(call->block, st);
}

const hd_block_mixer hd_mixer_sharded = {
    .name = "sharded", .collective = 1, .kept_bytes = kept_bytes, .forward = forward, .backward = backward};
