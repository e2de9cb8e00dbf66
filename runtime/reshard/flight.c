/* start, test, wait: plans in flight and who drives them. */
#include "runtime/reshard/plan.h"

/* Plans in flight on one communicator: whoever waits for one helps the others, so that ranks may wait for several plans
 * in different orders. */
static void enter(heddle_reshard *plan)
{
    void **list = hd_comm_in_flight(plan->comm);
    plan->next = *list;
    *list = plan;
}

void hd_plan_leave(heddle_reshard *plan)
{
    heddle_reshard *first = *hd_comm_in_flight(plan->comm);
    plan->state = HD_IDLE;
    if (first == plan) {
        *hd_comm_in_flight(plan->comm) = plan->next;
        return;
    }
    for (; first != NULL; first = first->next) {
        if (first->next == plan) {
            first->next = plan->next;
        }
    }
}

static int is_alone(const heddle_reshard *plan)
{
    return *hd_comm_in_flight(plan->comm) == plan && plan->next == NULL;
}

/* What happens to the others is theirs to report. */
static void help_others(heddle_reshard *plan)
{
    heddle_reshard *other = *hd_comm_in_flight(plan->comm);
    while (other != NULL) {
        heddle_reshard *next = other->next;
        int stuck;
        if (other != plan) {
            other->outcome = hd_plan_advance(other, 0, &stuck);
        }
        other = next;
    }
}

static heddle_status take_outcome(heddle_reshard *plan)
{
    heddle_status st = plan->outcome;
    plan->outcome = HEDDLE_OK;
    if (plan->broken != HEDDLE_OK) {
        return hd_fail(plan->broken, "the reshard failed before: %s", plan->broken_why);
    }
    return st == HEDDLE_OK
               ? st
               : hd_fail(st, "rank %d refuses the execution: %s", plan->refused_by - 1, hd_refusal_text(plan->refusal));
}

static heddle_status drive(heddle_reshard *plan, int block)
{
    heddle_status st = HEDDLE_OK;
    int stuck;
    if (plan->broken != HEDDLE_OK || plan->outcome != HEDDLE_OK) {
        return take_outcome(plan);
    }
    for (int round = 0;; round++) {
        st = hd_plan_advance(plan, block && is_alone(plan), &stuck);
        if (st != HEDDLE_OK || !stuck) {
            return st;
        }
        st = hd_comm_check(plan->comm);
        if (st != HEDDLE_OK) {
            return hd_plan_give_up(plan, st);
        }
        help_others(plan);
        if (hd_now_ns() > hd_plan_deadline(plan)) {
            hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: a reshard passed its deadline",
                    hd_comm_rank_name(plan->comm, plan->rank));
            return hd_plan_give_up(plan, HEDDLE_ERR_TIMEOUT);
        }
        if (!block) {
            return HEDDLE_OK;
        }
        if (plan->outcome != HEDDLE_OK || plan->broken != HEDDLE_OK) {
            return take_outcome(plan);
        }
        hd_comm_relax(plan->comm, round);
    }
}

static heddle_status start(heddle_reshard *plan, const void *src, void *dst)
{
    heddle_status st = HEDDLE_OK;
    if (plan->broken != HEDDLE_OK) {
        return take_outcome(plan);
    }
    if (plan->state != HD_IDLE) {
        return hd_fail(HEDDLE_ERR_ARG, "an execution of this reshard is already in flight");
    }
    plan->outcome = HEDDLE_OK;
    if (plan->pending) {
        HD_TRY(hd_settle(plan));
    }
    int reason = hd_refusal_find(plan, src, dst);
    plan->is_checked = reason == HD_REFUSED_NOT;
    plan->deadline_ns = 0;
    if (reason != HD_REFUSED_NOT) {
        return hd_refuse(plan, reason);
    }
    plan->src = src;
    plan->dst = dst;
    plan->at = 0;
    plan->epoch++;
    plan->refused_by = 0;
    if (plan->src_dense_offset >= 0) {
        hd_lanes_run(&plan->src_dense, &(hd_bases){.src = src, .dst = plan->buffer + plan->src_dense_offset});
    }
    enter(plan);
    st = hd_plan_begin(plan);
    st = st == HEDDLE_OK ? st : hd_plan_give_up(plan, st);
out:
    return st;
}

heddle_status hd_plan_run(heddle_reshard *plan, const void *src, void *dst)
{
    if (plan->is_simple && *hd_comm_in_flight(plan->comm) == NULL && plan->broken == HEDDLE_OK && !plan->pending) {
        return hd_plan_execute_simple(plan, src, dst);
    }
    heddle_status st = start(plan, src, dst);
    return st == HEDDLE_OK ? drive(plan, 1) : st;
}

heddle_status heddle_reshard_execute(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream)
{
    if (reshard == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_reshard_execute: reshard is NULL");
    }
    (void)stream; /* host memory: done on return */
    return hd_plan_run(reshard, src, dst);
}

heddle_status heddle_reshard_start(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HD_NEED(reshard);
    (void)stream;
    return st == HEDDLE_OK ? start(reshard, src, dst) : st;
}

heddle_status heddle_reshard_test(heddle_reshard *reshard, int *done)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    HD_TRY(HD_NEED(done));
    HD_TRY(drive(reshard, 0));
    *done = reshard->state == HD_IDLE;
out:
    return st;
}

heddle_status heddle_reshard_wait(heddle_reshard *reshard)
{
    heddle_status st = HD_NEED(reshard);
    return st == HEDDLE_OK ? drive(reshard, 1) : st;
}
