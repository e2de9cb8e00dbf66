/* Memory of backward: transposed layers, gradients, what forwards keep, workspace. */
#include "runtime/block/back_internal.h"

#include "runtime/base/base.h"

#include <string.h>

enum { ALIGNMENT = 64 };

heddle_status hd_back_make(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    if (block->back != NULL) {
        return HEDDLE_OK;
    }
    hd_block_back *back = NULL;
    HD_TRY(hd_alloc((void **)&back, 1, sizeof *back, "backward of a block"));
    HD_TRY(hd_alloc((void **)&back->space, 1, sizeof *back->space, "backward of a block"));
    back->space->owners = 1;
    block->back = back;
    back = NULL;
out:
    hd_free(back);
    return st;
}

/* Workspace may be shared by blocks that never run at once; the last one frees it. */
static void leave_space(hd_back_space *space)
{
    if (--space->owners > 0) {
        return;
    }
    for (int i = 0; i < HD_WORKS; i++) {
        hd_free(space->work[i]);
    }
    hd_keep_free(&space->keep);
    hd_room_leave(space->room);
    hd_free(space);
}

heddle_status heddle_block_share_workspace(heddle_block *block, heddle_block *with)
{
    heddle_status st = HEDDLE_OK;
    if (block == NULL || with == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_block_share_workspace: %s is NULL", block == NULL ? "block" : "with");
    }
    if ((block->on == NULL) != (with->on == NULL)) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_block_share_workspace: one block is on a device, the other is not");
    }
    if (block->on != NULL) {
        return hd_on_share(block, with);
    }
    HD_TRY(hd_back_make(block));
    HD_TRY(hd_back_make(with));
    if (block->back->space != with->back->space) {
        leave_space(block->back->space);
        block->back->space = with->back->space;
        block->back->space->owners++;
        HD_TRY(hd_sharded_enter(block));
    }
    if (block->scratch != with->scratch && block->seats == with->seats) {
        hd_block_leave_scratch(block->scratch);
        block->scratch = with->scratch;
        block->scratch->owners++;
    }
out:
    return st;
}

void hd_keep_free(hd_keep *keep)
{
    for (int i = 0; i < HD_KEEPS; i++) {
        hd_free(keep->part[i]);
    }
    memset(keep, 0, sizeof *keep);
}

/* Frees what backward has taken; a block that never went back has none. */
void hd_back_destroy(heddle_block *block)
{
    hd_block_back *back = block->back;
    if (back == NULL) {
        return;
    }
    for (int i = 0; i < HD_BLOCK_LAYERS; i++) {
        hd_gemm_destroy(back->layer[i]);
    }
    hd_gemm_outer_destroy(back->outer);
    for (int i = 0; i < HD_BLOCK_PARAMS; i++) {
        hd_free(back->gradient[i]);
    }
    leave_space(back->space);
    hd_free(back);
    block->back = NULL;
}

int64_t hd_back_bytes(const heddle_block *block)
{
    const hd_block_back *back = block->back;
    size_t bytes = 0;
    if (back == NULL) {
        return 0;
    }
    for (int i = 0; i < HD_BLOCK_LAYERS; i++) {
        bytes += (size_t)hd_gemm_bytes(back->layer[i]);
    }
    for (int i = 0; i < block->nparams; i++) {
        const heddle_param *param = &block->param[i];
        size_t columns = param->ndim == 2 ? (size_t)param->extent[1] : 1;
        bytes += back->gradient[i] != NULL ? (size_t)param->extent[0] * columns * sizeof(float) : 0;
    }
    for (int i = 0; i < HD_WORKS; i++) {
        bytes += back->space->work_bytes[i];
    }
    for (int i = 0; i < HD_KEEPS; i++) {
        bytes += back->space->keep.held_bytes[i];
    }
    return (int64_t)bytes;
}

/* The gradient of the text's keys and values is a sum over the box's rows: rounded before the shards' sums are added
 * up, it would depend on the sharding. */
static int sums_rows(const heddle_block *block, int layer)
{
    return block->options.kind == HEDDLE_STAGE_CROSS && layer == HD_LAYER_KV;
}

/* Makes the layers that are missing, for gradients of `dtype`. */
static heddle_status make_layers(int *narrow, heddle_block *block, heddle_dtype dtype)
{
    heddle_status st = HEDDLE_OK;
    hd_block_back *back = block->back;
    *narrow = dtype == HEDDLE_BF16;
    for (int i = 0; i < block->nlayers; i++) {
        const heddle_param *weight = &block->param[2 * i];
        if (back->layer[i] == NULL) {
            HD_TRY(hd_gemm_create(&back->layer[i], block->kernels, weight->extent[0], weight->extent[1],
                                  sums_rows(block, i) ? HEDDLE_F32 : dtype, HEDDLE_F32, block->seats));
        }
        *narrow &= sums_rows(block, i) || hd_gemm_narrow(back->layer[i]);
    }
out:
    return st;
}

/* BF16 only where all products of a backward have real BF16 kernels: without, gradients are better not rounded. */
static heddle_status choose_dtype(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    hd_block_back *back = block->back;
    int narrow = 0;
    if (block->options.shape.dtype == HEDDLE_BF16) {
        HD_TRY(make_layers(&narrow, block, HEDDLE_BF16));
        if (narrow) {
            HD_TRY(hd_gemm_outer_create(&back->outer, block->seats));
        }
    }
out:
    if (back->outer == NULL) {
        for (int i = 0; i < block->nlayers; i++) {
            hd_gemm_destroy(back->layer[i]);
            back->layer[i] = NULL;
        }
    }
    back->dtype = back->outer != NULL ? HEDDLE_BF16 : HEDDLE_F32;
    return st;
}

/* Once per commit: the transposed weights, and, the first time, in which type gradients are multiplied. */
heddle_status hd_back_pack(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    hd_block_back *back = block->back;
    int narrow = 0;
    if (back->packed == block->commits) {
        return HEDDLE_OK;
    }
    if (back->outer == NULL && back->layer[0] == NULL) {
        HD_TRY(choose_dtype(block));
    }
    HD_TRY(make_layers(&narrow, block, back->dtype));
    for (int i = 0; i < block->nlayers; i++) {
        back->packed = 0;
        HD_TRY(hd_gemm_pack_transposed(back->layer[i], block->param[2 * i].data));
    }
    back->packed = block->commits;
out:
    return st;
}

/* Zeroed when they are first wanted. A caller that never trains has none. */
heddle_status hd_back_gradients(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_back_make(block));
    for (int i = 0; i < block->nparams; i++) {
        const heddle_param *param = &block->param[i];
        size_t columns = param->ndim == 2 ? (size_t)param->extent[1] : 1;
        if (block->back->gradient[i] == NULL) {
            HD_TRY(hd_alloc((void **)&block->back->gradient[i], (size_t)param->extent[0], columns * sizeof(float),
                            "the gradient of a parameter"));
        }
    }
out:
    return st;
}

heddle_status hd_back_reserve(heddle_block *block, int which, size_t bytes)
{
    hd_back_space *space = block->back->space;
    return hd_reserve(&space->work[which], &space->work_bytes[which], ALIGNMENT, bytes,
                      "a block's workspace of backward");
}

heddle_status hd_keep_bytes(size_t *bytes, const heddle_block *block, const hd_block_view *view)
{
    size_t rows = (size_t)hd_view_rows(view), c = (size_t)block->channels, elem = hd_block_elem_bytes(block);
    memset(bytes, 0, HD_KEEPS * sizeof *bytes);
    bytes[HD_KEEP_X] = rows * c * elem;
    bytes[HD_KEEP_O] = rows * c * elem;
    if (block->mixer != NULL) {
        bytes[HD_KEEP_WIDE] = 3 * rows * c * heddle_dtype_bytes(hd_mixer_dtype(block));
        bytes[HD_KEEP_MIXER] = block->mixer->kept_bytes(block, view);
    } else if (block->options.kind == HEDDLE_STAGE_CROSS) {
        bytes[HD_KEEP_WIDE] = rows * c * elem;
        bytes[HD_KEEP_MIXER] = rows * (size_t)block->options.heads * 2 * sizeof(float);
        if (__builtin_mul_overflow((size_t)view->samples * 2 * c * elem, (size_t)block->options.text_tokens,
                                   &bytes[HD_KEEP_TEXT])) {
            return hd_fail(HEDDLE_ERR_NOMEM,
                           "keys and values of %lld samples x %lld text tokens do not fit the address space",
                           (long long)view->samples, (long long)block->options.text_tokens);
        }
    } else {
        bytes[HD_KEEP_O] = 0;
        if (__builtin_mul_overflow(rows * elem, (size_t)block->options.mlp_channels, &bytes[HD_KEEP_WIDE])) {
            return hd_fail(HEDDLE_ERR_NOMEM, "%lld rows x %lld channels do not fit the address space", (long long)rows,
                           (long long)block->options.mlp_channels);
        }
    }
    return HEDDLE_OK;
}

/* Where each kept array goes: into the tape; with recompute, or without a tape, into the workspace, which the next
 * call overwrites. */
heddle_status hd_back_keep(hd_kept *out, heddle_block *block, const hd_block_view *view, heddle_tape *tape)
{
    heddle_status st = HEDDLE_OK;
    size_t bytes[HD_KEEPS];
    void *part[HD_KEEPS] = {NULL};
    HD_TRY(hd_keep_bytes(bytes, block, view));
    for (int i = 0; i < HD_KEEPS; i++) {
        int tape_holds = tape != NULL && (i == HD_KEEP_X || !tape->recompute);
        hd_keep *keep = tape_holds ? &tape->keep : &block->back->space->keep;
        if (i == HD_KEEP_X && tape == NULL) {
            continue; /* read from the activation itself */
        }
        if (i == HD_KEEP_WIDE && !tape_holds && block->options.kind == HEDDLE_STAGE_MLP) {
            continue; /* stretch by stretch in backward */
        }
        HD_TRY(hd_reserve(&keep->part[i], &keep->held_bytes[i], ALIGNMENT, bytes[i],
                          "what a forward keeps for its backward"));
        keep->used_bytes[i] = bytes[i];
        part[i] = keep->part[i];
    }
    *out = (hd_kept){part[HD_KEEP_X],
                     part[HD_KEEP_WIDE],
                     part[HD_KEEP_O],
                     part[HD_KEEP_MIXER],
                     part[HD_KEEP_TEXT],
                     0,
                     tape != NULL && !tape->recompute ? &tape->forward : &block->back->space->forward};
out:
    return st;
}

heddle_status heddle_block_gradient(heddle_param *out, heddle_block *block, int index)
{
    heddle_status st = HEDDLE_OK;
    if (out == NULL || block == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_block_gradient: %s is NULL", out == NULL ? "out" : "block");
    }
    if (index < 0 || index >= block->nparams) {
        return hd_fail(HEDDLE_ERR_ARG, "parameter %d: the block has %d", index, block->nparams);
    }
    HD_TRY(block->on != NULL ? hd_on_gradients(block, HEDDLE_NO_STREAM) : hd_back_gradients(block));
    heddle_param made = block->param[index];
    made.data = block->on != NULL ? hd_on_gradient(block->on, index) : block->back->gradient[index];
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_param, name));
out:
    return st;
}

void heddle_block_zero_gradients(heddle_block *block, heddle_stream stream)
{
    if (block != NULL && block->on != NULL) {
        hd_on_zero_gradients(block, stream);
    }
    for (int i = 0; block != NULL && block->back != NULL && i < block->nparams; i++) {
        const heddle_param *param = &block->param[i];
        size_t columns = param->ndim == 2 ? (size_t)param->extent[1] : 1;
        if (block->back->gradient[i] != NULL) {
            memset(block->back->gradient[i], 0, (size_t)param->extent[0] * columns * sizeof(float));
        }
    }
}
