/* A call of a block on a device: what it is given is where it should be, and how it runs. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"

#include <string.h>

enum { ALIGNMENT = 256 };
/* Memory that kernels read and write is this device's. */
static heddle_status check_array(const heddle_block *block, const void *at, const char *what, hd_call_names names)
{
    hd_stray stray;
    heddle_status st = hd_device_stray(&stray, block->on->device, HEDDLE_SPACE_DEVICE, at);
    return st != HEDDLE_OK || stray == HD_STRAY_NOT
               ? st
               : hd_fail(HEDDLE_ERR_ARG, "%s: %s at %p is %s; the block works on device %s", names.function, what, at,
                         stray == HD_STRAY_HOST ? "in host memory" : "in the memory of another device",
                         block->on->device->name);
}

heddle_status hd_on_check(const heddle_block *block, const heddle_tensor *x, const heddle_conditioning *conditioning,
                          hd_call_names names)
{
    heddle_status st = HEDDLE_OK;
    if (x->space != HEDDLE_SPACE_DEVICE || x->device != block->on->device->number) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: %s is in %s memory (space %d, device %d); the block works on device %s",
                       names.function, names.rows, x->space == HEDDLE_SPACE_HOST ? "host" : "another device's",
                       (int)x->space, x->device, block->on->device->name);
    }
    HD_TRY(check_array(block, x->data, names.rows, names));
    if (block->options.kind == HEDDLE_STAGE_CROSS) {
        HD_TRY(check_array(block, conditioning->text, "the text", names));
    } else if (block->options.modulate) {
        HD_TRY(check_array(block, conditioning->vector, "the conditioning vector", names));
    }
out:
    return st;
}

heddle_status hd_on_check_lengths(const heddle_block *block, const int64_t *lengths, const char *function)
{
    hd_stray stray = HD_STRAY_NOT;
    if (lengths == NULL || lengths == block->on->lengths) {
        return HEDDLE_OK;
    }
    heddle_status st = hd_device_stray(&stray, block->on->device, HEDDLE_SPACE_HOST, lengths);
    if (st == HEDDLE_OK && stray != HD_STRAY_NOT) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "%s: the lengths of texts at %p are in the memory of a device, wanted the host's", function,
                       (const void *)lengths);
    }
    block->on->lengths = st == HEDDLE_OK ? lengths : NULL;
    return st;
}

heddle_status hd_on_check_wanted(const heddle_block *block, const heddle_conditioning_gradient *wanted)
{
    const hd_call_names names = {"heddle_block_backward", "dx"};
    const int is_cross = block->options.kind == HEDDLE_STAGE_CROSS;
    const float *at = wanted == NULL ? NULL : is_cross ? wanted->text : wanted->vector;
    return at == NULL ? HEDDLE_OK : check_array(block, at, "a gradient of the conditioning", names);
}

void *hd_on_take(hd_on_call *call, int64_t elems, size_t elem_bytes)
{
    char *at = call->base + call->used;
    call->used += ((size_t)elems * elem_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    call->most = call->used > call->most ? call->used : call->most;
    return at;
}

hd_on_call hd_on_call_of(heddle_block *block, const hd_block_view *view, heddle_tape *tape, heddle_stream stream)
{
    return (hd_on_call){.block = block,
                        .on = block->on,
                        .view = view,
                        .stream = stream,
                        .tape = tape,
                        .keeps = tape != NULL && !tape->recompute,
                        .rows = view->samples * view->sample_rows,
                        .c = block->channels,
                        .dtype = block->options.shape.dtype};
}

heddle_status hd_on_run(hd_on_call *call, hd_on_stage stage, const hd_on_parts *parts, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    hd_on_room *room = call->on->room;
    const heddle_device *library = room->device->library;
    int before = 0, captures = 0;
    HD_TRY(hd_on_room_reserve(room, bytes, call->stream));
    call->base = room->memory;
    HD_TRY(library->enter(&before, room->device->number));
    st = hd_on_room_begin(&captures, room, call->stream);
    if (st == HEDDLE_OK) {
        st = hd_on_each_part(call, stage, parts);
        st = hd_on_room_end(room, captures, call->stream, st);
    }
    library->leave(before);
out:
    return st;
}
