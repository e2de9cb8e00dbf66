/* Plans of a device's arrays on the wire host: they are compiled, chosen and carried out for images of the arrays in
 * host memory; here is what lies before and after that. */
#include "runtime/reshard/plan.h"

#include <stdio.h>
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

static heddle_status prepare(heddle_reshard *plan)
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

/* src to its image: an execution on the images may begin. */
static heddle_status begin(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream)
{
    int reason = HD_REFUSED_NOT;
    heddle_status st = find_refusal(&reason, plan, src, dst, stream);
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

/* st: how the execution went. Its image to dst, in the order of the stream, once. */
static heddle_status end(heddle_reshard *plan, heddle_status st)
{
    st = st == HEDDLE_OK && plan->is_staged ? hd_staging_out(plan->staging, plan->staged) : st;
    plan->is_staged = 0;
    return st;
}

static heddle_status execute(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = begin(plan, src, dst, stream);
    return st != HEDDLE_OK ? st
                           : end(plan, hd_plan_run(plan, hd_staging_src(plan->staging), hd_staging_dst(plan->staging)));
}

static heddle_status start(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = begin(plan, src, dst, stream);
    if (st != HEDDLE_OK) {
        return st;
    }
    st = hd_plan_start(plan, hd_staging_src(plan->staging), hd_staging_dst(plan->staging));
    return st == HEDDLE_OK ? st : end(plan, st);
}

/* The part on the host first; what is left then lies in the order of a stream. */
static heddle_status test(heddle_reshard *plan, int *done)
{
    heddle_status st = hd_plan_test(plan, done);
    if (*done || st != HEDDLE_OK) {
        st = end(plan, st);
        st = st == HEDDLE_OK ? hd_staging_test(plan->staging, done) : st;
    }
    return st;
}

static heddle_status wait(heddle_reshard *plan)
{
    heddle_status st = end(plan, hd_plan_wait(plan));
    return st == HEDDLE_OK ? hd_staging_wait(plan->staging) : st;
}

static heddle_status wait_on(heddle_reshard *plan, heddle_stream stream)
{
    heddle_status st = end(plan, hd_plan_wait(plan));
    return st == HEDDLE_OK ? hd_staging_wait_on(plan->staging, stream) : st;
}

static void explain(heddle_reshard *plan)
{
    char before[128];
    snprintf(before, sizeof before, "arrays of %s are staged in %s host memory (wire host); ",
             hd_comm_device(plan->comm)->name, hd_staging_is_pinned(plan->staging) ? "pinned" : "pageable");
    hd_plan_explain(plan, before);
}

static void inform(heddle_reshard_info *info, const heddle_reshard *plan)
{
    info->workspace_bytes += hd_staging_bytes(plan->staging);
}

static void destroy(heddle_reshard *plan)
{
    hd_staging_destroy(plan->staging);
}

const hd_wire_ops hd_wire_host = {
    .name = "host",
    .prepare = prepare,
    .create = hd_plan_make_transfers,
    .explain = explain,
    .execute = execute,
    .start = start,
    .test = test,
    .wait = wait,
    .wait_on = wait_on,
    .inform = inform,
    .destroy = destroy,
};
