/* LINEAR on a device, between the layers that it has in common with ATTENTION: linear attention where the rows lie, and
 * its norm. Results are f32 up to there, whose terms may cancel; what is multiplied is of the block's type. */
#include "runtime/block/device/device.h"

#include "runtime/attention/linear_on.h"
#include "runtime/base/base.h"
#include "runtime/block/sharded.h"

static hd_linear_walks walks_of(const hd_on_call *call, const hd_device_attention *of)
{
    return (hd_linear_walks){.kernels = call->on->kernels,
                             .stream = call->stream,
                             .dtype = of->dtype,
                             .outer = of->outer,
                             .inner = of->inner,
                             .heads = of->heads,
                             .n = of->nq,
                             .dk = of->d,
                             .dv = of->d,
                             .is_two_sided = !call->block->options.causal,
                             .log2_decay = call->on->log2_decay,
                             .q = of->q,
                             .k = of->k,
                             .v = of->v};
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

static heddle_status walk_whole(hd_on_call *call, hd_linear_walks *w, int is_back)
{
    take_states(call, w, is_back);
    return hd_on_launched(call, call->is_dry ? 0 : hd_linear_walks_whole(w, is_back), "linear");
}

/* Of whole fibres, or the group's over a sharded dim. */
static heddle_status walk(hd_on_call *call, hd_linear_walks *w)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = call->block->sharded;
    if (s == NULL || s->linear == NULL) {
        return walk_whole(call, w, 0);
    }
    if (!call->is_dry) {
        HD_TRY(hd_linear_on_forward(s->linear, w, call->stream));
        s->held = ++s->forwards;
    }
out:
    return st;
}

static heddle_status walk_back(hd_on_call *call, hd_linear_walks *w)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = call->block->sharded;
    if (s == NULL || s->linear == NULL) {
        return walk_whole(call, w, 1);
    }
    if (!call->is_dry && call->tape->forward != s->held) { /* the object holds another forward */
        HD_TRY(hd_linear_on_forward(s->linear, w, call->stream));
        s->held = call->tape->forward;
    }
    HD_TRY(call->is_dry ? HEDDLE_OK : hd_linear_on_backward(s->linear, w, call->stream));
out:
    return st;
}

static hd_device_head_norm norm_of(const hd_on_call *call, const hd_device_attention *of, float *raw)
{
    return (hd_device_head_norm){.dtype = of->dtype,
                                 .rows = call->rows,
                                 .heads = of->heads,
                                 .d = of->d,
                                 .y = of->o.data,
                                 .x = raw,
                                 .factors = of->stats};
}

heddle_status hd_on_linear(hd_on_call *call, const hd_device_attention *of)
{
    heddle_status st = HEDDLE_OK;
    const size_t before = call->used;
    float *raw = hd_on_take(call, call->rows * call->c, sizeof *raw);
    hd_linear_walks w = walks_of(call, of);
    const hd_device_head_norm norm = norm_of(call, of, raw);
    w.o = of->o;
    w.o.data = raw;
    w.gives_f32 = 1;
    HD_TRY(walk(call, &w));
    HD_TRY(HD_ON_LAUNCH(call, head_norm, &norm));
    call->used = before;
out:
    return st;
}

heddle_status hd_on_linear_back(hd_on_call *call, const hd_device_attention_back *back)
{
    heddle_status st = HEDDLE_OK;
    const size_t before = call->used;
    const hd_device_attention *of = &back->of;
    const int64_t elems = call->rows * call->c;
    const int is_f32 = of->dtype == HEDDLE_F32;
    float *d_raw = is_f32 ? back->d_o.data : hd_on_take(call, elems, sizeof *d_raw);
    hd_linear_walks w = walks_of(call, of);
    hd_device_head_norm norm = norm_of(call, of, d_raw);
    norm.dy = back->d_o.data;
    norm.dy_dtype = of->dtype;
    w.d_o = back->d_o;
    w.o = w.dq = back->dq; /* o: where it is made again, before dq */
    w.dk_out = back->dk;
    w.dv_out = back->dv;
    w.before = d_raw; /* it is not read any more */
    HD_TRY(HD_ON_LAUNCH(call, head_norm_back, &norm));
    HD_TRY(is_f32 ? HEDDLE_OK : HD_ON_LAUNCH(call, convert, back->d_o.data, of->dtype, d_raw, HEDDLE_F32, elems));
    HD_TRY(walk_back(call, &w));
    call->used = before;
out:
    return st;
}
