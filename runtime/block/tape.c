/* Tapes, and the entrances of a forward that fills one and of backward. */
#include "runtime/block/back_internal.h"

#include "runtime/base/base.h"
#include "runtime/block/inner.h"

#include <string.h>

void heddle_tape_options_init(heddle_tape_options *options)
{
    if (options != NULL) {
        *options = (heddle_tape_options){.struct_bytes = sizeof *options};
    }
}

heddle_status heddle_tape_create(heddle_tape **out, heddle_block *block, const heddle_tape_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_tape *tape = NULL;
    heddle_tape_options taken;
    HD_TRY(HD_NEED(out, block));
    heddle_tape_options_init(&taken);
    HD_TRY(hd_struct_take(&taken, options, HD_STRUCT(heddle_tape_options, recompute)));
    if (taken.recompute != 0 && taken.recompute != 1) {
        return hd_fail(HEDDLE_ERR_ARG, "recompute %d of a tape must be 0 or 1", taken.recompute);
    }
    HD_TRY(block->on == NULL ? hd_back_make(block) : HEDDLE_OK);
    HD_TRY(hd_alloc((void **)&tape, 1, sizeof *tape, "a tape"));
    tape->block = block;
    tape->recompute = taken.recompute;
    *out = tape;
out:
    return st;
}

void heddle_tape_destroy(heddle_tape *tape)
{
    if (tape != NULL) {
        if (tape->block->on != NULL) {
            hd_on_keep_free(tape->block->on, &tape->keep);
        }
        hd_keep_free(&tape->keep);
        hd_free(tape);
    }
}

int64_t heddle_tape_bytes(const heddle_tape *tape)
{
    size_t bytes = 0;
    for (int i = 0; tape != NULL && tape->filled && i < HD_KEEPS; i++) {
        bytes += tape->keep.used_bytes[i];
    }
    return (int64_t)bytes +
           (tape != NULL && tape->filled && !tape->recompute ? hd_sharded_saved_bytes(tape->block, tape->forward) : 0);
}

static heddle_status check_tape(const heddle_block *block, const heddle_tape *tape, const char *function)
{
    if (block == NULL || tape == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: %s is NULL", function, block == NULL ? "block" : "tape");
    }
    if (tape->block != block) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: the tape was made for another block", function);
    }
    return HEDDLE_OK;
}

heddle_status heddle_tape_reserve(heddle_tape *tape, const heddle_box *box)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view view;
    HD_TRY(HD_NEED(tape, box));
    HD_TRY(hd_block_need_free(tape->block, __func__));
    HD_TRY(hd_block_look_at(&view, tape->block, box));
    st = tape->block->on != NULL && (heddle_box_elems(box) > 0 || tape->block->sharded != NULL)
             ? hd_on_reserve_tape(tape, &view)
             : HEDDLE_OK;
out:
    return st;
}

/* The same stages as without a tape, and what backward needs goes into it; with recompute the input alone. */
static heddle_status forward(heddle_block *block, hd_block_view *view, heddle_tape *tape)
{
    heddle_status st = HEDDLE_OK;
    hd_kept kept;
    HD_TRY(hd_back_keep(&kept, block, view, tape));
    if (block->mixer != NULL) {
        return hd_forward_mixed(block, view, &kept, tape->recompute ? HD_BACK_NEVER : HD_BACK_LATER);
    }
    if (block->options.kind == HEDDLE_STAGE_CROSS) {
        view->call = &kept;
        return hd_stage_cross(block, view);
    }
    view->call = &kept;
    return hd_stage_mlp(block, view);
out:
    return st;
}

heddle_status heddle_block_forward_tape(heddle_block *block, const heddle_tensor *x, const heddle_box *box,
                                        const heddle_conditioning *conditioning, heddle_tape *tape,
                                        heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view view;
    int idle = 0;
    HD_TRY(check_tape(block, tape, "heddle_block_forward_tape"));
    if (box == NULL) {
        st = hd_fail(HEDDLE_ERR_ARG, "heddle_block_forward_tape: box is NULL");
        goto out;
    }
    HD_TRY(hd_block_enter(&view, &idle, block, x, box, conditioning, (hd_call_names){__func__, "x"}));
    tape->filled = 0; /* a forward that fails leaves no tape of the one before */
    for (int i = 0; i < HD_KEEPS; i++) {
        tape->keep.used_bytes[i] = 0;
    }
    if (!idle) {
        HD_TRY(block->on != NULL ? hd_on_forward_tape(block, &view, tape, stream) : forward(block, &view, tape));
    }
    tape->box = *box;
    tape->commits = block->commits; /* gradients of weights that have changed since would be wrong */
    tape->filled = 1;
out:
    return st == HEDDLE_OK || block == NULL ? st : hd_sharded_give_up(block, st);
}

heddle_status heddle_block_backward(heddle_block *block, const heddle_tensor *dx,
                                    const heddle_conditioning *conditioning,
                                    const heddle_conditioning_gradient *dconditioning, heddle_tape *tape,
                                    heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view view;
    hd_kept kept;
    int idle = 0;
    HD_TRY(check_tape(block, tape, "heddle_block_backward"));
    if (!tape->filled) {
        st = hd_fail(HEDDLE_ERR_ARG, "heddle_block_backward: the tape holds no forward");
        goto out;
    }
    if (tape->commits != block->commits) {
        st = hd_fail(HEDDLE_ERR_ARG, "heddle_block_backward: weights were committed %llu times since the forward",
                     (unsigned long long)(block->commits - tape->commits));
        goto out;
    }
    HD_TRY(hd_block_enter(&view, &idle, block, dx, &tape->box, conditioning, (hd_call_names){__func__, "dx"}));
    if (idle) {
        return HEDDLE_OK;
    }
    if (block->on != NULL) {
        st = hd_on_backward(block, &view, tape, dconditioning, stream);
        goto out;
    }
    HD_TRY(hd_back_pack(block)); /* the transposed weights, once after each commit */
    HD_TRY(hd_back_gradients(block));
    HD_TRY(hd_back_keep(&kept, block, &view, tape));
    kept.again = tape->recompute;
    if (block->mixer != NULL) {
        HD_TRY(hd_back_mixed(block, &view, &kept, dconditioning));
    } else if (block->options.kind == HEDDLE_STAGE_CROSS) {
        HD_TRY(hd_back_cross(block, &view, &kept, dconditioning));
    } else {
        HD_TRY(hd_back_mlp(block, &view, &kept, dconditioning));
    }
out:
    return st == HEDDLE_OK || block == NULL ? st : hd_sharded_give_up(block, st);
}
