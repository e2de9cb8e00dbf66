/* Backward of MLP on a device. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"

heddle_status hd_on_mlp_back(hd_on_call *call)
{
    heddle_status st = HEDDLE_OK;
    const int64_t hidden = call->rows * call->block->options.mlp_channels;
    const size_t elem = hd_block_elem_bytes(call->block);
    void *wide = call->kept.wide;
    if (call->kept.again) {
        wide = hd_on_take(call, hidden, elem);
        const size_t kept = call->used;
        void *normed = hd_on_take(call, call->rows * call->c, elem);
        HD_TRY(hd_on_norm(call, normed, call->kept.x, HD_MLP_ROWS));
        HD_TRY(hd_on_layer(call, HD_LAYER_FC1, wide, normed, call->rows));
        call->used = kept;
    }
    void *active = hd_on_take(call, hidden, elem), *d_wide = hd_on_take(call, hidden, elem);
    const size_t before = call->used;
    const void *dy = NULL;
    HD_TRY(hd_on_out_through(call, &dy, HD_LAYER_FC2, d_wide, HD_MLP_ROWS + HD_GATE));
    HD_TRY(HD_ON_LAUNCH(call, gelu_back, d_wide, active, wide, call->dtype, hidden)); /* fc2's input comes with it */
    HD_TRY(hd_on_out_weight(call, HD_LAYER_FC2, dy, active, HD_MLP_ROWS + HD_GATE));
    call->used = before;
    st = hd_on_in_back(call, HD_LAYER_FC1, d_wide, call->kept.x, HD_MLP_ROWS);
out:
    return st;
}
