/* Exclusive scan of the pairs (g^length, state) in ceil(log2 N) steps of one state.
 *
 * (f1, S1) then (f2, S2) is (f1 f2, f2 S1 + S2), which is associative. The factors follow from the layout, so only
 * states travel. Before step k, in = the ranks p-2^k+1 .. p-1; the rank 2^k further gets that together with this rank's
 * own.
 */
#include "runtime/attention/linear_internal.h"

#include <string.h>

static int64_t serial_steps(int n)
{
    int64_t steps = 0;
    while ((int64_t)1 << steps < n) {
        steps++;
    }
    return steps;
}

static heddle_status create(hd_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    hd_transfer_spec spec[HD_FLOW_TRANSFERS];
    hd_item send[HD_FLOW_TRANSFERS], recv[HD_FLOW_TRANSFERS];
    int steps = (int)serial_steps(flow->n);
    size_t bytes = (size_t)flow->problem->state_bytes;
    memset(spec, 0, sizeof spec);
    HD_TRY(hd_comm_agree(flow->comm, hd_flow_alloc(&flow->all, flow, (int64_t)bytes))); /* what arrives */
    for (int k = 0; k < steps; k++) {
        int d = 1 << k;
        spec[k].src_bytes = spec[k].dst_bytes = bytes;
        if (flow->p + d < flow->n) {
            send[k] = hd_flow_item(flow, hd_flow_rank(flow, flow->p + d), 0);
            spec[k].send = (hd_items){&send[k], 1};
        }
        if (flow->p - d >= 0) {
            recv[k] = hd_flow_item(flow, hd_flow_rank(flow, flow->p - d), 0);
            spec[k].recv = (hd_items){&recv[k], 1};
        }
    }
    HD_TRY(hd_flow_open(flow, 0, 0, spec, steps));
out:
    return st;
}

static heddle_status begin(hd_flow *flow)
{
    flow->waits_for = hd_flow_rank(flow, flow->p > 0 ? flow->p - 1 : 1);
    return HEDDLE_OK;
}

/* Rows of the ranks that `in` covers before step k. */
static int64_t window_rows(const hd_flow *flow, int d)
{
    int64_t rows = 0;
    for (int p = flow->p - d + 1; p < flow->p; p++) {
        rows += p >= 0 ? hd_flow_rows(flow, p) : 0;
    }
    return rows;
}

static heddle_status start_step(hd_flow *flow, int d)
{
    int sends = flow->p + d < flow->n, receives = flow->p - d >= 0;
    if (sends) {
        hd_flow_fold(flow, flow->out, hd_flow_rows(flow, flow->p), flow->in, flow->own);
    }
    flow->sending = 1;
    flow->waits_for = hd_flow_rank(flow, receives ? flow->p - d : sends ? flow->p + d : flow->p);
    return hd_flow_start(flow, 0, flow->step, flow->out, flow->all, sends);
}

static heddle_status test(hd_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    int steps = (int)serial_steps(flow->n);
    while (flow->given && flow->step < steps) {
        int d = 1 << flow->step, done = 0;
        if (!flow->sending) {
            HD_TRY(start_step(flow, d));
        }
        HD_TRY(hd_channel_progress(flow->channel[0], &done));
        if (!done) {
            return HEDDLE_OK;
        }
        if (flow->p - d >= 0) {
            void *arrived = flow->all;
            hd_flow_fold(flow, arrived, window_rows(flow, d), arrived, flow->in);
            flow->all = flow->in;
            flow->in = arrived;
        }
        flow->sending = 0;
        flow->step++;
    }
    flow->ready = flow->done = flow->given;
out:
    return st;
}

const hd_flow_method hd_flow_scan = {
    .name = "scan", .serial_steps = serial_steps, .create = create, .begin = begin, .test = test};
