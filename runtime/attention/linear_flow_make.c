/* Flows, made: memory for states, and the channels and transfers of a method. A flow carries the states of linear
 * attention along the ranks in one direction: rightward those of the rows before, leftward those of the rows behind, or
 * gradients. */
#include "runtime/attention/linear_internal.h"

const hd_flow_method *hd_flow_method_of(heddle_linear_method method)
{
    switch (method) {
    case HEDDLE_LINEAR_LASP:
        return &hd_flow_lasp;
    case HEDDLE_LINEAR_LASP2:
        return &hd_flow_lasp2;
    case HEDDLE_LINEAR_SCAN:
        return &hd_flow_scan;
    default:
        return NULL;
    }
}

heddle_status hd_flow_alloc(void **out, hd_flow *flow, int64_t bytes)
{
    flow->allocated_bytes += bytes;
    return hd_room_want(flow->user, HD_ROOM_METHOD, out, bytes);
}

hd_item hd_flow_item(const hd_flow *flow, int peer, int64_t dst_offset)
{
    return (hd_item){.peer = peer, .copy = {.dst_offset_bytes = dst_offset, .run_bytes = flow->problem->state_bytes}};
}

/* Collective. A rank without states (no heads, no samples) takes part with empty transfers. */
heddle_status hd_flow_open(hd_flow *flow, int channel, int first, hd_transfer_spec *spec, int ntransfers)
{
    heddle_status st = HEDDLE_OK;
    const hd_channel_options options = {.deadline_ms = flow->problem->options.deadline_ms,
                                        .what = "transfer of a state"};
    HD_TRY(hd_comm_agree(flow->comm, hd_channel_create(&flow->channel[channel], flow->comm, &options)));
    for (int i = 0; i < ntransfers; i++) {
        spec[i].space = flow->problem->options.space;
        spec[i].send.count = flow->problem->state_bytes > 0 ? spec[i].send.count : 0;
        spec[i].recv.count = flow->problem->state_bytes > 0 ? spec[i].recv.count : 0;
        spec[i].footprint_bytes = flow->problem->state_bytes * (spec[i].send.count + spec[i].recv.count);
    }
    HD_TRY(hd_transfers_create(&flow->transfer[first], flow->channel[channel], spec, ntransfers, HEDDLE_OK));
out:
    return st;
}

heddle_status hd_flow_create(hd_flow **out, heddle_linear_attention *of, int leftward, hd_flow *twin)
{
    heddle_status st = HEDDLE_OK;
    hd_flow *flow = NULL;
    const hd_linear_problem *problem = &of->problem;
    heddle_status mine = hd_alloc((void **)&flow, 1, sizeof *flow, "a flow of states");
    if (mine == HEDDLE_OK) {
        flow->method = hd_flow_method_of(problem->options.method);
        flow->problem = problem;
        flow->kernels = of->kernels;
        flow->comm = of->comm;
        flow->user = &of->user;
        flow->leftward = leftward;
        flow->n = problem->nranks;
        /* its place in the flow, counted from where the flow begins */
        flow->p = leftward ? problem->nranks - 1 - problem->me : problem->me;
        flow->twin = twin;
        mine = hd_flow_alloc(&flow->own, flow, problem->state_bytes);
    }
    if (mine == HEDDLE_OK) {
        mine = hd_flow_alloc(&flow->in, flow, problem->state_bytes);
    }
    if (mine == HEDDLE_OK) {
        mine = hd_flow_alloc(&flow->out, flow, problem->state_bytes);
    }
    HD_TRY(hd_comm_agree(of->comm, mine));
    HD_TRY(flow->method->create(flow));
    *out = flow;
    flow = NULL;
out:
    hd_flow_destroy(flow);
    return st;
}

void hd_flow_destroy(hd_flow *flow)
{
    if (flow == NULL) {
        return;
    }
    for (int i = 0; i < HD_FLOW_TRANSFERS; i++) {
        hd_transfer_destroy(flow->transfer[i]);
    }
    for (int i = 0; i < HD_FLOW_CHANNELS; i++) {
        hd_channel_destroy(flow->channel[i]);
    }
    hd_free(flow);
}
