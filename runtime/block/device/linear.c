/* LINEAR on a device: norm, qkv, rotation of heads, linear attention where the rows lie, its norm, projection,
 * residual; and back. As on the CPU nothing is rounded to the block's type from the first layer to the norm. */
#include "runtime/block/device/device.h"

#include "runtime/attention/linear_on.h"
#include "runtime/base/base.h"
#include "runtime/block/sharded.h"

typedef struct rows_of_heads {
    void *normed, *o; /* of the block's type */
    float *qkv, *turned;
    float *raw;     /* results before their norm; behind it the projection's */
    float *factors; /* of the norm */
} rows_of_heads;

/* Token t of fibre (o, i) is row (o * t_extent + t) * inner + i of rows `width` elements apart. */
static hd_device_tokens tokens(const hd_on_call *call, float *data, int64_t width)
{
    const hd_block_view *view = call->view;
    return (hd_device_tokens){.data = data,
                              .outer = view->t * view->inner * width,
                              .inner = width,
                              .token = view->inner * width,
                              .head = call->block->head_channels};
}

static hd_linear_walks walks_of(const hd_on_call *call, float *qkv)
{
    const hd_block_view *view = call->view;
    const int64_t d = call->block->head_channels;
    return (hd_linear_walks){.kernels = call->on->kernels,
                             .stream = call->stream,
                             .dtype = HEDDLE_F32,
                             .outer = view->outer,
                             .inner = view->inner,
                             .heads = call->block->options.heads,
                             .n = view->t,
                             .dk = d,
                             .dv = d,
                             .is_two_sided = !call->block->options.causal,
                             .log2_decay = call->on->log2_decay,
                             .q = tokens(call, qkv, 3 * call->c),
                             .k = tokens(call, qkv + call->c, 3 * call->c),
                             .v = tokens(call, qkv + 2 * call->c, 3 * call->c)};
}

/* Where states in front of segments are wanted. */
static void take_states(hd_on_call *call, hd_linear_walks *w, int is_back)
{
    const int64_t segments = hd_linear_segments(w->n);
    for (int i = 0; i < HD_WALKS_STATES && segments > 1; i++) {
        const int is_one_sided = i == HD_WALKS_KV_LEFT || i == HD_WALKS_G_RIGHT;
        const int is_gradient = i == HD_WALKS_G_RIGHT || i == HD_WALKS_G_LEFT;
        if ((is_one_sided || w->is_two_sided) && (is_back || !is_gradient)) {
            w->states[i] = hd_on_take(call, w->outer * w->inner * w->heads * segments * w->dk * w->dv, sizeof(float));
        }
    }
}

/* Of whole fibres, or the group's over a sharded dim. */
static heddle_status attend(hd_on_call *call, float *qkv, float *raw)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = call->block->sharded;
    hd_linear_walks w = walks_of(call, qkv);
    const size_t before = call->used;
    w.o = tokens(call, raw, call->c);
    if (s == NULL || s->linear == NULL) {
        take_states(call, &w, 0);
        call->used = before;
        return hd_on_launched(call, call->is_dry ? 0 : hd_linear_walks_whole(&w, 0), "linear");
    }
    if (!call->is_dry) {
        HD_TRY(hd_linear_on_forward(s->linear, &w, call->stream));
        s->held = ++s->forwards;
    }
out:
    return st;
}

/* d_raw: gradient of the results. */
static heddle_status attend_back(hd_on_call *call, float *qkv, float *d_raw, float *d_qkv)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = call->block->sharded;
    hd_linear_walks w = walks_of(call, qkv);
    const hd_linear_walks d = walks_of(call, d_qkv);
    const size_t before = call->used;
    w.d_o = tokens(call, d_raw, call->c);
    w.o = w.dq = d.q; /* o: where it is made again, before dq */
    w.dk_out = d.k;
    w.dv_out = d.v;
    if (s == NULL || s->linear == NULL) {
        take_states(call, &w, 1);
        call->used = before;
        return hd_on_launched(call, call->is_dry ? 0 : hd_linear_walks_whole(&w, 1), "linear");
    }
    if (!call->is_dry && call->tape->forward != s->held) { /* the object holds another forward */
        HD_TRY(hd_linear_on_forward(s->linear, &w, call->stream));
        s->held = call->tape->forward;
    }
    HD_TRY(call->is_dry ? HEDDLE_OK : hd_linear_on_backward(s->linear, &w, call->stream));
out:
    return st;
}

static hd_device_head_norm norm_of(const hd_on_call *call, const rows_of_heads *a)
{
    return (hd_device_head_norm){.dtype = call->dtype,
                                 .rows = call->rows,
                                 .heads = call->block->options.heads,
                                 .d = call->block->head_channels,
                                 .y = a->o,
                                 .x = a->raw,
                                 .factors = a->factors};
}

/* q and k turned by their positions, beside what they were where that is kept. */
static heddle_status turn(hd_on_call *call, const rows_of_heads *a)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(a->turned != a->qkv
               ? HD_ON_LAUNCH(call, convert, a->turned, HEDDLE_F32, a->qkv, HEDDLE_F32, 3 * call->rows * call->c)
               : HEDDLE_OK);
    st = hd_on_turn(call, a->turned, a->turned);
out:
    return st;
}

/* Up to the normed result, which backward of a tape that recomputes wants again. */
static heddle_status mix(hd_on_call *call, rows_of_heads *a, const void *x)
{
    heddle_status st = HEDDLE_OK;
    const hd_kept *kept = call->keeps ? &call->kept : NULL;
    const int64_t elems = call->rows * call->c;
    a->normed = hd_on_take(call, elems, hd_block_elem_bytes(call->block));
    a->qkv = kept != NULL ? (float *)(void *)kept->wide : hd_on_take(call, 3 * elems, sizeof(float));
    a->turned = kept != NULL && hd_on_turns(call->block) ? hd_on_take(call, 3 * elems, sizeof(float)) : a->qkv;
    a->o = kept != NULL ? kept->o : a->normed;
    a->factors = kept != NULL ? (float *)(void *)kept->mixer : NULL;
    a->raw = hd_on_take(call, elems, sizeof(float));
    HD_TRY(hd_on_norm(call, a->normed, x, 0));
    HD_TRY(hd_on_layer(call, HD_LAYER_QKV, a->qkv, a->normed, call->rows));
    HD_TRY(turn(call, a));
    HD_TRY(attend(call, a->turned, a->raw));
    const hd_device_head_norm norm = norm_of(call, a);
    st = HD_ON_LAUNCH(call, head_norm, &norm);
out:
    return st;
}

heddle_status hd_on_linear(hd_on_call *call)
{
    heddle_status st = HEDDLE_OK;
    rows_of_heads a;
    HD_TRY(mix(call, &a, call->view->x));
    HD_TRY(hd_on_layer(call, HD_LAYER_PROJ, a.raw, a.o, call->rows));
    st = hd_on_gate(call, call->view->x, a.raw, HD_GATE);
out:
    return st;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* What lies between the layers, from the tape, or made again from the input. */
static heddle_status restore(hd_on_call *call, rows_of_heads *a)
{
    heddle_status st = HEDDLE_OK;
    const int64_t elems = call->rows * call->c;
    if (call->kept.again) {
        call->kept.wide = hd_on_take(call, 3 * elems, sizeof(float));
        call->kept.o = hd_on_take(call, elems, hd_block_elem_bytes(call->block));
        call->kept.mixer = hd_on_take(call, call->rows * call->block->options.heads, sizeof(float));
        HD_TRY(mix(call, a, call->kept.x));
        call->tape->forward = call->block->sharded != NULL ? call->block->sharded->held : 0;
        goto out;
    }
    *a = (rows_of_heads){.qkv = (float *)(void *)call->kept.wide,
                         .turned = (float *)(void *)call->kept.wide,
                         .o = call->kept.o,
                         .factors = (float *)(void *)call->kept.mixer,
                         .raw = hd_on_take(call, elems, sizeof(float))};
    if (hd_on_turns(call->block)) {
        a->turned = hd_on_take(call, 3 * elems, sizeof(float));
        st = turn(call, a);
    }
out:
    return st;
}

heddle_status hd_on_linear_back(hd_on_call *call)
{
    heddle_status st = HEDDLE_OK;
    const int64_t elems = call->rows * call->c;
    rows_of_heads a;
    HD_TRY(restore(call, &a));
    float *d_qkv = hd_on_take(call, 3 * elems, sizeof *d_qkv);
    void *rounded = d_qkv;
    HD_TRY(hd_on_out_back(call, HD_LAYER_PROJ, a.raw, HEDDLE_F32, a.o, HD_GATE));
    hd_device_head_norm norm = norm_of(call, &a);
    norm.dy = a.raw; /* in place */
    norm.dy_dtype = HEDDLE_F32;
    HD_TRY(HD_ON_LAUNCH(call, head_norm_back, &norm));
    HD_TRY(attend_back(call, a.turned, a.raw, d_qkv));
    HD_TRY(hd_on_heads_back(call, (char *)d_qkv, (char *)a.qkv));
    if (call->dtype != HEDDLE_F32) {
        rounded = hd_on_take(call, 3 * elems, hd_block_elem_bytes(call->block));
        HD_TRY(HD_ON_LAUNCH(call, convert, rounded, call->dtype, d_qkv, HEDDLE_F32, 3 * elems));
    }
    st = hd_on_in_back(call, HD_LAYER_QKV, rounded, call->kept.x, 0);
out:
    return st;
}
