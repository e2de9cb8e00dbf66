/* A pass: switch into a stage, run its block on the local part, and so on; and the same in reverse. */
#include "runtime/base/base.h"
#include "runtime/block/inner.h"
#include "runtime/model/executor_internal.h"

#include <stdio.h>
#include <string.h>

/* What the block's attention sends in a call, and has sent so far. */
static heddle_block_traffic traffic_of(const heddle_block *block)
{
    heddle_block_traffic traffic = HEDDLE_EMPTY(heddle_block_traffic);
    if (heddle_block_get_traffic(&traffic, block) != HEDDLE_OK) {
        memset(&traffic, 0, sizeof traffic);
    }
    return traffic;
}

/* While the program has been called from within a pass. */
static void hold(heddle_executor *e, int is_held)
{
    e->is_held = is_held;
    hd_block_hold(e->block[0], is_held); /* all blocks have one workspace */
}

static void tell_of(heddle_executor *e, int step, int backward)
{
    if (e->options.before != NULL) {
        hold(e, 1);
        e->options.before(e->options.ctx, step, backward);
        hold(e, 0);
    }
}

/* By all switches so far. What a device has counted is here by the time that its part is back, not in the record. */
static int64_t sent_by_switches(const heddle_executor *e)
{
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    return heddle_session_get_counters(&counters, e->session) == HEDDLE_OK ? counters.bytes_sent : 0;
}

/* The switch, and what it did. */
static heddle_status go(heddle_executor *e, const char *stage, heddle_tensor *x, int backward, hd_executor_step *out,
                        heddle_stream stream)
{
    heddle_session_record record = HEDDLE_EMPTY(heddle_session_record);
    heddle_status st;
    const int64_t start_ns = hd_now_ns(), sent_before = sent_by_switches(e);
    HD_TRY(hd_executor_switch(e, stage, x, backward, &out->copied_bytes, stream)); /* names rank and stage */
    HD_TRY(heddle_session_record_at(&record, e->session, e->entered++));
    out->planned += record.bytes_planned;
    out->sent += e->device == NULL ? record.bytes_sent : sent_by_switches(e) - sent_before;
    out->messages += record.bytes_messages;
    out->switch_ns = e->device == NULL ? record.ns : hd_now_ns() - start_ns;
    snprintf(out->path, sizeof out->path, "%s", record.path);
out:
    return st;
}

static heddle_status enter(heddle_executor *e, const char *stage, heddle_tensor *x, int step, heddle_stream stream)
{
    tell_of(e, step, 0);
    memset(&e->step[step], 0, sizeof e->step[step]);
    return go(e, stage, x, 0, &e->step[step], stream);
}

/* A rank without rows has no part in a block that does not communicate. */
static int takes_part(heddle_status *st, heddle_box *box, const heddle_executor *e, const heddle_tensor *x, int step)
{
    *st = heddle_layout_box(box, &e->info.shape, &e->info.mesh, &x->layout, heddle_comm_rank(e->comm));
    return *st == HEDDLE_OK && (heddle_box_elems(box) > 0 || e->joins[step]);
}

static heddle_status run_block(heddle_executor *e, heddle_tensor *x, const heddle_conditioning *conditioning, int step,
                               heddle_stream stream)
{
    heddle_status st;
    heddle_box box;
    const int64_t start_ns = hd_now_ns();
    if (takes_part(&st, &box, e, x, step)) {
        const int64_t sent_before = traffic_of(e->block[step]).measured_bytes;
        hd_executor_leave(e, step, x);
        if (e->tape != NULL) {
            st = heddle_block_forward_tape(e->block[step], x, &box, conditioning, e->tape[step], stream);
            e->step[step].kept_bytes = heddle_tape_bytes(e->tape[step]);
        } else {
            st = heddle_block_forward(e->block[step], x, &box, conditioning, stream);
        }
        hd_block_leave_gate(e->block[step], NULL); /* also where it failed */
        st = st == HEDDLE_OK ? hd_executor_settle(e, stream) : st;
        const heddle_block_traffic traffic = traffic_of(e->block[step]); /* a device has counted by now */
        e->step[step].planned += traffic.planned_forward_bytes;
        e->step[step].sent += traffic.measured_bytes - sent_before;
    }
    e->step[step].block_ns = hd_now_ns() - start_ns;
    return hd_executor_tell(e, st);
}

static heddle_status make_weights(heddle_executor *e, int repetition)
{
    heddle_status st = HEDDLE_OK;
    hold(e, 1);
    for (int i = 0; i < e->info.period && !e->has_weights; i++) {
        const int step = repetition * e->info.period + i;
        HD_TRY(e->options.weights != NULL
                   ? e->options.weights(e->options.ctx, e->block[step], i, repetition)
                   : heddle_block_seed(e->block[step], e->options.seed * 1000003U + (uint64_t)step));
    }
out:
    hold(e, 0);
    return hd_executor_at(hd_executor_tell(e, st), "weights", repetition);
}

static heddle_status barrier(const heddle_executor *e, const char *where, int repetition)
{
    return e->options.timed ? hd_executor_at(heddle_comm_barrier(e->comm), where, repetition) : HEDDLE_OK;
}

static heddle_status run_repetition(heddle_executor *e, heddle_tensor *x, const heddle_conditioning *conditioning,
                                    int repetition, heddle_stream stream)
{
    heddle_status st;
    HD_TRY(make_weights(e, repetition));
    HD_TRY(barrier(e, "weights", repetition));
    const int64_t start_ns = hd_now_ns();
    for (int i = 0; i < e->info.period; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        const int step = repetition * e->info.period + i;
        HD_TRY(heddle_schedule_stage_at(&stage, e->schedule, step));
        HD_TRY(enter(e, stage.name, x, step, stream));
        HD_TRY(hd_executor_at(run_block(e, x, conditioning, step, stream), stage.name, repetition));
    }
    if (repetition + 1 == e->info.repeat) {
        HD_TRY(enter(e, "end", x, e->info.nstages, stream));
    }
    HD_TRY(barrier(e, "end", repetition));
    e->forward_ns += hd_now_ns() - start_ns;
out:
    return st;
}

/* All blocks have one workspace. st: of what came in between. */
static heddle_status end_pass(const heddle_executor *e, heddle_stream stream, heddle_status st)
{
    const heddle_status ended = hd_block_pass_end(e->block[0], stream, st);
    return st == HEDDLE_OK && ended != HEDDLE_OK ? hd_executor_tell(e, hd_fail_prefix(ended, "the end of a pass")) : st;
}

static heddle_status run_all(heddle_executor *e, heddle_tensor *x, const heddle_conditioning *conditioning,
                             heddle_stream stream)
{
    heddle_status st = hd_executor_tell(e, hd_block_pass_begin(e->block[0], stream));
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int r = 0; r < e->info.repeat && st == HEDDLE_OK; r++) {
        st = run_repetition(e, x, conditioning, r, stream);
    }
    return end_pass(e, stream, st);
}

/* The others are not told, and the pass that is under way goes on. */
static heddle_status need_no_pass(const heddle_executor *e, const char *function)
{
    if (e->is_held) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "%s: called from options.before or options.weights of an executor, whose pass is under way",
                       function);
    }
    return hd_block_need_free(e->block[0], function); /* another one's pass has the same workspace */
}

heddle_status heddle_executor_set_timed(heddle_executor *executor, int timed)
{
    heddle_status st;
    HD_TRY(HD_NEED(executor));
    HD_TRY(need_no_pass(executor, __func__));
    executor->options.timed = timed;
out:
    return st;
}

heddle_status heddle_executor_forward(heddle_executor *executor, heddle_tensor *x,
                                      const heddle_conditioning *conditioning, heddle_stream stream)
{
    heddle_executor *e = executor;
    heddle_status st;
    HD_TRY(HD_NEED(executor));
    HD_TRY(need_no_pass(e, __func__));
    st = HD_NEED(x, conditioning);
    HD_TRY(hd_executor_tell(e, st));
    HD_TRY(heddle_session_rewind(e->session));
    e->forward_ns = 0;
    e->left.y = NULL;
    HD_TRY(run_all(e, x, conditioning, stream));
    e->has_weights = hd_executor_keeps_weights(e);
    e->has_forward = 1;
out:
    return st;
}

/* --- back --------------------------------------------------------------------------------------------------------- */

static heddle_status leave(heddle_executor *e, const char *stage, heddle_tensor *dx, int step, heddle_stream stream)
{
    tell_of(e, step, 1);
    return go(e, stage, dx, 1, &e->back[step], stream);
}

static heddle_status back_through(heddle_executor *e, heddle_tensor *dx, const heddle_conditioning *conditioning,
                                  const heddle_conditioning_gradient *dconditioning, int step, heddle_stream stream)
{
    heddle_block *block = e->block[step];
    hd_executor_step *out = &e->back[step];
    const heddle_block_traffic before = traffic_of(block);
    heddle_box box;
    heddle_status st;
    tell_of(e, step, 1);
    const int64_t start_ns = hd_now_ns();
    if (takes_part(&st, &box, e, dx, step)) {
        st = heddle_block_backward(block, dx, conditioning, dconditioning, e->tape[step], stream);
        st = st == HEDDLE_OK ? hd_executor_settle(e, stream) : st;
    }
    out->block_ns = hd_now_ns() - start_ns;
    /* With recompute the forward once more, its attention's messages too. */
    out->planned += before.planned_backward_bytes + (e->options.recompute ? before.planned_forward_bytes : 0);
    out->sent += traffic_of(block).measured_bytes - before.measured_bytes;
    return hd_executor_tell(e, st);
}

static heddle_status run_back(heddle_executor *e, heddle_tensor *dx, const heddle_conditioning *conditioning,
                              const heddle_conditioning_gradient *dconditioning, heddle_stream stream)
{
    heddle_status st;
    memset(e->back, 0, (size_t)(e->info.nstages + 1) * sizeof *e->back);
    HD_TRY(barrier(e, "end", e->info.repeat - 1));
    const int64_t start_ns = hd_now_ns();
    HD_TRY(leave(e, "end", dx, e->info.nstages, stream));
    for (int i = e->info.nstages - 1; i >= 0; i--) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        HD_TRY(heddle_schedule_stage_at(&stage, e->schedule, i));
        HD_TRY(
            hd_executor_at(back_through(e, dx, conditioning, dconditioning, i, stream), stage.name, stage.repetition));
        HD_TRY(leave(e, stage.name, dx, i, stream));
    }
    HD_TRY(barrier(e, "end", 0));
    e->backward_ns = hd_now_ns() - start_ns;
out:
    return st;
}

heddle_status heddle_executor_backward(heddle_executor *executor, heddle_tensor *dx,
                                       const heddle_conditioning *conditioning,
                                       const heddle_conditioning_gradient *dconditioning, heddle_stream stream)
{
    heddle_executor *e = executor;
    heddle_status st;
    HD_TRY(HD_NEED(executor));
    HD_TRY(need_no_pass(e, __func__));
    st = HD_NEED(dx, conditioning);
    if (st == HEDDLE_OK && (e->tape == NULL || !e->has_forward)) {
        st = hd_fail(HEDDLE_ERR_ARG, "heddle_executor_backward: %s",
                     e->tape == NULL ? "the executor goes forward only (options.backward)" : "there was no forward");
    }
    HD_TRY(hd_executor_tell(e, st));
    HD_TRY(hd_executor_tell(e, hd_block_pass_begin(e->block[0], stream)));
    st = end_pass(e, stream, run_back(e, dx, conditioning, dconditioning, stream));
out:
    return st;
}
