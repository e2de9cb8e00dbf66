/* The end of a stage's forward on a device: x gets its change, here or by whoever moves x on. And of a pass. */
#include "runtime/block/inner.h"

#include "runtime/block/device/device.h"

void hd_block_leave_gate(heddle_block *block, hd_device_gate *left)
{
    if (block->on != NULL) {
        block->on->left = left;
    }
}

void hd_block_hold(heddle_block *block, int is_held)
{
    if (block->on != NULL) {
        block->on->room->is_held = is_held;
    }
}

int hd_block_is_held(const heddle_block *block)
{
    return block->on != NULL && block->on->room->is_held;
}

heddle_status hd_block_need_free(const heddle_block *block, const char *function)
{
    return hd_block_is_held(block)
               ? hd_fail(HEDDLE_ERR_ARG,
                         "%s: called from options.before or options.weights of an executor, while the blocks' "
                         "workspace on device %s has what a stage leaves to the switch behind it",
                         function, block->on->device->name)
               : HEDDLE_OK;
}

heddle_status hd_block_gate_is_enqueued(heddle_block *block, heddle_stream stream)
{
    hd_on_room *room = block->on->room;
    int captures = 0;
    heddle_status st = hd_on_room_begin(&captures, room, stream);
    return st == HEDDLE_OK ? hd_on_room_end(room, captures, stream, st) : st;
}

heddle_status hd_block_pass_begin(heddle_block *block, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_on_room *room = block->on != NULL ? block->on->room : NULL;
    int captures = 0;
    if (room == NULL) {
        return HEDDLE_OK;
    }
    room->is_in_pass = 0;
    HD_TRY(hd_on_room_begin(&captures, room, stream));
    room->is_in_pass = 1;
    room->captures = captures;
    room->pass = stream;
out:
    return st;
}

heddle_status hd_block_pass_end(heddle_block *block, heddle_stream stream, heddle_status st)
{
    hd_on_room *room = block->on != NULL ? block->on->room : NULL;
    if (room == NULL || !room->is_in_pass) {
        return st;
    }
    room->is_in_pass = 0;
    return hd_on_room_end(room, room->captures, stream, st);
}

/* Rows and their change lie as a kernel wants them that takes whole pieces. */
static int can_leave(const hd_on_call *call, const void *x, const hd_device_gate *gate)
{
    return call->left != NULL && gate->rows.rows == call->rows && (uintptr_t)x % 16 == 0 &&
           hd_device_gate_is_whole(gate);
}

heddle_status hd_on_change(hd_on_call *call, void *x, const hd_device_gate *gate)
{
    if (!call->is_dry && can_leave(call, x, gate)) {
        *call->left = *gate;
        return HEDDLE_OK;
    }
    return HD_ON_LAUNCH(call, gate_residual, &gate->rows, x, gate->y, HEDDLE_F32, gate->gate, gate->keep);
}

heddle_status hd_on_gate(hd_on_call *call, void *x, const float *y, int gate)
{
    const hd_device_gate all = {hd_on_rows(call), y, hd_on_condition(call, gate), call->kept.x};
    return hd_on_change(call, x, &all);
}
