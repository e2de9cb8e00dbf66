/* The forecast as a timeline. All ranks do the same at the same time; each has the times of the busiest one. */
#include "planner/draw/draw.h"
#include "planner/report/text.h"

#include <inttypes.h>
#include <string.h>

enum { TRACE_RANKS = 16 };

typedef struct trace {
    FILE *to;
    const draw_plan *plan;
    int pid, nlinks;
    const char *before; /* "" or a comma */
    double now_s;
} trace;

/* {"ph": "X", "name": ..., up to and without the closing brackets. */
static void begin(trace *t, const char *name, int tid, double start_s, double duration_s)
{
    fprintf(t->to, "%s\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.6f,\"dur\":%.6f,\"name\":", t->before, t->pid, tid,
            start_s * 1e6, duration_s * 1e6);
    report_json_text(t->to, name);
    t->before = ",";
}

static void name_thread(trace *t, const char *what, int tid, const char *name)
{
    fprintf(t->to, "%s\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":", t->before, t->pid,
            tid, what);
    report_json_text(t->to, name);
    fputs("}}", t->to);
    t->before = ",";
}

static void count_memory(trace *t, int64_t bytes)
{
    if (bytes > 0) {
        fprintf(t->to,
                "%s\n{\"ph\":\"C\",\"pid\":%d,\"tid\":0,\"ts\":%.6f,\"name\":\"memory\",\"args\":{\"bytes\":%" PRId64
                "}}",
                t->before, t->pid, t->now_s * 1e6, bytes);
        t->before = ",";
    }
}

/* Work first, its exchanges at the end: what they hide behind is the work that goes on. */
static void draw_step(trace *t, const char *name, const char *kind, const draw_cost *c, int64_t bytes)
{
    count_memory(t, c->memory_bytes);
    if (c->compute_s > 0) {
        begin(t, name, 0, t->now_s, c->compute_s);
        fputs("}", t->to);
    }
    if (c->transfer_s > 0) {
        begin(t, name, 1 + (c->link > 0 ? c->link : 0), t->now_s + c->time_s - c->transfer_s, c->transfer_s);
        fprintf(t->to, ",\"cat\":\"%s\",\"args\":{\"bytes_per_rank_max\":%" PRId64 ",\"hidden_us\":%.6f", kind, bytes,
                c->hidden_s * 1e6);
        for (int l = 0; l < t->nlinks; l++) {
            fprintf(t->to, ",\"link_%d_sent_max\":%" PRId64, l, c->link_sent_max[l]);
        }
        fputs("}}", t->to);
    }
    t->now_s += c->time_s;
}

static void name_rank(trace *t, const char *name)
{
    name_thread(t, "process_name", 0, name);
    name_thread(t, "thread_name", 0, "work");
    for (int l = 0; l < t->nlinks; l++) {
        heddle_forecast_link link = HEDDLE_EMPTY(heddle_forecast_link);
        if (t->plan->forecast != NULL && heddle_forecast_link_at(&link, t->plan->forecast, l) == HEDDLE_OK) {
            name_thread(t, "thread_name", 1 + l, link.name);
        }
    }
    if (t->nlinks == 0) {
        name_thread(t, "thread_name", 1, "exchanges");
    }
}

static heddle_status draw_rank(trace *t)
{
    const draw_plan *plan = t->plan;
    char words[48];
    snprintf(words, sizeof words, "rank %d, forecast", t->pid);
    t->now_s = 0;
    name_rank(t, words);
    if (plan->cost.serial_s > 0) {
        const draw_cost serial = {.time_s = plan->cost.serial_s, .compute_s = plan->cost.serial_s, .link = -1};
        draw_step(t, "serial part", "serial", &serial, 0);
    }
    for (int i = 0; i < plan->view.info.nedges; i++) {
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_status st = heddle_schedule_edge_at(&edge, plan->view.schedule, i);
        const int is_stage = i < plan->view.info.nstages;
        st = st == HEDDLE_OK && is_stage ? heddle_schedule_stage_at(&stage, plan->view.schedule, i) : st;
        if (st != HEDDLE_OK) {
            return st;
        }
        draw_step(t, edge.kind, edge.kind, &plan->edge[i], edge.bytes_per_rank_max);
        if (is_stage) {
            draw_step(t, stage.name, stage.method, &plan->stage[i], stage.forward_bytes_per_rank_max);
        }
    }
    return HEDDLE_OK;
}

/* --- measured ----------------------------------------------------------------------------------------------------- */

static const draw_measured_stage *find(const draw_measured *m, const char *name, const char *layout, const char *method)
{
    for (int i = 0; i < m->nstages; i++) {
        const draw_measured_stage *s = &m->stage[i];
        if (strcmp(s->name, name) == 0 && strcmp(s->layout, layout) == 0 && strcmp(s->method, method) == 0) {
            return s;
        }
    }
    return NULL;
}

static heddle_status check_measured(const schedule_view *v, const draw_measured *m)
{
    char shape[HEDDLE_LINE_BYTES], mesh[HEDDLE_LINE_BYTES];
    heddle_status st = heddle_shape_format(shape, sizeof shape, &v->info.shape);
    st = st == HEDDLE_OK ? heddle_mesh_format(mesh, sizeof mesh, &v->info.mesh) : st;
    const char *own[] = {v->info.model, shape, mesh};
    for (int i = 0; i < 3 && st == HEDDLE_OK; i++) {
        if (strcmp(m->of[i], own[i]) != 0) {
            st = heddle_set_error(HEDDLE_ERR_MISMATCH,
                                  "the measured run is of %s, the timeline of %s: it is of another schedule", m->of[i],
                                  own[i]);
        }
    }
    return st;
}

/* Of every stage the mean over its repetitions: a run's report has no more. */
static heddle_status draw_measured_run(trace *t, const draw_measured *m)
{
    const schedule_view *v = &t->plan->view;
    char layout[HEDDLE_LINE_BYTES];
    heddle_status st = check_measured(v, m);
    t->now_s = 0;
    name_thread(t, "process_name", 0, "measured, slowest rank");
    name_thread(t, "thread_name", 0, "work");
    name_thread(t, "thread_name", 1, "exchanges");
    for (int i = 0; i < v->info.nstages && st == HEDDLE_OK; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        st = heddle_schedule_stage_at(&stage, v->schedule, i);
        st = st == HEDDLE_OK ? heddle_layout_format(layout, sizeof layout, &stage.layout, &v->info.shape, &v->info.mesh)
                             : st;
        if (st != HEDDLE_OK) {
            return st;
        }
        const draw_measured_stage *s = find(m, stage.name, layout, stage.method);
        if (s == NULL) {
            return heddle_set_error(HEDDLE_ERR_MISMATCH,
                                    "the measured run has no stage '%s' in %s by %s: it is of another schedule",
                                    stage.name, layout, stage.method);
        }
        const draw_cost moved = {.time_s = s->switch_s, .transfer_s = s->switch_s, .link = -1};
        const draw_cost worked = {.time_s = s->block_s, .compute_s = s->block_s, .link = -1};
        draw_step(t, "switch", "switch", &moved, 0);
        draw_step(t, stage.name, stage.method, &worked, 0);
    }
    for (int i = 0; i < m->nstages && st == HEDDLE_OK; i++) { /* behind the last stage: the one without a method */
        const draw_measured_stage *s = &m->stage[i];
        if (s->method[0] == '\0') {
            draw_step(t, s->name, "switch", &(draw_cost){.time_s = s->switch_s, .transfer_s = s->switch_s, .link = -1},
                      0);
        }
    }
    return st;
}

heddle_status draw_trace(FILE *to, const draw_plan *plan, const draw_measured *measured)
{
    trace t = {.to = to, .plan = plan, .nlinks = plan->cost.nlinks, .before = ""};
    const int ranks = plan->view.nranks < TRACE_RANKS ? plan->view.nranks : TRACE_RANKS;
    heddle_status st = HEDDLE_OK;
    if (plan->stage == NULL) {
        return heddle_set_error(HEDDLE_ERR_ARG, "a timeline wants seconds: a model and a machine (--machine), or a "
                                                "schedule that was planned for one");
    }
    fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"schema\":\"heddle-trace-1\",\"model\":", to);
    report_json_text(to, plan->view.info.model);
    fputs(",\"machine\":", to);
    report_json_text(to, plan->cost.machine != NULL ? plan->cost.machine : "");
    fprintf(to,
            ",\"ranks\":%d,\"ranks_drawn\":%d,\"time_s\":%.12g,\"compute_s\":%.12g,"
            "\"transfer_s\":%.12g,\"hidden_s\":%.12g,\"serial_s\":%.12g},\n\"traceEvents\":[",
            plan->view.nranks, ranks, plan->cost.time_s, plan->cost.compute_s, plan->cost.transfer_s,
            plan->cost.hidden_s, plan->cost.serial_s);
    for (t.pid = 0; t.pid < ranks && st == HEDDLE_OK; t.pid++) {
        st = draw_rank(&t);
    }
    if (measured != NULL && st == HEDDLE_OK) {
        t.nlinks = 0;
        st = draw_measured_run(&t, measured);
    }
    fputs("\n]}\n", to);
    return st;
}
