/* LASP-2: one all-gather of the states, then every rank folds those before it (arXiv 2502.07563, section 3). One step,
 * N-1 states sent by every rank.
 *
 * The paper has no decay here; with it a state fades by g^length of every rank it passes.
 */
#include "runtime/attention/linear_internal.h"

#include <stdlib.h>

static int64_t serial_steps(int n)
{
    (void)n;
    return 1;
}

static int by_peer(const void *a, const void *b)
{
    return ((const hd_item *)a)->peer - ((const hd_item *)b)->peer;
}

static heddle_status create(hd_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    hd_item *send = NULL, *recv = NULL;
    int64_t bytes = flow->problem->state_bytes;
    int me = flow->problem->me;
    if (flow->twin != NULL) {
        return HEDDLE_OK;
    }
    hd_transfer_spec spec = {.src_bytes = (size_t)bytes, .dst_bytes = (size_t)(bytes * flow->n)};
    heddle_status mine = hd_alloc((void **)&send, (size_t)flow->n, sizeof *send, "items of lasp2");
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&recv, (size_t)flow->n, sizeof *recv, "items of lasp2") : mine;
    mine = mine == HEDDLE_OK ? hd_flow_alloc(&flow->all, flow, bytes * flow->n) : mine;
    HD_TRY(hd_comm_agree(flow->comm, mine));
    for (int m = 0; m < flow->n; m++) {
        if (m != me) {
            send[spec.send.count++] = hd_flow_item(flow, flow->problem->rank[m], me * bytes);
            recv[spec.recv.count++] = hd_flow_item(flow, flow->problem->rank[m], m * bytes);
        }
    }
    qsort(send, (size_t)spec.send.count, sizeof *send, by_peer);
    qsort(recv, (size_t)spec.recv.count, sizeof *recv, by_peer);
    spec.send.item = send;
    spec.recv.item = recv;
    HD_TRY(hd_flow_open(flow, 0, 0, &spec, 1));
out:
    hd_free(send);
    hd_free(recv);
    return st;
}

static heddle_status begin(hd_flow *flow)
{
    flow->waits_for = hd_flow_rank(flow, flow->p > 0 ? flow->p - 1 : flow->p + 1);
    return HEDDLE_OK;
}

static void fold_all(hd_flow *flow, const unsigned char *all)
{
    for (int p = 0; p < flow->p; p++) {
        int member = flow->leftward ? flow->n - 1 - p : p;
        hd_flow_fold(flow, flow->in, hd_flow_rows(flow, p), flow->in, all + member * flow->problem->state_bytes);
    }
}

static heddle_status test(hd_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    int gathered = 0;
    if (flow->twin != NULL) {
        gathered = flow->given && flow->twin->done;
    } else if (flow->given && flow->step == 0) {
        flow->step = 1;
        HD_TRY(hd_flow_start(flow, 0, 0, flow->own, flow->all, flow->n - 1));
    }
    if (flow->step == 1) {
        HD_TRY(hd_channel_progress(flow->channel[0], &gathered));
    }
    if (gathered) {
        fold_all(flow, flow->twin != NULL ? flow->twin->all : flow->all);
        flow->ready = flow->done = 1;
    }
out:
    return st;
}

const hd_flow_method hd_flow_lasp2 = {
    .name = "lasp2", .serial_steps = serial_steps, .create = create, .begin = begin, .test = test};
