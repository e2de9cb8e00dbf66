/* The attention object of a block: made for the way back that it will have, in the room of the block's workspace. */
#include "runtime/attention/inner.h"
#include "runtime/base/base.h"
#include "runtime/block/back_internal.h"
#include "runtime/block/sharded.h"

int64_t hd_sharded_moved_bytes(const hd_block_sharded *s)
{
    heddle_attention_info info = HEDDLE_EMPTY(heddle_attention_info);
    heddle_linear_attention_info linear = HEDDLE_EMPTY(heddle_linear_attention_info);
    int64_t bytes = s->moved_bytes;
    if (s->attention != NULL && heddle_attention_get_info(&info, s->attention) == HEDDLE_OK) {
        bytes += info.measured.forward_bytes + info.measured.backward_bytes;
    }
    if (s->linear != NULL && heddle_linear_attention_get_info(&linear, s->linear) == HEDDLE_OK) {
        bytes += linear.measured.forward_bytes + linear.measured.backward_bytes;
    }
    return bytes;
}

/* Of the block's workspace, so that blocks that share that one have one room; NULL: its own. */
static heddle_status room_of(hd_room **out, heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    *out = NULL;
    if (block->on != NULL) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_back_make(block));
    hd_back_space *space = block->back->space;
    HD_TRY(space->room == NULL ? hd_room_make(&space->room, block->sharded->comm) : HEDDLE_OK);
    *out = space->room->comm == block->sharded->comm ? space->room : NULL;
out:
    return st;
}

heddle_status hd_sharded_enter(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_sharded *s = block->sharded;
    hd_room *room = NULL;
    if (s == NULL || (s->attention == NULL && s->linear == NULL)) {
        return HEDDLE_OK;
    }
    HD_TRY(room_of(&room, block));
    st = s->attention != NULL ? hd_attention_enter(s->attention, room) : hd_linear_attention_enter(s->linear, room);
out:
    return st;
}

void hd_sharded_destroy_object(hd_block_sharded *s)
{
    heddle_attention_destroy(s->attention);
    heddle_linear_attention_destroy(s->linear);
    s->attention = NULL;
    s->linear = NULL;
}

static int has_object(const hd_block_sharded *s, int back)
{
    return s->linear != NULL ? s->back >= back || back != HD_BACK_LATER : s->attention != NULL && s->back >= back;
}

heddle_status hd_sharded_make(heddle_block *block, int back)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = block->sharded;
    heddle_attention *attention = NULL;
    heddle_linear_attention *linear = NULL;
    hd_object_room in = {.keeps = back == HD_BACK_LATER};
    if (s->fibres == 0 || has_object(s, back)) {
        return HEDDLE_OK;
    }
    in.mine = room_of(&in.room, block);
    s->options.forward_only = back == HD_BACK_NEVER;
    HD_TRY(
        block->options.kind == HEDDLE_STAGE_LINEAR
            ? hd_linear_attention_create_in(&linear, s->group, &s->shape, &s->mesh, &s->layout, &s->linear_options, in)
            : hd_attention_create_in(&attention, s->group, &s->shape, &s->mesh, &s->layout, &s->options, in));
    s->moved_bytes = hd_sharded_moved_bytes(s);
    hd_sharded_destroy_object(s);
    s->attention = attention;
    s->linear = linear;
    s->back = back;
out:
    return st;
}

int64_t hd_sharded_saved_bytes(const heddle_block *block, uint64_t forward)
{
    const hd_block_sharded *s = block->sharded;
    heddle_attention_info info = HEDDLE_EMPTY(heddle_attention_info);
    heddle_linear_attention_info linear = HEDDLE_EMPTY(heddle_linear_attention_info);
    if (s == NULL || s->held != forward) {
        return 0;
    }
    if (s->attention != NULL && heddle_attention_get_info(&info, s->attention) == HEDDLE_OK) {
        return info.saved_bytes;
    }
    return s->linear != NULL && heddle_linear_attention_get_info(&linear, s->linear) == HEDDLE_OK ? linear.saved_bytes
                                                                                                  : 0;
}

int64_t hd_sharded_bytes(const heddle_block *block)
{
    const hd_block_sharded *s = block->sharded;
    heddle_attention_info info = HEDDLE_EMPTY(heddle_attention_info);
    heddle_linear_attention_info linear = HEDDLE_EMPTY(heddle_linear_attention_info);
    int64_t bytes = 0;
    if (s != NULL && s->attention != NULL && heddle_attention_get_info(&info, s->attention) == HEDDLE_OK) {
        bytes += info.saved_bytes + info.workspace_bytes;
    }
    if (s != NULL && s->linear != NULL && heddle_linear_attention_get_info(&linear, s->linear) == HEDDLE_OK) {
        bytes += linear.saved_bytes + linear.workspace_bytes;
    }
    return bytes;
}
