/* The cheapest sequence of layouts as a schedule. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>

/* "; s.attn runs by ulysses" for every stage that has a method somewhere. */
static void note_methods(char *out, size_t out_bytes, const heddle_schedule *s)
{
    size_t n = 0;
    out[0] = '\0';
    for (int k = 0; k < s->period; k++) {
        const hd_method *last = &hd_method_local;
        for (int i = k; i < s->period * s->repeat && n + 1 < out_bytes; i += s->period) {
            if (s->run[i].method != last && s->run[i].method != &hd_method_local) {
                n += (size_t)snprintf(out + n, out_bytes - n, "; '%s' runs by %s", s->stage[k].name,
                                      s->run[i].method->name);
                last = s->run[i].method;
            }
        }
    }
}

static heddle_status set_note(heddle_schedule *schedule, const hd_search *s)
{
    char note[1024];
    char methods[512];
    static const char *const order[HD_OBJECTIVES] = {
        [HD_OBJECTIVE_BYTES] = "bytes of the busiest rank summed over the edges and stages%s, then all bytes, then "
                               "stages that are not local, then switches, then work",
        [HD_OBJECTIVE_TIME] = "seconds of the busiest rank summed over the edges and stages%s, then bytes of the "
                              "slowest links, then all bytes, then stages that are not local, then switches, then work",
        [HD_OBJECTIVE_SLOW_BYTES] = "bytes of the slowest links summed over the edges and stages%s, then bytes of the "
                                    "busiest rank, then all bytes, then stages that are not local, then switches",
        [HD_OBJECTIVE_MEMORY] = "bytes of the fullest rank at the peak%s, then what the stages and edges cost",
        [HD_OBJECTIVE_GPU_SECONDS] = "seconds of all ranks together summed over the edges and stages%s, then bytes of "
                                     "the slowest links, then all bytes, then stages that are not local",
    };
    char what[512];
    char slack[128] = "";
    note_methods(methods, sizeof methods, schedule);
    snprintf(what, sizeof what, order[s->aim.objective], s->pricer.backward ? ", forward and backward" : "");
    if (!s->aim.is_time) {
        snprintf(slack, sizeof slack, "; a stage's largest box may exceed its best layout's by %d%%", s->slack_percent);
    }
    snprintf(note, sizeof note,
             "exact minimum over every sequence of %d layouts through %d stage%s, with every method that a stage may "
             "run by: %s%s%s",
             s->nstates, s->nsteps, s->nsteps == 1 ? "" : "s", what, slack, methods);
    return hd_schedule_set_note(schedule, note);
}

static double seconds(int64_t picoseconds)
{
    return (double)picoseconds / 1e12;
}

double hd_search_value(const hd_search *s, const hd_cost *cost)
{
    if (!s->aim.is_time) {
        return (double)cost->part[0];
    }
    double value = seconds(hd_add_saturated(cost->part[0], s->always_ps));
    return s->aim.objective == HD_OBJECTIVE_GPU_SECONDS ? value * heddle_mesh_size(&s->mesh) : value;
}

/* A plan's value, what no plan is below, and the next best: of the objective; of memory by the peak. A bound without a
 * search is told where it says something; else the search is the proof. */
static heddle_status set_certificate(heddle_schedule *schedule, hd_search *s, const hd_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_strdup(&schedule->objective, hd_objective_names[s->aim.objective]));
    if (s->aim.objective == HD_OBJECTIVE_MEMORY) {
        schedule->value = (double)hd_add_saturated(s->cap, s->resident);
        schedule->lower_bound = (double)hd_add_saturated(hd_search_least_stage(s), s->resident);
        schedule->runner_up = s->next_need < INT64_MAX ? (double)hd_add_saturated(s->next_need, s->resident) : 0;
        goto out;
    }
    schedule->value = hd_search_value(s, &walk->cost);
    schedule->runner_up = hd_cost_compare(&walk->second, &hd_cost_none) < 0 ? hd_search_value(s, &walk->second) : 0;
    HD_TRY(hd_search_lower_bound(&schedule->lower_bound, s));
out:
    if (st == HEDDLE_OK && schedule->lower_bound < schedule->value / 2) {
        schedule->lower_bound = schedule->value;
    }
    return st;
}

/* What each stage and edge takes, where a machine says so. */
static heddle_status predict(heddle_schedule *schedule, hd_search *s, const hd_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    int64_t sum = hd_price_gradients_ps(&s->pricer);
    if (s->pricer.machine == NULL) {
        return HEDDLE_OK;
    }
    heddle_machine_info info = HEDDLE_EMPTY(heddle_machine_info);
    HD_TRY(heddle_machine_get_info(&info, s->pricer.machine));
    HD_TRY(hd_strdup(&schedule->machine, info.name));
    for (int i = 0; i <= s->nsteps; i++) {
        hd_priced edge, own;
        HD_TRY(hd_search_edge_of(&edge, s, walk, i));
        schedule->edge[i].predicted_s = seconds(edge.time_ps);
        sum = hd_add_saturated(sum, edge.time_ps);
        if (i < s->nsteps) {
            HD_TRY(hd_search_stage_price(&own, s, s->row[s->row_of[i]].stage, walk->state[i], walk->method[i]));
            schedule->run[i].predicted_s = seconds(own.time_ps);
            sum = hd_add_saturated(sum, own.time_ps);
        }
    }
    schedule->predicted_s = seconds(sum);
out:
    return st;
}

heddle_status hd_search_write_down(heddle_schedule **out, hd_search *s, const hd_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    heddle_schedule *schedule = NULL;
    int from = 0;
    int to = 0;
    HD_TRY(hd_schedule_new(&schedule, s->m->name, s->m->nstages, s->m->repeat));
    schedule->shape = s->m->shape;
    schedule->mesh = s->mesh;
    for (int k = 0; k < s->m->nstages; k++) {
        memcpy(schedule->stage[k].name, s->m->stage[k].name, sizeof schedule->stage[k].name);
        schedule->stage[k].mixes = s->mixes[k];
    }
    HD_TRY(hd_schedule_layout(&from, schedule, &s->layout[s->prologue >= 0 ? s->prologue : walk->state[0]]));
    for (int i = 0; i < s->nsteps; i++) {
        HD_TRY(hd_schedule_layout(&to, schedule, &s->layout[walk->state[i]]));
        schedule->run[i].layout = to;
        HD_TRY(hd_schedule_set_method(schedule, i, walk->method[i]));
        HD_TRY(hd_schedule_set_edge(schedule, i, from, to, i == 0 && s->prologue < 0));
        from = to;
    }
    int last = walk->state[s->nsteps - 1];
    HD_TRY(hd_schedule_layout(&to, schedule, &s->layout[s->epilogue >= 0 ? s->epilogue : last]));
    HD_TRY(hd_schedule_set_edge(schedule, s->nsteps, from, to, s->epilogue < 0));
    HD_TRY(hd_schedule_sum(schedule));
    HD_TRY(set_certificate(schedule, s, walk));
    HD_TRY(predict(schedule, s, walk));
    HD_TRY(set_note(schedule, s));
    *out = schedule;
    schedule = NULL;
out:
    heddle_schedule_destroy(schedule);
    return st;
}
