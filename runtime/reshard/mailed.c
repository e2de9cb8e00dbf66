/* Plans of a device's arrays on the wire nccl: every phase is packed, exchanged and unpacked on the caller's stream. */
#include "runtime/device/enqueued.h"
#include "runtime/move/device_mail.h"
#include "runtime/reshard/plan.h"

#include <stdio.h>

enum { END_NS = 1000000000 };

struct hd_mailed {
    const hd_device *device;
    hd_device_mail *phase[HD_MAX_LEGS];
    hd_enqueued executions;
    int was_awaited; /* after a failure */
};

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status make(heddle_reshard *plan, const hd_phase_parts *parts, const int *any_adds)
{
    heddle_status st = HEDDLE_OK;
    hd_mailed *m = plan->mailed;
    m->executions.may_ask_again = 1; /* at once, as what could not be recorded has failed */
    m->executions.names =
        (hd_enqueued_names){hd_comm_rank_name(plan->comm, plan->rank), "end", "reshard", plan->line_text};
    HD_TRY(hd_enqueued_open(&m->executions, m->device));
    HD_TRY(hd_device_load_kernels(m->device));
    for (int p = 0; p < plan->nphases; p++) {
        hd_mail_spec spec = {.phase = &parts[p].spec,
                             .any_adds = any_adds[p],
                             .dtype = plan->request.line.shape.dtype,
                             .elem_bytes = plan->elem_bytes,
                             .deadline_ms = plan->request.options.deadline_ms};
        HD_TRY(hd_device_mail_create(&m->phase[p], plan->comm, &spec));
    }
out:
    return st;
}

/* Collective: does any rank add in a phase? Those who send to it must know. */
static heddle_status gather_adds(int *any, heddle_reshard *plan, const hd_phase_parts *parts)
{
    heddle_status st = HEDDLE_OK;
    int mine[HD_MAX_LEGS] = {0}, *all = NULL;
    HD_TRY(
        hd_comm_agree(plan->comm, hd_alloc((void **)&all, (size_t)plan->nranks, sizeof mine, "phases of a reshard")));
    for (int p = 0; p < plan->nphases; p++) {
        mine[p] = parts[p].spec.adds;
    }
    HD_TRY(hd_comm_allgather_or_abort(plan->comm, mine, all, sizeof mine));
    for (int i = 0; i < plan->nranks * HD_MAX_LEGS; i++) {
        any[i % HD_MAX_LEGS] |= all[i];
    }
out:
    hd_free(all);
    return st;
}

static heddle_status create(heddle_reshard *plan, const hd_phase_parts *parts, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    int any_adds[HD_MAX_LEGS] = {0};
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&plan->mailed, 1, sizeof *plan->mailed, "a reshard") : mine;
    if (mine == HEDDLE_OK) {
        plan->mailed->device = hd_comm_device(plan->comm);
    }
    HD_TRY(hd_comm_agree(plan->comm, mine));
    HD_TRY(gather_adds(any_adds, plan, parts));
    st = hd_comm_agree(plan->comm, make(plan, parts, any_adds));
out:
    return st;
}

static hd_device_mail_info sum_up(const heddle_reshard *plan)
{
    hd_device_mail_info all = {0};
    for (int p = 0; p < plan->nphases; p++) {
        hd_device_mail_info one;
        hd_device_mail_get_info(&one, plan->mailed->phase[p]);
        all.bytes += one.bytes;
        all.messages += one.messages;
        all.packed_bytes += one.packed_bytes;
        all.memory_bytes += one.memory_bytes;
    }
    return all;
}

static void explain(heddle_reshard *plan)
{
    hd_device_mail_info all = sum_up(plan);
    snprintf(plan->path, sizeof plan->path, "device messages");
    snprintf(plan->kernel_name, sizeof plan->kernel_name, "%s", all.packed_bytes > 0 ? "push" : "none");
    snprintf(plan->why, sizeof plan->why,
             "arrays of %s go as messages from device to device (wire nccl), %lld in %d phase%s; %lld bytes are packed "
             "or unpacked here, what lies together is not",
             plan->mailed->device->name, (long long)all.messages, plan->nphases, plan->nphases == 1 ? "" : "s",
             (long long)all.packed_bytes);
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

/* A rank that cannot take part would be waited for: it gives up. */
static heddle_status check(heddle_reshard *plan, const void *src, void *dst)
{
    heddle_status st = hd_plan_take_arrays(plan, src, dst);
    return st == HEDDLE_OK ? st : hd_comm_mail_give_up(plan->comm, st);
}

/* Its staging is used by one execution after another, whichever streams they are on; those in graphs are the caller's
 * to order. */
static heddle_status enqueue(heddle_reshard *plan, heddle_stream stream, int is_captured)
{
    heddle_status st = HEDDLE_OK;
    hd_mailed *m = plan->mailed;
    HD_TRY(is_captured ? HEDDLE_OK : hd_enqueued_order(&m->executions, stream));
    HD_TRY(hd_local_run(&plan->work.before, hd_plan_place(plan, HD_PLACE_SRC), plan->src, stream));
    for (int p = 0; p < plan->nphases; p++) {
        const hd_phase *phase = &plan->problem.phase[p];
        HD_TRY(hd_device_mail_run(m->phase[p], hd_plan_place(plan, phase->src), hd_plan_place(plan, phase->dst), stream,
                                  is_captured, hd_channel_sent(plan->channel)));
    }
    st = hd_local_run(&plan->work.after, plan->dst, hd_plan_place(plan, HD_PLACE_DST), stream);
out:
    return st;
}

static heddle_status record(heddle_reshard *plan, heddle_stream stream, int is_captured, heddle_status st)
{
    hd_enqueued *e = &plan->mailed->executions;
    e->is_captured |= is_captured;
    st = is_captured ? st : hd_enqueued_end(e, stream, st);
    plan->executions += st == HEDDLE_OK;
    return st;
}

/* After a failure what is enqueued ends soon, unless the handle is the caller's. 0: it has not, or nobody knows. */
static int has_ended(const heddle_reshard *plan)
{
    hd_enqueued *e = &plan->mailed->executions;
    return hd_enqueued_has_ended(e, hd_now_ns() + END_NS) && !(e->is_captured && hd_comm_mail_is_left(plan->comm));
}

/* The sentence stays. src and dst are the caller's again, or the device's memory is left alone. */
static heddle_status await_end(heddle_reshard *plan, heddle_status st)
{
    if (st == HEDDLE_OK || plan->mailed->was_awaited) {
        return st;
    }
    const hd_sentence why = hd_sentence_keep();
    plan->mailed->was_awaited = 1;
    if (!has_ended(plan)) {
        hd_device_leave(hd_comm_device(plan->comm));
    }
    return hd_sentence_say(&why, st);
}

static heddle_status execute(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = plan->mailed->device;
    int captures = 0;
    HD_TRY(hd_comm_mail_check(plan->comm));
    HD_TRY(check(plan, src, dst));
    st = device->library->stream_captures(&captures, device->number, stream);
    st = st == HEDDLE_OK ? record(plan, stream, captures, enqueue(plan, stream, captures)) : st;
    st = st == HEDDLE_OK ? st : hd_comm_mail_give_up(plan->comm, st);
out:
    return await_end(plan, st);
}

static heddle_status start(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = hd_plan_need_eager(plan, stream);
    return st == HEDDLE_OK ? execute(plan, src, dst, stream) : hd_comm_mail_give_up(plan->comm, st);
}

static heddle_status test(heddle_reshard *plan, int *done)
{
    heddle_status st = HEDDLE_OK;
    *done = 1;
    HD_TRY(hd_comm_mail_check(plan->comm));
    HD_TRY(hd_enqueued_test(done, &plan->mailed->executions));
    st = *done ? hd_comm_mail_check(plan->comm) : HEDDLE_OK; /* what was aborted has ended, too */
out:
    *done |= st != HEDDLE_OK;
    return await_end(plan, st);
}

static heddle_status look(void *comm)
{
    return hd_comm_mail_check(comm);
}

static heddle_status wait(heddle_reshard *plan)
{
    int done = 0;
    const int64_t deadline_ns = hd_comm_deadline_ns(plan->comm, plan->request.options.deadline_ms);
    heddle_status st = hd_enqueued_wait(&plan->mailed->executions, deadline_ns, look, plan->comm);
    st = st == HEDDLE_ERR_TIMEOUT ? hd_comm_mail_give_up(plan->comm, st) : st;
    return st == HEDDLE_OK ? test(plan, &done) : await_end(plan, st);
}

static heddle_status wait_on(heddle_reshard *plan, heddle_stream stream)
{
    heddle_status st = hd_comm_mail_check(plan->comm);
    return st == HEDDLE_OK ? hd_enqueued_order(&plan->mailed->executions, stream) : st;
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

static void inform(heddle_reshard_info *info, const heddle_reshard *plan)
{
    hd_device_mail_info all = sum_up(plan);
    info->bytes_messages = all.bytes;
    info->messages = all.messages;
    info->workspace_bytes += all.memory_bytes;
    info->is_capturable = 1;
    info->is_captured = plan->mailed->executions.is_captured;
}

static void destroy(heddle_reshard *plan)
{
    hd_mailed *m = plan->mailed;
    if (m == NULL) {
        return;
    }
    (void)wait(plan);
    if (!has_ended(plan)) { /* somebody else has to end it: memory of the device stays from now on */
        hd_device_leave(hd_comm_device(plan->comm));
    }
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        hd_device_mail_destroy(m->phase[p]);
    }
    hd_enqueued_close(&m->executions);
    hd_free(m);
}

const hd_wire_ops hd_wire_nccl = {
    .name = "nccl",
    .create = create,
    .explain = explain,
    .execute = execute,
    .start = start,
    .test = test,
    .wait = wait,
    .wait_on = wait_on,
    .inform = inform,
    .destroy = destroy,
};
