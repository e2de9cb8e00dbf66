/* Plans of a device's arrays on the wire peer: phases as launches that store from device to device. */
#include "runtime/reshard/plan.h"

#include <stdio.h>
#include <string.h>

static hd_push_place place_of(const heddle_reshard *plan, hd_place where)
{
    const hd_workspace *w = &plan->work;
    switch (where) {
    case HD_PLACE_SRC:
        return w->src_offset >= 0 ? (hd_push_place){HD_PUSH_WORK, w->src_offset}
                                  : (hd_push_place){.array = HD_PUSH_SRC};
    case HD_PLACE_DST:
        return w->dst_offset >= 0 ? (hd_push_place){HD_PUSH_WORK, w->dst_offset}
                                  : (hd_push_place){.array = HD_PUSH_DST};
    default:
        return (hd_push_place){HD_PUSH_WORK, w->offset[where == HD_PLACE_WORK1]};
    }
}

static void describe_phase(hd_push_phase *out, const heddle_reshard *plan, const hd_phase_parts *parts, int phase)
{
    const hd_transfer_spec *spec = &parts->spec;
    *out = (hd_push_phase){.send = &spec->send,
                           .recv = &spec->recv,
                           .adds = spec->adds,
                           .clear = spec->clear,
                           .src = place_of(plan, plan->problem.phase[phase].src),
                           .dst = place_of(plan, plan->problem.phase[phase].dst)};
}

static heddle_status create(heddle_reshard *plan, const hd_phase_parts *parts, heddle_status mine)
{
    const hd_workspace *w = &plan->work;
    hd_push_spec spec = {.nphases = plan->nphases,
                         .work_bytes = w->bytes,
                         .before = &w->before,
                         .after = &w->after,
                         .before_at = w->before.is_there ? w->src_offset : 0,
                         .after_at = w->after.is_there ? w->dst_offset : 0,
                         .dst_bytes = plan->request.dst_bytes,
                         .elem_bytes = (int64_t)plan->elem_bytes,
                         .dtype = plan->request.line.shape.dtype,
                         .deadline_ms = plan->request.options.deadline_ms,
                         .what = "reshard",
                         .line = plan->line_text};
    for (int p = 0; p < plan->nphases; p++) {
        describe_phase(&spec.phase[p], plan, &parts[p], p);
    }
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&plan->pushed_to, (size_t)plan->nranks, sizeof(int64_t), "a reshard")
                             : mine;
    return hd_push_create(&plan->push, plan->comm, &spec, mine);
}

static void explain(heddle_reshard *plan)
{
    int adds = 0;
    for (int p = 0; p < plan->nphases; p++) {
        adds |= plan->problem.phase[p].kind == HD_PHASE_FLAT_REDUCE;
    }
    snprintf(plan->path, sizeof plan->path, "device push");
    snprintf(plan->kernel_name, sizeof plan->kernel_name, "push");
    snprintf(plan->why, sizeof plan->why,
             "one launch per rank and phase stores every part of arrays of %s at its place in the peers' memory (wire "
             "peer), in %d phase%s%s",
             hd_comm_device(plan->comm)->name, plan->nphases, plan->nphases == 1 ? "" : "s",
             adds ? "; partial sums go into slots of the receiver, which adds them in rank order" : "");
}

/* A rank that cannot take part would be waited for: it gives up. */
static heddle_status check(heddle_reshard *plan, const void *src, void *dst)
{
    heddle_status st = hd_plan_take_arrays(plan, src, dst);
    return st == HEDDLE_OK ? st : hd_comm_abort_with(plan->comm, st);
}

static heddle_status execute(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = check(plan, src, dst);
    return st == HEDDLE_OK ? hd_push_execute(plan->push, src, dst, stream) : st;
}

static heddle_status start(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = hd_plan_need_eager(plan, stream);
    st = st == HEDDLE_OK ? check(plan, src, dst) : hd_comm_abort_with(plan->comm, st);
    return st == HEDDLE_OK ? hd_push_start(plan->push, src, dst, stream) : st;
}

static heddle_status test(heddle_reshard *plan, int *done)
{
    return hd_push_test(plan->push, done);
}

static heddle_status wait(heddle_reshard *plan)
{
    return hd_push_wait(plan->push);
}

static heddle_status wait_on(heddle_reshard *plan, heddle_stream stream)
{
    return hd_push_wait_on(plan->push, stream);
}

static int64_t measured(const heddle_reshard *plan)
{
    hd_push_report report;
    int64_t sum = 0;
    hd_push_get_report(&report, plan->pushed_to, plan->push);
    for (int r = 0; r < plan->nranks; r++) {
        sum += plan->pushed_to[r];
    }
    return sum;
}

static void inform(heddle_reshard_info *info, const heddle_reshard *plan)
{
    hd_push_report report;
    hd_push_get_report(&report, plan->pushed_to, plan->push);
    info->bytes_peer_path = plan->plan_bytes;
    info->workspace_bytes = report.memory_bytes + plan->work.before.list.bytes + plan->work.after.list.bytes;
    info->executions = report.executions;
    info->measured_bytes_to = plan->pushed_to;
    info->is_capturable = !report.is_by_events;
    info->device_ns = report.device_ns;
    info->is_captured = report.is_captured;
    if (report.is_by_events) {
        info->why = "wire peer, whose streams wait for events of the others' and whose kernels wait for nobody "
                    "(HEDDLE_DEVICE_SYNC=events): every call waits until all ranks have come to it";
    } else if (report.lands) {
        info->why = "wire peer between processes, which had not mapped this dst when a plan was last made "
                    "(heddle_buffer_alloc or heddle_cuda_malloc before heddle_reshard_create, heddle_comm_lend_peers): "
                    "they store into the plan's memory, and a copy takes it to dst";
    }
}

static void destroy(heddle_reshard *plan)
{
    hd_push_destroy(plan->push);
    hd_free(plan->pushed_to);
}

const hd_wire_ops hd_wire_peer = {
    .name = "peer",
    .owns_work = 1,
    .create = create,
    .explain = explain,
    .execute = execute,
    .start = start,
    .test = test,
    .wait = wait,
    .wait_on = wait_on,
    .measured = measured,
    .inform = inform,
    .destroy = destroy,
};
