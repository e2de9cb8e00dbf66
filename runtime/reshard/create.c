/* Making a plan. Every step that can fail on one rank is followed by an agreement, so that no rank is left waiting. */
#include "runtime/reshard/plan.h"

#include <string.h>

/* What is said of arrays that are refused (execute.c). */
static const char *const refusals[HD_REFUSED_COUNT] = {"",
                                                       "its src and dst overlap",
                                                       "its src cannot be reached by peers (HEDDLE_MEMORY_PEER)",
                                                       "its dst cannot be reached by peers (HEDDLE_MEMORY_PEER)",
                                                       "its src is NULL",
                                                       "its dst is NULL",
                                                       "its src or dst is not aligned to its elements",
                                                       "its src is host memory, and the plan is of a device's",
                                                       "its dst is host memory, and the plan is of a device's",
                                                       "its src is memory of a device that the plan is not of",
                                                       "its dst is memory of a device that the plan is not of"};

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
    plan->elem_bytes = heddle_dtype_bytes(request->line.shape.dtype);
    HD_TRY(hd_alloc((void **)&plan->facts, n, sizeof *plan->facts, "facts of all ranks"));
    HD_TRY(hd_alloc((void **)&plan->bytes_to, n, sizeof *plan->bytes_to, "a reshard"));
    HD_TRY(hd_alloc((void **)&plan->bytes_from, n, sizeof *plan->bytes_from, "a reshard"));
    st = heddle_reshard_format(plan->line_text, sizeof plan->line_text, &request->line);
out:
    if (st != HEDDLE_OK) {
        heddle_reshard_destroy(plan);
        plan = NULL;
    }
    *out = plan;
    return st;
}

/* --- the caller's arrays, and memory between phases -------------------------------------------------------------- */

static int64_t reserve(hd_route_spec *spec, int64_t bytes)
{
    int64_t offset = spec->work_bytes;
    spec->work_bytes = (offset + bytes + 4095) / 4096 * 4096;
    return offset;
}

static heddle_status callers_array(hd_array *out, const heddle_reshard *plan, int is_dst)
{
    const heddle_reshard_line *line = &plan->request.line;
    memcpy(out->stride_elems, is_dst ? plan->request.dst_stride_elems : plan->request.src_stride_elems,
           sizeof out->stride_elems);
    return heddle_layout_box(&out->box, &line->shape, &line->mesh, is_dst ? &line->to : &line->from, plan->rank);
}

/* To an array of the same form: only elements are copied, and what lies between them is left alone. */
static void describe_whole(hd_copy *out, const heddle_reshard *plan, const hd_array *array)
{
    hd_piece whole = {plan->rank, array->box};
    for (int d = 0; d < whole.box.ndim; d++) { /* what is read again and again is copied once */
        whole.box.len[d] = array->stride_elems[d] == 0 && whole.box.len[d] > 1 ? 1 : whole.box.len[d];
    }
    hd_piece_copy(out, &whole, array, array, plan->elem_bytes);
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

/* *spot: where phases find the array. */
static void plan_dense(hd_dense *out, hd_spot *spot, hd_route_spec *spec, const heddle_reshard *plan,
                       const hd_array *caller, int is_dst)
{
    const heddle_order *order = is_dst ? &plan->request.line.to_order : &plan->request.line.from_order;
    if (is_dense(caller->stride_elems, &caller->box, order)) {
        return;
    }
    hd_array dense = {.box = caller->box};
    heddle_box_strides(dense.stride_elems, &dense.box, order->ndim > 0 ? order : NULL);
    out->at = reserve(spec, heddle_box_elems(&dense.box) * (int64_t)plan->elem_bytes);
    hd_piece piece = {plan->rank, caller->box};
    hd_piece_copy(&out->copy, &piece, is_dst ? &dense : caller, is_dst ? caller : &dense, plan->elem_bytes);
    hd_copy_walk(&out->copy, is_dst ? HD_SIDE_DST : HD_SIDE_SRC);
    *spot = (hd_spot){HD_IN_WORK, out->at};
}

/* Behind the phases' items. */
static heddle_status place_phases(hd_route_spec *spec, const heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    const hd_problem *problem = &plan->problem;
    const int last = problem->nphases - 1;
    hd_array src, dst;
    HD_TRY(callers_array(&src, plan, 0));
    HD_TRY(callers_array(&dst, plan, 1));
    describe_whole(&spec->whole_src, plan, &src);
    describe_whole(&spec->whole_dst, plan, &dst);
    spec->phase[0].src = (hd_spot){.in = HD_IN_SRC};
    spec->phase[last].dst = (hd_spot){.in = HD_IN_DST};
    for (int p = 0; p < last; p++) {
        const int64_t bytes = (int64_t)spec->phase[p].transfer.dst_bytes;
        spec->phase[p].dst = spec->phase[p + 1].src = (hd_spot){HD_IN_WORK, reserve(spec, bytes)};
    }
    if (problem->phase[0].kind != HD_PHASE_BOXES) {
        plan_dense(&spec->before, &spec->phase[0].src, spec, plan, &src, 0);
    }
    if (problem->phase[last].kind != HD_PHASE_BOXES) {
        plan_dense(&spec->after, &spec->phase[last].dst, spec, plan, &dst, 1);
    }
out:
    return st;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status make_phases(hd_route_spec *spec, hd_copy *clear, heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    const heddle_reshard_options *o = &plan->request.options;
    HD_TRY(hd_comm_need_space(plan->comm, o->space, o->device, "a reshard"));
    HD_TRY(hd_problem_make(&plan->problem, &plan->request.line));
    spec->nphases = plan->nphases = plan->problem.nphases;
    for (int p = 0; p < plan->nphases; p++) {
        HD_TRY(hd_items_make(&spec->phase[p].transfer, &clear[p], plan, p));
    }
    for (int r = 0; r < plan->nranks; r++) {
        plan->plan_bytes += plan->bytes_to[r];
    }
    st = place_phases(spec, plan);
out:
    return st;
}

static void explain(heddle_reshard *plan)
{
    hd_route_words words;
    hd_route_explain(&words, plan->route);
    if (plan->bare != NULL) {
        hd_plan_explain(plan, words.why);
        return;
    }
    hd_copy_text(plan->path, sizeof plan->path, words.path);
    hd_copy_text(plan->kernel_name, sizeof plan->kernel_name, words.kernel);
    hd_copy_text(plan->why, sizeof plan->why, words.why);
}

/* Can trials tell anything? The same on every rank. Below some bytes the rule decides. */
static int is_worth_trials(heddle_reshard *plan)
{
    enum { SMALLEST_BYTES = 16384 };
    for (int r = 0; r < plan->nranks; r++) {
        const int64_t bytes = hd_footprint_bytes(plan->facts[r].src_bytes, plan->facts[r].dst_bytes);
        plan->largest_bytes = bytes > plan->largest_bytes ? bytes : plan->largest_bytes;
    }
    return plan->bare != NULL && plan->request.options.tuning == HEDDLE_TUNING_TRIALS &&
           plan->largest_bytes >= SMALLEST_BYTES;
}

/* Collective. */
static heddle_status make(heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    const hd_request *request = &plan->request;
    hd_copy clear[HD_MAX_LEGS];
    hd_route_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.options = (hd_channel_options){.deadline_ms = request->options.deadline_ms,
                                        .device_blocks = request->options.device_blocks,
                                        .what = "reshard",
                                        .line = plan->line_text,
                                        .refusal = refusals,
                                        .nrefusals = HD_REFUSED_COUNT};
    spec.space = request->options.space;
    spec.src_bytes = request->src_bytes;
    spec.dst_bytes = request->dst_bytes;
    spec.any_memory = request->options.memory == HEDDLE_MEMORY_ANY;
    spec.dtype = request->line.shape.dtype;
    spec.elem_bytes = (int64_t)plan->elem_bytes;
    HD_TRY(hd_route_create(&plan->route, plan->comm, &spec, make_phases(&spec, clear, plan)));
    plan->bare = plan->route->bare;
    HD_TRY(is_worth_trials(plan) ? hd_plan_tune(plan) : HEDDLE_OK);
    explain(plan);
out:
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        hd_items_free(&spec.phase[p].transfer);
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
    HD_TRY(hd_facts_agree(plan, comm, own));
    HD_TRY(make(plan));
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

void heddle_reshard_destroy(heddle_reshard *reshard)
{
    if (reshard == NULL) {
        return;
    }
    hd_route_destroy(reshard->route);
    HD_FREE_ALL(reshard->facts, reshard->bytes_to, reshard->bytes_from, reshard);
}
