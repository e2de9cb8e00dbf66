/* Making a linear attention on a device: what is taken there, memory, decays. */
#include "runtime/attention/linear_on.h"
#include "runtime/device/device.h"

#include <math.h>

heddle_status hd_linear_on_check(const hd_linear_problem *p, const heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    const heddle_linear_attention_options *o = &p->options;
    const heddle_dtype dtype = p->shape.dtype;
    const hd_device *device = NULL;
    HD_TRY(hd_on_device_need(&device, comm, o->space, o->device, dtype, "linear attention"));
    if (device == NULL) {
        return HEDDLE_OK;
    }
    const int64_t most = p->dk > p->dv ? p->dk : p->dv;
    const int are_whole = dtype == HEDDLE_F32 || (p->dk % 8 == 0 && p->dv % 8 == 0);
    if (dtype == HEDDLE_F64 || most > HD_DEVICE_MOST_HEAD || !are_whole) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "linear attention on device %s takes f32, bf16 and f16, widths of up to %d, and of bf16 and f16 "
                       "multiples of 8; these are %s of %lld and %lld",
                       device->name, HD_DEVICE_MOST_HEAD, heddle_dtype_name(dtype), (long long)p->dk, (long long)p->dv);
    }
    if (o->receive_first) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "linear attention on device %s: receive_first works in host memory only",
                       device->name);
    }
out:
    return st;
}

heddle_status hd_linear_on_take(float **out, struct hd_linear_on *on, int64_t elems, int64_t *bytes)
{
    heddle_status st = HEDDLE_OK;
    const int64_t taken = elems * (int64_t)sizeof(float);
    HD_TRY(heddle_buffer_alloc((void **)out, on->comm, (size_t)(taken > 0 ? taken : 1), HEDDLE_SPACE_DEVICE));
    *bytes += taken;
out:
    return st;
}

static heddle_status take_memory(struct hd_linear_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_linear_problem *p = on->problem;
    const int64_t segments = hd_linear_segments(p->rows), width = p->dk > p->dv ? p->dk : p->dv;
    for (int i = 0; i < HD_WALKS_STATES; i++) {
        const int is_saved = i == HD_WALKS_KV_LEFT || i == HD_WALKS_KV_RIGHT;
        const int is_one_sided = i == HD_WALKS_KV_LEFT || i == HD_WALKS_G_RIGHT;
        if ((is_one_sided || p->options.bidirectional) && (segments > 1 || p->nranks > 1)) {
            HD_TRY(hd_linear_on_take(&on->walks.states[i], on, segments * p->state_elems,
                                     is_saved ? &on->saved_bytes : &on->workspace_bytes));
        }
    }
    if (p->options.bidirectional && p->shape.dtype != HEDDLE_F32) {
        HD_TRY(hd_linear_on_take(&on->walks.before, on, p->batch * p->heads * p->rows * width, &on->workspace_bytes));
    }
    st = hd_linear_on_take(&on->last, on, p->state_elems, &on->workspace_bytes);
out:
    return st;
}

static heddle_status upload_decays(struct hd_linear_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_linear_problem *p = on->problem;
    const int64_t bytes = p->heads * (int64_t)sizeof(float);
    float *exponent = NULL, *there = NULL;
    HD_TRY(hd_alloc((void **)&exponent, (size_t)p->heads + 1, sizeof *exponent, "decays of a linear attention"));
    for (int64_t h = 0; h < p->heads; h++) {
        exponent[h] = (float)log2(p->decay[p->head_lo + h]);
    }
    HD_TRY(hd_linear_on_take(&there, on, p->heads, &on->workspace_bytes));
    on->walks.log2_decay = there;
    st = bytes == 0 ? HEDDLE_OK
                    : hd_enqueued_upload(&on->used, there, exponent, bytes, on->own_stream,
                                         hd_comm_deadline_ns(on->comm, p->options.deadline_ms) + HD_DEVICE_GRACE_NS);
out:
    hd_free(exponent);
    return st;
}

heddle_status hd_linear_on_take_all(heddle_linear_attention *a)
{
    heddle_status st = HEDDLE_OK;
    struct hd_linear_on *on = NULL;
    const hd_linear_problem *p = &a->problem;
    HD_TRY(hd_alloc((void **)&on, 1, sizeof *on, "a linear attention on a device"));
    a->on = on;
    on->problem = p;
    on->comm = a->comm;
    on->device = hd_comm_device(a->comm);
    HD_TRY(hd_on_device_open(&on->used, &on->own_stream, a->comm, "linear attention"));
    HD_TRY(on->device->library->stream_create(&on->beside, on->device->number));
    HD_TRY(on->device->library->event_create(&on->forked, on->device->number));
    HD_TRY(on->device->library->event_create(&on->joined, on->device->number));
    on->walks = (hd_linear_walks){.kernels = on->device->library->kernels,
                                  .dtype = p->shape.dtype,
                                  .heads = p->heads,
                                  .n = p->rows,
                                  .dk = p->dk,
                                  .dv = p->dv,
                                  .is_two_sided = p->options.bidirectional};
    HD_TRY(take_memory(on));
    on->walks.end = p->options.bidirectional ? NULL : on->last;
    st = upload_decays(on);
out:
    return st;
}

heddle_status hd_linear_on_make(heddle_linear_attention *a)
{
    return hd_linear_flows_make(a->on);
}

void hd_linear_on_free(heddle_linear_attention *a)
{
    struct hd_linear_on *on = a->on;
    if (on == NULL) {
        return;
    }
    const hd_sentence why = hd_sentence_keep();
    const int is_idle = hd_on_device_is_idle(&on->used, on->comm);
    hd_linear_flows_free(on);
    for (int i = 0; i < 4; i++) {
        const hd_linear_flow *flow = &on->flow[i / 2][i % 2];
        float *const all[] = {flow->own, flow->in, flow->out, flow->come, on->walks.states[i]};
        for (int k = 0; k < 5; k++) {
            hd_on_device_let_go(on->comm, all[k], is_idle);
        }
    }
    hd_on_device_let_go(on->comm, on->walks.before, is_idle);
    hd_on_device_let_go(on->comm, on->last, is_idle);
    hd_on_device_let_go(on->comm, (float *)(uintptr_t)on->walks.log2_decay, is_idle);
    hd_enqueued_close(&on->used);
    on->device->library->event_destroy(on->forked, on->device->number);
    on->device->library->event_destroy(on->joined, on->device->number);
    on->device->library->stream_destroy(on->own_stream, on->device->number);
    on->device->library->stream_destroy(on->beside, on->device->number);
    hd_free(on);
    a->on = NULL;
    heddle_ignore(hd_sentence_say(&why, HEDDLE_OK));
}

void hd_linear_on_inform(heddle_linear_attention_info *out, const heddle_linear_attention *a)
{
    hd_linear_flows_moved(&out->measured, a->on);
    out->saved_bytes = a->on->saved_bytes;
    out->workspace_bytes = a->on->workspace_bytes;
    out->planned_saved_bytes = out->planned_workspace_bytes = 0; /* those are of the CPU's method */
    out->chunk_rows = HD_DEVICE_LINEAR_ROWS;
    out->kernel = a->on->walks.kernels->name;
}
