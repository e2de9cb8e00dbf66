/* What a block has on its device: weights as products read them, rotary positions, a workspace. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"
#include "runtime/block/inner.h"
#include "runtime/comm/comm_internal.h"

#include <math.h>
#include <string.h>

int64_t hd_on_param_elems(const heddle_param *param)
{
    return param->extent[0] * (param->ndim == 2 ? param->extent[1] : 1);
}

/* Results of the layers in front of the residual are f32, so that a row of x is rounded once, and so are gradients of
 * what the others were given, which meet it. */
heddle_product hd_on_form(const heddle_block *block, int layer, heddle_product_kind kind)
{
    const heddle_stage_kind stage = block->options.kind;
    const heddle_param *weight = &block->param[2 * layer];
    const heddle_dtype dtype = block->options.shape.dtype;
    const int is_last = stage == HEDDLE_STAGE_MLP ? layer == HD_LAYER_FC2 : layer == HD_LAYER_PROJ;
    const int is_wide = kind == HEDDLE_PRODUCT_OUTER || is_last == (kind == HEDDLE_PRODUCT_FORWARD);
    return (heddle_product){.kind = kind,
                            .dtype = dtype,
                            .dst_dtype = is_wide ? HEDDLE_F32 : dtype,
                            .n = weight->extent[0],
                            .k = weight->extent[1],
                            .has_bias = kind == HEDDLE_PRODUCT_FORWARD};
}

/* Gradients of the text's keys and values are sums over rows, of which each rank has some: rounded there, they would
 * depend on how rows are dealt. So a row of them is two of the block's type: what it is rounded to, what that left. */
int hd_on_terms(const heddle_block *block, int layer, heddle_product_kind kind)
{
    const heddle_block_options *o = &block->options;
    const int sums_rows = o->kind == HEDDLE_STAGE_CROSS && layer == HD_LAYER_KV && kind != HEDDLE_PRODUCT_FORWARD;
    return sums_rows && o->shape.dtype != HEDDLE_F32 ? 2 : 1;
}

heddle_dtype hd_on_param_dtype(const heddle_block *block, int param)
{
    if (param >= 2 * block->nlayers) {
        return HEDDLE_F32; /* of a norm */
    }
    const heddle_product of = hd_on_form(block, param / 2, HEDDLE_PRODUCT_FORWARD);
    return param % 2 == 0 ? of.dtype : of.dst_dtype;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status check_heads(const heddle_block *block)
{
    const int64_t d = block->head_channels;
    const heddle_dtype dtype = block->options.shape.dtype;
    if (d > HD_DEVICE_MOST_HEAD || (dtype != HEDDLE_F32 && d % 8 != 0) || (block->options.qk_norm && d % 2 != 0)) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "heads of %lld channels of %s: attention on devices takes up to %d, even ones with qk_norm, and "
                       "of bf16 and f16 multiples of 8",
                       (long long)d, heddle_dtype_name(dtype), HD_DEVICE_MOST_HEAD);
    }
    return HEDDLE_OK;
}

static heddle_status check(const heddle_block *block)
{
    heddle_comm *comm = block->options.comm;
    if (comm == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "a block on a device wants the communicator that has it (options.comm)");
    }
    if (block->options.most_workspace_bytes < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "most_workspace_bytes %lld of a block: 0 or more",
                       (long long)block->options.most_workspace_bytes);
    }
    const hd_device *device = hd_comm_device(comm);
    if (device == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "a block on a device: the communicator has none (heddle_comm_attach_device)");
    }
    if (device->library->kernels == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "a block on device %s: its library has no kernels", device->name);
    }
    return block->options.kind == HEDDLE_STAGE_MLP ? HEDDLE_OK : check_heads(block);
}

static heddle_status make_array(void **out, struct hd_block_on *on, int64_t elems, heddle_dtype dtype)
{
    const size_t bytes = (size_t)elems * heddle_dtype_bytes(dtype);
    heddle_status st = hd_device_alloc(on->device, out, bytes, HD_DEVICE_FOR_OWN);
    on->bytes += st == HEDDLE_OK ? bytes : 0;
    return st;
}

static heddle_status upload_decays(const heddle_block *block, struct hd_block_on *on)
{
    heddle_status st = HEDDLE_OK;
    const int heads = block->options.heads;
    float *exponent = NULL;
    HD_TRY(hd_alloc((void **)&exponent, (size_t)heads, sizeof *exponent, "decays of a block"));
    for (int h = 0; h < heads; h++) {
        exponent[h] = (float)log2(block->decay[h]);
    }
    HD_TRY(make_array((void **)&on->log2_decay, on, heads, HEDDLE_F32));
    st = hd_on_upload(on->room, on->log2_decay, exponent, (size_t)heads * sizeof *exponent);
out:
    hd_free(exponent);
    return st;
}

heddle_status hd_on_make(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    struct hd_block_on *on = NULL;
    HD_TRY(check(block));
    HD_TRY(hd_alloc((void **)&on, 1, sizeof *on, "a block on a device"));
    block->on = on;
    on->comm = block->options.comm;
    on->device = hd_comm_device(on->comm);
    on->kernels = on->device->library->kernels;
    HD_TRY(hd_on_room_make(&on->room, on->comm));
    for (int i = 0; i < block->nparams; i++) {
        HD_TRY(make_array(&on->own[i], on, hd_on_param_elems(&block->param[i]), hd_on_param_dtype(block, i)));
        on->param[i] = on->own[i];
    }
    if (block->cos_sin != NULL) {
        const int64_t extent = block->options.shape.dim[block->options.mixed_dim].extent;
        HD_TRY(make_array((void **)&on->cos_sin, on, extent * block->head_channels, HEDDLE_F32));
        HD_TRY(hd_on_upload(on->room, on->cos_sin, block->cos_sin,
                            (size_t)(extent * block->head_channels) * sizeof(float)));
    }
    st = block->options.kind == HEDDLE_STAGE_LINEAR ? upload_decays(block, on) : HEDDLE_OK;
out:
    return st;
}

void hd_on_free(struct hd_block_on *on)
{
    if (on == NULL) {
        return;
    }
    const int is_idle = on->room != NULL && hd_on_room_lets_free(on->room);
    for (int i = 0; is_idle && i < HD_BLOCK_PARAMS; i++) {
        hd_device_release(on->device, on->own[i]);
        hd_device_release(on->device, on->gradient[i]);
    }
    if (is_idle) {
        hd_device_release(on->device, on->cos_sin);
        hd_device_release(on->device, on->log2_decay);
    }
    hd_on_room_leave(on->room);
    hd_free(on);
}

int64_t hd_on_bytes(const struct hd_block_on *on)
{
    return on != NULL ? (int64_t)(on->bytes + on->room->bytes) : 0;
}

float *hd_on_gradient(const struct hd_block_on *on, int param)
{
    return on->gradient[param];
}

heddle_status hd_on_share(heddle_block *block, heddle_block *with)
{
    heddle_status st = HEDDLE_OK;
    hd_on_room *mine = block->on->room, *room = with->on->room;
    HD_TRY(hd_block_need_free(block, "heddle_block_share_workspace"));
    if (mine->device != room->device) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_block_share_workspace: one block is on device %s, the other on %s",
                       mine->device->name, room->device->name);
    }
    if (mine != room) {
        room->owners++;
        block->on->room = room;
        hd_on_room_leave(mine);
        st = block->committed ? hd_on_choose_products(block) : HEDDLE_OK;
    }
out:
    return st;
}
