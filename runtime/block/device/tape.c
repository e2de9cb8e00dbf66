/* Tapes and gradients of blocks on a device. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <string.h>

heddle_status hd_on_keep(hd_kept *out, const hd_on_call *call, heddle_tape *tape, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    size_t bytes[HD_KEEPS];
    void *part[HD_KEEPS] = {NULL};
    HD_TRY(hd_keep_bytes(bytes, call->block, call->view));
    for (int i = 0; i < HD_KEEPS && (i == HD_KEEP_X || !tape->recompute); i++) {
        HD_TRY(hd_on_reserve(call->block->on->room, &tape->keep.part[i], &tape->keep.held_bytes[i], bytes[i], stream,
                             "what a forward keeps for its backward"));
        tape->keep.used_bytes[i] = bytes[i];
        part[i] = tape->keep.part[i];
    }
    *out = (hd_kept){part[HD_KEEP_X],
                     part[HD_KEEP_WIDE],
                     part[HD_KEEP_O],
                     part[HD_KEEP_MIXER],
                     part[HD_KEEP_TEXT],
                     tape->recompute,
                     NULL};
out:
    return st;
}

void hd_on_keep_free(const struct hd_block_on *on, hd_keep *keep)
{
    const int is_idle = hd_on_room_lets_free(on->room);
    for (int i = 0; i < HD_KEEPS && is_idle; i++) {
        hd_device_release(on->device, keep->part[i]);
    }
    memset(keep, 0, sizeof *keep);
}

static heddle_status clear(const heddle_block *block, int param, heddle_stream stream)
{
    const struct hd_block_on *on = block->on;
    return on->device->library->status(
        on->kernels->zero(on->gradient[param], hd_on_param_elems(&block->param[param]), stream), on->device->number,
        "clearing a gradient");
}

static heddle_status clear_all(heddle_block *block, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = block->on->device;
    int before = 0;
    HD_TRY(device->library->enter(&before, device->number));
    for (int i = 0; i < block->nparams && st == HEDDLE_OK; i++) {
        st = clear(block, i, stream);
    }
    device->library->leave(before);
out:
    return st;
}

/* Zeroed when they are first wanted; `stream` is that of the call which wants them. */
heddle_status hd_on_gradients(heddle_block *block, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    struct hd_block_on *on = block->on;
    HD_TRY(hd_broken_say(&on->broken));
    if (on->has_gradients) {
        return HEDDLE_OK;
    }
    for (int i = 0; i < block->nparams; i++) {
        const heddle_param *param = &block->param[i];
        size_t held = 0, bytes = (size_t)(param->extent[0] * (param->ndim == 2 ? param->extent[1] : 1)) * sizeof(float);
        void *memory = on->gradient[i];
        HD_TRY(memory == NULL ? hd_on_reserve(on->room, &memory, &held, bytes, stream, "the gradient of a parameter")
                              : HEDDLE_OK);
        on->bytes += held;
        on->gradient[i] = memory;
    }
    HD_TRY(clear_all(block, on->room->stream));
    HD_TRY(hd_on_room_settle(on->room));
    on->has_gradients = 1;
out:
    return st;
}

void hd_on_zero_gradients(heddle_block *block, heddle_stream stream)
{
    if (!block->on->has_gradients) {
        return;
    }
    int captures = 0;
    hd_on_room *room = block->on->room;
    heddle_status st = hd_on_room_begin(&captures, room, stream);
    st = st == HEDDLE_OK ? hd_on_room_end(room, captures, stream, clear_all(block, stream)) : st;
    if (st != HEDDLE_OK) {
        hd_broken_keep(&block->on->broken, st);
    }
}
