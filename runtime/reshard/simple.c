/* The shortest way through an execution: one step of peer copies, nothing else in flight. For a tensor of 64 KB the
 * copy takes as long as four flags, so what lies between them counts. Whatever is unusual is left to the state machine.
 */
#include "runtime/reshard/plan.h"

int hd_plan_is_simple(const heddle_reshard *plan)
{
    const hd_step *step = &plan->step[0];
    return plan->nsteps == 1 && !plan->any_mail && !step->any_sums && !step->own.used && !step->recv.zero_fill &&
           plan->src_dense_offset < 0 && plan->dst_dense_offset < 0;
}

static heddle_status meet(heddle_reshard *plan, const hd_step *step, int slot, const uint64_t *posted)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < step->nready; i++) {
        HD_TRY(hd_link_post(plan->link, step->ready[i], slot, plan->sequence, posted, 3));
    }
    for (int i = 0; i < step->nready; i++) {
        uint64_t words[3];
        int peer = step->ready[i], here;
        HD_TRY(hd_plan_await(plan, HD_SLOT_READY, peer, words, 3, 1, &here));
        if (__builtin_expect(words[0] != 0, 0)) {
            plan->refused_by = 1 + peer; /* the others come too: all are told alike */
            plan->refusal = (int)(words[0] & 255);
        } else if (step->role[i] == HD_ROLE_READ) {
            plan->src_at[peer] = hd_comm_import(plan->comm, peer, words[1]);
        } else if (step->role[i] == HD_ROLE_WRITE) {
            plan->dst_at[peer] = hd_comm_import(plan->comm, peer, words[2]);
        }
    }
out:
    return st;
}

static heddle_status part(heddle_reshard *plan, hd_step *step, int slot, const hd_bases *bases)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < step->nserved; i++) {
        int peer = step->served[i];
        uint64_t bytes = (uint64_t)plan->moved[peer];
        plan->measured_to[peer] += step->push ? plan->moved[peer] : 0;
        HD_TRY(hd_link_post(plan->link, peer, slot, plan->sequence, &bytes, 1));
    }
    /* What stays on this rank is copied while the flags travel. */
    hd_lanes_run_groups(&step->lanes, bases, 0, hd_lanes_own(&step->lanes, plan->rank));
    for (int i = 0; i < step->nmovers; i++) {
        uint64_t bytes;
        int peer = step->movers[i], here;
        HD_TRY(hd_plan_await(plan, HD_SLOT_DONE, peer, &bytes, 1, 1, &here));
        plan->measured_to[peer] += step->push ? 0 : (int64_t)bytes;
    }
out:
    return st;
}

heddle_status hd_plan_execute_simple(heddle_reshard *plan, const void *src, void *dst)
{
    heddle_status st = HEDDLE_OK;
    hd_step *step = &plan->step[0];
    if (src != plan->src || dst != plan->dst || !plan->is_checked) {
        int reason = hd_refusal_find(plan, src, dst);
        plan->is_checked = reason == HD_REFUSED_NOT;
        if (!plan->is_checked) {
            return hd_refuse(plan, reason);
        }
        plan->src = src;
        plan->dst = dst;
    }
    const uint64_t posted[3] = {0, plan->src_name, plan->dst_name};
    plan->deadline_ns = 0;
    plan->epoch++;
    plan->sequence++;
    plan->refused_by = 0;
    plan->src_at[plan->rank] = src;
    plan->dst_at[plan->rank] = dst;
    hd_comm_set_moving(plan->comm, 1); /* the posts are its fence */
    HD_TRY(meet(plan, step, hd_plan_slot(plan, HD_SLOT_READY), posted));
    if (__builtin_expect(hd_comm_is_aborted(plan->comm), 0)) {
        HD_TRY(hd_comm_check(plan->comm));
    }
    if (plan->refused_by > 0) {
        hd_comm_set_moving(plan->comm, 0);
        return hd_fail(HEDDLE_ERR_ARG, "rank %d refuses the execution: %s", plan->refused_by - 1,
                       hd_refusal_text(plan->refusal));
    }
    for (int i = 0; i < step->nserved; i++) {
        plan->moved[step->served[i]] = 0;
    }
    const hd_bases bases = {.src = src,
                            .dst = dst,
                            .src_at = step->push ? NULL : plan->src_at,
                            .dst_at = step->push ? plan->dst_at : NULL,
                            .moved = plan->moved};
    hd_lanes_run_groups(&step->lanes, &bases, hd_lanes_own(&step->lanes, plan->rank), step->lanes.ngroups);
    HD_TRY(part(plan, step, hd_plan_slot(plan, HD_SLOT_DONE), &bases));
    hd_comm_set_moving(plan->comm, 0);
    plan->executions++;
out:
    return st == HEDDLE_OK ? st : hd_plan_give_up(plan, st);
}
