/* Forward and backward of linear attention on a device: parts of states, states from rank to rank, and a walk over the
 * rows for each result. */
#include "runtime/attention/linear_on.h"
#include "runtime/device/device.h"

/* --- arrays ------------------------------------------------------------------------------------------------------- */

static heddle_status check_place(hd_device *device, const void *at, const char *name, const char *function)
{
    hd_stray stray = HD_STRAY_NOT;
    heddle_status st = hd_device_stray(&stray, device, HEDDLE_SPACE_DEVICE, at);
    return st != HEDDLE_OK || stray == HD_STRAY_NOT
               ? st
               : hd_fail(HEDDLE_ERR_ARG, "%s: %s at %p is %s; the linear attention works on device %s", function, name,
                         at, stray == HD_STRAY_HOST ? "in host memory" : "in the memory of another device",
                         device->name);
}

heddle_status hd_linear_on_check_array(const heddle_linear_attention *a, const heddle_attention_array *x,
                                       const char *name, const char *function)
{
    const int64_t *stride = x->stride_elems;
    hd_device *device = a->on->device;
    const int is_half = a->problem.shape.dtype != HEDDLE_F32;
    if (x->data == NULL) {
        return HEDDLE_OK;
    }
    if (stride[3] != 1) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: %s: the elements of a head lie %lld apart, on devices they lie together",
                       function, name, (long long)stride[3]);
    }
    if (is_half && ((uintptr_t)x->data % 16 != 0 || (stride[0] | stride[1] | stride[2]) % 8 != 0)) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "%s: %s at %p with strides of %lld, %lld and %lld elements: on devices heads of %s begin at "
                       "multiples of 16 bytes",
                       function, name, x->data, (long long)stride[0], (long long)stride[1], (long long)stride[2],
                       heddle_dtype_name(a->problem.shape.dtype));
    }
    return check_place(device, x->data, name, function);
}

static hd_device_tokens tokens_of(const heddle_attention_array *x)
{
    return (hd_device_tokens){x->data, x->stride_elems[0], 0, x->stride_elems[1], x->stride_elems[2]};
}

/* --- around a call ------------------------------------------------------------------------------------------------ */

typedef heddle_status (*call_fn)(struct hd_linear_on *on, void *arg);

/* A graph cannot wait for what is outside of it. */
static heddle_status run(struct hd_linear_on *on, call_fn fn, void *arg, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = on->device->library;
    int captures = 0, before = 0;
    on->walks.stream = stream;
    HD_TRY(library->stream_captures(&captures, on->device->number, stream));
    on->used.is_captured |= captures;
    HD_TRY(captures ? HEDDLE_OK : hd_enqueued_order(&on->used, stream));
    HD_TRY(library->enter(&before, on->device->number));
    st = fn(on, arg);
    library->leave(before);
    st = captures ? st : hd_enqueued_end(&on->used, stream, st);
out:
    return st;
}

/* --- states ------------------------------------------------------------------------------------------------------- */

/* Parts of states of this rank's segments, and those that come before them: on their way when this returns, beside
 * what the call's stream has next. */
static heddle_status send_states(struct hd_linear_on *on, hd_linear_flow *flow, int which)
{
    heddle_status st = HEDDLE_OK;
    hd_linear_walks *w = &on->walks;
    const heddle_device *library = on->device->library;
    const heddle_stream stream = w->stream;
    const int device = on->device->number;
    if (w->states[which] == NULL) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_device_launched(on->device, hd_linear_walks_parts(w, which), "linear"));
    if (on->problem->nranks > 1) {
        HD_TRY(hd_device_launched(on->device, hd_linear_walks_states(w, which, NULL, flow->own, 0), "linear_states"));
        HD_TRY(library->event_record(on->forked, device, stream));
        HD_TRY(library->stream_wait(on->beside, on->forked, device));
        w->stream = on->beside;
        HD_TRY(hd_linear_flow_go(on, flow));
        HD_TRY(library->event_record(on->joined, device, on->beside));
    }
out:
    w->stream = stream;
    return st;
}

/* Those in front of all segments, when they have come. A fibre of one segment that is whole here begins with zeros. */
static heddle_status take_states(struct hd_linear_on *on, const hd_linear_flow *flow, int which)
{
    heddle_status st = HEDDLE_OK;
    const hd_linear_walks *w = &on->walks;
    const float *in = flow->p > 0 ? flow->in : NULL;
    if (w->states[which] == NULL) {
        return HEDDLE_OK;
    }
    if (on->problem->nranks > 1) {
        HD_TRY(on->device->library->stream_wait(w->stream, on->joined, on->device->number));
    }
    HD_TRY(hd_device_launched(on->device, hd_linear_walks_states(w, which, in, NULL, 1), "linear_states"));
    if (w->end != NULL && w->n == 0 && which == HD_WALKS_KV_LEFT) { /* no walk says it */
        st = hd_device_launched(on->device, hd_linear_walks_fold(w, w->end, 0, in, NULL), "linear_states");
    }
out:
    return st;
}

static heddle_status forward(struct hd_linear_on *on, void *unused)
{
    (void)unused;
    heddle_status st = HEDDLE_OK;
    HD_TRY(send_states(on, &on->flow[0][0], HD_WALKS_KV_LEFT));
    HD_TRY(send_states(on, &on->flow[0][1], HD_WALKS_KV_RIGHT));
    HD_TRY(take_states(on, &on->flow[0][0], HD_WALKS_KV_LEFT));
    HD_TRY(take_states(on, &on->flow[0][1], HD_WALKS_KV_RIGHT));
    st = hd_device_launched(on->device, hd_linear_walks_forward(&on->walks), "linear");
out:
    return st;
}

static heddle_status backward(struct hd_linear_on *on, void *unused)
{
    (void)unused;
    heddle_status st = HEDDLE_OK;
    HD_TRY(send_states(on, &on->flow[1][0], HD_WALKS_G_LEFT));
    HD_TRY(send_states(on, &on->flow[1][1], HD_WALKS_G_RIGHT));
    HD_TRY(hd_device_launched(on->device, hd_linear_walks_dq(&on->walks), "linear"));
    HD_TRY(take_states(on, &on->flow[1][0], HD_WALKS_G_LEFT));
    HD_TRY(take_states(on, &on->flow[1][1], HD_WALKS_G_RIGHT));
    st = hd_device_launched(on->device, hd_linear_walks_dk_dv(&on->walks), "linear");
out:
    return st;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static hd_linear_walks *walks_of(heddle_linear_attention *a, const hd_linear_walks *x)
{
    hd_linear_walks *w = &a->on->walks;
    w->outer = x->outer;
    w->inner = x->inner;
    w->q = x->q;
    w->k = x->k;
    w->v = x->v;
    return w;
}

heddle_status hd_linear_on_forward(heddle_linear_attention *a, const hd_linear_walks *x, heddle_stream stream)
{
    hd_linear_walks *w = walks_of(a, x);
    w->o = x->o;
    w->gives_f32 = x->gives_f32;
    return run(a->on, forward, NULL, stream);
}

heddle_status hd_linear_on_backward(heddle_linear_attention *a, const hd_linear_walks *x, heddle_stream stream)
{
    hd_linear_walks *w = walks_of(a, x);
    w->d_o = x->d_o;
    w->dq = x->dq;
    w->dk_out = x->dk_out;
    w->dv_out = x->dv_out;
    return run(a->on, backward, NULL, stream);
}

heddle_status hd_linear_on_call(heddle_linear_attention *a, int is_back, heddle_stream stream)
{
    const hd_linear_walks x = {.outer = a->problem.batch,
                               .inner = 1,
                               .q = tokens_of(&a->q),
                               .k = tokens_of(&a->k),
                               .v = tokens_of(&a->v),
                               .o = tokens_of(&a->o),
                               .d_o = tokens_of(&a->d_o),
                               .dq = tokens_of(&a->dq),
                               .dk_out = tokens_of(&a->dk),
                               .dv_out = tokens_of(&a->dv)};
    return is_back ? hd_linear_on_backward(a, &x, stream) : hd_linear_on_forward(a, &x, stream);
}

typedef struct last_state {
    float *out;
    int is_decayed;
} last_state;

static heddle_status give_state(struct hd_linear_on *on, void *arg)
{
    const last_state *to = arg;
    return hd_device_launched(on->device, hd_linear_walks_fold(&on->walks, to->out, to->is_decayed, on->last, NULL),
                              "linear_states");
}

heddle_status hd_linear_on_state(void *out, const heddle_linear_attention *a, int is_decayed, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    last_state to = {out, is_decayed};
    if (a->problem.state_elems == 0) {
        return HEDDLE_OK;
    }
    HD_TRY(check_place(a->on->device, out, "out", "heddle_linear_attention_state"));
    st = run(a->on, give_state, &to, stream);
out:
    return st;
}
