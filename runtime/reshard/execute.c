/* Executing: arguments are looked at, then the route carries them. */
#include "runtime/reshard/plan.h"

/* --- arguments: the rank that finds a bad one tells everybody who might wait for it, before anything moves -------- */

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
    hd_device *device = *plan->device;
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
    if (!hd_channel_can_travel(plan->route->channel, src, (size_t)plan->request.src_bytes)) {
        *reason = HD_REFUSED_SRC;
    } else if (!hd_channel_can_travel(plan->route->channel, dst, (size_t)plan->request.dst_bytes)) {
        *reason = HD_REFUSED_DST;
    }
    return HEDDLE_OK;
}

/* --- executions --------------------------------------------------------------------------------------------------- */

/* Of the arrays of every execution but the first this is all that is asked. */
static int is_known(const heddle_reshard *plan, const void *src, const void *dst)
{
    return plan->is_checked && src == plan->src && dst == plan->dst;
}

heddle_status hd_reshard_accept(heddle_reshard *plan, const void *src, void *dst)
{
    if (is_known(plan, src, dst)) {
        return HEDDLE_OK;
    }
    int reason = HD_REFUSED_NOT;
    heddle_status st = find_refusal(&reason, plan, src, dst);
    if (st != HEDDLE_OK || reason != HD_REFUSED_NOT) {
        return plan->route->carrier->refuse(plan->route, reason, st);
    }
    plan->src = src;
    plan->dst = dst;
    plan->is_checked = 1;
    return HEDDLE_OK;
}

heddle_status heddle_reshard_execute(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    if (reshard == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_reshard_execute: reshard is NULL");
    }
    if (__builtin_expect(reshard->is_started, 0)) {
        HD_TRY(hd_reshard_check_free(reshard));
    }
    if (__builtin_expect(!is_known(reshard, src, dst), 0)) {
        HD_TRY(hd_reshard_accept(reshard, src, dst));
    }
    st = reshard->route->carrier->run(reshard->route, src, dst, stream);
out:
    return st;
}
