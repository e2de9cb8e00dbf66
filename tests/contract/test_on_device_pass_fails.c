/* Passes on a device that fail, and what their blocks are asked for in the midst of them. */
#include "held_streams.h"
#include "runtime/block/device/device.h"
#include "whole_pass.h"

/* --- another stream ----------------------------------------------------------------------------------------------- */

typedef struct beside {
    whole w;
    device_sim sim;
    heddle_stream other;
    int step, backward; /* where a block that has no forward to go back through is refreshed in the other stream, which
                         * stands still */
    heddle_status st;
} beside;

static void refresh_beside(void *ctx, int step, int backward)
{
    beside *b = ctx;
    if (b->other != HEDDLE_NO_STREAM && step == b->step && backward == b->backward) {
        b->sim.hold(b->other);
        b->st = heddle_block_refresh(heddle_executor_block(b->w.b.executor, step + backward), b->other);
    }
}

static heddle_status is_waited_for(beside *b, int step, int backward)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = hd_comm_device(b->w.b.comm);
    int goes_ahead = 1;
    b->step = step;
    b->backward = backward;
    b->st = HEDDLE_ERR_INTERNAL;
    HD_TRY(enqueue(&b->w));
    HD_TRY(b->st);
    HD_TRY(stream_has_ended(&goes_ahead, device, b->w.stream));
    b->sim.release();
    HD_TRY(device_settle(b->w.b.comm, b->w.stream));
    HD_TRY(device_settle(b->w.b.comm, b->other));
    CHECK(!goes_ahead);
out:
    return st;
}

/* What a pass still has comes behind it, as what it has not had before. */
HD_RANK_CASE(a_refresh_in_another_stream_is_waited_for, "1 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    beside b = {.other = HEDDLE_NO_STREAM};
    choose(&b.w, comm, 1);
    b.w.options.before = refresh_beside;
    b.w.options.ctx = &b;
    HD_TRY(set_up(&b.w, comm));
    HD_TRY(device_sim_get(&b.sim));
    HD_TRY(enqueue(&b.w));
    HD_TRY(device_settle(comm, b.w.stream));
    HD_TRY(b.sim.stream_create(&b.other));
    for (int step = 0; step < STEPS - 1; step += 3) {
        HD_TRY(is_waited_for(&b, step, 0));
        HD_TRY(is_waited_for(&b, step, 1));
    }
out:
    if (b.sim.release != NULL) {
        b.sim.release();
        device_stream_free(&b.sim, b.other);
    }
    tear_down(&b.w);
    return st;
}

/* --- calls in the midst ------------------------------------------------------------------------------------------- */

/* A program that runs blocks and passes of its executor from `before` and `weights` of a pass. */
typedef struct meddler {
    whole w;
    heddle_tape *tape; /* of the last step's block */
    int meddles, asked, refused;
} meddler;

static void see(meddler *m, heddle_status st, const char *function)
{
    const char *why = heddle_last_error();
    m->asked++;
    m->refused += st == HEDDLE_ERR_ARG && strncmp(why, function, strlen(function)) == 0 &&
                  strstr(why, ": called from options.before or options.weights of an executor") != NULL;
}

/* A pass, or the way back, within a pass. */
static void meddle_with_passes(meddler *m, heddle_tensor *x)
{
    heddle_executor *executor = m->w.b.executor;
    m->meddles = 0; /* should it begin */
    see(m, heddle_executor_forward(executor, x, &m->w.conditioning, m->w.stream), "heddle_executor_forward");
    see(m, heddle_executor_backward(executor, x, &m->w.conditioning, NULL, m->w.stream), "heddle_executor_backward");
    see(m, heddle_executor_set_timed(executor, 1), "heddle_executor_set_timed");
    m->meddles = 1;
}

static void meddle_with(meddler *m, int step)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_executor *executor = m->w.b.executor;
    heddle_block *block = heddle_executor_block(executor, step), *last = heddle_executor_block(executor, STEPS - 1);
    heddle_tensor x = m->w.first;
    heddle_box box;
    if (!m->meddles || heddle_schedule_stage_at(&stage, m->w.b.schedule, step) != HEDDLE_OK ||
        heddle_layout_box(&box, &x.shape, &m->w.b.info.mesh, &stage.layout, heddle_comm_rank(m->w.b.comm)) !=
            HEDDLE_OK) {
        return;
    }
    see(m, heddle_block_forward(block, &x, &box, &m->w.conditioning, m->w.stream), "heddle_block_forward");
    see(m, heddle_block_reserve(block, &box), "heddle_block_reserve");
    see(m, heddle_block_share_workspace(block, last), "heddle_block_share_workspace");
    if (m->tape != NULL) {
        see(m, heddle_block_forward_tape(last, &x, &box, &m->w.conditioning, m->tape, m->w.stream),
            "heddle_block_forward_tape");
        see(m, heddle_tape_reserve(m->tape, &box), "heddle_tape_reserve");
    }
    meddle_with_passes(m, &x);
}

static void meddle(void *ctx, int step, int backward)
{
    (void)backward;
    meddle_with(ctx, step < STEPS ? step : 0);
}

static heddle_status seed_and_meddle(void *ctx, heddle_block *block, int stage, int repetition)
{
    meddle_with(ctx, repetition * STAGES + stage);
    return heddle_block_seed(block, (uint64_t)(repetition * STAGES + stage));
}

/* What comes out of a pass. */
static heddle_status pass_of(float *out, meddler *m, int meddles)
{
    heddle_status st = HEDDLE_OK;
    m->meddles = meddles;
    HD_TRY(device_copy_now(m->w.b.comm, m->w.x_memory, m->w.start, MOST_BYTES));
    HD_TRY(device_copy_now(m->w.b.comm, m->w.dx_memory, m->w.start, MOST_BYTES));
    HD_TRY(heddle_comm_barrier(m->w.b.comm));
    HD_TRY(enqueue(&m->w));
    HD_TRY(device_settle(m->w.b.comm, m->w.stream));
    HD_TRY(heddle_comm_barrier(m->w.b.comm));
    st = device_copy_now(m->w.b.comm, out, m->w.backward ? m->w.dx.data : m->w.x.data, MOST_BYTES);
out:
    return st;
}

static heddle_status is_refused(heddle_comm *comm, int backward, int unfused)
{
    heddle_status st = HEDDLE_OK;
    meddler m = {.tape = NULL};
    float with[ELEMS], without[ELEMS];
    choose(&m.w, comm, backward);
    m.w.options.before = meddle;
    m.w.options.weights = seed_and_meddle;
    m.w.options.ctx = &m;
    m.w.options.unfused = unfused;
    HD_TRY(set_up(&m.w, comm));
    if (backward) {
        HD_TRY(heddle_tape_create(&m.tape, heddle_executor_block(m.w.b.executor, STEPS - 1), NULL));
    }
    HD_TRY(pass_of(with, &m, 1));
    CHECK(m.asked == (backward ? 8 * (4 * STEPS + 2) : 6 * (2 * STEPS + 1)) && m.refused == m.asked);
    HD_TRY(pass_of(without, &m, 0));
    CHECK(memcmp(with, without, sizeof with) == 0);
out:
    heddle_tape_destroy(m.tape);
    tear_down(&m.w);
    return st;
}

/* On every rank, whether or not its stages leave something; and what comes out is as without those calls. */
HD_RANK_CASE(blocks_are_not_run_from_within_a_pass, "3 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(is_refused(comm, 0, 0));
    HD_TRY(is_refused(comm, 0, 1));
    HD_TRY(is_refused(comm, 1, 0));
out:
    return st;
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* x of the first stage as it is behind a call of its block. */
static heddle_status call_alone(float *out, whole *w)
{
    heddle_status st = HEDDLE_OK;
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    const heddle_schedule_info *info = &w->b.info;
    const int rank = heddle_comm_rank(w->b.comm);
    heddle_box box;
    heddle_tensor x;
    HD_TRY(heddle_schedule_stage_at(&stage, w->b.schedule, 0));
    HD_TRY(heddle_layout_box(&box, &info->shape, &info->mesh, &stage.layout, rank));
    HD_TRY(heddle_tensor_init(&x, w->dx_memory, &info->shape, &info->mesh, &stage.layout, NULL, rank));
    x.space = w->options.space;
    x.device = w->options.device;
    HD_TRY(device_copy_now(w->b.comm, x.data, w->start, MOST_BYTES));
    HD_TRY(heddle_block_forward(heddle_executor_block(w->b.executor, 0), &x, &box, &w->conditioning, w->stream));
    HD_TRY(device_settle(w->b.comm, w->stream));
    st = device_copy_now(w->b.comm, out, x.data, MOST_BYTES);
out:
    return st;
}

static heddle_status is_as_before(whole *w)
{
    heddle_status st = HEDDLE_OK;
    heddle_executor_step step = HEDDLE_EMPTY(heddle_executor_step);
    heddle_block *block = heddle_executor_block(w->b.executor, 0);
    float before[ELEMS], behind[ELEMS];
    HD_TRY(heddle_executor_step_at(&step, w->b.executor, 1, 0));
    CHECK(strcmp(step.path, "fused push") == 0);
    HD_TRY(call_alone(before, w));
    CHECK(memcmp(before, w->start, sizeof before) != 0);
    HD_TRY(heddle_block_lend_param(block, 0, NULL, HEDDLE_F32)); /* its own, as it was, and wants a commit */
    CHECK(enqueue(w) == HEDDLE_ERR_ARG && strstr(heddle_last_error(), "stage 's.attn' of layer 0: ") != NULL);
    HD_TRY(heddle_block_commit(block));
    HD_TRY(call_alone(behind, w));
    CHECK(memcmp(before, behind, sizeof before) == 0);
out:
    return st;
}

/* A call that was to leave its change to the switch behind it, and failed: the block's next one leaves nothing. */
HD_RANK_CASE(blocks_of_a_pass_that_fails_are_as_before, "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    whole w;
    choose(&w, comm, 0);
    HD_TRY(set_up(&w, comm));
    HD_TRY(enqueue(&w));
    HD_TRY(device_settle(comm, w.stream));
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 0) {
        st = is_as_before(&w);
    } else {
        heddle_ignore(enqueue(&w)); /* it hears of the other one sooner or later */
    }
out:
    tear_down(&w);
    return st;
}

static heddle_status no_record(void *event, int device, heddle_stream stream)
{
    (void)event, (void)device, (void)stream;
    return heddle_set_error(HEDDLE_ERR_DEVICE, "no event for you");
}

/* A device whose events cannot be recorded. */
typedef struct lost {
    heddle_device library;
    hd_device device;
} lost;

static hd_enqueued *used_by(const whole *w)
{
    return &heddle_executor_block(w->b.executor, 0)->on->room->used;
}

/* The event behind all stages cannot be recorded any more; nobody else looks at it. */
static heddle_status set_up_lost(whole *w, heddle_comm *comm, lost *l)
{
    heddle_status st = HEDDLE_OK;
    hd_leaves("memory that a pass uses of whose end nobody hears");
    choose(w, comm, 0);
    HD_TRY(set_up(w, comm));
    HD_TRY(enqueue(w));
    HD_TRY(device_settle(comm, w->stream));
    l->device = *hd_comm_device(comm);
    l->library = *l->device.library;
    l->library.event_record = no_record;
    l->device.library = &l->library;
    used_by(w)->device = &l->device;
out:
    return st;
}

static void tear_down_lost(whole *w)
{
    if (w->b.executor != NULL) {
        used_by(w)->device = hd_comm_device(w->b.comm);
    }
    tear_down(w);
}

/* Though the pass cannot be ended either. */
HD_RANK_CASE(a_pass_says_what_failed_first, "1 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    whole w;
    lost l;
    HD_TRY(set_up_lost(&w, comm, &l));
    w.conditioning.text = w.b.text; /* not on the device */
    CHECK(enqueue(&w) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "stage 'cross' of layer 0: ") != NULL);
out:
    tear_down_lost(&w);
    return st;
}

HD_RANK_CASE(a_pass_without_an_end_says_so, "1 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    whole w;
    lost l;
    HD_TRY(set_up_lost(&w, comm, &l));
    CHECK(enqueue(&w) == HEDDLE_ERR_DEVICE);
    CHECK(strstr(heddle_last_error(), "the end of a pass: no event for you") != NULL);
    st = device_settle(comm, w.stream);
out:
    tear_down_lost(&w);
    return st;
}
