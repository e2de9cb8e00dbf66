/* Executing: arguments are looked at, then the route carries them. */
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
                                                   "its dst is memory of a device that the plan is not of"};

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t pa = (uintptr_t)a, pb = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && pa < pb + b_bytes && pb < pa + a_bytes;
}

static const int refused_side[2][3] = {{HD_REFUSED_NOT, HD_REFUSED_SRC_SPACE, HD_REFUSED_SRC_DEVICE},
                                       {HD_REFUSED_NOT, HD_REFUSED_DST_SPACE, HD_REFUSED_DST_DEVICE}};

/* What is wrong with the arrays, whoever reaches them. */
static heddle_status look_at(int *reason, const heddle_reshard *plan, const void *src, const void *dst)
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
        heddle_status st = hd_device_stray(&stray, device, plan->request.options.space, side[i]);
        if (st != HEDDLE_OK) {
            return st;
        }
        *reason = refused_side[i][stray];
    }
    return HEDDLE_OK;
}

static heddle_status find_refusal(int *reason, const heddle_reshard *plan, const void *src, const void *dst)
{
    const heddle_reshard_options *o = &plan->request.options;
    heddle_status st = look_at(reason, plan, src, dst);
    if (st != HEDDLE_OK || *reason != HD_REFUSED_NOT || o->memory == HEDDLE_MEMORY_ANY ||
        o->space != HEDDLE_SPACE_HOST) {
        return st;
    }
    if (!hd_route_can_travel(plan->route, src, (size_t)plan->request.src_bytes)) {
        *reason = HD_REFUSED_SRC;
    } else if (!hd_route_can_travel(plan->route, dst, (size_t)plan->request.dst_bytes)) {
        *reason = HD_REFUSED_DST;
    }
    return HEDDLE_OK;
}

/* --- executions --------------------------------------------------------------------------------------------------- */

/* src and dst as of the last execution are known to be good. */
static heddle_status accept(heddle_reshard *plan, const void *src, void *dst)
{
    if (plan->is_checked && src == plan->src && dst == plan->dst) {
        return HEDDLE_OK;
    }
    int reason = HD_REFUSED_NOT;
    heddle_status st = find_refusal(&reason, plan, src, dst);
    if (st != HEDDLE_OK || reason != HD_REFUSED_NOT) {
        return hd_route_refuse(plan->route, reason, st);
    }
    plan->src = src;
    plan->dst = dst;
    plan->is_checked = 1;
    return HEDDLE_OK;
}

int hd_reshard_counts_late(const heddle_reshard *plan)
{
    return hd_route_counts_late(plan->route);
}

int64_t hd_reshard_measured_bytes(const heddle_reshard *plan)
{
    const int64_t *sent = hd_route_sent(plan->route);
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
    heddle_status st = HEDDLE_OK;
    if (reshard == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_reshard_execute: reshard is NULL");
    }
    if (__builtin_expect(reshard->is_started, 0)) {
        HD_TRY(check_free(reshard));
    }
    HD_TRY(accept(reshard, src, dst));
    st = hd_route_run(reshard->route, src, dst, stream);
out:
    return st;
}

heddle_status heddle_reshard_start(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    HD_TRY(check_free(reshard));
    st = accept(reshard, src, dst);
    st = st == HEDDLE_OK ? hd_route_start(reshard->route, src, dst, stream) : st;
    reshard->is_started = st == HEDDLE_OK;
    reshard->resets = hd_comm_resets(reshard->comm);
out:
    return st;
}

heddle_status heddle_reshard_test(heddle_reshard *reshard, int *done)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard, done));
    st = hd_route_test(reshard->route, done);
    reshard->is_started &= st == HEDDLE_OK && !*done;
out:
    return st;
}

heddle_status heddle_reshard_wait(heddle_reshard *reshard)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    reshard->is_started = 0;
    st = hd_route_wait(reshard->route);
out:
    return st;
}

heddle_status heddle_reshard_wait_on(heddle_reshard *reshard, heddle_stream stream)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    HD_TRY(hd_route_need_eager(reshard->route, stream));
    reshard->is_started = 0;
    st = hd_route_wait_on(reshard->route, stream);
out:
    return st;
}
