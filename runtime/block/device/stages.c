/* Entrances of the stages of blocks on a device. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"
#include "runtime/block/sharded.h"

static const hd_on_stage forward_of[] = {[HEDDLE_STAGE_ATTENTION] = hd_on_attention,
                                         [HEDDLE_STAGE_CROSS] = hd_on_cross,
                                         [HEDDLE_STAGE_MLP] = hd_on_mlp,
                                         [HEDDLE_STAGE_LINEAR] = hd_on_linear};
static const hd_on_stage back_of[] = {[HEDDLE_STAGE_ATTENTION] = hd_on_attention_back,
                                      [HEDDLE_STAGE_CROSS] = hd_on_cross_back,
                                      [HEDDLE_STAGE_MLP] = hd_on_mlp_back,
                                      [HEDDLE_STAGE_LINEAR] = hd_on_linear_back};

/* The attention of a group, which all of it make together. */
static heddle_status make_ready(heddle_block *block, int for_backward, heddle_stream stream)
{
    const hd_block_sharded *s = block->sharded;
    if (s == NULL || s->group == NULL || s->linear != NULL ||
        (s->attention != NULL && s->for_backward >= for_backward)) {
        return HEDDLE_OK;
    }
    heddle_status st = hd_on_need_no_capture(block->on->room, 0, stream, "attention over a sharded dim");
    return st == HEDDLE_OK ? hd_sharded_make(block, for_backward) : st;
}

heddle_status hd_on_forward(heddle_block *block, const hd_block_view *view, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_on_call call = {.block = block, .view = view};
    HD_TRY(make_ready(block, 0, stream));
    st = hd_on_run(&call, forward_of[block->options.kind], stream);
out:
    return st;
}

heddle_status hd_on_forward_tape(heddle_block *block, const hd_block_view *view, heddle_tape *tape,
                                 heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_on_call call = {.block = block, .view = view, .keeps = !tape->recompute, .tape = tape};
    HD_TRY(make_ready(block, 1, stream));
    HD_TRY(hd_on_keep(&call.kept, &call, tape, stream));
    HD_TRY(hd_on_run(&call, forward_of[block->options.kind], stream));
    tape->forward = block->sharded != NULL ? block->sharded->held : 0;
out:
    return st;
}

heddle_status hd_on_backward(heddle_block *block, const hd_block_view *view, heddle_tape *tape,
                             const heddle_conditioning_gradient *wanted, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_on_call call = {.block = block, .view = view, .keeps = 1, .tape = tape, .wanted = wanted};
    HD_TRY(hd_on_check_wanted(block, wanted));
    HD_TRY(hd_on_gradients(block, stream));
    HD_TRY(hd_on_keep(&call.kept, &call, tape, stream));
    st = hd_on_run(&call, back_of[block->options.kind], stream);
out:
    return st;
}

/* --- memory before the calls -------------------------------------------------------------------------------------- */

static const heddle_conditioning nowhere = {HD_ON_NOWHERE, HD_ON_NOWHERE, NULL};
static const heddle_conditioning_gradient wanted_nowhere = {HD_ON_NOWHERE, HD_ON_NOWHERE};

heddle_status hd_on_reserve_block(heddle_block *block, const hd_block_view *of)
{
    hd_block_view view = *of;
    hd_on_call call = {.block = block, .view = &view};
    view.conditioning = &nowhere;
    view.x = HD_ON_NOWHERE;
    return hd_on_prepare(&call, forward_of[block->options.kind], HEDDLE_NO_STREAM);
}

heddle_status hd_on_reserve_tape(heddle_tape *tape, const hd_block_view *of)
{
    heddle_status st = HEDDLE_OK;
    heddle_block *block = tape->block;
    hd_block_view view = *of;
    hd_on_call call = {
        .block = block, .view = &view, .keeps = !tape->recompute, .tape = tape, .wanted = &wanted_nowhere};
    view.conditioning = &nowhere;
    view.x = HD_ON_NOWHERE;
    HD_TRY(make_ready(block, 1, HEDDLE_NO_STREAM));
    HD_TRY(hd_on_gradients(block, HEDDLE_NO_STREAM));
    HD_TRY(hd_on_keep(&call.kept, &call, tape, HEDDLE_NO_STREAM));
    HD_TRY(hd_on_prepare(&call, forward_of[block->options.kind], HEDDLE_NO_STREAM));
    call.keeps = 1;
    st = hd_on_prepare(&call, back_of[block->options.kind], HEDDLE_NO_STREAM);
out:
    return st;
}
