/* Steps that backward of the stages has in common. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"

enum { VECTOR_ROWS = 6 };

/* Row `which` of the first sample's gradient; NULL: not wanted. */
static float *wanted_row(const hd_on_call *call, int which)
{
    float *vector = call->wanted != NULL && call->block->options.modulate ? call->wanted->vector : NULL;
    return vector != NULL ? vector + (call->view->first_sample * VECTOR_ROWS + which) * call->c : NULL;
}

heddle_status hd_on_through(hd_on_call *call, int layer, void *dst, const void *dy, int64_t rows)
{
    const heddle_product of = hd_on_form(call->block, layer, HEDDLE_PRODUCT_BACK);
    const heddle_product_call product = {.dst = dst, .src = dy, .with = call->on->param[2 * layer], .rows = rows};
    return hd_on_product(call, &of, &product);
}

heddle_status hd_on_columns(hd_on_call *call, const hd_device_columns *of, float *dst, float *dst_times, int64_t stride)
{
    const size_t before = call->used;
    void *scratch = hd_on_take(call, (int64_t)call->on->kernels->add_columns_bytes(of), 1);
    call->used = before; /* of the launch alone */
    return HD_ON_LAUNCH(call, add_columns, of, dst, dst_times, stride, scratch);
}

heddle_status hd_on_weight(hd_on_call *call, int layer, const void *dy, const void *x, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    const heddle_product of = hd_on_form(call->block, layer, HEDDLE_PRODUCT_OUTER);
    const heddle_product_call product = {
        .dst = call->on->gradient[2 * layer], .src = dy, .with = x, .rows = rows, .add = 1};
    const hd_device_columns bias = {
        .dtype = of.dtype, .src_dtype = of.dtype, .rows = rows, .n = of.n, .stride = of.n, .src = dy};
    HD_TRY(hd_on_product(call, &of, &product));
    st = hd_on_columns(call, &bias, call->on->gradient[2 * layer + 1], NULL, 0);
out:
    return st;
}

/* dgate[sample] += the sample's sums of dy z, where z is what the gate was multiplied with: made again. */
static heddle_status gate_back(hd_on_call *call, int layer, const void *x, int gate)
{
    heddle_status st = HEDDLE_OK;
    float *dgate = wanted_row(call, gate);
    const size_t before = call->used;
    if (dgate == NULL) {
        return HEDDLE_OK;
    }
    float *z = hd_on_take(call, call->rows * call->c, sizeof *z);
    const hd_device_columns of = {.dtype = call->dtype,
                                  .src_dtype = HEDDLE_F32,
                                  .rows = call->rows,
                                  .n = call->c,
                                  .stride = call->c,
                                  .sample_rows = call->view->sample_rows,
                                  .src = z,
                                  .other = call->view->x};
    HD_TRY(hd_on_layer(call, layer, z, x, call->rows));
    HD_TRY(hd_on_columns(call, &of, NULL, dgate, VECTOR_ROWS * call->c));
    call->used = before;
out:
    return st;
}

heddle_status hd_on_out_through(hd_on_call *call, const void **dy, int layer, void *dx, int gate)
{
    heddle_status st = HEDDLE_OK;
    const hd_device_rows of = hd_on_rows(call);
    const float *factor = hd_on_condition(call, gate);
    *dy = call->view->x;
    if (factor != NULL) {
        void *gated = hd_on_take(call, call->rows * call->c, hd_block_elem_bytes(call->block));
        HD_TRY(HD_ON_LAUNCH(call, scale_rows, &of, gated, *dy, factor));
        *dy = gated;
    }
    st = hd_on_through(call, layer, dx, *dy, call->rows);
out:
    return st;
}

heddle_status hd_on_out_weight(hd_on_call *call, int layer, const void *dy, const void *x, int gate)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_on_weight(call, layer, dy, x, call->rows));
    st = gate_back(call, layer, x, gate);
out:
    return st;
}

heddle_status hd_on_out_back(hd_on_call *call, int layer, void *dx, const void *x, int gate)
{
    heddle_status st = HEDDLE_OK;
    const size_t before = call->used;
    const void *dy = NULL;
    HD_TRY(hd_on_out_through(call, &dy, layer, dx, gate));
    st = hd_on_out_weight(call, layer, dy, x, gate);
    call->used = before;
out:
    return st;
}

heddle_status hd_on_in_back(hd_on_call *call, int layer, const void *dy, const void *x, int base)
{
    heddle_status st = HEDDLE_OK;
    const hd_device_rows of = hd_on_rows(call);
    float *dshift = wanted_row(call, base + HD_SHIFT), *dscale = wanted_row(call, base + HD_SCALE);
    void *normed = hd_on_take(call, call->rows * call->c, hd_block_elem_bytes(call->block));
    float *dm = hd_on_take(call, call->rows * call->c, sizeof *dm);
    float *stats = dscale != NULL ? hd_on_take(call, 2 * call->rows, sizeof *stats) : NULL;
    const hd_device_columns columns = {.dtype = call->dtype,
                                       .src_dtype = HEDDLE_F32,
                                       .rows = call->rows,
                                       .n = call->c,
                                       .stride = call->c,
                                       .sample_rows = call->view->sample_rows,
                                       .src = dm,
                                       .other = x,
                                       .stats = stats};
    HD_TRY(hd_on_norm(call, normed, x, base));
    HD_TRY(hd_on_weight(call, layer, dy, normed, call->rows));
    HD_TRY(hd_on_through(call, layer, dm, dy, call->rows));
    HD_TRY(HD_ON_LAUNCH(call, norm_back, &of, call->view->x, x, dm, HEDDLE_F32, hd_on_condition(call, base + HD_SCALE),
                        stats));
    HD_TRY(dscale != NULL ? hd_on_columns(call, &columns, dshift, dscale, VECTOR_ROWS * call->c) : HEDDLE_OK);
out:
    return st;
}
