/* What the fullest rank needs, and what does not fit.
 *
 * In a forward pass a stage or an edge needs its own bytes, and only the largest counts: what passes the cap is left
 * out before the walk, which stays exact. With a way back every stage keeps some, so that
 *     need(step, ...) = max(own(step), kept(step) + need(step + 1, ...)),
 * which grows with the need behind it: the least is found by a walk like that of costs, with this instead of a sum. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <string.h>

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The least that any way of a row needs, and keeps. */
static int64_t row_least(int64_t *kept, const hd_row *row)
{
    int64_t need = INT64_MAX;
    *kept = INT64_MAX;
    for (int i = 0; i < row->nways; i++) {
        need = row->way[i].price.need < need ? row->way[i].price.need : need;
        *kept = row->way[i].price.kept < *kept ? row->way[i].price.kept : *kept;
    }
    return need;
}

/* `least` is more than the cap: the first stage where no choice would do, or else all of them together. */
heddle_status hd_search_refuse_memory(const hd_search *s, int64_t least)
{
    int64_t before = 0;
    long long allowed = (long long)hd_add_saturated(s->cap, s->resident);
    for (int i = 0; i < s->nsteps; i++) {
        int64_t kept = 0;
        int64_t need = hd_add_saturated(before, row_least(&kept, &s->row[s->row_of[i]]));
        if (need > s->cap) {
            return hd_fail(HEDDLE_ERR_INFEASIBLE,
                           "stage '%s' of repetition %d: the fullest rank needs at least %lld bytes (%lld of them "
                           "weights and what belongs to them, %lld kept by the stages before); %lld are allowed",
                           s->m->stage[i % s->m->nstages].name, i / s->m->nstages + 1,
                           (long long)hd_add_saturated(need, s->resident), (long long)s->resident, (long long)before,
                           allowed);
        }
        before = hd_add_saturated(before, kept);
    }
    return hd_fail(
        HEDDLE_ERR_INFEASIBLE,
        "the fullest rank needs at least %lld bytes in stages and edges from '%s' to '%s' (%lld of them weights "
        "and what belongs to them); %lld are allowed",
        (long long)hd_add_saturated(least, s->resident), s->m->stage[0].name, s->m->stage[s->m->nstages - 1].name,
        (long long)s->resident, allowed);
}

static void take_need(hd_needs *out, int64_t need)
{
    if (need < out->least) {
        out->next = out->least;
        out->least = need;
    } else if (need < out->next) {
        out->next = need;
    }
}

/* Of one state, of what comes behind it: the least over the states there. */
static heddle_status least_behind(hd_needs *out, hd_search *s, int step, int state, const hd_needs *behind)
{
    const hd_row *next = &s->row[s->row_of[step + 1]];
    *out = behind[state];
    for (int i = 0; i < next->nadmitted; i++) {
        int to = next->admitted[i];
        if (to != state && behind[to].least < out->next) {
            const hd_priced *edge = NULL;
            heddle_status st = hd_search_edge_price(&edge, s, step + 1, state, to);
            if (st != HEDDLE_OK) {
                return st;
            }
            take_need(out, larger(edge->need, behind[to].least));
            take_need(out, larger(edge->need, behind[to].next));
        }
    }
    return HEDDLE_OK;
}

static heddle_status least_of_step(hd_needs *here, hd_search *s, int step, const hd_needs *behind)
{
    heddle_status st = HEDDLE_OK;
    const hd_row *row = &s->row[s->row_of[step]];
    for (int i = 0; i < s->nstates; i++) {
        here[i] = (hd_needs){INT64_MAX, INT64_MAX};
    }
    for (int i = 0; i < row->nadmitted; i++) {
        int state = row->admitted[i];
        hd_needs rest = {0, INT64_MAX};
        if (step + 1 < s->nsteps) {
            HD_TRY(least_behind(&rest, s, step, state, behind));
        } else {
            hd_priced last;
            HD_TRY(hd_search_last_price(&last, s, state));
            rest.least = last.need;
        }
        for (int w = row->first[state]; w < row->first[state + 1]; w++) {
            const hd_priced *way = &row->way[w].price;
            take_need(&here[state], larger(way->need, hd_add_saturated(way->kept, rest.least)));
            take_need(&here[state], larger(way->need, hd_add_saturated(way->kept, rest.next)));
        }
    }
out:
    return st;
}

static heddle_status least_before(hd_needs *out, hd_search *s, const hd_needs *first)
{
    const hd_row *row = &s->row[s->row_of[0]];
    *out = (hd_needs){INT64_MAX, INT64_MAX};
    for (int i = 0; i < row->nadmitted; i++) {
        int state = row->admitted[i];
        int64_t before = 0;
        if (s->prologue >= 0 && s->prologue != state) {
            const hd_priced *edge = NULL;
            heddle_status st = hd_search_edge_price(&edge, s, 0, s->prologue, state);
            if (st != HEDDLE_OK) {
                return st;
            }
            before = edge->need;
        }
        take_need(out, larger(before, first[state].least));
        take_need(out, larger(before, first[state].next));
    }
    return HEDDLE_OK;
}

heddle_status hd_search_least_need(hd_needs *out, hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    hd_needs *need[3] = {NULL, NULL, NULL}; /* of this step, of the one behind, a repetition ago */
    size_t bytes = (size_t)s->nstates * sizeof **need;
    for (int i = 0; i < 3; i++) {
        HD_TRY(hd_alloc(&memory, (size_t)s->nstates, sizeof **need, "needs of layouts"));
        need[i] = memory;
    }
    for (int step = s->nsteps - 1; step >= 0; step--) {
        HD_TRY(least_of_step(need[0], s, step, need[1]));
        hd_needs *swap = need[0];
        need[0] = need[1];
        need[1] = swap;
        /* Nothing adds up, and a repetition later nothing has changed: nothing will. */
        if (step % s->m->nstages == 0 && s->nforces == 0) {
            if (step != s->nsteps - s->m->nstages && memcmp(need[1], need[2], bytes) == 0) {
                break;
            }
            memcpy(need[2], need[1], bytes);
        }
    }
    st = least_before(out, s, need[1]);
out:
    HD_FREE_ALL(need[0], need[1], need[2]);
    return st;
}

/* Bytes that a walk needs besides what is resident. */
heddle_status hd_search_need(int64_t *out, hd_search *s, const hd_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    int64_t kept = 0;
    *out = 0;
    for (int i = 0; i <= s->nsteps; i++) {
        hd_priced edge, own;
        HD_TRY(hd_search_edge_of(&edge, s, walk, i));
        *out = larger(*out, hd_add_saturated(kept, edge.need));
        if (i < s->nsteps) {
            HD_TRY(hd_search_stage_price(&own, s, s->row[s->row_of[i]].stage, walk->state[i], walk->method[i]));
            *out = larger(*out, hd_add_saturated(kept, own.need));
            kept = hd_add_saturated(kept, own.kept);
        }
    }
out:
    return st;
}

/* What alone passes the cap goes; the walk looks at edges itself. */
static heddle_status filter(hd_search *s, hd_row *row)
{
    int kept = 0;
    int nadmitted = 0;
    for (int i = 0, w = 0; i < s->nstates; i++) {
        int end = row->first[i + 1];
        row->first[i] = kept;
        for (; w < end; w++) {
            if (row->way[w].price.need <= s->cap) {
                row->way[kept++] = row->way[w];
            }
        }
        if (kept > row->first[i]) {
            row->admitted[nadmitted++] = (int16_t)i;
        }
    }
    if (kept == 0) {
        return hd_search_refuse_memory(s, 0);
    }
    row->nways = row->first[s->nstates] = kept;
    row->nadmitted = nadmitted;
    row->least = hd_cost_none;
    for (int i = 0; i < kept; i++) {
        row->least = hd_cost_compare(&row->way[i].price.cost, &row->least) < 0 ? row->way[i].price.cost : row->least;
    }
    return HEDDLE_OK;
}

heddle_status hd_search_fit(hd_search *s)
{
    if (s->cap < 0) {
        return hd_fail(HEDDLE_ERR_INFEASIBLE,
                       "stage '%s': weights and what belongs to them are %lld bytes of every rank; %lld are allowed",
                       s->m->stage[0].name, (long long)s->resident, (long long)(s->cap + s->resident));
    }
    for (int i = 0; i < s->nrows && s->cap != INT64_MAX; i++) {
        heddle_status st = filter(s, &s->row[i]);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}
