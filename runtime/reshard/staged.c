/* Plans of a device's arrays on the wire "host": they are compiled, chosen and carried out for images of the arrays in
 * host memory; here is what lies before and after that. */
#include "runtime/reshard/plan.h"

#include <string.h>

/* An array and its image have the same form, so only elements are copied and what lies between them is left alone. */
static heddle_status describe_side(hd_copy *out, const heddle_reshard *plan, int is_dst)
{
    const heddle_reshard_line *line = &plan->request.line;
    hd_array array;
    heddle_status st =
        heddle_layout_box(&array.box, &line->shape, &line->mesh, is_dst ? &line->to : &line->from, plan->rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    memcpy(array.stride_elems, is_dst ? plan->request.dst_stride_elems : plan->request.src_stride_elems,
           sizeof array.stride_elems);
    hd_piece whole = {plan->rank, array.box};
    for (int d = 0; d < whole.box.ndim; d++) { /* what is read again and again is copied once */
        whole.box.len[d] = array.stride_elems[d] == 0 && whole.box.len[d] > 1 ? 1 : whole.box.len[d];
    }
    hd_piece_copy(out, &whole, &array, &array, plan->elem_bytes);
    return HEDDLE_OK;
}

heddle_status hd_staged_create(heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    hd_staging_spec spec = {.src_bytes = (size_t)plan->request.src_bytes,
                            .dst_bytes = (size_t)plan->request.dst_bytes,
                            .deadline_ms = plan->request.options.deadline_ms,
                            .what = "reshard",
                            .line = plan->line_text};
    HD_TRY(describe_side(&spec.in, plan, 0));
    HD_TRY(describe_side(&spec.out, plan, 1));
    HD_TRY(hd_staging_create(&plan->staging, plan->comm, &spec));
    plan->request.options.memory = HEDDLE_MEMORY_PEER; /* what the images are */
out:
    return st;
}

/* *reason: what keeps this execution from being begun. */
static heddle_status find_refusal(int *reason, const heddle_reshard *plan, const void *src, const void *dst,
                                  heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = hd_comm_device(plan->comm);
    int captures = 0;
    HD_TRY(hd_refusal_of(reason, plan, HEDDLE_SPACE_DEVICE, src, dst));
    HD_TRY(device->library->stream_captures(&captures, device->number, stream));
    *reason = *reason == HD_REFUSED_NOT && captures ? HD_REFUSED_CAPTURE : *reason;
out:
    return st;
}

heddle_status hd_staged_begin(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream)
{
    int reason = HD_REFUSED_NOT;
    heddle_status st = hd_plan_check_free(plan);
    if (st != HEDDLE_OK) {
        return st;
    }
    st = find_refusal(&reason, plan, src, dst, stream);
    if (st == HEDDLE_OK && reason != HD_REFUSED_NOT) {
        return hd_channel_refuse(plan->channel, reason);
    }
    st = st == HEDDLE_OK ? hd_staging_in(plan->staging, src, stream) : st;
    if (st != HEDDLE_OK) {
        return hd_comm_abort_with(plan->comm, st); /* the others would wait for this rank */
    }
    plan->staged = dst;
    plan->is_staged = 1;
    return HEDDLE_OK;
}

heddle_status hd_staged_end(heddle_reshard *plan, heddle_status st)
{
    st = st == HEDDLE_OK && plan->is_staged ? hd_staging_out(plan->staging, plan->staged) : st;
    plan->is_staged = 0;
    return st;
}
