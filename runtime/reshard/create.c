/* Making a plan. Every step that can fail on one rank is followed by an agreement, so that no rank is left waiting. */
#include "runtime/reshard/plan.h"

#include <stdio.h>
#include <string.h>

static heddle_status alloc_plan(heddle_reshard **out, heddle_comm *comm, const hd_request *request)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard *plan = NULL;
    size_t n = (size_t)heddle_comm_size(comm);
    HD_TRY(hd_alloc((void **)&plan, 1, sizeof *plan, "a reshard"));
    plan->comm = comm;
    plan->rank = heddle_comm_rank(comm);
    plan->nranks = (int)n;
    plan->request = *request;
    plan->src_dense_offset = plan->dst_dense_offset = -1;
    plan->reach = HD_REACH_STAGED;
    plan->elem_bytes = heddle_dtype_bytes(request->line.shape.dtype);
    HD_TRY(hd_alloc((void **)&plan->facts, n, sizeof *plan->facts, "facts of all ranks"));
    HD_TRY(hd_alloc((void **)&plan->component, n, 1, "a reshard"));
    HD_TRY(hd_alloc((void **)&plan->src_at, n, sizeof *plan->src_at, "a reshard"));
    HD_TRY(hd_alloc((void **)&plan->dst_at, n, sizeof *plan->dst_at, "a reshard"));
    HD_TRY(hd_alloc((void **)&plan->moved, n, sizeof *plan->moved, "a reshard"));
    HD_TRY(hd_alloc((void **)&plan->reach_of, n, 1, "a reshard"));
    HD_TRY(hd_alloc((void **)&plan->bytes_to, n, sizeof *plan->bytes_to, "a reshard"));
    HD_TRY(hd_alloc((void **)&plan->bytes_from, n, sizeof *plan->bytes_from, "a reshard"));
    HD_TRY(hd_alloc((void **)&plan->measured_to, n, sizeof *plan->measured_to, "a reshard"));
out:
    if (st != HEDDLE_OK) {
        heddle_reshard_destroy(plan);
        plan = NULL;
    }
    *out = plan;
    return st;
}

/* What the ranks tell one another about their pieces: geometry of every step, and with whom they copy directly. */
typedef struct survey {
    hd_geometry *own, *all; /* [HD_MAX_STEPS], [nranks][HD_MAX_STEPS] */
    uint64_t *near, *all_near;
    size_t words;
} survey;

static heddle_status survey_alloc(survey *s, int nranks)
{
    heddle_status st = HEDDLE_OK;
    size_t n = (size_t)nranks;
    s->words = (n + 63) / 64;
    HD_TRY(hd_alloc((void **)&s->own, HD_MAX_STEPS, sizeof(hd_geometry), "geometry of a reshard"));
    HD_TRY(hd_alloc((void **)&s->all, n * HD_MAX_STEPS, sizeof(hd_geometry), "geometry of a reshard"));
    HD_TRY(hd_alloc((void **)&s->near, s->words, sizeof(uint64_t), "geometry of a reshard"));
    HD_TRY(hd_alloc((void **)&s->all_near, n * s->words, sizeof(uint64_t), "geometry of a reshard"));
out:
    return st;
}

static void survey_free(survey *s)
{
    hd_free(s->own);
    hd_free(s->all);
    hd_free(s->near);
    hd_free(s->all_near);
}

static void note_near(survey *s, const heddle_reshard *plan, const hd_pieces *pieces)
{
    for (int i = 0; i < pieces->count; i++) {
        int peer = pieces->piece[i].peer;
        if (peer != plan->rank && hd_plan_near(plan, peer)) {
            s->near[peer / 64] |= (uint64_t)1 << peer % 64;
        }
    }
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

static heddle_status build_dense_copy(hd_lanes *out, int64_t *offset, heddle_reshard *plan, int is_dst)
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
    *offset = hd_plan_reserve(plan, heddle_box_elems(&dense.box) * (int64_t)plan->elem_bytes);
    hd_piece piece = {plan->rank, caller.box};
    hd_piece_copy(&copy, &piece, is_dst ? &dense : &caller, is_dst ? &caller : &dense, plan->elem_bytes);
    HD_TRY(hd_lanes_build(out, &copy, &plan->rank, 1, is_dst ? HD_SIDE_DST : HD_SIDE_SRC, plan->rank, plan->nranks,
                          HD_LONG_RUN_BYTES));
    hd_lanes_choose(out, plan->request.kernel, &plan->hint);
out:
    return st;
}

static heddle_status reserve_work(heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    const hd_problem *problem = &plan->problem;
    for (int p = 0; p < problem->nphases; p++) {
        hd_place place = problem->phase[p].dst;
        if (place == HD_PLACE_WORK0 || place == HD_PLACE_WORK1) {
            plan->work_offset[place == HD_PLACE_WORK1] = hd_plan_reserve(plan, (int64_t)plan->step[p].dst_bytes);
        }
    }
    if (problem->phase[0].kind != HD_PHASE_BOXES) {
        HD_TRY(build_dense_copy(&plan->src_dense, &plan->src_dense_offset, plan, 0));
    }
    if (problem->phase[problem->nphases - 1].kind != HD_PHASE_BOXES) {
        HD_TRY(build_dense_copy(&plan->dst_dense, &plan->dst_dense_offset, plan, 1));
    }
out:
    return st;
}

static heddle_status compile_steps(heddle_reshard *plan, survey *s)
{
    heddle_status st = HEDDLE_OK;
    plan->hint.shared_cache_bytes = (int64_t)heddle_comm_shared_cache_bytes(plan->comm);
    for (int r = 0; r < plan->nranks; r++) {
        if (hd_plan_near(plan, r)) {
            plan->hint.footprint_bytes += plan->facts[r].src_bytes + plan->facts[r].dst_bytes;
        }
    }
    HD_TRY(hd_problem_make(&plan->problem, &plan->request.line));
    HD_TRY(heddle_reshard_format(plan->line_text, sizeof plan->line_text, &plan->request.line));
    plan->nsteps = plan->problem.nphases;
    for (int p = 0; p < plan->nsteps; p++) {
        HD_TRY(hd_step_compile(&s->own[p], plan, p));
        note_near(s, plan, &plan->step[p].send);
        note_near(s, plan, &plan->step[p].recv);
    }
    HD_TRY(reserve_work(plan));
out:
    return st;
}

/* Ranks that this one is connected with by direct copies: a refusal reaches all of them before anything moves. */
static void find_component(heddle_reshard *plan, const survey *s)
{
    plan->component[plan->rank] = 1;
    for (int grew = 1; grew;) {
        grew = 0;
        for (int r = 0; r < plan->nranks; r++) {
            for (int k = 0; plan->component[r] == 1 && k < plan->nranks; k++) {
                if (!plan->component[k] && (s->all_near[(size_t)r * s->words + (size_t)k / 64] >> k % 64 & 1)) {
                    plan->component[k] = 1;
                    grew = 1;
                }
            }
            plan->component[r] = plan->component[r] ? 2 : 0; /* visited */
        }
    }
    for (int r = 0; r < plan->nranks; r++) {
        plan->component[r] = plan->component[r] > 0;
    }
    plan->component[plan->rank] = 0;
}

static heddle_status build_steps(heddle_reshard *plan, const survey *s)
{
    heddle_status st = HEDDLE_OK;
    find_component(plan, s);
    for (int p = 0; p < plan->nsteps; p++) {
        for (int r = 0; r < plan->nranks; r++) {
            plan->any_peer |= s->all[(size_t)r * HD_MAX_STEPS + (size_t)p].near > 0;
            plan->any_mail |= s->all[(size_t)r * HD_MAX_STEPS + (size_t)p].mail > 0;
        }
        HD_TRY(hd_step_build(plan, p, s->all));
    }
    if (plan->buffer_bytes > 0) {
        HD_TRY(heddle_buffer_alloc((void **)&plan->buffer, plan->comm, (size_t)plan->buffer_bytes,
                                   plan->request.options.space));
    }
out:
    return st;
}

static heddle_status open_channels(heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    if (plan->any_peer) {
        HD_TRY(hd_link_create(&plan->link, plan->comm));
    }
    for (int p = 0; p < plan->nsteps; p++) {
        hd_mail *mail = &plan->step[p].mail;
        if (plan->step[p].any_mail) {
            HD_TRY(hd_exchange_create(&mail->exchange, plan->comm, mail->message, mail->nmessages));
        }
    }
out:
    return st;
}

heddle_status hd_plan_create(heddle_reshard **out, heddle_comm *comm, const hd_request *request, heddle_status own)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard *plan = NULL;
    survey s = {0};
    if (own == HEDDLE_OK) {
        own = alloc_plan(&plan, comm, request);
    }
    if (own == HEDDLE_OK) {
        own = survey_alloc(&s, plan->nranks);
    }
    HD_TRY(hd_comm_agree(comm, own));
    HD_TRY(hd_facts_agree(plan->facts, comm, request));
    HD_TRY(hd_comm_agree(comm, compile_steps(plan, &s)));
    HD_TRY(hd_gather(comm, s.own, s.all, HD_MAX_STEPS * sizeof *s.own));
    HD_TRY(hd_gather(comm, s.near, s.all_near, s.words * sizeof *s.near));
    HD_TRY(hd_comm_agree(comm, build_steps(plan, &s)));
    HD_TRY(hd_comm_agree(comm, open_channels(plan)));
    plan->is_simple = hd_plan_is_simple(plan);
    HD_TRY(hd_plan_tune(plan));
    hd_plan_explain(plan);
    *out = plan;
    plan = NULL;
out:
    if (st == HEDDLE_ERR_TRANSPORT || st == HEDDLE_ERR_TIMEOUT) { /* the others may wait for what will not come */
        char why[256];
        snprintf(why, sizeof why, "%s", heddle_last_error());
        heddle_comm_abort(comm, why);
        hd_fail(st, "%s", why);
    }
    survey_free(&s);
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
    return hd_plan_create(out, comm, &request, own);
}

heddle_status heddle_reshard_create_line(heddle_reshard **out, heddle_comm *comm, const heddle_reshard_line *line,
                                         const heddle_reshard_options *options)
{
    heddle_status own = HD_NEED(comm);
    if (own != HEDDLE_OK) {
        return own; /* there is nobody to tell */
    }
    own = HD_NEED(out);
    own = own == HEDDLE_OK ? HD_NEED(line) : own;
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
    HD_TRY(HD_NEED(out));
    HD_TRY(HD_NEED(shape));
    HD_TRY(HD_NEED(mesh));
    HD_TRY(HD_NEED(from));
    HD_TRY(HD_NEED(to));
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
    if (reshard->state != HD_IDLE) {
        hd_plan_leave(reshard);
    }
    for (int p = 0; p < HD_MAX_STEPS; p++) {
        hd_step_free(&reshard->step[p]);
    }
    hd_link_destroy(reshard->link);
    hd_lanes_free(&reshard->src_dense);
    hd_lanes_free(&reshard->dst_dense);
    if (reshard->buffer != NULL) {
        heddle_buffer_free(reshard->comm, reshard->buffer);
    }
    hd_free(reshard->facts);
    hd_free(reshard->component);
    hd_free(reshard->src_at);
    hd_free(reshard->dst_at);
    hd_free(reshard->moved);
    hd_free(reshard->reach_of);
    hd_free(reshard->bytes_to);
    hd_free(reshard->bytes_from);
    hd_free(reshard->measured_to);
    hd_free(reshard);
}
