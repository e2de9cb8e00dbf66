/* Parameters of a block on a device: copies of the host's, or arrays that a framework has there. */
#include "runtime/block/device/device.h"

#include "kernels/small_float.h"
#include "runtime/base/base.h"

enum { ALIGNMENT = 16 };

static size_t param_bytes(const heddle_block *block, int param)
{
    return (size_t)hd_on_param_elems(&block->param[param]) * heddle_dtype_bytes(hd_on_param_dtype(block, param));
}

/* --- lending ------------------------------------------------------------------------------------------------------ */

static heddle_status check(const heddle_block *block, int param, const void *data, heddle_dtype dtype)
{
    const heddle_param *of = &block->param[param];
    const heddle_dtype mine = block->options.shape.dtype;
    hd_stray stray;
    if (dtype != mine && dtype != HEDDLE_F32) {
        return hd_fail(HEDDLE_ERR_ARG, "%s is of %s, wanted %s%s, as the activation", of->name,
                       heddle_dtype_name(dtype), mine == HEDDLE_F32 ? "" : "f32 or ", heddle_dtype_name(mine));
    }
    heddle_status st = hd_device_stray(&stray, block->on->device, HEDDLE_SPACE_DEVICE, data);
    if (st != HEDDLE_OK || stray != HD_STRAY_NOT) {
        return st != HEDDLE_OK ? st
                               : hd_fail(HEDDLE_ERR_ARG, "%s at %p is %s; the block works on device %s", of->name, data,
                                         stray == HD_STRAY_HOST ? "in host memory" : "in the memory of another device",
                                         block->on->device->name);
    }
    if ((uintptr_t)data % ALIGNMENT != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "%s at %p: products want a multiple of %d bytes", of->name, data,
                       (int)ALIGNMENT);
    }
    return HEDDLE_OK;
}

/* Calls that read it have ended. */
static heddle_status need_idle(const heddle_block *block)
{
    return hd_on_room_is_idle(block->on->room)
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_TIMEOUT,
                         "weights of a block: what device %s was asked to do with the last ones did not end before the "
                         "deadline",
                         block->on->device->name);
}

/* Memory of the block's own for the parameter, or none. What a graph reads the device keeps until the communicator
 * ends. */
static heddle_status set_own(const heddle_block *block, int param, int wants)
{
    struct hd_block_on *on = block->on;
    heddle_status st = HEDDLE_OK;
    size_t held = 0;
    if (wants && on->own[param] == NULL) {
        st = hd_on_reserve(on->room, &on->own[param], &held, param_bytes(block, param), HEDDLE_NO_STREAM,
                           block->param[param].name);
        on->bytes += held;
    } else if (!wants && on->own[param] != NULL) {
        if (!on->room->used.is_captured) {
            hd_device_release(on->device, on->own[param]);
        }
        on->own[param] = NULL;
        on->bytes -= param_bytes(block, param);
    }
    return st;
}

static heddle_status lend(const heddle_block *block, int param, const void *data, heddle_dtype dtype)
{
    heddle_status st = HEDDLE_OK;
    struct hd_block_on *on = block->on;
    const int is_read_there = data != NULL && dtype == hd_on_param_dtype(block, param);
    HD_TRY(data != NULL ? check(block, param, data, dtype) : HEDDLE_OK);
    HD_TRY(need_idle(block));
    HD_TRY(set_own(block, param, !is_read_there));
    on->param[param] = is_read_there ? data : on->own[param];
    on->lent[param].data = data;
    on->lent[param].dtype = dtype;
out:
    return st;
}

heddle_status heddle_block_lend_param(heddle_block *block, int index, const void *data, heddle_dtype dtype)
{
    heddle_status st;
    HD_TRY(HD_NEED(block));
    if (index < 0 || index >= block->nparams) {
        return hd_fail(HEDDLE_ERR_ARG, "parameter %d: the block has %d", index, block->nparams);
    }
    if (block->on == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "%s is not taken where it lies: a block in host memory packs its weights",
                       block->param[index].name);
    }
    HD_TRY(lend(block, index, data, dtype));
    block->committed = 0;
out:
    return st;
}

/* --- commit ------------------------------------------------------------------------------------------------------- */

static heddle_status upload(const heddle_block *block, int param)
{
    heddle_status st = HEDDLE_OK;
    const int64_t elems = hd_on_param_elems(&block->param[param]);
    const heddle_dtype dtype = hd_on_param_dtype(block, param);
    const float *from = block->param[param].data;
    uint16_t *narrow = NULL;
    if (dtype == HEDDLE_F32) {
        return hd_on_upload(block->on->room, block->on->own[param], from, param_bytes(block, param));
    }
    HD_TRY(hd_alloc((void **)&narrow, (size_t)elems, sizeof *narrow, "weights for a device"));
    for (int64_t i = 0; i < elems; i++) {
        narrow[i] = dtype == HEDDLE_BF16 ? hd_bf16_from_f32(from[i]) : hd_f16_from_f32(from[i]);
    }
    st = hd_on_upload(block->on->room, block->on->own[param], narrow, param_bytes(block, param));
out:
    hd_free(narrow);
    return st;
}

/* What is lent and of another type than kernels read. */
static int is_converted(const heddle_block *block, int param)
{
    return block->on->own[param] != NULL && block->on->lent[param].data != NULL;
}

static heddle_status convert(const heddle_block *block, int param, heddle_stream stream)
{
    const struct hd_block_on *on = block->on;
    const heddle_device *library = on->device->library;
    heddle_status st = HEDDLE_OK;
    int before = 0;
    HD_TRY(library->enter(&before, on->device->number));
    st = library->status(on->kernels->convert(on->own[param], hd_on_param_dtype(block, param), on->lent[param].data,
                                              on->lent[param].dtype, hd_on_param_elems(&block->param[param]), stream),
                         on->device->number, "converting a parameter");
    library->leave(before);
out:
    return st;
}

static heddle_status convert_now(const heddle_block *block, int param)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(convert(block, param, block->on->room->stream));
    st = hd_on_room_settle(block->on->room);
out:
    return st;
}

heddle_status hd_on_commit(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    const struct hd_block_on *on = block->on;
    int is_idle = 0; /* what is read where it lies is the framework's to order */
    for (int i = 0; i < block->nparams; i++) {
        if (on->own[i] != NULL) {
            HD_TRY(is_idle ? HEDDLE_OK : need_idle(block));
            is_idle = 1;
            HD_TRY(is_converted(block, i) ? convert_now(block, i) : upload(block, i));
        }
    }
    st = hd_on_choose_products(block);
out:
    return st;
}

static heddle_status refresh(heddle_block *block, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_on_room *room = block->on->room;
    int captures = 0;
    HD_TRY(hd_on_room_begin(&captures, room, stream));
    for (int i = 0; i < block->nparams && st == HEDDLE_OK; i++) {
        st = is_converted(block, i) ? convert(block, i, stream) : HEDDLE_OK;
    }
    st = hd_on_room_end(room, captures, stream, st);
out:
    return st;
}

heddle_status heddle_block_refresh(heddle_block *block, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(block));
    if (block->on == NULL) {
        return heddle_block_commit(block);
    }
    if (!block->committed) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_block_refresh: the block's weights are not ready: call "
                                       "heddle_block_commit first");
    }
    HD_TRY(refresh(block, stream));
    block->commits++;
out:
    return st;
}
