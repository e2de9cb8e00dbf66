/* Flows: what the methods that carry states have in common. */
#include "runtime/attention/linear_internal.h"

#include <math.h>
#include <string.h>

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

static int member_at(const hd_flow *flow, int position)
{
    return flow->leftward ? flow->n - 1 - position : position;
}

int hd_flow_rank(const hd_flow *flow, int position)
{
    return flow->problem->rank[member_at(flow, position)];
}

int64_t hd_flow_rows(const hd_flow *flow, int position)
{
    return flow->problem->member_rows[member_at(flow, position)];
}

heddle_status hd_flow_alloc(void **out, hd_flow *flow, int64_t bytes)
{
    flow->allocated_bytes += bytes;
    return heddle_buffer_alloc(out, flow->comm, (size_t)bytes + 64, flow->problem->options.space); /* peers read it */
}

heddle_status hd_flow_create(hd_flow **out, heddle_comm *comm, const hd_linear_problem *problem,
                             const hd_linear_kernels *kernels, int leftward, hd_flow *twin)
{
    heddle_status st = HEDDLE_OK;
    hd_flow *flow = NULL;
    heddle_status mine = hd_alloc((void **)&flow, 1, sizeof *flow, "a flow of states");
    if (mine == HEDDLE_OK) {
        flow->method = hd_flow_method_of(problem->options.method);
        flow->problem = problem;
        flow->kernels = kernels;
        flow->comm = comm;
        flow->leftward = leftward;
        flow->n = problem->nranks;
        flow->p = member_at(flow, problem->me);
        flow->twin = twin;
        mine = hd_flow_alloc(&flow->own, flow, problem->state_bytes);
    }
    if (mine == HEDDLE_OK) {
        mine = hd_flow_alloc(&flow->in, flow, problem->state_bytes);
    }
    if (mine == HEDDLE_OK) {
        mine = hd_flow_alloc(&flow->out, flow, problem->state_bytes);
    }
    HD_TRY(hd_comm_agree(comm, mine));
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
    void *const memory[] = {flow->own, flow->in, flow->out, flow->all};
    for (int i = 0; i < 4; i++) {
        if (memory[i] != NULL) {
            heddle_buffer_free(flow->comm, memory[i]);
        }
    }
    hd_free(flow);
}

heddle_status hd_flow_begin(hd_flow *flow)
{
    flow->given = flow->out_given = flow->ready = flow->done = 0;
    flow->receiving = flow->sending = flow->step = 0;
    memset(flow->in, 0, (size_t)flow->problem->state_bytes);
    if (flow->problem->state_elems == 0) { /* nobody here has any */
        flow->ready = flow->done = 1;
        return HEDDLE_OK;
    }
    return flow->method->begin(flow);
}

heddle_status hd_flow_give(hd_flow *flow, int out_given)
{
    flow->given = 1;
    flow->out_given = out_given;
    return hd_flow_test(flow);
}

heddle_status hd_flow_test(hd_flow *flow)
{
    return flow->done ? HEDDLE_OK : flow->method->test(flow);
}

void hd_flow_fold(const hd_flow *flow, void *dst, int64_t rows, const void *state, const void *add)
{
    const hd_linear_problem *p = flow->problem;
    size_t elems = (size_t)(p->dk * p->dv), bytes = elems * flow->kernels->real_bytes;
    for (int64_t i = 0; i < p->batch * p->heads; i++) {
        double factor = pow(p->decay[p->head_lo + i % p->heads], (double)rows);
        size_t at = (size_t)i * bytes;
        flow->kernels->fold((unsigned char *)dst + at, factor, (const unsigned char *)state + at,
                            (const unsigned char *)add + at, (int64_t)elems);
    }
}

hd_part hd_flow_part(const hd_flow *flow, int peer, int64_t dst_offset)
{
    return (hd_part){.peer = peer, .copy = {.dst_offset_bytes = dst_offset, .run_bytes = flow->problem->state_bytes}};
}

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

heddle_status hd_flow_start(hd_flow *flow, int channel, int transfer, const void *src, void *dst, int messages)
{
    const hd_leg leg = {flow->transfer[transfer], src, dst};
    flow->sent_messages += messages;
    return hd_channel_start(flow->channel[channel], &leg, 1);
}

heddle_status hd_flow_moved(hd_flow *flow, int channel, int *done)
{
    return hd_channel_progress(flow->channel[channel], done);
}
