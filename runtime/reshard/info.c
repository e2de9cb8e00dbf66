/* What a plan says about itself. */
#include "runtime/reshard/plan.h"

#include <stdio.h>
#include <string.h>

/* The step and the lanes that carry most of this rank's bytes. */
static const hd_lanes *main_lanes(const heddle_reshard *plan, const hd_step **step)
{
    const hd_lanes *best = NULL;
    int64_t most = -1;
    *step = &plan->step[0];
    for (int p = 0; p < plan->nsteps; p++) {
        const hd_lanes *lanes = &plan->step[p].lanes;
        int64_t bytes = 0;
        for (int i = 0; i < lanes->nlanes; i++) {
            bytes += lanes->at[i].bytes;
        }
        if (bytes > most) {
            most = bytes;
            best = lanes;
            *step = &plan->step[p];
        }
    }
    return best;
}

static const char *path_name(const heddle_reshard *plan, const hd_step *step)
{
    if (!plan->any_peer) {
        return plan->any_mail ? "messages" : "local";
    }
    if (plan->any_mail) {
        return "mixed";
    }
    if (step->own.used) {
        return plan->reach == HD_REACH_READV ? "process_vm_readv" : "staged";
    }
    return step->push ? "peer push" : "peer pull";
}

static const char *path_reason(const heddle_reshard *plan, const hd_step *step)
{
    if (!plan->any_peer && !plan->any_mail) {
        return "no rank needs anything from another";
    }
    if (!plan->any_peer) {
        return "no two ranks reach each other's memory";
    }
    if (plan->any_mail) {
        return "ranks of one host copy, the others send messages";
    }
    if (step->any_sums) {
        return "receivers read the terms where they lie and add in rank order";
    }
    if (step->own.used) {
        return "private memory may come; sources that peers reach are read directly";
    }
    if (step->is_open) {
        return "both sides lie in long pieces or both are cut, so either rank may move";
    }
    if (step->push) {
        return "the source is the interleaved side, its owner walks it in order";
    }
    return step->walk_src ? "receivers copy" : "the destination is the interleaved side or both lie together";
}

void hd_plan_explain(heddle_reshard *plan)
{
    const hd_step *step;
    const hd_lanes *lanes = main_lanes(plan, &step);
    const hd_lane_group *group = lanes != NULL ? hd_lanes_largest(lanes) : NULL;
    char trials[sizeof plan->trials];
    snprintf(plan->path, sizeof plan->path, "%s", path_name(plan, step));
    snprintf(plan->kernel_name, sizeof plan->kernel_name, "%s",
             group != NULL ? group->kernel->name : (step->recv.sums ? "sum_rows" : "none"));
    snprintf(trials, sizeof trials, "%s", plan->trials);
    char how[96] = "";
    if (group != NULL) {
        snprintf(how, sizeof how, ", runs of %lld bytes, %d cop%s walked in %d group%s",
                 (long long)lanes->lane[group->first].run_bytes, lanes->nlanes, lanes->nlanes == 1 ? "y" : "ies",
                 lanes->ngroups, lanes->ngroups == 1 ? "" : "s");
    }
    snprintf(plan->why, sizeof plan->why, "%s; %s%s%s%s", path_reason(plan, step), plan->kernel_name, how,
             trials[0] != 0 ? "; " : "", trials);
}

heddle_status heddle_reshard_get_info(heddle_reshard_info *out, const heddle_reshard *reshard)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out));
    HD_TRY(HD_NEED(reshard));
    int64_t measured = 0, workspace = reshard->buffer_bytes;
    for (int r = 0; r < reshard->nranks; r++) {
        measured += reshard->measured_to[r];
    }
    for (int p = 0; p < reshard->nsteps; p++) {
        workspace += reshard->step[p].mail.stage_bytes;
    }
    const heddle_reshard_info info = {.nranks = reshard->nranks,
                                      .bytes_to = reshard->bytes_to,
                                      .bytes_from = reshard->bytes_from,
                                      .bytes_sent = reshard->plan_bytes,
                                      .bytes_peer_path = reshard->bytes_peer_path,
                                      .bytes_messages = reshard->bytes_messages,
                                      .messages = reshard->messages,
                                      .workspace_bytes = workspace,
                                      .src_bytes = (size_t)reshard->request.src_bytes,
                                      .dst_bytes = (size_t)reshard->request.dst_bytes,
                                      .executions = reshard->executions,
                                      .measured_bytes_sent = measured,
                                      .measured_bytes_to = reshard->measured_to,
                                      .path = reshard->path,
                                      .kernel = reshard->kernel_name,
                                      .why = reshard->why,
                                      .line = reshard->line_text};
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_reshard_info, nranks));
out:
    return st;
}
