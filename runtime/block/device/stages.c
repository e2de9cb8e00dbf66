/* Entrances of the stages of blocks on a device. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"
#include "runtime/block/sharded.h"

static const hd_on_stage forward_of[] = {[HEDDLE_STAGE_ATTENTION] = hd_on_attention,
                                         [HEDDLE_STAGE_CROSS] = hd_on_cross,
                                         [HEDDLE_STAGE_MLP] = hd_on_mlp,
                                         [HEDDLE_STAGE_LINEAR] = hd_on_attention};
static const hd_on_stage back_of[] = {[HEDDLE_STAGE_ATTENTION] = hd_on_attention_back,
                                      [HEDDLE_STAGE_CROSS] = hd_on_cross_back,
                                      [HEDDLE_STAGE_MLP] = hd_on_mlp_back,
                                      [HEDDLE_STAGE_LINEAR] = hd_on_attention_back};

/* The attention of a group, which all of it make together. */
static heddle_status make_ready(heddle_block *block, int back, heddle_stream stream)
{
    const hd_block_sharded *s = block->sharded;
    if (s == NULL || s->group == NULL || s->linear != NULL || (s->attention != NULL && s->back >= back)) {
        return HEDDLE_OK;
    }
    heddle_status st = hd_on_need_no_capture(block->on->room, 0, stream, "attention over a sharded dim");
    return st == HEDDLE_OK ? hd_sharded_make(block, back) : st;
}

/* Who moves x on changes all of it at once. */
static hd_device_gate *left_by(const heddle_block *block, const hd_on_parts *parts)
{
    return parts->cut == HD_ON_WHOLE ? block->on->left : NULL;
}

heddle_status hd_on_forward(heddle_block *block, const hd_block_view *view, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_on_call call = hd_on_call_of(block, view, NULL, stream);
    const hd_on_stage stage = forward_of[block->options.kind];
    hd_on_parts parts;
    size_t bytes = 0;
    HD_TRY(make_ready(block, HD_BACK_NEVER, stream));
    HD_TRY(hd_on_divide(&parts, &bytes, &call, stage, NULL));
    call.left = left_by(block, &parts);
    st = hd_on_run(&call, stage, &parts, bytes);
out:
    return st;
}

heddle_status hd_on_forward_tape(heddle_block *block, const hd_block_view *view, heddle_tape *tape,
                                 heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_on_call call = hd_on_call_of(block, view, tape, stream);
    const hd_on_stage stage = forward_of[block->options.kind];
    size_t bytes = 0;
    HD_TRY(make_ready(block, HD_BACK_LATER, stream));
    HD_TRY(hd_on_keep(&call.kept, &call, tape, stream));
    HD_TRY(hd_on_divide(&tape->parts, &bytes, &call, stage, back_of[block->options.kind]));
    call.left = left_by(block, &tape->parts);
    HD_TRY(hd_on_run(&call, stage, &tape->parts, bytes));
    tape->forward = block->sharded != NULL ? block->sharded->held : 0;
out:
    return st;
}

heddle_status hd_on_backward(heddle_block *block, const hd_block_view *view, heddle_tape *tape,
                             const heddle_conditioning_gradient *wanted, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_on_call call = hd_on_call_of(block, view, tape, stream);
    const hd_on_stage stage = back_of[block->options.kind];
    size_t bytes = 0;
    call.keeps = 1;
    call.wanted = wanted;
    HD_TRY(hd_on_check_wanted(block, wanted));
    HD_TRY(hd_on_gradients(block, stream));
    HD_TRY(hd_on_keep(&call.kept, &call, tape, stream));
    HD_TRY(hd_on_part_bytes(&bytes, &call, stage, &tape->parts));
    st = hd_on_run(&call, stage, &tape->parts, bytes);
out:
    return st;
}

/* --- before the calls --------------------------------------------------------------------------------------------- */

/* Those that a call of one row would ask for. */
heddle_status hd_on_choose_products(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_view row = {.outer = 1, .t = 1, .inner = 1, .sample_rows = 1, .samples = 1};
    const hd_on_parts whole = {HD_ON_WHOLE, 0};
    hd_on_call call = hd_on_call_of(block, &row, NULL, HEDDLE_NO_STREAM);
    size_t bytes = 0;
    HD_TRY(hd_on_part_bytes(&bytes, &call, forward_of[block->options.kind], &whole));
    call.keeps = 1;
    call.kept = (hd_kept){HD_ON_NOWHERE, HD_ON_NOWHERE, HD_ON_NOWHERE, HD_ON_NOWHERE, HD_ON_NOWHERE, 0, NULL};
    st = hd_on_part_bytes(&bytes, &call, back_of[block->options.kind], &whole);
out:
    return st;
}

heddle_status hd_on_reserve_block(heddle_block *block, const hd_block_view *view)
{
    heddle_status st = HEDDLE_OK;
    const hd_on_call call = hd_on_call_of(block, view, NULL, HEDDLE_NO_STREAM);
    hd_on_parts parts;
    size_t bytes = 0;
    HD_TRY(hd_on_divide(&parts, &bytes, &call, forward_of[block->options.kind], NULL));
    st = hd_on_room_reserve(block->on->room, bytes, HEDDLE_NO_STREAM);
out:
    return st;
}

heddle_status hd_on_reserve_tape(heddle_tape *tape, const hd_block_view *view)
{
    heddle_status st = HEDDLE_OK;
    heddle_block *block = tape->block;
    const heddle_stage_kind kind = block->options.kind;
    hd_on_call call = hd_on_call_of(block, view, tape, HEDDLE_NO_STREAM);
    hd_on_parts parts;
    size_t bytes = 0;
    HD_TRY(make_ready(block, HD_BACK_LATER, HEDDLE_NO_STREAM));
    HD_TRY(hd_on_gradients(block, HEDDLE_NO_STREAM));
    HD_TRY(hd_on_keep(&call.kept, &call, tape, HEDDLE_NO_STREAM));
    HD_TRY(hd_on_divide(&parts, &bytes, &call, forward_of[kind], back_of[kind]));
    st = hd_on_room_reserve(block->on->room, bytes, HEDDLE_NO_STREAM);
out:
    return st;
}
