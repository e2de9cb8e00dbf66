/* What a plan says about itself. */
#include "runtime/reshard/plan.h"

#include <stdio.h>
#include <string.h>

int hd_plan_ways(const heddle_reshard *plan)
{
    int ways = 0;
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_info t;
        hd_transfer_get_info(&t, plan->bare->transfer[p]);
        ways |= (t.any_near ? HD_WAY_NEAR : 0) | (t.any_messages ? HD_WAY_MESSAGES : 0);
    }
    return ways;
}

/* The phase whose lanes carry most of this rank's bytes. */
static void main_phase(hd_transfer_info *out, const heddle_reshard *plan)
{
    hd_transfer_get_info(out, plan->bare->transfer[0]);
    for (int p = 1; p < plan->nphases; p++) {
        hd_transfer_info t;
        hd_transfer_get_info(&t, plan->bare->transfer[p]);
        if (hd_lanes_bytes(t.lanes) > hd_lanes_bytes(out->lanes)) {
            *out = t;
        }
    }
}

static const char *path_name(const heddle_reshard *plan, const hd_transfer_info *t)
{
    const int ways = hd_plan_ways(plan);
    if (!(ways & HD_WAY_NEAR)) {
        return ways & HD_WAY_MESSAGES ? "messages" : "local";
    }
    if (ways & HD_WAY_MESSAGES) {
        return "mixed";
    }
    if (t->is_private) {
        return t->reach == HD_REACH_READV ? "process_vm_readv" : "staged";
    }
    return t->push ? "peer push" : "peer pull";
}

static const char *path_reason(const heddle_reshard *plan, const hd_transfer_info *t)
{
    const int ways = hd_plan_ways(plan);
    if (!(ways & HD_WAY_NEAR)) {
        return ways & HD_WAY_MESSAGES ? "no two ranks reach each other's memory"
                                      : "no rank needs anything from another";
    }
    if (ways & HD_WAY_MESSAGES) {
        return "ranks of one host copy, the others send messages";
    }
    if (t->any_adds) {
        return "receivers read the terms where they lie and add in rank order";
    }
    if (t->is_private) {
        return "private memory may come; sources that peers reach are read directly";
    }
    if (t->is_open) {
        return "both sides lie in long pieces or both are cut, so either rank may move";
    }
    if (t->push) {
        return "the source is the interleaved side, its owner walks it in order";
    }
    return t->walk_src ? "receivers copy" : "the destination is the interleaved side or both lie together";
}

void hd_plan_explain(heddle_reshard *plan, const char *before)
{
    hd_transfer_info t;
    main_phase(&t, plan);
    const hd_lane_group *group = hd_lanes_largest(t.lanes);
    char how[96] = "";
    snprintf(plan->path, sizeof plan->path, "%s", path_name(plan, &t));
    snprintf(plan->kernel_name, sizeof plan->kernel_name, "%s",
             group != NULL ? group->kernel->name
                           : (!t.adds     ? "none"
                              : t.streams ? "sum_rows_nt"
                                          : "sum_rows"));
    if (group != NULL) {
        snprintf(how, sizeof how, ", runs of %lld bytes, %d cop%s walked in %d group%s",
                 (long long)t.lanes->lane[group->first].run_bytes, t.lanes->nlanes, t.lanes->nlanes == 1 ? "y" : "ies",
                 t.lanes->ngroups, t.lanes->ngroups == 1 ? "" : "s");
    }
    snprintf(plan->why, sizeof plan->why, "%s%s; %s%s%s%s", before, path_reason(plan, &t), plan->kernel_name, how,
             plan->trials[0] != 0 ? "; " : "", plan->trials);
}

int hd_reshard_counts_late(const heddle_reshard *plan)
{
    return plan->route->carrier->counts_late;
}

int64_t hd_reshard_measured_bytes(const heddle_reshard *plan)
{
    const int64_t *sent = plan->route->carrier->sent(plan->route);
    int64_t measured = 0;
    for (int r = 0; r < plan->nranks; r++) {
        measured += sent[r];
    }
    return measured;
}

heddle_status heddle_reshard_get_info(heddle_reshard_info *out, const heddle_reshard *reshard)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, reshard));
    hd_route_info r;
    hd_route_get_info(&r, reshard->route);
    heddle_reshard_info info = {.nranks = reshard->nranks,
                                .bytes_to = reshard->bytes_to,
                                .bytes_from = reshard->bytes_from,
                                .bytes_sent = reshard->plan_bytes,
                                .bytes_peer_path = r.bytes_near,
                                .bytes_messages = r.bytes_messages,
                                .messages = r.messages,
                                .workspace_bytes = r.workspace_bytes,
                                .src_bytes = (size_t)reshard->request.src_bytes,
                                .dst_bytes = (size_t)reshard->request.dst_bytes,
                                .executions = r.executions,
                                .measured_bytes_sent = hd_reshard_measured_bytes(reshard),
                                .measured_bytes_to = reshard->route->carrier->sent(reshard->route),
                                .path = reshard->path,
                                .kernel = reshard->kernel_name,
                                .why = r.why != NULL ? r.why : reshard->why,
                                .line = reshard->line_text,
                                .wire = r.wire,
                                .is_capturable = r.is_capturable,
                                .device_ns = r.device_ns,
                                .is_captured = r.is_captured};
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_reshard_info, nranks));
out:
    return st;
}
