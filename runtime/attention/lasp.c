/* LASP: the state travels from rank to rank (arXiv 2404.02882). N-1 messages of one state per direction,
 * whatever the length.
 *
 * A rank that has done its own work when the state arrives adds its part and sends it on at once: only that is serial.
 * Where all ranks reach one another's memory a state is lent instead, and the next rank takes it from where it lies.
 */
#include "runtime/attention/linear_internal.h"

static int64_t serial_steps(int n)
{
    return n - 1;
}

/* Edge p -> p+1 belongs to channel p % 2, so that a rank receives in one and sends in the other. */
static int edge_in(const hd_flow *flow)
{
    return (flow->p + 1) % 2;
}

static int edge_out(const hd_flow *flow)
{
    return flow->p % 2;
}

static heddle_status create(hd_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    flow->lends = hd_can_lend(flow->comm);
    for (int i = 0; i < 2; i++) {
        size_t bytes = (size_t)flow->problem->state_bytes;
        hd_transfer_spec spec = {.src_bytes = bytes, .dst_bytes = bytes, .lends = flow->lends};
        hd_item item;
        if (i == edge_out(flow) && flow->p + 1 < flow->n) {
            item = hd_flow_item(flow, hd_flow_rank(flow, flow->p + 1), 0);
            spec.send = (hd_items){&item, 1};
        } else if (i == edge_in(flow) && flow->p > 0) {
            item = hd_flow_item(flow, hd_flow_rank(flow, flow->p - 1), 0);
            spec.recv = (hd_items){&item, 1};
        }
        HD_TRY(hd_flow_open(flow, i, i, &spec, 1));
    }
out:
    return st;
}

static heddle_status begin(hd_flow *flow)
{
    flow->receiving = flow->p > 0;
    flow->ready = !flow->receiving;
    flow->waits_for = flow->receiving ? hd_flow_rank(flow, flow->p - 1) : -1;
    return flow->receiving ? hd_flow_start(flow, edge_in(flow), edge_in(flow), flow->out, flow->in, 0) : HEDDLE_OK;
}

/* out = what this rank passes on */
static heddle_status send_on(hd_flow *flow)
{
    if (!flow->out_given) {
        hd_flow_fold(flow, flow->out, hd_flow_rows(flow, flow->p), flow->in, flow->own);
    }
    flow->step = 1;
    flow->sending = 1;
    flow->waits_for = hd_flow_rank(flow, flow->p + 1);
    return hd_flow_start(flow, edge_out(flow), edge_out(flow), flow->out, flow->in, 1);
}

/* in = the state before this rank, once it is there */
static heddle_status receive(hd_flow *flow, int *done)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *channel = flow->channel[edge_in(flow)];
    int64_t bytes;
    if (!flow->lends) {
        return hd_channel_progress(channel, done);
    }
    HD_TRY(hd_channel_fetch(channel, hd_flow_rank(flow, flow->p - 1), flow->in, &bytes));
    *done = bytes > 0;
    if (*done) {
        HD_TRY(hd_channel_regain(channel)); /* this rank has lent nothing there */
    }
out:
    return st;
}

/* Has the next rank taken the state? */
static heddle_status finish_sending(hd_flow *flow, int *done)
{
    hd_channel *channel = flow->channel[edge_out(flow)];
    return flow->lends ? hd_channel_try_regain(channel, done) : hd_channel_progress(channel, done);
}

static heddle_status test(hd_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    int done = 0;
    if (flow->receiving) {
        HD_TRY(receive(flow, &done));
        flow->receiving = !done;
        flow->ready = done;
    }
    if (flow->ready && flow->given && flow->step == 0 && flow->p + 1 < flow->n) {
        HD_TRY(send_on(flow));
    }
    if (flow->sending) {
        HD_TRY(finish_sending(flow, &done));
        flow->sending = !done;
    }
    flow->done = flow->ready && flow->given && !flow->sending;
out:
    return st;
}

const hd_flow_method hd_flow_lasp = {
    .name = "lasp", .serial_steps = serial_steps, .create = create, .begin = begin, .test = test};
