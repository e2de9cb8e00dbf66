#include "runtime/schedule/schedule_internal.h"

#include "runtime/base/base.h"

#include <string.h>

const char *const hd_edge_kind_names[HD_EDGE_KINDS] = {
    [HD_EDGE_KEEP] = "keep",     [HD_EDGE_SPLIT] = "split", [HD_EDGE_SWITCH] = "switch",
    [HD_EDGE_GATHER] = "gather", [HD_EDGE_FREE] = "free",   [HD_EDGE_GENERAL] = "general"};
const char *const hd_stage_kind_names[HD_STAGE_KINDS] = {[HEDDLE_STAGE_ATTENTION] = "attention",
                                                         [HEDDLE_STAGE_CROSS] = "cross",
                                                         [HEDDLE_STAGE_MLP] = "mlp",
                                                         [HEDDLE_STAGE_LINEAR] = "linear-attention",
                                                         [HEDDLE_STAGE_MODULE] = "module"};

/* What happens along one mesh axis. */
static hd_edge_kind axis_kind(int from, int to)
{
    if (from == HEDDLE_REPLICATED && to >= 0) {
        return HD_EDGE_SPLIT;
    }
    if (from >= 0 && to == HEDDLE_REPLICATED) {
        return HD_EDGE_GATHER;
    }
    return from >= 0 && to >= 0 ? HD_EDGE_SWITCH : HD_EDGE_GENERAL;
}

/* A move has a name when all axes that change do the same thing. */
hd_edge_kind hd_edge_kind_of(const heddle_layout *from, const heddle_layout *to, const heddle_mesh *mesh)
{
    hd_edge_kind kind = HD_EDGE_KEEP;
    if (heddle_layout_equal(from, to, mesh)) {
        return HD_EDGE_KEEP;
    }
    for (int a = 0; a < mesh->naxes; a++) {
        int f = from->dim_of_axis[a];
        int t = to->dim_of_axis[a];
        if (f != t) {
            hd_edge_kind here = axis_kind(f, t);
            kind = kind == HD_EDGE_KEEP || kind == here ? here : HD_EDGE_GENERAL;
        }
    }
    return kind == HD_EDGE_KEEP ? HD_EDGE_GENERAL : kind;
}

void heddle_schedule_destroy(heddle_schedule *schedule)
{
    if (schedule != NULL) {
        HD_FREE_ALL(schedule->model, schedule->note, schedule->machine, schedule->objective, schedule->stage,
                    schedule->layout, schedule->run, schedule->edge, schedule);
    }
}

heddle_status hd_schedule_new(heddle_schedule **out, const char *model, int period, int repeat)
{
    heddle_status st = HEDDLE_OK;
    heddle_schedule *s = NULL;
    void *memory = NULL;
    size_t nstages = (size_t)period * (size_t)repeat;
    HD_TRY(hd_alloc(&memory, 1, sizeof *s, "a schedule"));
    s = memory;
    s->period = period;
    s->repeat = repeat;
    HD_TRY(hd_strdup(&s->model, model));
    HD_TRY(hd_alloc(&memory, (size_t)period, sizeof *s->stage, "stages of a schedule"));
    s->stage = memory;
    HD_TRY(hd_alloc(&memory, nstages, sizeof *s->run, "stages of a schedule"));
    s->run = memory;
    HD_TRY(hd_alloc(&memory, nstages + 1, sizeof *s->edge, "edges of a schedule"));
    s->edge = memory;
    *out = s;
    s = NULL;
out:
    heddle_schedule_destroy(s);
    return st;
}

/* Schedules name layouts by number; equal ones have one number. */
heddle_status hd_schedule_layout(int *out, heddle_schedule *schedule, const heddle_layout *layout)
{
    for (int i = 0; i < schedule->nlayouts; i++) {
        if (heddle_layout_equal(&schedule->layout[i], layout, &schedule->mesh)) {
            *out = i;
            return HEDDLE_OK;
        }
    }
    if (schedule->nlayouts == HD_SCHEDULE_MAX_LAYOUTS) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "a schedule with more than %d different layouts",
                       HD_SCHEDULE_MAX_LAYOUTS);
    }
    heddle_status st = hd_grow((void **)&schedule->layout, &schedule->layouts_capacity, schedule->nlayouts,
                               sizeof *layout, "layouts of a schedule");
    if (st != HEDDLE_OK) {
        return st;
    }
    schedule->layout[schedule->nlayouts] = *layout;
    *out = schedule->nlayouts++;
    return HEDDLE_OK;
}

/* Sets the method of a stage and its price; refuses one that may not run on the layout that the stage has. */
heddle_status hd_schedule_set_method(heddle_schedule *schedule, int index, const hd_method *method)
{
    char reason[HD_METHOD_REASON_BYTES];
    hd_schedule_run *run = &schedule->run[index];
    const hd_schedule_stage *stage = &schedule->stage[index % schedule->period];
    hd_method_group group;
    run->method = method;
    memset(&run->cost, 0, sizeof run->cost);
    if (stage->mixes.dim < 0) {
        return method == &hd_method_local
                   ? HEDDLE_OK
                   : hd_fail(HEDDLE_ERR_LAYOUT, "stage '%s' attends over no dim: it has no method %s", stage->name,
                             method->name);
    }
    /* A schedule repeats few ways to run a stage many times. */
    for (int i = index - schedule->period; i >= 0; i -= schedule->period) {
        if (schedule->run[i].layout == run->layout && schedule->run[i].method == method) {
            run->cost = schedule->run[i].cost;
            return HEDDLE_OK;
        }
    }
    heddle_status st =
        hd_method_group_make(&group, &schedule->shape, &schedule->mesh, &schedule->layout[run->layout], &stage->mixes);
    if (st != HEDDLE_OK) {
        return st;
    }
    const char *why_not = hd_method_why_not(reason, method, &group);
    if (why_not != NULL) {
        st = hd_fail(HEDDLE_ERR_LAYOUT, "stage '%s' cannot run by method %s: %s", stage->name, method->name, why_not);
    } else {
        hd_method_price(&run->cost, method, &group);
    }
    hd_method_group_free(&group);
    return st;
}

/* The last edge has a price of its own on the way back: the gradient behind it lies otherwise (heddle/schedule.h). */
heddle_status hd_schedule_set_edge(heddle_schedule *schedule, int edge, int from, int to, int is_free)
{
    heddle_status st = HEDDLE_OK;
    hd_schedule_edge *e = &schedule->edge[edge];
    const heddle_layout *a = &schedule->layout[from];
    const heddle_layout *b = &schedule->layout[to];
    int is_last = edge == schedule->period * schedule->repeat;
    *e = (hd_schedule_edge){.from = from, .to = to, .kind = is_free ? HD_EDGE_FREE : HD_EDGE_KEEP};
    if (is_free || (from == to && !is_last)) {
        return HEDDLE_OK;
    }
    /* A schedule repeats few moves many times. */
    for (int i = 0; i < edge && !is_last; i++) {
        if (schedule->edge[i].from == from && schedule->edge[i].to == to) {
            *e = schedule->edge[i];
            return HEDDLE_OK;
        }
    }
    if (from != to) {
        e->kind = hd_edge_kind_of(a, b, &schedule->mesh);
        HD_TRY(hd_edge_cost_of(&e->cost, &schedule->shape, &schedule->mesh, a, b));
    }
    HD_TRY(hd_edge_backward_cost_of(&e->backward, &schedule->shape, &schedule->mesh, a, b, is_last));
out:
    return st;
}

static void add_up(heddle_schedule *s, const hd_edge_cost *forward, const hd_edge_cost *backward)
{
    s->bytes_per_rank_max = hd_add_saturated(s->bytes_per_rank_max, forward->bytes_per_rank_max);
    s->bytes_total = hd_add_saturated(s->bytes_total, forward->bytes_total);
    s->backward_bytes_per_rank_max = hd_add_saturated(s->backward_bytes_per_rank_max, backward->bytes_per_rank_max);
    s->backward_bytes_total = hd_add_saturated(s->backward_bytes_total, backward->bytes_total);
}

heddle_status hd_schedule_sum(heddle_schedule *schedule)
{
    int nstages = schedule->period * schedule->repeat;
    schedule->switches = 0;
    schedule->bytes_per_rank_max = 0;
    schedule->bytes_total = 0;
    schedule->backward_bytes_per_rank_max = 0;
    schedule->backward_bytes_total = 0;
    for (int i = 0; i <= nstages; i++) {
        const hd_schedule_edge *edge = &schedule->edge[i];
        schedule->switches += edge->cost.bytes_total > 0;
        add_up(schedule, &edge->cost, &edge->backward);
        if (i < nstages) {
            add_up(schedule, &schedule->run[i].cost.forward, &schedule->run[i].cost.backward);
        }
    }
    if (schedule->bytes_total == INT64_MAX || schedule->backward_bytes_total == INT64_MAX) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the schedule of model '%s' moves more than 2^63 bytes",
                       schedule->model);
    }
    return HEDDLE_OK;
}

heddle_status hd_schedule_set_note(heddle_schedule *schedule, const char *note)
{
    char *copy = NULL;
    heddle_status st = hd_strdup(&copy, note);
    if (st == HEDDLE_OK) {
        hd_free(schedule->note);
        schedule->note = copy;
    }
    return st;
}

heddle_status heddle_schedule_get_info(heddle_schedule_info *out, const heddle_schedule *schedule)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, schedule));
    const heddle_schedule_info info = {.model = schedule->model,
                                       .shape = schedule->shape,
                                       .mesh = schedule->mesh,
                                       .period = schedule->period,
                                       .repeat = schedule->repeat,
                                       .nstages = schedule->period * schedule->repeat,
                                       .nedges = schedule->period * schedule->repeat + 1,
                                       .switches = schedule->switches,
                                       .bytes_per_rank_max = schedule->bytes_per_rank_max,
                                       .bytes_total = schedule->bytes_total,
                                       .backward_bytes_per_rank_max = schedule->backward_bytes_per_rank_max,
                                       .backward_bytes_total = schedule->backward_bytes_total,
                                       .note = schedule->note != NULL ? schedule->note : "",
                                       .machine = schedule->machine,
                                       .objective = schedule->objective,
                                       .value = schedule->value,
                                       .lower_bound = schedule->lower_bound,
                                       .runner_up = schedule->runner_up,
                                       .predicted_s = schedule->predicted_s};
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_schedule_info, model));
out:
    return st;
}

heddle_status heddle_schedule_stage_at(heddle_schedule_stage *out, const heddle_schedule *schedule, int stage)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, schedule));
    if (stage < 0 || stage >= schedule->period * schedule->repeat) {
        return hd_fail(HEDDLE_ERR_ARG, "stage %d of a schedule with %d stages", stage,
                       schedule->period * schedule->repeat);
    }
    const hd_schedule_stage *s = &schedule->stage[stage % schedule->period];
    heddle_schedule_stage made = HEDDLE_EMPTY(heddle_schedule_stage);
    made.name = s->name;
    made.repetition = stage / schedule->period;
    const hd_schedule_run *run = &schedule->run[stage];
    made.method = run->method->name;
    made.layout = schedule->layout[run->layout];
    made.kind = s->mixes.kind;
    made.mixed_dim = s->mixes.dim;
    made.heads = (int)s->mixes.heads;
    made.causal = s->mixes.causal;
    made.decays = s->mixes.decays;
    made.forward_bytes_per_rank_max = run->cost.forward.bytes_per_rank_max;
    made.forward_bytes_total = run->cost.forward.bytes_total;
    made.forward_messages = run->cost.forward.messages;
    made.backward_bytes_per_rank_max = run->cost.backward.bytes_per_rank_max;
    made.backward_bytes_total = run->cost.backward.bytes_total;
    made.backward_messages = run->cost.backward.messages;
    made.saved_bytes = run->cost.saved_bytes;
    made.workspace_bytes = run->cost.workspace_bytes;
    made.forward_flops = run->cost.forward_flops;
    made.backward_flops = run->cost.backward_flops;
    made.refusal = hd_method_stage_refusal(&s->mixes);
    made.predicted_s = run->predicted_s;
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_schedule_stage, name));
out:
    return st;
}

heddle_status heddle_schedule_edge_at(heddle_schedule_edge *out, const heddle_schedule *schedule, int edge)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, schedule));
    if (edge < 0 || edge > schedule->period * schedule->repeat) {
        return hd_fail(HEDDLE_ERR_ARG, "edge %d of a schedule with %d edges", edge,
                       schedule->period * schedule->repeat + 1);
    }
    const hd_schedule_edge *e = &schedule->edge[edge];
    heddle_schedule_edge made = HEDDLE_EMPTY(heddle_schedule_edge);
    made.from = schedule->layout[e->from];
    made.to = schedule->layout[e->to];
    made.kind = hd_edge_kind_names[e->kind];
    made.bytes_per_rank_max = e->cost.bytes_per_rank_max;
    made.bytes_total = e->cost.bytes_total;
    made.messages = e->cost.messages;
    made.bytes_received_max = e->cost.bytes_received_max;
    made.predicted_s = e->predicted_s;
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_schedule_edge, to));
out:
    return st;
}

int heddle_schedule_find(const heddle_schedule *schedule, const char *name, int repetition)
{
    if (schedule == NULL || name == NULL || repetition < 0 || repetition >= schedule->repeat) {
        return -1;
    }
    for (int i = 0; i < schedule->period; i++) {
        if (strcmp(schedule->stage[i].name, name) == 0) {
            return repetition * schedule->period + i;
        }
    }
    return -1;
}
