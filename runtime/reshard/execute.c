/* Executing: arguments are looked at, then the phases' transfers run one after another. */
#include "runtime/reshard/plan.h"

/* --- arguments: the rank that finds a bad one tells everybody who might wait for it, before anything moves -------- */

const char *const hd_refusals[HD_REFUSED_COUNT] = {"",
                                                   "its src and dst overlap",
                                                   "its src cannot be reached by peers (HEDDLE_MEMORY_PEER)",
                                                   "its dst cannot be reached by peers (HEDDLE_MEMORY_PEER)",
                                                   "its src is NULL",
                                                   "its dst is NULL",
                                                   "its src or dst is not aligned to its elements",
                                                   "its src is host memory, and the plan is of a device's",
                                                   "its dst is host memory, and the plan is of a device's",
                                                   "its src is memory of a device that the plan is not of",
                                                   "its dst is memory of a device that the plan is not of",
                                                   "its stream is being captured, and the wire host blocks",
                                                   "its stream is being captured, and of this only execute can be"};

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t pa = (uintptr_t)a, pb = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && pa < pb + b_bytes && pb < pa + a_bytes;
}

static const int refused_side[2][3] = {{HD_REFUSED_NOT, HD_REFUSED_SRC_SPACE, HD_REFUSED_SRC_DEVICE},
                                       {HD_REFUSED_NOT, HD_REFUSED_DST_SPACE, HD_REFUSED_DST_DEVICE}};

heddle_status hd_refusal_of(int *reason, const heddle_reshard *plan, heddle_space space, const void *src,
                            const void *dst)
{
    size_t src_bytes = (size_t)plan->request.src_bytes, dst_bytes = (size_t)plan->request.dst_bytes;
    const void *side[2] = {src_bytes > 0 ? src : NULL, dst_bytes > 0 ? dst : NULL};
    const hd_device *device = *plan->device;
    *reason = HD_REFUSED_NOT;
    if ((src == NULL && src_bytes > 0) || (dst == NULL && dst_bytes > 0)) {
        *reason = src == NULL && src_bytes > 0 ? HD_REFUSED_SRC_NULL : HD_REFUSED_DST_NULL;
    } else if (((uintptr_t)src | (uintptr_t)dst) % plan->elem_bytes != 0) {
        *reason = HD_REFUSED_UNALIGNED;
    } else if (overlap(src, src_bytes, dst, dst_bytes)) {
        *reason = HD_REFUSED_OVERLAP;
    }
    for (int i = 0; i < 2 && *reason == HD_REFUSED_NOT && device != NULL && side[i] != NULL; i++) {
        hd_stray stray;
        heddle_status st = hd_device_stray(&stray, device, space, side[i]);
        if (st != HEDDLE_OK) {
            return st;
        }
        *reason = refused_side[i][stray];
    }
    return HEDDLE_OK;
}

static heddle_status find_refusal(int *reason, const heddle_reshard *plan, const void *src, const void *dst)
{
    heddle_status st = hd_refusal_of(reason, plan, HEDDLE_SPACE_HOST, src, dst);
    if (st != HEDDLE_OK || *reason != HD_REFUSED_NOT || plan->request.options.memory == HEDDLE_MEMORY_ANY) {
        return st;
    }
    if (!hd_channel_can_travel(plan->channel, src, (size_t)plan->request.src_bytes)) {
        *reason = HD_REFUSED_SRC;
    } else if (!hd_channel_can_travel(plan->channel, dst, (size_t)plan->request.dst_bytes)) {
        *reason = HD_REFUSED_DST;
    }
    return HEDDLE_OK;
}

/* --- executions --------------------------------------------------------------------------------------------------- */

void *hd_plan_place(const heddle_reshard *plan, hd_place where)
{
    const hd_workspace *w = &plan->work;
    switch (where) {
    case HD_PLACE_SRC:
        return w->src_offset >= 0 ? w->memory + w->src_offset : (void *)(uintptr_t)plan->src;
    case HD_PLACE_DST:
        return w->dst_offset >= 0 ? w->memory + w->dst_offset : plan->dst;
    default:
        return w->memory + w->offset[where == HD_PLACE_WORK1];
    }
}

static void list_legs(heddle_reshard *plan)
{
    for (int p = 0; p < plan->nphases; p++) {
        plan->leg[p] = (hd_leg){plan->transfer[p], hd_plan_place(plan, plan->problem.phase[p].src),
                                hd_plan_place(plan, plan->problem.phase[p].dst)};
    }
}

/* src and dst as of the last execution are known to be good. */
static heddle_status accept(heddle_reshard *plan, const void *src, void *dst)
{
    if (plan->is_checked && src == plan->src && dst == plan->dst) {
        return HEDDLE_OK;
    }
    int reason;
    heddle_status st = find_refusal(&reason, plan, src, dst);
    if (st != HEDDLE_OK || reason != HD_REFUSED_NOT) {
        return st != HEDDLE_OK ? hd_comm_abort_with(plan->comm, st) : hd_channel_refuse(plan->channel, reason);
    }
    plan->src = src;
    plan->dst = dst;
    plan->is_checked = 1;
    list_legs(plan);
    return HEDDLE_OK;
}

static heddle_status finish(heddle_reshard *plan, heddle_status st)
{
    if (st == HEDDLE_OK && plan->is_unfinished) {
        if (plan->work.after.is_there) {
            st = hd_local_run(&plan->work.after, plan->dst, hd_plan_place(plan, HD_PLACE_DST), HEDDLE_NO_STREAM);
        }
        plan->executions++;
    }
    plan->is_unfinished = 0;
    return st;
}

static heddle_status prepare(heddle_reshard *plan, const void *src, void *dst)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(accept(plan, src, dst));
    if (plan->work.before.is_there) {
        HD_TRY(hd_local_run(&plan->work.before, hd_plan_place(plan, HD_PLACE_SRC), src, HEDDLE_NO_STREAM));
    }
    plan->is_unfinished = 1;
out:
    return st;
}

heddle_status hd_plan_run(heddle_reshard *plan, const void *src, void *dst)
{
    heddle_status st = prepare(plan, src, dst);
    return st == HEDDLE_OK ? finish(plan, hd_channel_run(plan->channel, plan->leg, plan->nphases)) : st;
}

int hd_reshard_counts_late(const heddle_reshard *plan)
{
    return plan->wire != NULL && plan->wire->measured != NULL;
}

int64_t hd_reshard_measured_bytes(const heddle_reshard *plan)
{
    if (hd_reshard_counts_late(plan)) {
        return plan->wire->measured(plan);
    }
    const int64_t *sent = hd_channel_sent(plan->channel);
    int64_t measured = 0;
    for (int r = 0; r < plan->nranks; r++) {
        measured += sent[r];
    }
    return measured;
}

/* Until somebody has heard of its end, which every rank does at the same place of its program: whether it has come to
 * its end is a matter of time, and another one on each rank. */
static heddle_status check_free(heddle_reshard *plan)
{
    plan->is_started &= plan->resets == hd_comm_resets(plan->comm);
    return !plan->is_started ? HEDDLE_OK : hd_fail(HEDDLE_ERR_ARG, "an execution of this reshard is already in flight");
}

heddle_status heddle_reshard_execute(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream)
{
    if (reshard == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_reshard_execute: reshard is NULL");
    }
    if (__builtin_expect(reshard->is_started, 0)) {
        heddle_status st = check_free(reshard);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return __builtin_expect(reshard->wire != NULL, 0) ? reshard->wire->execute(reshard, src, dst, stream)
                                                      : hd_plan_run(reshard, src, dst); /* done on return */
}

heddle_status hd_plan_start(heddle_reshard *plan, const void *src, void *dst)
{
    heddle_status st = prepare(plan, src, dst);
    if (st == HEDDLE_OK) {
        st = hd_channel_start(plan->channel, plan->leg, plan->nphases);
        plan->is_unfinished = st == HEDDLE_OK;
    }
    return st;
}

heddle_status hd_plan_test(heddle_reshard *plan, int *done)
{
    heddle_status st = hd_channel_test(plan->channel, done);
    return *done || st != HEDDLE_OK ? finish(plan, st) : st;
}

heddle_status hd_plan_wait(heddle_reshard *plan)
{
    return finish(plan, hd_channel_wait(plan->channel));
}

heddle_status heddle_reshard_start(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    HD_TRY(check_free(reshard));
    st = reshard->wire != NULL ? reshard->wire->start(reshard, src, dst, stream) : hd_plan_start(reshard, src, dst);
    reshard->is_started = st == HEDDLE_OK;
    reshard->resets = hd_comm_resets(reshard->comm);
out:
    return st;
}

heddle_status heddle_reshard_test(heddle_reshard *reshard, int *done)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard, done));
    st = (reshard->wire != NULL ? reshard->wire->test : hd_plan_test)(reshard, done);
    reshard->is_started &= st == HEDDLE_OK && !*done;
out:
    return st;
}

heddle_status heddle_reshard_wait(heddle_reshard *reshard)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    reshard->is_started = 0;
    st = (reshard->wire != NULL ? reshard->wire->wait : hd_plan_wait)(reshard);
out:
    return st;
}

heddle_status heddle_reshard_wait_on(heddle_reshard *reshard, heddle_stream stream)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    HD_TRY(reshard->wire != NULL ? hd_plan_need_eager(reshard, stream) : HEDDLE_OK);
    reshard->is_started = 0;
    st = reshard->wire != NULL ? reshard->wire->wait_on(reshard, stream) : hd_plan_wait(reshard);
out:
    return st;
}
