/* Steps that stages on a device have in common. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"

enum { VECTOR_ROWS = 6 };

heddle_status hd_on_launched(const hd_on_call *call, int code, const char *what)
{
    return hd_device_launched(call->on->device, code, what);
}

hd_device_rows hd_on_rows(const hd_on_call *call)
{
    return (hd_device_rows){.dtype = call->dtype,
                            .rows = call->rows,
                            .c = call->c,
                            .sample_rows = call->view->sample_rows,
                            .sample_stride = VECTOR_ROWS * call->c};
}

const float *hd_on_condition(const hd_on_call *call, int which)
{
    return hd_block_condition(call->block, call->view, 0, which);
}

heddle_status hd_on_norm(hd_on_call *call, void *dst, const void *src, int base)
{
    const hd_device_rows of = hd_on_rows(call);
    return HD_ON_LAUNCH(call, norm_modulate, &of, dst, src, hd_on_condition(call, base + HD_SHIFT),
                        hd_on_condition(call, base + HD_SCALE));
}

heddle_status hd_on_product(hd_on_call *call, const heddle_product *of, const heddle_product_call *product)
{
    heddle_status st = HEDDLE_OK;
    const hd_matmul *matmul = NULL;
    heddle_product_call with_workspace = *product;
    const size_t before = call->used;
    HD_TRY(hd_products_take(&matmul, call->on->room->products, of));
    with_workspace.workspace = hd_on_take(call, matmul->workspace_bytes, 1);
    call->used = before; /* of the product alone */
    st = call->is_dry ? HEDDLE_OK : hd_matmul_run(matmul, &with_workspace, call->stream);
out:
    return st;
}

heddle_status hd_on_layer(hd_on_call *call, int layer, void *dst, const void *src, int64_t rows)
{
    const heddle_product of = hd_on_form(call->block, layer, HEDDLE_PRODUCT_FORWARD);
    const heddle_product_call product = {.dst = dst,
                                         .src = src,
                                         .with = call->on->param[2 * layer],
                                         .bias = call->on->param[2 * layer + 1],
                                         .rows = rows};
    return hd_on_product(call, &of, &product);
}
