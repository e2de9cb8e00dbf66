/* Making a plan. Every step that can fail on one rank is followed by an agreement, so that no rank is left waiting. */
#include "runtime/reshard/plan.h"

#include <stdio.h>
#include <string.h>

static heddle_status alloc_plan(heddle_reshard **out, heddle_comm *comm, const hd_request *request)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard *plan = NULL;
    hd_comm_view view;
    size_t n = (size_t)heddle_comm_size(comm);
    HD_TRY(hd_alloc((void **)&plan, 1, sizeof *plan, "a reshard"));
    plan->comm = comm;
    hd_comm_get_view(&view, comm);
    plan->device = view.device;
    plan->rank = heddle_comm_rank(comm);
    plan->nranks = (int)n;
    plan->request = *request;
    plan->wire = hd_wire_of(comm, request->options.space);
    plan->work.src_offset = plan->work.dst_offset = -1;
    plan->elem_bytes = heddle_dtype_bytes(request->line.shape.dtype);
    HD_TRY(hd_alloc((void **)&plan->facts, n, sizeof *plan->facts, "facts of all ranks"));
    HD_TRY(hd_alloc((void **)&plan->bytes_to, n, sizeof *plan->bytes_to, "a reshard"));
    HD_TRY(hd_alloc((void **)&plan->bytes_from, n, sizeof *plan->bytes_from, "a reshard"));
    HD_TRY(heddle_reshard_format(plan->line_text, sizeof plan->line_text, &request->line));
    hd_channel_options options = {.deadline_ms = request->options.deadline_ms,
                                  .what = "reshard",
                                  .line = plan->line_text,
                                  .refusal = hd_refusals,
                                  .nrefusals = HD_REFUSED_COUNT};
    HD_TRY(hd_channel_create(&plan->channel, comm, &options));
out:
    if (st != HEDDLE_OK) {
        heddle_reshard_destroy(plan);
        plan = NULL;
    }
    *out = plan;
    return st;
}

/* --- memory between phases ---------------------------------------------------------------------------------------- */

static int64_t reserve(hd_workspace *work, int64_t bytes)
{
    int64_t offset = work->bytes;
    work->bytes = (offset + bytes + 4095) / 4096 * 4096;
    return offset;
}

/* Flat phases see dense arrays; where the caller's are not, copies of them are kept. */
static int is_dense(const int64_t *stride, const heddle_box *box, const heddle_order *order)
{
    int64_t dense[HEDDLE_MAX_DIMS];
    heddle_box_strides(dense, box, order->ndim > 0 ? order : NULL);
    for (int d = 0; d < box->ndim; d++) {
        if (box->len[d] > 1 && heddle_box_elems(box) > 0 && stride[d] != dense[d]) {
            return 0;
        }
    }
    return 1;
}

static heddle_status plan_dense_copy(hd_local *out, int64_t *offset, heddle_reshard *plan, int is_dst)
{
    const heddle_reshard_line *line = &plan->request.line;
    const heddle_order *order = is_dst ? &line->to_order : &line->from_order;
    hd_array caller, dense;
    hd_copy copy;
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_layout_box(&caller.box, &line->shape, &line->mesh, is_dst ? &line->to : &line->from, plan->rank));
    memcpy(caller.stride_elems, is_dst ? plan->request.dst_stride_elems : plan->request.src_stride_elems,
           sizeof caller.stride_elems);
    if (is_dense(caller.stride_elems, &caller.box, order)) {
        return HEDDLE_OK;
    }
    dense.box = caller.box;
    heddle_box_strides(dense.stride_elems, &dense.box, order->ndim > 0 ? order : NULL);
    *offset = reserve(&plan->work, heddle_box_elems(&dense.box) * (int64_t)plan->elem_bytes);
    hd_piece piece = {plan->rank, caller.box};
    hd_piece_copy(&copy, &piece, is_dst ? &dense : &caller, is_dst ? &caller : &dense, plan->elem_bytes);
    hd_copy_walk(&copy, is_dst ? HD_SIDE_DST : HD_SIDE_SRC);
    st = hd_local_make(out, &copy, plan->comm, hd_plan_space(plan) == HEDDLE_SPACE_DEVICE ? *plan->device : NULL,
                       plan->request.options.deadline_ms);
out:
    return st;
}

static heddle_status make_work(heddle_reshard *plan, const hd_phase_parts *parts)
{
    heddle_status st = HEDDLE_OK;
    const hd_problem *problem = &plan->problem;
    hd_workspace *work = &plan->work;
    for (int p = 0; p < problem->nphases - 1; p++) {
        hd_place place = problem->phase[p].dst;
        work->offset[place == HD_PLACE_WORK1] = reserve(work, (int64_t)parts[p].spec.dst_bytes);
    }
    if (problem->phase[0].kind != HD_PHASE_BOXES) {
        HD_TRY(plan_dense_copy(&work->before, &work->src_offset, plan, 0));
    }
    if (problem->phase[problem->nphases - 1].kind != HD_PHASE_BOXES) {
        HD_TRY(plan_dense_copy(&work->after, &work->dst_offset, plan, 1));
    }
    if (work->bytes > 0 && (plan->wire == NULL || !plan->wire->owns_work)) {
        HD_TRY(heddle_buffer_alloc((void **)&work->memory, plan->comm, (size_t)work->bytes, hd_plan_space(plan)));
    }
out:
    return st;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status make_phases(heddle_reshard *plan, hd_phase_parts *parts)
{
    heddle_status st = HEDDLE_OK;
    const heddle_reshard_options *o = &plan->request.options;
    HD_TRY(hd_comm_need_space(plan->comm, o->space, o->device, "a reshard"));
    HD_TRY(plan->wire != NULL && plan->wire->prepare != NULL ? plan->wire->prepare(plan) : HEDDLE_OK);
    HD_TRY(hd_problem_make(&plan->problem, &plan->request.line));
    plan->nphases = plan->problem.nphases;
    for (int p = 0; p < plan->nphases; p++) {
        HD_TRY(hd_parts_make(&parts[p], plan, p));
    }
    for (int r = 0; r < plan->nranks; r++) {
        plan->plan_bytes += plan->bytes_to[r];
    }
    HD_TRY(make_work(plan, parts));
out:
    return st;
}

heddle_status hd_plan_make_transfers(heddle_reshard *plan, const hd_phase_parts *parts, heddle_status mine)
{
    hd_transfer_spec spec[HD_MAX_LEGS];
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        spec[p] = parts[p].spec;
    }
    heddle_status st = hd_transfers_create(plan->transfer, plan->channel, spec, plan->problem.nphases, mine);
    return st == HEDDLE_OK ? hd_plan_tune(plan) : st;
}

/* Collective. */
static heddle_status make(heddle_reshard *plan)
{
    hd_phase_parts parts[HD_MAX_LEGS];
    memset(parts, 0, sizeof parts);
    heddle_status mine = make_phases(plan, parts);
    heddle_status st = (plan->wire != NULL ? plan->wire->create : hd_plan_make_transfers)(plan, parts, mine);
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        hd_parts_free(&parts[p]);
    }
    return st;
}

/* Collective; own: the status of this rank's check of its arguments. */
static heddle_status create_plan(heddle_reshard **out, heddle_comm *comm, const hd_request *request, heddle_status own)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard *plan = NULL;
    if (own == HEDDLE_OK) {
        own = alloc_plan(&plan, comm, request);
    }
    HD_TRY(hd_facts_agree(plan != NULL ? plan->facts : NULL, comm, request, own));
    HD_TRY(make(plan));
    if (plan->wire != NULL) {
        plan->wire->explain(plan);
    } else {
        hd_plan_explain(plan, "");
    }
    *out = plan;
    plan = NULL;
out:
    if (st == HEDDLE_ERR_TRANSPORT || st == HEDDLE_ERR_TIMEOUT) { /* the others may wait for what will not come */
        heddle_ignore(hd_comm_abort_with(comm, st));
    }
    heddle_reshard_destroy(plan);
    return st;
}

/* `own` is what this rank knows so far: the others must be told of it. */
static heddle_status create(heddle_reshard **out, heddle_comm *comm, const heddle_reshard_line *line,
                            const heddle_reshard_options *options, heddle_status own)
{
    hd_request request;
    memset(&request, 0, sizeof request);
    if (own == HEDDLE_OK) {
        own = hd_request_take(&request, comm, line, options);
    }
    return create_plan(out, comm, &request, own);
}

heddle_status heddle_reshard_create_line(heddle_reshard **out, heddle_comm *comm, const heddle_reshard_line *line,
                                         const heddle_reshard_options *options)
{
    heddle_status own = HD_NEED(comm);
    if (own != HEDDLE_OK) {
        return own; /* there is nobody to tell */
    }
    own = HD_NEED(out, line);
    return create(out, comm, line, options, own);
}

heddle_status heddle_reshard_create(heddle_reshard **out, heddle_comm *comm, const heddle_shape *shape,
                                    const heddle_mesh *mesh, const heddle_layout *from, const heddle_layout *to,
                                    const heddle_reshard_options *options)
{
    heddle_reshard_line line;
    heddle_reshard_options taken;
    heddle_status st = HD_NEED(comm);
    if (st != HEDDLE_OK) {
        return st; /* there is nobody to tell */
    }
    memset(&line, 0, sizeof line);
    HD_TRY(HD_NEED(out, shape, mesh, from, to));
    HD_TRY(hd_reshard_options_take(&taken, options));
    line = (heddle_reshard_line){*shape, *mesh, *from, *to, taken.from_order, taken.to_order};
out:
    return create(out, comm, &line, options, st);
}

heddle_status heddle_reshard_create_adjoint(heddle_reshard **out, const heddle_reshard *reshard)
{
    heddle_status st = HD_NEED(reshard);
    if (st != HEDDLE_OK) {
        return st; /* nor is there a communicator */
    }
    const hd_request *request = &reshard->request;
    heddle_reshard_line line = request->line;
    heddle_reshard_options options = request->options;
    line.from = heddle_layout_dual(&request->line.to);
    line.to = heddle_layout_dual(&request->line.from);
    line.from_order = request->line.to_order;
    line.to_order = request->line.from_order;
    options.src_stride_elems = request->dst_stride_elems;
    options.dst_stride_elems = request->src_stride_elems;
    options.kernel = request->kernel != NULL ? request->kernel->name : NULL;
    return create(out, reshard->comm, &line, &options, HD_NEED(out));
}

/* It may wait for the device, and fail: no news to who is about to say why the plan ends. */
static void end_wire(heddle_reshard *reshard)
{
    const hd_sentence why = hd_sentence_keep();
    reshard->wire->destroy(reshard);
    heddle_ignore(hd_sentence_say(&why, HEDDLE_OK));
}

void heddle_reshard_destroy(heddle_reshard *reshard)
{
    if (reshard == NULL) {
        return;
    }
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        hd_transfer_destroy(reshard->transfer[p]);
    }
    hd_channel_destroy(reshard->channel);
    if (reshard->wire != NULL) {
        end_wire(reshard);
    }
    hd_device_list_free(&reshard->work.before.list);
    hd_device_list_free(&reshard->work.after.list);
    if (reshard->work.memory != NULL) {
        heddle_buffer_free(reshard->comm, reshard->work.memory);
    }
    HD_FREE_ALL(reshard->facts, reshard->bytes_to, reshard->bytes_from, reshard);
}
