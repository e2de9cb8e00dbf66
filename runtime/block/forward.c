/* Checks of a forward call, the view of the box, and the threads that work on it. */
#include "runtime/base/base.h"
#include "runtime/block/device/device.h"
#include "runtime/block/inner.h"
#include "runtime/block/products.h"
#include "runtime/layout/algebra.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 64, CONDITION_ROWS = 6 };

/* One of the six rows of a sample's conditioning; NULL: the stage is not modulated. */
const float *hd_block_condition(const heddle_block *block, const hd_block_view *view, int64_t sample, int which)
{
    if (!block->options.modulate) {
        return NULL;
    }
    return view->conditioning->vector + ((view->first_sample + sample) * CONDITION_ROWS + which) * block->channels;
}

void hd_block_leave_scratch(hd_block_scratch *scratch)
{
    if (scratch == NULL || --scratch->owners > 0) {
        return;
    }
    for (int i = 0; i < scratch->seats * HD_SEAT_PARTS; i++) {
        hd_free(scratch->seat[i / HD_SEAT_PARTS].part[i % HD_SEAT_PARTS]);
    }
    hd_free(scratch);
}

int64_t hd_block_scratch_bytes(const hd_block_scratch *scratch)
{
    int64_t bytes = 0;
    for (int i = 0; i < scratch->seats * HD_SEAT_PARTS; i++) {
        bytes += (int64_t)scratch->seat[i / HD_SEAT_PARTS].part_bytes[i % HD_SEAT_PARTS];
    }
    return bytes;
}

/* Every seat (thread) has its own part, so that jobs share nothing but what they read. */
heddle_status hd_block_reserve(heddle_block *block, int index, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < block->seats; i++) {
        hd_block_seat *seat = &block->scratch->seat[i];
        HD_TRY(hd_reserve(&seat->part[index], &seat->part_bytes[index], ALIGNMENT, bytes, "a block's workspace"));
    }
out:
    return st;
}

typedef struct block_call {
    heddle_block *block;
    const hd_block_view *view;
    hd_block_job fn;
} block_call;

static heddle_status run_job(void *ctx, int seat, int64_t job)
{
    const block_call *call = ctx;
    return call->fn(call->block, call->view, seat, job);
}

heddle_status hd_block_run_jobs(heddle_block *block, const hd_block_view *view, hd_block_job fn, int64_t jobs)
{
    block_call call = {block, view, fn};
    return hd_products_run("hd-block", block->seats, jobs, run_job, &call);
}

/* Attention reads whole fibres, a row's norm whole rows: those dims may not be sharded here. */
static heddle_status check_whole(const heddle_shape *shape, const heddle_box *box, int dim, const char *why)
{
    if (box->lo[dim] != 0 || box->len[dim] != shape->dim[dim].extent) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "dim %s %s and must be whole on the rank: it holds %lld..%lld of %lld",
                       shape->dim[dim].name, why, (long long)box->lo[dim], (long long)(box->lo[dim] + box->len[dim]),
                       (long long)shape->dim[dim].extent);
    }
    return HEDDLE_OK;
}

static heddle_status check_box(const heddle_block *block, const heddle_box *box)
{
    const heddle_shape *shape = &block->options.shape;
    if (box->ndim != shape->ndim) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "the box has %d dims, the block's shape %d", box->ndim, shape->ndim);
    }
    for (int d = 0; d < box->ndim; d++) {
        int64_t extent = shape->dim[d].extent;
        if (box->lo[d] < 0 || box->len[d] < 0 || box->lo[d] > extent || box->len[d] > extent - box->lo[d]) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "the box starts at %lld of dim %s and has %lld, the shape has %lld",
                           (long long)box->lo[d], shape->dim[d].name, (long long)box->len[d], (long long)extent);
        }
    }
    return HEDDLE_OK;
}

static heddle_status check_conditioning(const heddle_block *block, const heddle_box *box,
                                        const heddle_conditioning *conditioning, const char *function)
{
    heddle_status st = HEDDLE_OK;
    const heddle_block_options *options = &block->options;
    const char *missing = conditioning == NULL ? "conditioning is NULL" : "conditioning lacks it";
    if (options->kind != HEDDLE_STAGE_CROSS) {
        if (options->modulate && (conditioning == NULL || conditioning->vector == NULL)) {
            return hd_fail(HEDDLE_ERR_ARG, "%s: a modulated stage needs the conditioning vector [b, 6, c], but %s",
                           function, missing);
        }
        return HEDDLE_OK;
    }
    if (conditioning == NULL || conditioning->text == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: a cross-attention stage needs the text [b, %lld, c], but %s", function,
                       (long long)options->text_tokens, missing);
    }
    HD_TRY(block->on != NULL ? hd_on_check_lengths(block, conditioning->text_lengths, function) : HEDDLE_OK);
    for (int64_t b = box->lo[0]; conditioning->text_lengths != NULL && b < box->lo[0] + box->len[0]; b++) {
        if (conditioning->text_lengths[b] < 0 || conditioning->text_lengths[b] > options->text_tokens) {
            return hd_fail(HEDDLE_ERR_ARG, "text length %lld of sample %lld: must be 0 to %lld",
                           (long long)conditioning->text_lengths[b], (long long)b, (long long)options->text_tokens);
        }
    }
out:
    return st;
}

static hd_block_view make_view(const heddle_block *block, void *x, const heddle_box *box,
                               const heddle_conditioning *conditioning)
{
    int mixed = block->mixer != NULL ? block->options.mixed_dim : box->ndim - 1;
    hd_block_view view = {.x = x, .conditioning = conditioning, .outer = 1, .t = 1, .inner = 1, .sample_rows = 1};
    view.first_sample = box->lo[0];
    view.samples = box->len[0];
    for (int d = 0; d < box->ndim - 1; d++) {
        view.sample_rows *= d > 0 ? box->len[d] : 1;
        if (d < mixed) {
            view.outer *= box->len[d];
        } else if (d == mixed) {
            view.t = box->len[d];
            view.t_lo = box->lo[d];
        } else {
            view.inner *= box->len[d];
        }
    }
    return view;
}

/* A sharded block works on its own part of the layout, whatever shape that has. */
static heddle_status check_parts(const heddle_block *block, const heddle_box *box)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(check_box(block, box));
    if (block->sharded != NULL) {
        return hd_sharded_check_box(block, box);
    }
    if (heddle_box_elems(box) > 0) {
        HD_TRY(check_whole(&block->options.shape, box, box->ndim - 1, "holds the channels"));
        if (block->mixer != NULL) {
            HD_TRY(check_whole(&block->options.shape, box, block->options.mixed_dim, "is mixed by this stage"));
        }
    }
out:
    return st;
}

/* The box of it lies as kernels want it. */
static heddle_status check_tensor(const heddle_block *block, const heddle_tensor *x, const heddle_box *box,
                                  hd_call_names names)
{
    const heddle_shape *shape = &block->options.shape;
    const size_t bytes = (size_t)heddle_box_elems(box) * heddle_dtype_bytes(shape->dtype);
    int64_t dense[HEDDLE_MAX_DIMS];
    if (x == NULL || x->data == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: %s is NULL, the box has %lld elements", names.function, names.rows,
                       (long long)heddle_box_elems(box));
    }
    if (block->on == NULL && x->space != HEDDLE_SPACE_HOST) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s: %s is in the memory of device %d; the block works in host memory",
                       names.function, names.rows, x->device);
    }
    heddle_status st = hd_shape_need(&x->shape, shape, 0, names.rows, "the block works on");
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s", names.function);
    }
    heddle_box_strides(dense, box, NULL);
    for (int d = 0; d < box->ndim; d++) {
        if (box->len[d] > 1 && x->stride_elems[d] != dense[d]) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "%s: elements of %s along dim %s lie %lld apart, dense is %lld",
                           names.function, names.rows, shape->dim[d].name, (long long)x->stride_elems[d],
                           (long long)dense[d]);
        }
    }
    if (x->capacity_bytes < bytes) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: %s has room for %zu bytes, the box has %zu", names.function, names.rows,
                       x->capacity_bytes, bytes);
    }
    return HEDDLE_OK;
}

heddle_status hd_block_enter(hd_block_view *view, int *idle, const heddle_block *block, const heddle_tensor *x,
                             const heddle_box *box, const heddle_conditioning *conditioning, hd_call_names names)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_block_need_free(block, names.function));
    if (!block->committed) {
        return hd_fail(HEDDLE_ERR_ARG, "the block's weights are not ready: call heddle_block_commit first");
    }
    HD_TRY(check_parts(block, box));
    *idle = heddle_box_elems(box) == 0;
    if (!*idle) {
        HD_TRY(check_tensor(block, x, box, names));
        HD_TRY(check_conditioning(block, box, conditioning, names.function));
        HD_TRY(block->on != NULL ? hd_on_check(block, x, conditioning, names) : HEDDLE_OK);
    }
    *view = make_view(block, x != NULL ? x->data : NULL, box, conditioning);
    *idle = *idle && (block->mixer == NULL || !block->mixer->collective);
out:
    return st;
}

heddle_status hd_block_look_at(hd_block_view *view, const heddle_block *block, const heddle_box *box)
{
    heddle_status st = check_parts(block, box);
    if (st == HEDDLE_OK) {
        *view = make_view(block, NULL, box, NULL);
    }
    return st;
}

heddle_status heddle_block_reserve(heddle_block *block, const heddle_box *box)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view view;
    HD_TRY(HD_NEED(block, box));
    HD_TRY(hd_block_need_free(block, __func__));
    HD_TRY(hd_block_look_at(&view, block, box));
    st = block->on != NULL && heddle_box_elems(box) > 0 ? hd_on_reserve_block(block, &view) : HEDDLE_OK;
out:
    return st;
}

heddle_status heddle_block_forward(heddle_block *block, const heddle_tensor *x, const heddle_box *box,
                                   const heddle_conditioning *conditioning, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view view;
    int idle = 0;
    if (block == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_block_forward: block is NULL");
    }
    if (box == NULL) {
        st = hd_fail(HEDDLE_ERR_ARG, "heddle_block_forward: box is NULL");
        goto out;
    }
    HD_TRY(hd_block_enter(&view, &idle, block, x, box, conditioning, (hd_call_names){__func__, "x"}));
    if (idle) {
        return HEDDLE_OK;
    }
    if (block->on != NULL) {
        st = hd_on_forward(block, &view, stream);
        goto out;
    }
    switch (block->options.kind) {
    case HEDDLE_STAGE_LINEAR:
    case HEDDLE_STAGE_ATTENTION:
        HD_TRY(block->mixer->collective ? hd_stage_mixed(block, &view) : hd_stage_attention(block, &view));
        break;
    case HEDDLE_STAGE_CROSS:
        return hd_stage_cross(block, &view);
    case HEDDLE_STAGE_MLP:
        return hd_stage_mlp(block, &view);
    case HEDDLE_STAGE_MODULE: /* there is no such block */
        break;
    }
out:
    return st == HEDDLE_OK ? st : hd_sharded_give_up(block, st);
}
