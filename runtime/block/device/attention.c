/* ATTENTION and LINEAR on a device: norm, qkv, norm and rotation of heads, attention where the rows lie, projection,
 * residual. */
#include "runtime/block/device/device.h"

#include "runtime/attention/on.h"
#include "runtime/base/base.h"
#include "runtime/block/sharded.h"

#include <math.h>

/* Token t of fibre (o, i) is row (o * t_extent + t) * inner + i of rows `width` elements apart. */
static hd_device_tokens tokens(const hd_on_call *call, void *data, int64_t width)
{
    const hd_block_view *view = call->view;
    return (hd_device_tokens){.data = data,
                              .outer = view->t * view->inner * width,
                              .inner = width,
                              .token = view->inner * width,
                              .head = call->block->head_channels};
}

static char *at_elem(const hd_on_call *call, void *data, int64_t elem)
{
    return (char *)data + (size_t)elem * hd_block_elem_bytes(call->block);
}

hd_device_attention hd_on_attention_of(const hd_on_call *call, void *qkv, void *turned, void *o, float *stats)
{
    const hd_block_view *view = call->view;
    const int64_t wide = 3 * call->c, pair = turned == qkv ? wide : 2 * call->c, heads = call->block->options.heads;
    return (hd_device_attention){.dtype = call->dtype,
                                 .outer = view->outer,
                                 .inner = view->inner,
                                 .heads = heads,
                                 .kv_heads = heads,
                                 .nq = view->t,
                                 .nk = view->t,
                                 .d = call->block->head_channels,
                                 .scale = 1.0f / sqrtf((float)call->block->head_channels),
                                 .diagonal = view->t,
                                 .fibres_of_length = 1,
                                 .q = tokens(call, turned, pair),
                                 .k = tokens(call, at_elem(call, turned, call->c), pair),
                                 .v = tokens(call, at_elem(call, qkv, 2 * call->c), wide),
                                 .o = tokens(call, o, call->c),
                                 .stats = stats};
}

static int is_sharded(const heddle_block *block)
{
    return block->sharded != NULL && block->sharded->attention != NULL;
}

/* Of the group's object; rows lie in the box's order here, too. */
static hd_on_arrays arrays_of(const hd_on_call *call, const hd_device_tokens *a, const hd_device_tokens *b,
                              const hd_device_tokens *c, const hd_device_tokens *d)
{
    return (hd_on_arrays){call->view->inner, {*a, *b, *c, *d}};
}

heddle_status hd_on_attend(hd_on_call *call, const hd_device_attention *of)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = call->block->sharded;
    if (call->block->options.kind == HEDDLE_STAGE_LINEAR) {
        return hd_on_linear(call, of);
    }
    if (!is_sharded(call->block)) {
        return HD_ON_LAUNCH(call, attention, of);
    }
    const hd_on_arrays x = arrays_of(call, &of->q, &of->k, &of->v, &of->o);
    if (!call->is_dry) {
        HD_TRY(hd_attn_on_forward_on(s->attention, &x, NULL, call->stream));
        s->held = ++s->forwards;
    }
out:
    return st;
}

heddle_status hd_on_attend_back(hd_on_call *call, const hd_device_attention_back *back)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = call->block->sharded;
    if (call->block->options.kind == HEDDLE_STAGE_LINEAR) {
        return hd_on_linear_back(call, back);
    }
    if (!is_sharded(call->block)) {
        return HD_ON_LAUNCH(call, attention_back, back);
    }
    const hd_device_attention *of = &back->of;
    const hd_on_arrays x = arrays_of(call, &of->q, &of->k, &of->v, &back->dq); /* dq is written behind that */
    const hd_on_arrays dx = arrays_of(call, &back->d_o, &back->dq, &back->dk, &back->dv);
    if (!call->is_dry && call->tape->forward != s->held) { /* the object holds another forward */
        HD_TRY(hd_attn_on_forward_on(s->attention, &x, NULL, call->stream));
        s->held = call->tape->forward;
    }
    HD_TRY(call->is_dry ? HEDDLE_OK : hd_attn_on_backward_on(s->attention, &dx, call->stream));
out:
    return st;
}

/* Those of q and of k, which lie beside one another: twice as many where no weights tell them apart. */
hd_device_heads hd_on_heads_of(const hd_on_call *call)
{
    const heddle_block *block = call->block;
    const int has_norm = block->options.qk_norm;
    const void *const *norm = call->on->param + HD_PARAM_Q_NORM;
    return (hd_device_heads){.dtype = call->dtype,
                             .rows = call->rows,
                             .heads = (has_norm ? 1 : 2) * block->options.heads,
                             .d = block->head_channels,
                             .row_stride = 3 * call->c,
                             .weight = has_norm ? norm[0] : NULL,
                             .second_at = has_norm ? call->c : 0,
                             .second_weight = has_norm ? norm[1] : NULL,
                             .cos_sin = call->on->cos_sin != NULL && !call->is_dry
                                            ? call->on->cos_sin + call->view->t_lo * call->block->head_channels
                                            : call->on->cos_sin,
                             .inner = call->view->inner,
                             .extent = call->view->t > 0 ? call->view->t : 1};
}

int hd_on_turns(const heddle_block *block)
{
    return block->options.qk_norm || block->options.rope;
}

heddle_status hd_on_turn(hd_on_call *call, void *turned, void *qkv)
{
    hd_device_heads of = hd_on_heads_of(call);
    of.to_stride = (turned == qkv ? 3 : 2) * call->c;
    return hd_on_turns(call->block) ? HD_ON_LAUNCH(call, norm_rotate, &of, turned, qkv) : HEDDLE_OK;
}

/* Where the rows between the layers lie. A tape keeps qkv as the layer left it, so q and k turn into other rows.
 * `change`, the projection's result in f32, takes the place of what is of no use any more: 2 c elements are at least as
 * many bytes as c of f32. */
static void take_arrays(hd_on_call *call, hd_on_mixed *a)
{
    const size_t elem = hd_block_elem_bytes(call->block);
    const hd_kept *kept = call->keeps ? &call->kept : NULL;
    const int64_t elems = call->rows * call->c;
    char *row = hd_on_take(call, elems, elem);
    const int is_apart = kept == NULL || hd_on_turns(call->block);
    char *wide = is_apart ? hd_on_take(call, (kept != NULL ? 2 : 3) * elems, elem) : kept->wide;
    a->normed = row;
    a->qkv = kept != NULL ? kept->wide : wide;
    a->turned = wide;
    a->o = kept != NULL ? kept->o : row;
    a->stats = kept != NULL ? (float *)(void *)kept->mixer : NULL;
    a->change = is_apart ? wide : hd_on_take(call, elems, sizeof(float));
}

/* Up to the result of attention, which backward of a tape that recomputes wants again. */
heddle_status hd_on_mix(hd_on_call *call, hd_on_mixed *a, const void *x)
{
    heddle_status st = HEDDLE_OK;
    take_arrays(call, a);
    const hd_device_attention attention = hd_on_attention_of(call, a->qkv, a->turned, a->o, a->stats);
    HD_TRY(hd_on_norm(call, a->normed, x, 0));
    HD_TRY(hd_on_layer(call, HD_LAYER_QKV, a->qkv, a->normed, call->rows));
    HD_TRY(hd_on_turn(call, a->turned, a->qkv));
    st = hd_on_attend(call, &attention);
out:
    return st;
}

heddle_status hd_on_attention(hd_on_call *call)
{
    heddle_status st = HEDDLE_OK;
    hd_on_mixed a;
    HD_TRY(hd_on_mix(call, &a, call->view->x));
    HD_TRY(hd_on_layer(call, HD_LAYER_PROJ, a.change, a.o, call->rows));
    HD_TRY(hd_on_gate(call, call->view->x, (const float *)a.change, HD_GATE));
out:
    return st;
}
