/* States from rank to rank on a device: the steps of lasp, lasp2 and scan as routes, and folds between them. All ranks
 * come to all steps, also to those that are of others. */
#include "runtime/attention/linear_on.h"

#include <stdlib.h>

static int member_at(const struct hd_linear_on *on, const hd_linear_flow *flow, int p)
{
    return flow->leftward ? on->problem->nranks - 1 - p : p;
}

static int64_t rows_at(const struct hd_linear_on *on, const hd_linear_flow *flow, int p)
{
    return on->problem->member_rows[member_at(on, flow, p)];
}

static int steps_of(const struct hd_linear_on *on)
{
    const int n = on->problem->nranks;
    int steps = 0;
    if (on->problem->options.method != HEDDLE_LINEAR_SCAN) {
        return on->problem->options.method == HEDDLE_LINEAR_LASP ? n - 1 : 1;
    }
    while (1 << steps < n) {
        steps++;
    }
    return steps;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static int by_peer(const void *a, const void *b)
{
    return ((const hd_item *)a)->peer - ((const hd_item *)b)->peer;
}

/* The items of a step, at most one for each member. */
typedef struct step_items {
    hd_item *send, *recv;
    int sends, recvs;
} step_items;

static hd_item item_of(const struct hd_linear_on *on, const hd_linear_flow *flow, int p, int64_t at)
{
    const int64_t bytes = on->problem->state_bytes;
    return (hd_item){.peer = on->problem->rank[member_at(on, flow, p)],
                     .copy = {.dst_offset_bytes = at * bytes, .run_bytes = bytes}};
}

static void take_items(step_items *out, const struct hd_linear_on *on, const hd_linear_flow *flow, int step)
{
    const int n = on->problem->nranks, p = flow->p;
    out->sends = out->recvs = 0;
    if (on->problem->state_bytes == 0) {
        return;
    }
    if (on->problem->options.method == HEDDLE_LINEAR_LASP2) {
        for (int other = 0; other < n; other++) {
            if (other != p) {
                out->send[out->sends++] = item_of(on, flow, other, member_at(on, flow, p));
                out->recv[out->recvs++] = item_of(on, flow, other, member_at(on, flow, other));
            }
        }
        qsort(out->send, (size_t)out->sends, sizeof *out->send, by_peer);
        qsort(out->recv, (size_t)out->recvs, sizeof *out->recv, by_peer);
        return;
    }
    const int is_scan = on->problem->options.method == HEDDLE_LINEAR_SCAN, far = is_scan ? 1 << step : 1;
    if (p + far < n && (is_scan || p == step)) {
        out->send[out->sends++] = item_of(on, flow, p + far, 0);
    }
    if (p - far >= 0 && (is_scan || p == step + 1)) {
        out->recv[out->recvs++] = item_of(on, flow, p - far, 0);
    }
}

static heddle_status make_route(hd_route **out, struct hd_linear_on *on, const step_items *items)
{
    const hd_linear_problem *p = on->problem;
    const int64_t all = (p->options.method == HEDDLE_LINEAR_LASP2 ? p->nranks : 1) * p->state_bytes;
    const hd_route_spec spec = {
        .options = {.deadline_ms = p->options.deadline_ms, .what = "step of a state", .line = ""},
        .space = HEDDLE_SPACE_DEVICE,
        .phase = {{.transfer = {.send = {items->send, items->sends},
                                .recv = {items->recv, items->recvs},
                                .src_bytes = (size_t)p->state_bytes,
                                .dst_bytes = (size_t)all,
                                .space = HEDDLE_SPACE_DEVICE,
                                .footprint_bytes = p->state_bytes * (items->sends + items->recvs)},
                   .src = {.in = HD_IN_SRC},
                   .dst = {.in = HD_IN_DST}}},
        .nphases = 1,
        .whole_src = {.run_bytes = items->sends > 0 ? p->state_bytes : 0},
        .whole_dst = {.run_bytes = items->recvs > 0 ? all : 0}, /* else dst keeps what an earlier step has brought */
        .src_bytes = p->state_bytes,
        .dst_bytes = all,
        .dtype = HEDDLE_F32,
        .elem_bytes = sizeof(float)};
    return hd_route_create(out, on->comm, &spec, HEDDLE_OK);
}

static heddle_status take_memory(struct hd_linear_on *on, hd_linear_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    const hd_linear_problem *p = on->problem;
    const int64_t elems = p->state_elems;
    HD_TRY(hd_linear_on_take(&flow->own, on, elems, &on->workspace_bytes));
    HD_TRY(hd_linear_on_take(&flow->in, on, elems, &on->workspace_bytes));
    HD_TRY(hd_linear_on_take(&flow->out, on, elems, &on->workspace_bytes));
    if (p->options.method != HEDDLE_LINEAR_LASP && flow->twin == NULL) {
        const int many = p->options.method == HEDDLE_LINEAR_LASP2 ? p->nranks : 1;
        HD_TRY(hd_linear_on_take(&flow->come, on, many * elems, &on->workspace_bytes));
    }
    st = hd_alloc((void **)&flow->route, (size_t)steps_of(on), sizeof(hd_route *), "a flow of states");
out:
    return st;
}

static heddle_status make_flow(struct hd_linear_on *on, hd_linear_flow *flow, int which, hd_linear_flow *twin)
{
    heddle_status st = HEDDLE_OK;
    const hd_linear_problem *p = on->problem;
    step_items items = {NULL, NULL, 0, 0};
    flow->which = which;
    flow->leftward = which == HD_WALKS_KV_RIGHT || which == HD_WALKS_G_RIGHT;
    flow->p = flow->leftward ? p->nranks - 1 - p->me : p->me;
    flow->twin = twin;
    heddle_status mine = take_memory(on, flow);
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&items.send, (size_t)p->nranks, sizeof(hd_item), "items") : mine;
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&items.recv, (size_t)p->nranks, sizeof(hd_item), "items") : mine;
    HD_TRY(hd_comm_agree(on->comm, mine));
    for (int step = 0; twin == NULL && step < steps_of(on); step++) {
        take_items(&items, on, flow, step);
        HD_TRY(make_route(&flow->route[step], on, &items));
        flow->nroutes++;
    }
out:
    HD_FREE_ALL(items.send, items.recv);
    return st;
}

heddle_status hd_linear_flows_make(struct hd_linear_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_linear_problem *p = on->problem;
    const int both = p->options.bidirectional, gathers = p->options.method == HEDDLE_LINEAR_LASP2;
    if (p->nranks == 1) {
        return HEDDLE_OK;
    }
    for (int is_back = 0; is_back < 2; is_back++) {
        hd_linear_flow *flow = on->flow[is_back];
        hd_linear_flow *twin = gathers && p->all_ones ? &flow[0] : NULL;
        if (both || !is_back) {
            HD_TRY(make_flow(on, &flow[0], is_back ? HD_WALKS_G_LEFT : HD_WALKS_KV_LEFT, NULL));
        }
        if (both || is_back) {
            HD_TRY(make_flow(on, &flow[1], is_back ? HD_WALKS_G_RIGHT : HD_WALKS_KV_RIGHT, both ? twin : NULL));
        }
    }
out:
    return st;
}

void hd_linear_flows_free(struct hd_linear_on *on)
{
    for (int i = 0; i < 4; i++) {
        hd_linear_flow *flow = &on->flow[i / 2][i % 2];
        for (int step = 0; step < flow->nroutes; step++) {
            hd_route_destroy(flow->route[step]);
        }
        hd_free(flow->route);
        flow->route = NULL;
        flow->nroutes = 0;
    }
}

/* --- going -------------------------------------------------------------------------------------------------------- */

static heddle_status fold(struct hd_linear_on *on, float *dst, int64_t rows, const float *state, const float *add)
{
    return hd_device_launched(on->device, hd_linear_walks_fold(&on->walks, dst, rows, state, add), "linear_states");
}

static heddle_status step_on(struct hd_linear_on *on, hd_linear_flow *flow, int step, const float *src, float *dst)
{
    hd_route *route = flow->route[step];
    return route->carrier->run(route, src, dst, on->walks.stream);
}

static heddle_status from_neighbour(struct hd_linear_on *on, hd_linear_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    for (int step = 0; step < flow->nroutes; step++) {
        if (step == flow->p) {
            HD_TRY(fold(on, flow->out, rows_at(on, flow, flow->p), flow->p > 0 ? flow->in : NULL, flow->own));
        }
        HD_TRY(step_on(on, flow, step, flow->out, flow->in));
    }
out:
    return st;
}

static heddle_status from_all(struct hd_linear_on *on, hd_linear_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    const float *all = flow->twin != NULL ? flow->twin->come : flow->come;
    HD_TRY(flow->twin == NULL ? step_on(on, flow, 0, flow->own, flow->come) : HEDDLE_OK);
    for (int p = 0; p < flow->p; p++) {
        const float *own = all + member_at(on, flow, p) * on->problem->state_elems;
        HD_TRY(rows_at(on, flow, p) > 0 || p == 0
                   ? fold(on, flow->in, rows_at(on, flow, p), p > 0 ? flow->in : NULL, own)
                   : HEDDLE_OK);
    }
out:
    return st;
}

/* Before step k, in = the ranks p-2^k+1 .. p-1; the rank 2^k further gets that together with this rank's own. */
static heddle_status by_scan(struct hd_linear_on *on, hd_linear_flow *flow)
{
    heddle_status st = HEDDLE_OK;
    for (int step = 0; step < flow->nroutes; step++) {
        const int far = 1 << step;
        const float *before = step > 0 && flow->p > 0 ? flow->in : NULL;
        int64_t between = 0;
        for (int p = flow->p - far + 1; p < flow->p; p++) {
            between += p >= 0 ? rows_at(on, flow, p) : 0;
        }
        if (flow->p + far < on->problem->nranks) {
            HD_TRY(fold(on, flow->out, rows_at(on, flow, flow->p), before, flow->own));
        }
        HD_TRY(step_on(on, flow, step, flow->out, flow->come));
        if (flow->p - far >= 0) { /* without rows between there is nothing of them */
            HD_TRY(fold(on, flow->in, between, flow->come, between > 0 ? before : NULL));
        }
    }
out:
    return st;
}

heddle_status hd_linear_flow_go(struct hd_linear_on *on, hd_linear_flow *flow)
{
    const heddle_linear_method method = on->problem->options.method;
    return method == HEDDLE_LINEAR_LASP    ? from_neighbour(on, flow)
           : method == HEDDLE_LINEAR_LASP2 ? from_all(on, flow)
                                           : by_scan(on, flow);
}

static void add_moved(int64_t *bytes, int64_t *messages, const hd_linear_flow *flow)
{
    for (int i = 0; i < flow->nroutes; i++) {
        const hd_route *route = flow->route[i];
        const int64_t *sent = route->carrier->sent(route);
        hd_route_info info;
        hd_route_get_info(&info, route);
        for (int r = 0; r < route->nranks; r++) {
            *bytes += sent[r];
            *messages += sent[r] > 0 ? info.executions : 0;
        }
    }
}

void hd_linear_flows_moved(heddle_attention_traffic *out, const struct hd_linear_on *on)
{
    *out = (heddle_attention_traffic){0, 0, 0, 0};
    for (int i = 0; i < 2; i++) {
        add_moved(&out->forward_bytes, &out->forward_messages, &on->flow[0][i]);
        add_moved(&out->backward_bytes, &out->backward_messages, &on->flow[1][i]);
    }
}
