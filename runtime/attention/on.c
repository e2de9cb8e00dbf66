/* Forward and backward on a device: a caller's arrays in and out, the heads exchange, and keys block by block. */
#include "runtime/attention/on.h"
#include "runtime/device/device.h"

/* --- arrays ------------------------------------------------------------------------------------------------------- */

heddle_status hd_attn_on_check_arrays(const heddle_attention *a, const heddle_attention_array *const *x,
                                      const char *const *names, const char *function)
{
    heddle_status st = HEDDLE_OK;
    hd_device *device = a->on->device;
    for (int i = 0; i < 4; i++) {
        hd_stray stray = HD_STRAY_NOT;
        if (!hd_array_is_dense(x[i]) && x[i]->stride_elems[3] != 1 && a->problem.width > 1) {
            return hd_fail(HEDDLE_ERR_ARG,
                           "%s: %s: the elements of a head lie %lld apart, on devices they lie together", function,
                           names[i], (long long)x[i]->stride_elems[3]);
        }
        HD_TRY(x[i]->data != NULL ? hd_device_stray(&stray, device, HEDDLE_SPACE_DEVICE, x[i]->data) : HEDDLE_OK);
        if (stray != HD_STRAY_NOT) {
            return hd_fail(HEDDLE_ERR_ARG, "%s: %s at %p is %s; the attention works on device %s", function, names[i],
                           x[i]->data, stray == HD_STRAY_HOST ? "in host memory" : "in the memory of another device",
                           device->name);
        }
    }
out:
    return st;
}

static hd_on_arrays arrays_of(const heddle_attention *a, const heddle_attention_array *const *x, const int *of_keys)
{
    const hd_attn_problem *p = &a->problem;
    hd_on_arrays arrays = {.inner = 1};
    for (int i = 0; i < 4; i++) {
        const int64_t *stride = x[i]->stride_elems, token = (of_keys[i] ? p->kv_heads : p->heads) * p->width;
        const hd_device_tokens dense = {x[i]->data, p->member_rows[p->rank].rows * token, 0, token, p->width};
        const hd_device_tokens strided = {x[i]->data, stride[0], 0, stride[1], stride[2]};
        arrays.at[i] = hd_array_is_dense(x[i]) ? dense : strided;
    }
    return arrays;
}

/* --- around a call ------------------------------------------------------------------------------------------------ */

typedef heddle_status (*call_fn)(heddle_attention *a, const hd_on_arrays *x, void *lse);

/* A graph cannot wait for what is outside of it. */
static heddle_status run(heddle_attention *a, call_fn fn, const hd_on_arrays *x, void *lse, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    struct hd_attn_on *on = a->on;
    const heddle_device *library = on->device->library;
    int captures = 0, before = 0;
    on->stream = stream;
    HD_TRY(library->stream_captures(&captures, on->device->number, stream));
    on->used.is_captured |= captures;
    HD_TRY(captures ? HEDDLE_OK : hd_enqueued_order(&on->used, stream));
    HD_TRY(library->enter(&before, on->device->number));
    st = fn(a, x, lse);
    library->leave(before);
    st = captures ? st : hd_enqueued_end(&on->used, stream, st);
out:
    return st;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static char *own_kv(const struct hd_attn_on *on)
{
    return on->qkv + hd_attn_on_elems(on, on->heads, hd_attn_on_rows(on)) * on->problem->elem_bytes;
}

/* The block that step `step` of a ring is about: own, or the one that has come. */
static hd_on_keys block_of(const struct hd_attn_on *on, int step)
{
    const int member = (on->me - step + on->members) % on->members;
    return hd_attn_on_keys_of(on, member, step == 0 ? own_kv(on) : on->travel[step % 2]);
}

/* Before what is done with it: the bytes are on their way as soon as may be. */
static heddle_status send_on(struct hd_attn_on *on, int kind, int step)
{
    return step + 1 < on->members ? hd_attn_on_hop(on, kind, step, block_of(on, step).kv, on->travel[(step + 1) % 2])
                                  : HEDDLE_OK;
}

static heddle_status meet_all(struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    if (on->joined.seg != NULL) {
        const hd_on_keys keys = hd_attn_on_keys_of(on, 0, on->all != NULL ? on->all : own_kv(on));
        HD_TRY(on->gather != NULL ? heddle_reshard_execute(on->gather, own_kv(on), on->all, on->stream) : HEDDLE_OK);
        return hd_attn_on_meet(on, &keys);
    }
    for (int step = 0; step < on->members; step++) {
        const hd_on_keys keys = block_of(on, step);
        HD_TRY(send_on(on, HD_ON_KEYS, step));
        HD_TRY(hd_attn_on_meet(on, &keys));
    }
out:
    return st;
}

/* Of each run of own rows, to [heads][batch][rows], or to the caller's [batch][heads][rows]. */
static heddle_status take_logarithms(struct hd_attn_on *on, float *out, int is_callers)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    const int64_t rows = hd_attn_on_rows(on);
    for (int i = 0; i < on->own->nsegs; i++) {
        const hd_seg *run = &on->own->seg[i];
        const hd_device_log_sum of = {.outer = p->batch,
                                      .heads = on->heads,
                                      .n = run->len,
                                      .scale = (float)p->scale,
                                      .stats = on->stats + 2 * on->heads * p->batch * run->at,
                                      .out = {.data = out + run->at,
                                              .outer = is_callers ? on->heads * rows : rows,
                                              .token = 1,
                                              .head = is_callers ? rows : p->batch * rows}};
        HD_TRY(hd_device_launched(on->device, on->kernels->log_sum(&of, on->stream), "log_sum"));
    }
out:
    return st;
}

static heddle_status give_logarithms(heddle_attention *a, float *lse)
{
    heddle_status st = HEDDLE_OK;
    struct hd_attn_on *on = a->on;
    const hd_attn_problem *p = on->problem;
    const int64_t rows = p->member_rows[p->rank].rows;
    if (p->spread == 1) {
        return lse != NULL ? take_logarithms(on, lse, 1) : HEDDLE_OK;
    }
    HD_TRY(take_logarithms(on, on->lse, 0));
    HD_TRY(hd_heads_move(&a->heads, HD_LSE_TO_ROWS, on->lse, on->lse_rows, on->stream));
    const hd_device_arrange of = {.outer = p->batch,
                                  .inner = 1,
                                  .heads = p->heads,
                                  .n = rows,
                                  .d = 1,
                                  .dst = {lse, p->heads * rows, 0, 1, rows},
                                  .src = {on->lse_rows, rows, 0, 1, p->batch * rows},
                                  .dst_dtype = HEDDLE_F32,
                                  .src_dtype = HEDDLE_F32};
    HD_TRY(lse != NULL ? hd_attn_on_arrange(on, &of) : HEDDLE_OK);
out:
    return st;
}

static heddle_status forward(heddle_attention *a, const hd_on_arrays *x, void *lse)
{
    heddle_status st = HEDDLE_OK;
    struct hd_attn_on *on = a->on;
    const int is_spread = a->problem.spread > 1;
    HD_TRY(hd_attn_on_pack(on, x));
    HD_TRY(is_spread ? hd_heads_move(&a->heads, HD_QKV_TO_HEADS, on->rows, on->qkv, on->stream) : HEDDLE_OK);
    hd_attn_on_begin(on);
    HD_TRY(meet_all(on));
    HD_TRY(hd_attn_on_finish(on));
    HD_TRY(is_spread ? hd_heads_move(&a->heads, HD_O_TO_ROWS, on->o, on->rows, on->stream) : HEDDLE_OK);
    HD_TRY(hd_attn_on_give_out(on, &x->at[3], x->inner, is_spread ? on->rows : on->o));
    HD_TRY(a->problem.options.log_sum_exp ? give_logarithms(a, lse) : HEDDLE_OK);
out:
    return st;
}

heddle_status hd_attn_on_forward_on(heddle_attention *a, const hd_on_arrays *x, void *lse, heddle_stream stream)
{
    return run(a, forward, x, lse, stream);
}

heddle_status hd_attn_on_forward(heddle_attention *a, const heddle_attention_array *const *x, void *lse,
                                 heddle_stream stream)
{
    static const int of_keys[4] = {0, 1, 1, 0};
    const hd_on_arrays arrays = arrays_of(a, x, of_keys);
    return hd_attn_on_forward_on(a, &arrays, lse, stream);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static char *own_kv_grads(const struct hd_attn_on *on)
{
    return on->grads + hd_attn_on_elems(on, on->heads, hd_attn_on_rows(on)) * (int64_t)heddle_dtype_bytes(on->grad);
}

static heddle_status gather_back(struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_on_keys keys = hd_attn_on_keys_of(on, 0, on->all != NULL ? on->all : own_kv(on));
    HD_TRY(hd_attn_on_meet_back(on, &keys, on->home != NULL ? on->all_grads : own_kv_grads(on), 0));
    HD_TRY(on->home != NULL ? heddle_reshard_execute(on->home, on->all_grads, own_kv_grads(on), on->stream)
                            : HEDDLE_OK);
out:
    return st;
}

/* The sums of a block follow it from rank to rank, and come home in the last step. */
static heddle_status ring_back(struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    for (int step = 0; step < on->members; step++) {
        const hd_on_keys keys = block_of(on, step);
        char *sums = step == 0 ? own_kv_grads(on) : on->sum[step % 2];
        HD_TRY(send_on(on, HD_ON_KEYS_BACK, step));
        HD_TRY(hd_attn_on_meet_back(on, &keys, sums, step > 1));
        HD_TRY(step > 0 ? hd_attn_on_hop(on, HD_ON_SUMS, step - 1, sums, on->sum[(step + 1) % 2]) : HEDDLE_OK);
    }
    if (on->members > 1) {
        st = hd_attn_on_add(on, own_kv_grads(on), on->sum[on->members % 2],
                            2 * hd_attn_on_elems(on, on->kv_heads, hd_attn_on_rows(on)));
    }
out:
    return st;
}

/* As a caller sees them, in the type. */
static heddle_status give_gradients(heddle_attention *a, const hd_on_arrays *x)
{
    heddle_status st = HEDDLE_OK;
    struct hd_attn_on *on = a->on;
    const hd_attn_problem *p = on->problem;
    const int64_t elems = hd_attn_on_elems(on, on->heads + 2 * on->kv_heads, hd_attn_on_rows(on));
    const char *narrow = on->grads;
    if (p->spread == 1) {
        return hd_attn_on_unpack(on, x, on->grads, on->grad);
    }
    if (on->grad != p->dtype) {
        HD_TRY(hd_device_launched(
            on->device, on->kernels->convert(on->narrow, p->dtype, on->grads, on->grad, elems, on->stream), "convert"));
        narrow = on->narrow;
    }
    HD_TRY(hd_heads_move(&a->heads, HD_QKV_TO_ROWS, narrow, on->rows, on->stream));
    st = hd_attn_on_unpack(on, x, on->rows, p->dtype);
out:
    return st;
}

static heddle_status backward(heddle_attention *a, const hd_on_arrays *x, void *unused)
{
    (void)unused;
    heddle_status st = HEDDLE_OK;
    struct hd_attn_on *on = a->on;
    const int is_spread = a->problem.spread > 1;
    HD_TRY(hd_attn_on_take_in(on, is_spread ? on->rows : on->d_o, &x->at[0], x->inner));
    HD_TRY(is_spread ? hd_heads_move(&a->heads, HD_O_TO_HEADS, on->rows, on->d_o, on->stream) : HEDDLE_OK);
    hd_attn_on_begin(on);
    HD_TRY(on->joined.seg != NULL ? gather_back(on) : ring_back(on));
    HD_TRY(hd_attn_on_finish_back(on));
    st = give_gradients(a, x);
out:
    return st;
}

heddle_status hd_attn_on_backward_on(heddle_attention *a, const hd_on_arrays *x, heddle_stream stream)
{
    return run(a, backward, x, NULL, stream);
}

heddle_status hd_attn_on_backward(heddle_attention *a, const heddle_attention_array *const *x, heddle_stream stream)
{
    static const int of_keys[4] = {0, 0, 1, 1};
    const hd_on_arrays arrays = arrays_of(a, x, of_keys);
    return hd_attn_on_backward_on(a, &arrays, stream);
}
