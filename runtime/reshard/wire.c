/* Which way plans of a device's arrays take: one line for each wire that is there; and what arrays and streams are
 * refused without a channel. */
#include "runtime/reshard/plan.h"

static const hd_wire_ops *const wires[] = {
    [HEDDLE_WIRE_NCCL] = &hd_wire_nccl,
    [HEDDLE_WIRE_PEER] = &hd_wire_peer,
    [HEDDLE_WIRE_HOST] = &hd_wire_host,
};

const hd_wire_ops *hd_wire_of(const heddle_comm *comm, heddle_space space)
{
    if (space != HEDDLE_SPACE_DEVICE || hd_comm_device(comm) == NULL) { /* the latter is refused later */
        return NULL;
    }
    return wires[hd_comm_wire(comm)];
}

static heddle_status refuse(const heddle_reshard *plan, int reason)
{
    return hd_fail(HEDDLE_ERR_ARG, "rank %d: %s; reshard %s", hd_comm_rank_name(plan->comm, plan->rank),
                   hd_refusals[reason], plan->line_text);
}

heddle_status hd_plan_need_eager(const heddle_reshard *plan, heddle_stream stream)
{
    int captures = 0;
    const hd_device *device = hd_comm_device(plan->comm);
    heddle_status st = device->library->stream_captures(&captures, device->number, stream);
    return st == HEDDLE_OK && captures ? refuse(plan, HD_REFUSED_NOT_EXECUTE) : st;
}

heddle_status hd_plan_take_arrays(heddle_reshard *plan, const void *src, void *dst)
{
    int reason = HD_REFUSED_NOT;
    if (plan->is_checked && src == plan->src && dst == plan->dst) {
        return HEDDLE_OK;
    }
    heddle_status st = hd_refusal_of(&reason, plan, HEDDLE_SPACE_DEVICE, src, dst);
    st = st == HEDDLE_OK && reason != HD_REFUSED_NOT ? refuse(plan, reason) : st;
    plan->is_checked = st == HEDDLE_OK;
    plan->src = src;
    plan->dst = dst;
    return st;
}
