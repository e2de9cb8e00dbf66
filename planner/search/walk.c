/* The best walk where only costs add up: Viterbi, backwards, so that the way forward may put a switch off for as long
 * as it costs nothing.
 *
 * Per state two costs to the end are kept, of the best walk and of the next best one. States of the step behind are
 * tried in the order of their costs; an edge costs nothing or more, so the first one that is dearer than what was found
 * ends the list, and most edges are never priced. The walk of a model that repeats itself ends early, too: where all
 * costs of two repetitions c apart differ by the same amount, they do so for ever, and the choices repeat. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdlib.h>
#include <string.h>

enum { HISTORY = 16 }; /* repetitions that are looked back */

typedef struct hd_to_end {
    hd_cost best, second;
} hd_to_end;

typedef struct hd_candidate {
    hd_cost cost;
    int state;
} hd_candidate;

typedef struct walker {
    hd_search *s;
    hd_walk_kind kind;
    hd_to_end *history;  /* [HISTORY][nstates] before the first stage of a repetition, counted from the last one */
    hd_to_end *here;     /* [nstates] of this step */
    hd_to_end *behind;   /* [nstates] of the step behind */
    hd_candidate *order; /* [nstates] states of the step behind, cheapest first */
    int norder;
    int16_t **choice; /* [repeat][period * nstates] the state of the following step; repetitions from the last one */
    int done;         /* repetitions walked */
    int cycle;        /* those before these are like the ones so many behind; 0: all were walked */
    hd_cost drift;    /* what a cycle costs */
} walker;

static const hd_row *row_at(const hd_search *s, int step)
{
    return &s->row[s->row_of[step]];
}

static int is_none(const hd_cost *cost)
{
    return hd_cost_compare(cost, &hd_cost_none) == 0;
}

static void lower(hd_cost *least, const hd_cost *cost)
{
    *least = hd_cost_compare(cost, least) < 0 ? *cost : *least;
}

/* On a tie it stays, then the first. */
static int goes_first(int a, int b, int state)
{
    return a == state || (b != state && a < b);
}

/* What another way must not cost more than, to be looked at. */
static const hd_cost *worst(const walker *w, const hd_to_end *found)
{
    return w->kind == HD_WALK_TWO ? &found->second : &found->best;
}

/* One more way to go on from `state`: to `next`. The first part of an edge's cost is looked at alone where it rules the
 * edge out. */
static heddle_status consider(hd_to_end *out, int *choice, const walker *w, int step, int state, int next)
{
    heddle_status st = HEDDLE_OK;
    hd_search *s = w->s;
    const hd_to_end *behind = &w->behind[next];
    const hd_priced *edge = NULL;
    hd_to_end total = *behind;
    int64_t least = 0;
    if (next != state) {
        HD_TRY(hd_search_edge_least(&least, s, step + 1, state, next));
        if (hd_add_saturated(least, behind->best.part[0]) > worst(w, out)->part[0]) {
            return HEDDLE_OK;
        }
    }
    if (next != state && w->kind == HD_WALK_FLOOR) {
        total.best.part[0] = hd_add_saturated(least, behind->best.part[0]);
    } else if (next != state) {
        HD_TRY(hd_search_edge_price(&edge, s, step + 1, state, next));
        if (edge->need > s->cap) {
            return HEDDLE_OK;
        }
        total = (hd_to_end){hd_cost_add(&edge->cost, &behind->best), hd_cost_add(&edge->cost, &behind->second)};
    }
    int order = hd_cost_compare(&total.best, &out->best);
    if (*choice < 0 || order < 0 || (order == 0 && goes_first(next, *choice, state))) {
        lower(&out->second, &out->best);
        out->best = total.best;
        *choice = next;
    } else {
        lower(&out->second, &total.best);
    }
    lower(&out->second, &total.second);
out:
    return st;
}

/* The two cheapest ways from `state` to the end, this step's own cost aside. choice: -1: there is none. To stay and
 * what was best a repetition ago are tried first: they bound what the others may cost. */
static heddle_status look_ahead(hd_to_end *out, int *choice, const walker *w, int step, int state)
{
    heddle_status st = HEDDLE_OK;
    int period = w->s->m->nstages;
    const int16_t *ago = w->done > 0 ? w->choice[w->done - 1] + (size_t)(step % period) * (size_t)w->s->nstates : NULL;
    int likely = ago != NULL ? ago[state] : -1;
    likely = likely != state && likely >= 0 && !is_none(&w->behind[likely].best) ? likely : -1;
    *out = (hd_to_end){hd_cost_none, hd_cost_none};
    *choice = -1;
    if (!is_none(&w->behind[state].best)) {
        HD_TRY(consider(out, choice, w, step, state, state));
    }
    HD_TRY(likely >= 0 ? consider(out, choice, w, step, state, likely) : HEDDLE_OK);
    const int64_t *least = hd_search_edge_known(w->s, step + 1, state);
    for (int i = 0; i < w->norder && hd_cost_compare(&w->order[i].cost, worst(w, out)) <= 0; i++) {
        int next = w->order[i].state;
        int is_dear = least != NULL && least[next] - 1 > worst(w, out)->part[0] - w->order[i].cost.part[0];
        if (next != state && next != likely && !is_dear) {
            HD_TRY(consider(out, choice, w, step, state, next));
        }
    }
out:
    return st;
}

/* The cheapest way in a state goes with the best rest; next best is another way, or another rest. */
static hd_to_end with_ways(const hd_row *row, int state, const hd_to_end *rest)
{
    const hd_way *way = &row->way[row->first[state]];
    hd_to_end sum = {hd_cost_add(&way->price.cost, &rest->best), hd_cost_add(&way->price.cost, &rest->second)};
    if (row->first[state + 1] > row->first[state] + 1) {
        hd_cost other = hd_cost_add(&way[1].price.cost, &rest->best);
        lower(&sum.second, &other);
    }
    return sum;
}

static int by_cost(const void *a, const void *b)
{
    const hd_candidate *x = a;
    const hd_candidate *y = b;
    int order = hd_cost_compare(&x->cost, &y->cost);
    return order != 0 ? order : x->state - y->state;
}

/* What was this step is behind the next one. */
static void step_back(walker *w, const hd_row *row)
{
    hd_to_end *swap = w->here;
    w->here = w->behind;
    w->behind = swap;
    w->norder = 0;
    for (int i = 0; i < row->nadmitted; i++) {
        int state = row->admitted[i];
        if (!is_none(&w->behind[state].best)) {
            w->order[w->norder++] = (hd_candidate){w->behind[state].best, state};
        }
    }
    qsort(w->order, (size_t)w->norder, sizeof *w->order, by_cost);
}

static heddle_status walk_step(walker *w, int step, int16_t *choices)
{
    heddle_status st = HEDDLE_OK;
    hd_search *s = w->s;
    const hd_row *row = row_at(s, step);
    for (int i = 0; i < s->nstates; i++) {
        w->here[i] = (hd_to_end){hd_cost_none, hd_cost_none};
    }
    for (int i = 0; i < row->nadmitted; i++) {
        int state = row->admitted[i];
        int choice = state;
        hd_to_end rest = {hd_cost_none, hd_cost_none};
        if (step + 1 < s->nsteps) {
            HD_TRY(look_ahead(&rest, &choice, w, step, state));
        } else {
            hd_priced last;
            HD_TRY(hd_search_last_price(&last, s, state));
            choice = last.need <= s->cap ? state : -1;
            rest.best = last.cost;
        }
        choices[state] = (int16_t)choice;
        w->here[state] = choice >= 0 ? with_ways(row, state, &rest) : w->here[state];
    }
    step_back(w, row);
out:
    return st;
}

/* a = b + drift, or both are none. */
static int differs_by(const hd_cost *a, const hd_cost *b, const hd_cost *drift)
{
    for (int i = 0; i < HD_COST_PARTS; i++) {
        if (a->part[i] == INT64_MAX || b->part[i] == INT64_MAX ? a->part[i] != b->part[i]
                                                               : a->part[i] - b->part[i] != drift->part[i]) {
            return 0;
        }
    }
    return 1;
}

static int is_shifted(walker *w, const hd_to_end *now, const hd_to_end *then, const hd_row *row)
{
    int first = w->norder > 0 ? w->order[0].state : -1;
    for (int i = 0; first >= 0 && i < HD_COST_PARTS; i++) {
        w->drift.part[i] = now[first].best.part[i] - then[first].best.part[i];
    }
    for (int i = 0; first >= 0 && i < row->nadmitted; i++) {
        int state = row->admitted[i];
        if (!differs_by(&now[state].best, &then[state].best, &w->drift) ||
            !differs_by(&now[state].second, &then[state].second, &w->drift)) {
            return 0;
        }
    }
    return first >= 0;
}

static hd_to_end *remembered(const walker *w, int repetition)
{
    return w->history + (size_t)(repetition % HISTORY) * (size_t)w->s->nstates;
}

/* Was all of this so some repetitions ago, but for the same amount? */
static void look_for_cycle(walker *w)
{
    const hd_row *row = row_at(w->s, 0);
    for (int c = 1; c < HISTORY && c < w->done && w->cycle == 0; c++) {
        w->cycle = is_shifted(w, remembered(w, w->done - 1), remembered(w, w->done - 1 - c), row) ? c : 0;
    }
}

static heddle_status walk_repetitions(walker *w)
{
    heddle_status st = HEDDLE_OK;
    hd_search *s = w->s;
    int period = s->m->nstages;
    const int steady = hd_search_repeats(s);
    while (w->done < s->m->repeat && w->cycle == 0) {
        void *memory = NULL;
        HD_TRY(hd_alloc(&memory, (size_t)period * (size_t)s->nstates, sizeof **w->choice, "choices"));
        w->choice[w->done] = memory;
        for (int k = period - 1; k >= 0; k--) {
            int step = (s->m->repeat - 1 - w->done) * period + k;
            HD_TRY(walk_step(w, step, w->choice[w->done] + (size_t)k * (size_t)s->nstates));
        }
        memcpy(remembered(w, w->done), w->behind, (size_t)s->nstates * sizeof *w->behind);
        w->done++;
        if (steady && w->done < s->m->repeat) {
            look_for_cycle(w);
        }
    }
out:
    return st;
}

/* The walked repetition that repetition `from_last` is like; *cycles: how many cycles lie between. */
static int like(const walker *w, int from_last, int *cycles)
{
    *cycles = from_last < w->done ? 0 : (from_last - w->done) / w->cycle + 1;
    return from_last - *cycles * w->cycle;
}

static void add_cycles(hd_cost *cost, const hd_cost *drift, int cycles)
{
    for (int i = 0; i < HD_COST_PARTS && !is_none(cost); i++) {
        __int128 sum = cost->part[i] + (__int128)drift->part[i] * cycles;
        cost->part[i] = sum > INT64_MAX ? INT64_MAX : (int64_t)sum;
    }
}

/* From the prologue into the first stage. */
static heddle_status begin(hd_to_end *out, int *state, walker *w)
{
    int cycles = 0;
    const hd_row *row = row_at(w->s, 0);
    const hd_to_end *first = remembered(w, like(w, w->s->m->repeat - 1, &cycles));
    heddle_status st = HEDDLE_OK;
    *out = (hd_to_end){hd_cost_none, hd_cost_none};
    *state = -1;
    for (int i = 0; i < row->nadmitted; i++) {
        int to = row->admitted[i];
        hd_to_end here = first[to];
        if (is_none(&here.best)) {
            continue;
        }
        if (w->s->prologue >= 0 && w->s->prologue != to) {
            const hd_priced *edge = NULL;
            HD_TRY(hd_search_edge_price(&edge, w->s, 0, w->s->prologue, to));
            if (edge->need > w->s->cap) {
                continue;
            }
            here.best = hd_cost_add(&edge->cost, &here.best);
            here.second = hd_cost_add(&edge->cost, &here.second);
        }
        if (*state < 0 || hd_cost_compare(&here.best, &out->best) < 0) {
            lower(&out->second, &out->best);
            out->best = here.best;
            *state = to;
        } else {
            lower(&out->second, &here.best);
        }
        lower(&out->second, &here.second);
    }
    add_cycles(&out->best, &w->drift, cycles);
    add_cycles(&out->second, &w->drift, cycles);
out:
    return st;
}

static void follow(hd_walk *out, const walker *w, int state)
{
    const hd_search *s = w->s;
    for (int step = 0; step < s->nsteps; step++) {
        int cycles = 0;
        int period = s->m->nstages;
        int repetition = like(w, s->m->repeat - 1 - step / period, &cycles);
        const hd_row *row = row_at(s, step);
        out->state[step] = (int16_t)state;
        out->method[step] = row->way[row->first[state]].method;
        state = w->choice[repetition][(size_t)(step % period) * (size_t)s->nstates + (size_t)state];
    }
}

static heddle_status walker_open(walker *w)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    size_t states = (size_t)w->s->nstates;
    HD_TRY(hd_alloc(&memory, HISTORY * states, sizeof *w->history, "costs"));
    w->history = memory;
    HD_TRY(hd_alloc(&memory, states, sizeof *w->here, "costs"));
    w->here = memory;
    HD_TRY(hd_alloc(&memory, states, sizeof *w->behind, "costs"));
    w->behind = memory;
    HD_TRY(hd_alloc(&memory, states, sizeof *w->order, "costs"));
    w->order = memory;
    HD_TRY(hd_alloc(&memory, (size_t)w->s->m->repeat, sizeof *w->choice, "choices"));
    w->choice = memory;
out:
    return st;
}

heddle_status hd_search_walk(hd_walk *out, hd_search *s, hd_walk_kind kind)
{
    heddle_status st = HEDDLE_OK;
    walker w = {.s = s, .kind = kind};
    hd_to_end total;
    int state = 0;
    HD_TRY(walker_open(&w));
    HD_TRY(walk_repetitions(&w));
    HD_TRY(begin(&total, &state, &w));
    out->cost = state >= 0 ? total.best : hd_cost_none;
    out->second = kind == HD_WALK_TWO ? total.second : hd_cost_none;
    if (state >= 0) {
        follow(out, &w, state);
    }
out:
    for (int i = 0; w.choice != NULL && i < s->m->repeat; i++) {
        hd_free(w.choice[i]);
    }
    HD_FREE_ALL(w.history, w.here, w.behind, w.order, w.choice);
    return st;
}
