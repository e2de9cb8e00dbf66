/* The blocks of an executor: one for every stage of a repetition, or one for every step, and what it is asked of them.
 */
#include "runtime/base/base.h"
#include "runtime/block/inner.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/model/executor_internal.h"

#include <string.h>

heddle_status hd_executor_tell(const heddle_executor *e, heddle_status st)
{
    if (st != HEDDLE_OK) {
        heddle_ignore(heddle_comm_abort(e->comm, heddle_last_error()));
    }
    return st;
}

heddle_status hd_executor_at(heddle_status st, const char *stage, int repetition)
{
    return st == HEDDLE_OK ? st : hd_fail_prefix(st, "stage '%s' of layer %d", stage, repetition);
}

static int is_local(const heddle_schedule_stage *stage)
{
    return strcmp(stage->method, "local") == 0;
}

int hd_executor_keeps_weights(const heddle_executor *e)
{
    return e->options.backward || e->options.keeps_weights;
}

/* The earlier step whose block serves this one too, or -1: one for all repetitions that run locally, one for each
 * layout and method else. Where weights are kept every repetition has its own. */
static int twin_of(const heddle_executor *e, int step)
{
    heddle_schedule_stage mine = HEDDLE_EMPTY(heddle_schedule_stage), other = HEDDLE_EMPTY(heddle_schedule_stage);
    if (hd_executor_keeps_weights(e) || heddle_schedule_stage_at(&mine, e->schedule, step) != HEDDLE_OK) {
        return -1;
    }
    for (int i = step % e->info.period; i < step; i += e->info.period) {
        if (heddle_schedule_stage_at(&other, e->schedule, i) == HEDDLE_OK && strcmp(mine.method, other.method) == 0 &&
            (is_local(&mine) || heddle_layout_equal(&mine.layout, &other.layout, &e->info.mesh))) {
            return i;
        }
    }
    return -1;
}

static heddle_status check_stage(const heddle_executor *e, const heddle_schedule_stage *stage,
                                 const heddle_block_options *options)
{
    char wanted[HEDDLE_LINE_BYTES] = "?", found[HEDDLE_LINE_BYTES] = "?";
    if (stage->refusal != NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "stage '%s' can be planned, but not run: it has %s, which no block does yet", stage->name,
                       stage->refusal);
    }
    heddle_ignore(heddle_shape_format(wanted, sizeof wanted, &e->info.shape));
    heddle_ignore(heddle_shape_format(found, sizeof found, &options->shape));
    if (strcmp(wanted, found) != 0) {
        return hd_fail(HEDDLE_ERR_MISMATCH, "stage '%s' is of %s, the schedule is for %s", stage->name, found, wanted);
    }
    if (stage->kind != options->kind || (stage->mixed_dim >= 0 && stage->mixed_dim != options->mixed_dim)) {
        return hd_fail(HEDDLE_ERR_MISMATCH,
                       "stage '%s' is of kind %d over dim %d, the schedule has kind %d over dim %d", stage->name,
                       (int)options->kind, options->mixed_dim, (int)stage->kind, stage->mixed_dim);
    }
    return HEDDLE_OK;
}

/* Blocks run one after the other: one workspace is enough. */
static heddle_status make_block(heddle_executor *e, const heddle_block_options *stages, int step)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_block_options options = stages[step % e->info.period];
    heddle_status st = heddle_schedule_stage_at(&stage, e->schedule, step);
    options.space = e->options.blocks;
    options.comm = e->comm;
    st = st == HEDDLE_OK ? check_stage(e, &stage, &options) : st;
    st = st == HEDDLE_OK ? heddle_block_create(&e->block[step], &options) : st;
    st = st == HEDDLE_OK && step > 0 ? heddle_block_share_workspace(e->block[step], e->block[0]) : st;
    HD_TRY(hd_executor_tell(e, st));
    e->joins[step] = !is_local(&stage);
    if (e->joins[step]) {
        const int back = !e->options.backward ? HD_BACK_NEVER : e->options.recompute ? HD_BACK_NEXT : HD_BACK_LATER;
        HD_TRY(
            hd_executor_at(hd_sharded_begin(e->block[step], e->comm, &e->info.mesh, &stage.layout, stage.method, back),
                           stage.name, stage.repetition));
    }
out:
    return st;
}

static heddle_status make_blocks(heddle_executor *e, const heddle_block_options *stages)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < e->info.nstages; i++) {
        const int twin = twin_of(e, i);
        if (twin >= 0) {
            e->block[i] = e->block[twin];
            e->joins[i] = e->joins[twin];
            e->is_shared[i] = 1;
        } else {
            HD_TRY(make_block(e, stages, i));
        }
    }
out:
    return st;
}

/* Memory of devices is allocated before ranks meet there. */
static heddle_status reserve(heddle_executor *e)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < e->info.nstages && e->options.blocks == HEDDLE_SPACE_DEVICE; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_box box;
        HD_TRY(heddle_schedule_stage_at(&stage, e->schedule, i));
        HD_TRY(heddle_layout_box(&box, &e->info.shape, &e->info.mesh, &stage.layout, heddle_comm_rank(e->comm)));
        HD_TRY(hd_executor_at(e->tape != NULL ? heddle_tape_reserve(e->tape[i], &box)
                                              : heddle_block_reserve(e->block[i], &box),
                              stage.name, stage.repetition));
    }
out:
    return st;
}

static heddle_status make_tapes(heddle_executor *e)
{
    heddle_status st = HEDDLE_OK;
    heddle_tape_options options;
    heddle_tape_options_init(&options);
    options.recompute = e->options.recompute;
    for (int i = 0; i < e->info.nstages && e->options.backward; i++) {
        HD_TRY(heddle_tape_create(&e->tape[i], e->block[i], &options));
    }
out:
    return st;
}

static heddle_status alloc_arrays(heddle_executor *e)
{
    const size_t n = (size_t)e->info.nstages;
    heddle_status st;
    HD_TRY(hd_alloc((void **)&e->block, n, sizeof(heddle_block *), "blocks of an executor"));
    HD_TRY(hd_alloc((void **)&e->is_shared, n, 1, "blocks of an executor"));
    HD_TRY(hd_alloc((void **)&e->joins, n, 1, "blocks of an executor"));
    HD_TRY(hd_alloc((void **)&e->step, n + 1, sizeof *e->step, "steps of an executor"));
    if (e->options.backward) {
        HD_TRY(hd_alloc((void **)&e->tape, n, sizeof(heddle_tape *), "tapes of an executor"));
        HD_TRY(hd_alloc((void **)&e->back, n + 1, sizeof *e->back, "steps of an executor"));
    }
out:
    return st;
}

void heddle_executor_options_init(heddle_executor_options *options)
{
    if (options != NULL) {
        *options = (heddle_executor_options){.struct_bytes = sizeof *options};
    }
}

static heddle_status take(heddle_executor *e, const heddle_executor_options *options)
{
    heddle_status st;
    e->info.struct_bytes = sizeof e->info;
    heddle_executor_options_init(&e->options);
    HD_TRY(hd_struct_take(&e->options, options, HD_STRUCT(heddle_executor_options, ctx)));
    HD_TRY(heddle_schedule_get_info(&e->info, e->schedule));
    if (e->options.blocks == HEDDLE_SPACE_DEVICE && e->options.space != HEDDLE_SPACE_DEVICE) {
        return hd_fail(HEDDLE_ERR_ARG, "an executor whose blocks are on a device (options.blocks) and whose switches "
                                       "are not (options.space)");
    }
    HD_TRY(alloc_arrays(e));
out:
    return st;
}

static heddle_status make_room(heddle_executor *e)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(make_tapes(e));
    st = reserve(e);
out:
    return st;
}

heddle_status heddle_executor_create(heddle_executor **out, heddle_comm *comm, const heddle_schedule *schedule,
                                     const heddle_block_options *stages, const heddle_executor_options *options)
{
    heddle_status st;
    heddle_executor *e = NULL;
    heddle_session_options session;
    HD_TRY(HD_NEED(comm)); /* there is nobody to tell */
    st = HD_NEED(out, schedule, stages);
    st = st == HEDDLE_OK ? hd_alloc((void **)&e, 1, sizeof *e, "an executor") : st;
    if (st != HEDDLE_OK) {
        heddle_ignore(heddle_comm_abort(comm, heddle_last_error()));
        goto out;
    }
    e->comm = comm;
    e->schedule = schedule;
    HD_TRY(hd_executor_tell(e, take(e, options)));
    HD_TRY(make_blocks(e, stages));
    HD_TRY(hd_executor_tell(e, make_room(e)));
    HD_TRY(heddle_block_agree(e->block[0], comm));
    heddle_session_options_init(&session);
    session.backward = e->options.backward;
    session.space = e->options.space;
    session.device = e->options.device;
    HD_TRY(heddle_session_create(&e->session, comm, schedule, &session));
    HD_TRY(session.space == HEDDLE_SPACE_DEVICE ? hd_executor_tell(e, hd_executor_device_make(e)) : HEDDLE_OK);
    *out = e;
    e = NULL;
out:
    heddle_executor_destroy(e);
    return st;
}

void heddle_executor_destroy(heddle_executor *executor)
{
    heddle_executor *e = executor;
    if (e == NULL) {
        return;
    }
    for (int i = 0; e->tape != NULL && i < e->info.nstages; i++) {
        heddle_tape_destroy(e->tape[i]);
    }
    hd_executor_device_free(e->device);
    heddle_session_destroy(e->session);
    for (int i = 0; e->block != NULL && e->is_shared != NULL && i < e->info.nstages; i++) {
        heddle_block_destroy(e->is_shared[i] ? NULL : e->block[i]);
    }
    HD_FREE_ALL(e->block, e->is_shared, e->joins, e->tape, e->step, e->back, e);
}

heddle_block *heddle_executor_block(const heddle_executor *executor, int step)
{
    return executor != NULL && step >= 0 && step < executor->info.nstages ? executor->block[step] : NULL;
}

heddle_status heddle_executor_get_info(heddle_executor_info *out, const heddle_executor *executor)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, executor));
    const heddle_executor_info info = {.nsteps = executor->info.nstages + 1,
                                       .forward_ns = executor->forward_ns,
                                       .backward_ns = executor->backward_ns,
                                       .wire = executor->device != NULL ? hd_comm_wire_name(executor->comm) : ""};
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_executor_info, backward_ns));
out:
    return st;
}

heddle_status heddle_executor_step_at(heddle_executor_step *out, const heddle_executor *executor, int step,
                                      int backward)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, executor));
    if (step < 0 || step > executor->info.nstages || (backward && executor->back == NULL)) {
        return hd_fail(HEDDLE_ERR_ARG, "%s step %d of an executor with %d steps%s", backward ? "backward" : "forward",
                       step, executor->info.nstages + 1, executor->back == NULL ? " that goes forward only" : "");
    }
    const hd_executor_step *s = backward ? &executor->back[step] : &executor->step[step];
    const heddle_executor_step made = {.path = s->path,
                                       .planned = s->planned,
                                       .sent = s->sent,
                                       .messages = s->messages,
                                       .switch_ns = s->switch_ns,
                                       .block_ns = s->block_ns,
                                       .kept_bytes = s->kept_bytes,
                                       .copied_bytes = s->copied_bytes};
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_executor_step, kept_bytes));
out:
    return st;
}
