/* Flows, moving: what the methods that carry states have in common, and waiting for them. */
#include "runtime/attention/linear_internal.h"

#include <math.h>
#include <string.h>

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

heddle_status hd_flow_start(hd_flow *flow, int channel, int transfer, const void *src, void *dst, int messages)
{
    const hd_leg leg = {flow->transfer[transfer], src, dst};
    flow->sent_messages += messages;
    return flow->lends ? hd_channel_lend(flow->channel[channel], &leg)
                       : hd_channel_start(flow->channel[channel], &leg, 1);
}

/* --- those of a call ---------------------------------------------------------------------------------------------- */

static heddle_status test_flows(heddle_linear_attention *a)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 2 && st == HEDDLE_OK; i++) {
        st = a->uses[i] ? hd_flow_test(a->flow[i]) : HEDDLE_OK;
    }
    return st;
}

heddle_status hd_linear_poll(heddle_linear_attention *a, int thread)
{
    return thread == 0 ? test_flows(a) : HEDDLE_OK;
}

heddle_status hd_linear_forgo(heddle_linear_attention *a, heddle_status st)
{
    for (int i = 0; i < 2; i++) {
        const hd_flow *flow = a->flow[i];
        int is_under_way = flow != NULL && flow->lends && (flow->receiving || flow->sending);
        for (int channel = 0; is_under_way && channel < HD_FLOW_CHANNELS; channel++) {
            st = hd_channel_forgo(flow->channel[channel], st);
        }
    }
    return st;
}

/* The first flow that is not there yet; NULL: none. */
static const hd_flow *late_flow(const heddle_linear_attention *a, int done)
{
    for (int i = 0; i < 2; i++) {
        if (a->uses[i] && !(done ? a->flow[i]->done : a->flow[i]->ready)) {
            return a->flow[i];
        }
    }
    return NULL;
}

/* Whom the flows wait for. A state that is lent goes from rank to rank. */
static heddle_status stand(const heddle_linear_attention *a)
{
    hd_wait wait = {.call = "a linear attention"};
    for (int i = 0; i < 2; i++) {
        const hd_flow *flow = a->flow[i];
        if (!a->uses[i] || flow->done) {
            continue;
        }
        if (!flow->lends) {
            hd_channel *channel = flow->channel[0] != NULL ? flow->channel[0] : flow->channel[1];
            return channel != NULL ? hd_channel_stand(channel, -1) : HEDDLE_OK;
        }
        wait.key = 4 * wait.key + (uint64_t)(flow->receiving ? 1 : flow->sending ? 2 : 3);
        if (flow->receiving || flow->sending) {
            wait.peer[wait.npeers++] = flow->waits_for;
        }
    }
    return hd_comm_stand(a->comm, &wait);
}

heddle_status hd_linear_wait(heddle_linear_attention *a, int done)
{
    heddle_status st = HEDDLE_OK;
    if (late_flow(a, done) == NULL) {
        return HEDDLE_OK;
    }
    int64_t start_ns = hd_now_ns(), deadline_ns = hd_comm_deadline_ns(a->comm, a->problem.options.deadline_ms);
    for (int round = 0;; round++) {
        HD_TRY(test_flows(a));
        const hd_flow *late = late_flow(a, done);
        if (late == NULL) {
            break;
        }
        HD_TRY(hd_comm_check(a->comm));
        if (hd_now_ns() > deadline_ns) {
            st = hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: the state of rank %d did not come in time (%s)",
                         hd_comm_rank_name(a->comm, heddle_comm_rank(a->comm)),
                         hd_comm_rank_name(a->comm, late->waits_for), late->method->name);
            goto out;
        }
        HD_TRY(hd_comm_rests(a->comm, round) ? stand(a) : HEDDLE_OK);
        hd_comm_relax(a->comm, round);
    }
out:
    hd_comm_go_on(a->comm);
    a->wait_ns += hd_now_ns() - start_ns;
    return st;
}
