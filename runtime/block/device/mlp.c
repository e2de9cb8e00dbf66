/* MLP on a device: norm, fc1, GELU, fc2, residual. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"

heddle_status hd_on_mlp(hd_on_call *call)
{
    heddle_status st = HEDDLE_OK;
    const int64_t hidden = call->block->options.mlp_channels;
    const size_t elem = hd_block_elem_bytes(call->block);
    char *row = hd_on_take(call, call->rows * call->c, sizeof(float)); /* normed, then fc2's result */
    char *active = hd_on_take(call, call->rows * hidden, elem);
    char *wide = call->keeps && call->kept.wide != NULL ? call->kept.wide : active;
    HD_TRY(hd_on_norm(call, row, call->view->x, HD_MLP_ROWS));
    HD_TRY(hd_on_layer(call, HD_LAYER_FC1, wide, row, call->rows));
    HD_TRY(HD_ON_LAUNCH(call, gelu, active, call->dtype, wide, call->dtype, call->rows * hidden));
    HD_TRY(hd_on_layer(call, HD_LAYER_FC2, row, active, call->rows));
    HD_TRY(hd_on_gate(call, call->view->x, (const float *)(const void *)row, HD_MLP_ROWS + HD_GATE));
out:
    return st;
}
