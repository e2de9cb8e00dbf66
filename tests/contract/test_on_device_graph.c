/* A model's whole pass on a device, its switches with it: captured into one graph, replays have the bits of calls; and
 * so have switches that end the stage before them, whose workspace is theirs until they have done so. */
#include "held_streams.h"
#include "whole_pass.h"

/* Kernels of sanitizers take ten to a hundred times as long. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { REPLAYS = 2, PASSES = 1 };
#else
enum { REPLAYS = 20, PASSES = 2 };
#endif

/* The stages work in place. */
static heddle_status begin(whole *w, int round)
{
    heddle_status st = HEDDLE_OK;
    float start[ELEMS], gradient[ELEMS];
    for (int i = 0; i < ELEMS; i++) {
        start[i] = w->start[i] + (float)round;
        gradient[i] = value(i, 4 + round);
    }
    HD_TRY(device_copy(w->b.comm, w->x_memory, start, sizeof start, w->stream));
    HD_TRY(device_copy(w->b.comm, w->dx_memory, gradient, sizeof gradient, w->stream));
    st = device_settle(w->b.comm, w->stream);
out:
    return st;
}

static heddle_status part(float *to, const whole *w, const heddle_tensor *x)
{
    heddle_box box;
    heddle_status st = heddle_layout_box(&box, &x->shape, &w->b.info.mesh, &x->layout, heddle_comm_rank(w->b.comm));
    memset(to, 0, MOST_BYTES);
    return st == HEDDLE_OK ? device_copy(w->b.comm, to, x->data, (size_t)heddle_box_elems(&box) * sizeof *to, w->stream)
                           : st;
}

static heddle_status finish(results *out, const whole *w)
{
    heddle_status st = HEDDLE_OK;
    memset(out, 0, sizeof *out);
    HD_TRY(part(out->x, w, &w->x));
    HD_TRY(w->backward ? part(out->dx, w, &w->dx) : HEDDLE_OK);
    HD_TRY(device_settle(w->b.comm, w->stream));
    st = heddle_comm_poll(w->b.comm);
out:
    return st;
}

/* A stage alone, with the rows that dx_memory has. */
static heddle_status enqueue_stage(whole *w, int step, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    const int rank = heddle_comm_rank(w->b.comm);
    const heddle_schedule_info *info = &w->b.info;
    heddle_box box;
    HD_TRY(heddle_schedule_stage_at(&stage, w->b.schedule, step));
    HD_TRY(heddle_layout_box(&box, &info->shape, &info->mesh, &stage.layout, rank));
    HD_TRY(heddle_tensor_init(&w->dx, w->dx_memory, &info->shape, &info->mesh, &stage.layout, NULL, rank));
    w->dx.space = w->options.space;
    w->dx.device = w->options.device;
    st = heddle_block_forward(heddle_executor_block(w->b.executor, step), &w->dx, &box, &w->conditioning, stream);
out:
    return st;
}

static heddle_status compare(whole *w, const device_sim *sim, void *graph, int replays)
{
    heddle_status st = HEDDLE_OK;
    results eager, replayed;
    for (int round = 0; round < replays; round++) {
        const heddle_tensor x = w->x, dx = w->dx; /* where the graph has them */
        HD_TRY(begin(w, round));
        HD_TRY(sim->replay(graph, w->stream));
        HD_TRY(finish(&replayed, w));
        HD_TRY(begin(w, round));
        HD_TRY(enqueue(w));
        HD_TRY(finish(&eager, w));
        CHECK(memcmp(&eager, &replayed, sizeof eager) == 0);
        w->x = x;
        w->dx = dx;
    }
out:
    return st;
}

/* A first pass makes weights, and the switches' plans; is_first: while it is captured, and nothing has run before.
 * timed: until then, when a capture has to wait for nothing. */
static heddle_status check(heddle_comm *comm, int backward, int is_first, int timed)
{
    heddle_status st = HEDDLE_OK;
    whole w;
    device_sim sim;
    void *graph = NULL;
    choose(&w, comm, backward);
    w.options.timed = timed;
    HD_TRY(set_up(&w, comm));
    HD_TRY(device_sim_get(&sim));
    HD_TRY(is_first ? HEDDLE_OK : enqueue(&w));
    HD_TRY(device_settle(comm, w.stream));
    HD_TRY(heddle_executor_set_timed(w.b.executor, 0));
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(sim.capture(w.stream, 1));
    HD_TRY(enqueue(&w));
    HD_TRY(sim.record(w.stream, &graph));
    HD_TRY(compare(&w, &sim, graph, is_first ? 2 : REPLAYS));
    st = heddle_comm_barrier(comm);
out:
    device_graph_free(&sim, graph);
    tear_down(&w);
    return st;
}

HD_RANK_CASE(a_forward_in_a_graph, "1 threads cuda peer", "2 threads cuda peer", "3 threads cuda peer")
{
    return check(comm, 0, 0, 0);
}

HD_RANK_CASE(both_ways_in_a_graph, "2 threads cuda peer")
{
    return check(comm, 1, 0, 0);
}

HD_RANK_CASES(a_first_pass_in_a_graph, 2, "1 threads cuda peer", "2 threads cuda peer")
{
    return check(comm, nth, 1, 0);
}

HD_RANK_CASE(a_pass_that_is_timed_no_more_in_a_graph, "2 threads cuda peer")
{
    return check(comm, 1, 0, 1);
}

/* --- switches that end the stage before them ---------------------------------------------------------------------- */

static heddle_status pass(results *out, whole *w)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(begin(w, 0));
    HD_TRY(enqueue(w));
    st = finish(out, w);
out:
    return st;
}

/* The steps of two passes, of which `apart` has nothing fused: the same bytes, and what was fused is said. The way into
 * the first stage ends none. Returns how many were. */
static heddle_status compare_steps(int *fused, const whole *w, const whole *apart)
{
    heddle_status st = HEDDLE_OK;
    *fused = 0;
    for (int i = 0; i <= STEPS; i++) {
        heddle_executor_step a = HEDDLE_EMPTY(heddle_executor_step), b = HEDDLE_EMPTY(heddle_executor_step);
        HD_TRY(heddle_executor_step_at(&a, w->b.executor, i, 0));
        HD_TRY(heddle_executor_step_at(&b, apart->b.executor, i, 0));
        CHECK(a.planned == b.planned && a.sent == b.sent && a.sent == a.planned);
        const int is_fused = strcmp(a.path, "fused push") == 0;
        CHECK(is_fused || strcmp(a.path, b.path) == 0);
        CHECK(!is_fused || (i > 0 && strcmp(b.path, "device push") == 0));
        *fused += is_fused;
    }
out:
    return st;
}

/* How many switches there are behind stages that have rows here. The one to the end gathers: all rows go to all. */
static heddle_status count_switches(int *out, const whole *apart)
{
    heddle_status st = HEDDLE_OK;
    *out = 0;
    for (int i = 1; i < STEPS; i++) {
        heddle_executor_step step = HEDDLE_EMPTY(heddle_executor_step);
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_box box;
        HD_TRY(heddle_executor_step_at(&step, apart->b.executor, i, 0));
        HD_TRY(heddle_schedule_stage_at(&stage, apart->b.schedule, i - 1));
        HD_TRY(heddle_layout_box(&box, &apart->b.info.shape, &apart->b.info.mesh, &stage.layout,
                                 heddle_comm_rank(apart->b.comm)));
        *out += strcmp(step.path, "device push") == 0 && heddle_box_elems(&box) > 0;
    }
out:
    return st;
}

/* A stage that is called behind a pass leaves nothing to anybody. */
static heddle_status stage_alone(results *out, whole *w, int step)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(begin(w, 1));
    HD_TRY(enqueue_stage(w, step, w->stream));
    memset(out, 0, sizeof *out);
    HD_TRY(part(out->dx, w, &w->dx));
    st = device_settle(w->b.comm, w->stream);
out:
    return st;
}

/* Stages that go through their box in parts have nothing to leave. */
static heddle_status check_fused(heddle_comm *comm, int backward, int64_t most_workspace_bytes)
{
    heddle_status st = HEDDLE_OK;
    whole fused, apart;
    results a, b;
    int switches = 0, found = 0;
    choose(&fused, comm, backward);
    choose(&apart, comm, backward);
    fused.options.timed = apart.options.timed = 1; /* so that bytes are counted by now */
    apart.options.unfused = 1;
    fused.most_workspace_bytes = apart.most_workspace_bytes = most_workspace_bytes;
    HD_TRY(set_up(&fused, comm));
    HD_TRY(set_up(&apart, comm));
    for (int round = 0; round < PASSES; round++) {
        HD_TRY(pass(&a, &fused));
        HD_TRY(pass(&b, &apart));
        CHECK(memcmp(&a, &b, sizeof a) == 0);
        HD_TRY(count_switches(&switches, &apart));
        CHECK(switches > 0 || heddle_comm_size(comm) > 3);
        HD_TRY(compare_steps(&found, &fused, &apart));
        CHECK(most_workspace_bytes == 0 ? found == switches : found == 0);
        for (int i = 0; i < STAGES; i++) {
            HD_TRY(stage_alone(&a, &fused, i));
            HD_TRY(stage_alone(&b, &apart, i));
            CHECK(memcmp(&a, &b, sizeof a) == 0);
        }
    }
    st = heddle_comm_barrier(comm);
out:
    tear_down(&fused);
    tear_down(&apart);
    return st;
}

HD_RANK_CASE(fused_switches_have_the_bits_of_others, "3 threads cuda peer")
{
    return check_fused(comm, 0, 0);
}

/* Some have none. To ThreadSanitizer they are what three are, and half of the time of all cases here; what goes between
 * processes it does not see. */
#ifndef __SANITIZE_THREAD__
HD_RANK_CASE(fused_switches_between_more_ranks_than_rows, "6 threads cuda peer")
{
    return check_fused(comm, 0, 0);
}

HD_RANK_CASE(fused_switches_between_processes, "2 shm cuda peer")
{
    return check_fused(comm, 0, 0);
}
#endif

HD_RANK_CASE(switches_behind_parts_are_not_fused, "2 threads cuda peer")
{
    return check_fused(comm, 0, 2048);
}

HD_RANK_CASE(fused_switches_and_tapes, "2 threads cuda peer")
{
    return check_fused(comm, 1, 0);
}

typedef struct stopped {
    whole w;
    device_sim sim;
    int stops;           /* the pass's stream does, where the last stage has ended */
    heddle_stream other; /* where a block is refreshed then, if refreshes */
    int refreshes;
    heddle_status st;
} stopped;

static void stop_behind_the_last_stage(void *ctx, int step, int backward)
{
    stopped *s = ctx;
    if (s->stops && step == STEPS && !backward) {
        s->st = s->refreshes ? heddle_block_refresh(heddle_executor_block(s->w.b.executor, 0), s->other) : HEDDLE_OK;
        s->sim.hold(s->w.stream);
    }
}

static heddle_status stopped_set_up(stopped *s, heddle_comm *comm, int refreshes)
{
    heddle_status st = HEDDLE_OK;
    *s = (stopped){.other = HEDDLE_NO_STREAM, .refreshes = refreshes};
    choose(&s->w, comm, 0);
    s->w.epilogue = "t@sp(1 4)"; /* which no stage has */
    s->w.options.before = stop_behind_the_last_stage;
    s->w.options.ctx = s;
    HD_TRY(set_up(&s->w, comm));
    HD_TRY(device_sim_get(&s->sim));
    st = s->sim.stream_create(&s->other);
out:
    return st;
}

static void stopped_tear_down(stopped *s)
{
    if (s->sim.release != NULL) {
        s->sim.release();
    }
    device_stream_free(&s->sim, s->other);
    tear_down(&s->w);
}

/* The change that a fused switch adds lies in the workspace of all stages: who has that next, on whatever stream, comes
 * behind the switch, not behind the stage before it, nor behind what was asked for in between. */
HD_RANK_CASES(a_workspace_is_taken_until_a_fused_switch_has_read_it, 2, "2 threads cuda peer")
{
    heddle_status st = HEDDLE_OK;
    stopped s;
    results alone, beside;
    heddle_executor_step last = HEDDLE_EMPTY(heddle_executor_step);
    int goes_ahead = 1;
    HD_TRY(stopped_set_up(&s, comm, nth));
    HD_TRY(pass(&alone, &s.w));
    HD_TRY(heddle_executor_step_at(&last, s.w.b.executor, STEPS, 0));
    CHECK(strcmp(last.path, "fused push") == 0);
    HD_TRY(begin(&s.w, 0));
    s.stops = 1;
    HD_TRY(enqueue(&s.w));
    HD_TRY(s.st);
    HD_TRY(enqueue_stage(&s.w, STEPS - 1, s.other));
    HD_TRY(stream_has_ended(&goes_ahead, hd_comm_device(comm), s.other));
    HD_TRY(heddle_comm_barrier(comm)); /* all streams are held at once */
    s.sim.release();
    HD_TRY(finish(&beside, &s.w));
    CHECK(!goes_ahead);
    CHECK(memcmp(&alone, &beside, sizeof alone) == 0);
    st = heddle_comm_barrier(comm);
out:
    stopped_tear_down(&s);
    return st;
}
