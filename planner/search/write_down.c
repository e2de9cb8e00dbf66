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
    int nstages = s->m->nstages * s->m->repeat;
    note_methods(methods, sizeof methods, schedule);
    snprintf(
        note, sizeof note,
        "exact minimum over every sequence of %d layouts through %d stage%s, with every method that a stage may run "
        "by: bytes of the busiest rank summed over the edges and stages%s, then all bytes, then stages that are not "
        "local, then switches, then "
        "work; a stage's largest box may exceed its best layout's by %d%%%s",
        s->nstates, nstages, nstages == 1 ? "" : "s", s->backward ? ", forward and backward" : "", s->slack_percent,
        methods);
    return hd_schedule_set_note(schedule, note);
}

heddle_status hd_search_write_down(heddle_schedule **out, hd_search *s, int first)
{
    heddle_status st = HEDDLE_OK;
    heddle_schedule *schedule = NULL;
    int nstages = s->m->nstages * s->m->repeat;
    int state = first;
    int from = 0;
    int to = 0;
    HD_TRY(hd_schedule_new(&schedule, s->m->name, s->m->nstages, s->m->repeat));
    schedule->shape = s->m->shape;
    schedule->mesh = s->mesh;
    for (int k = 0; k < s->m->nstages; k++) {
        memcpy(schedule->stage[k].name, s->m->stage[k].name, sizeof schedule->stage[k].name);
        schedule->stage[k].mixes = s->mixes[k];
    }
    HD_TRY(hd_schedule_layout(&from, schedule, &s->layout[s->prologue >= 0 ? s->prologue : first]));
    for (int i = 0; i < nstages; i++) {
        HD_TRY(hd_schedule_layout(&to, schedule, &s->layout[state]));
        schedule->run[i].layout = to;
        HD_TRY(hd_schedule_set_method(
            schedule, i, s->node[(size_t)(i % s->m->nstages) * (size_t)s->nstates + (size_t)state].method));
        HD_TRY(hd_schedule_set_edge(schedule, i, from, to, i == 0 && s->prologue < 0));
        from = to;
        state = i + 1 < nstages ? s->choice[(size_t)i * (size_t)s->nstates + (size_t)state] : state;
    }
    HD_TRY(hd_schedule_layout(&to, schedule, &s->layout[s->epilogue >= 0 ? s->epilogue : state]));
    HD_TRY(hd_schedule_set_edge(schedule, nstages, from, to, s->epilogue < 0));
    HD_TRY(hd_schedule_sum(schedule));
    HD_TRY(set_note(schedule, s));
    *out = schedule;
    schedule = NULL;
out:
    heddle_schedule_destroy(schedule);
    return st;
}
