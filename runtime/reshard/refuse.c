/* Buffers that cannot be used: the rank that finds them tells everybody who might wait for it, before anything moves.
 */
#include "runtime/reshard/plan.h"

static const char *const refusal[HD_REFUSED_COUNT] = {"",
                                                      "its src and dst overlap",
                                                      "its src cannot be reached by peers (HEDDLE_MEMORY_PEER)",
                                                      "its dst cannot be reached by peers (HEDDLE_MEMORY_PEER)",
                                                      "its src is NULL",
                                                      "its dst is NULL",
                                                      "its src or dst is not aligned to its elements"};

const char *hd_refusal_text(int reason)
{
    return reason > HD_REFUSED_NOT && reason < HD_REFUSED_COUNT ? refusal[reason] : "for an unknown reason";
}

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t pa = (uintptr_t)a, pb = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && pa < pb + b_bytes && pb < pa + a_bytes;
}

int hd_refusal_find(heddle_reshard *plan, const void *src, void *dst)
{
    size_t src_bytes = (size_t)plan->request.src_bytes, dst_bytes = (size_t)plan->request.dst_bytes;
    if ((src == NULL && src_bytes > 0) || (dst == NULL && dst_bytes > 0)) {
        return src == NULL && src_bytes > 0 ? HD_REFUSED_SRC_NULL : HD_REFUSED_DST_NULL;
    }
    if (((uintptr_t)src | (uintptr_t)dst) % plan->elem_bytes != 0) {
        return HD_REFUSED_UNALIGNED;
    }
    if (overlap(src, src_bytes, dst, dst_bytes)) {
        return HD_REFUSED_OVERLAP;
    }
    if (plan->step[0].nready == 0) {
        return HD_REFUSED_NOT;
    }
    plan->src_name = hd_comm_export(plan->comm, src, src_bytes);
    plan->dst_name = hd_comm_export(plan->comm, dst, dst_bytes);
    if (plan->request.options.memory == HEDDLE_MEMORY_ANY) {
        return HD_REFUSED_NOT;
    }
    return plan->src_name == 0 ? HD_REFUSED_SRC : plan->dst_name == 0 ? HD_REFUSED_DST : HD_REFUSED_NOT;
}

heddle_status hd_refuse(heddle_reshard *plan, int reason)
{
    heddle_status st = HEDDLE_OK;
    uint64_t words[3] = {(uint64_t)reason, 0, 0};
    const hd_step *step = &plan->step[0];
    if (plan->any_mail) { /* messages carry no marks */
        hd_fail(HEDDLE_ERR_ARG, "rank %d refuses the execution: %s", plan->rank, refusal[reason]);
        return hd_plan_give_up(plan, HEDDLE_ERR_ARG);
    }
    plan->sequence++;
    plan->epoch++;
    for (int i = 0; i < step->nready; i++) {
        HD_TRY(hd_link_post(plan->link, step->ready[i], hd_plan_slot(plan, HD_SLOT_READY), plan->sequence, words, 3));
    }
    plan->pending = step->nready > 0;
    return hd_fail(HEDDLE_ERR_ARG, "rank %d refuses the execution: %s", plan->rank, refusal[reason]);
out:
    return hd_plan_give_up(plan, st);
}

heddle_status hd_settle(heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    const hd_step *step = &plan->step[0];
    uint64_t words[3];
    int here;
    plan->deadline_ns = 0;
    for (int i = 0; i < step->nready; i++) {
        HD_TRY(hd_plan_await(plan, HD_SLOT_READY, step->ready[i], words, 3, 1, &here));
    }
    plan->pending = 0;
    return HEDDLE_OK;
out:
    return hd_plan_give_up(plan, st);
}
