/* The best walk under a cap where kept bytes add up: labels (cost to the end, need to the end), backwards, every pair
 * that no two others are at least as good as in both. Exact: what follows a worse label is worse in both, too; two are
 * kept where one would do for the best walk, so that the next best one is among them. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdlib.h>

enum { LABELS_MAX = 1 << 20, CANDIDATES_MAX = 1 << 21 };

typedef struct hd_label {
    hd_cost cost;
    int64_t need;
    const hd_method *method;
    int state, next; /* next: the label of the step behind; -1 in the last step */
} hd_label;

typedef struct labels {
    hd_search *s;
    hd_label *label; /* of all steps */
    int count, capacity;
    int *first;          /* [nstates + 1] of the step behind: labels of a state begin here */
    int *here;           /* the same of this step */
    hd_label *candidate; /* of one state */
    int ncandidates, candidates_capacity;
    int64_t *before; /* [nsteps] the least that the steps before keep */
} labels;

static int by_cost(const void *a, const void *b)
{
    const hd_label *x = a;
    const hd_label *y = b;
    int order = hd_cost_compare(&x->cost, &y->cost);
    return order != 0 ? order : x->need != y->need ? (x->need < y->need ? -1 : 1) : x->next - y->next;
}

static heddle_status add_candidate(labels *l, int step, const hd_label *label)
{
    heddle_status st = HEDDLE_OK;
    if (hd_add_saturated(label->need, l->before[step]) > l->s->cap) {
        return HEDDLE_OK;
    }
    if (l->ncandidates == CANDIDATES_MAX) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "under a cap on memory more than %d partial plans of model '%s' are neither slower nor larger "
                       "than others; take fewer layers or fewer mesh axes, or a cap that binds less",
                       CANDIDATES_MAX, l->s->m->name);
    }
    HD_TRY(hd_grow((void **)&l->candidate, &l->candidates_capacity, l->ncandidates, sizeof *l->candidate, "labels"));
    l->candidate[l->ncandidates++] = *label;
out:
    return st;
}

/* Every way of `state` before a rest of this cost and need. */
static heddle_status add_ways(labels *l, int step, int state, const hd_label *rest, int next)
{
    const hd_row *row = &l->s->row[l->s->row_of[step]];
    for (int w = row->first[state]; w < row->first[state + 1]; w++) {
        const hd_priced *p = &row->way[w].price;
        int64_t behind = hd_add_saturated(p->kept, rest->need);
        hd_label label = {.cost = hd_cost_add(&p->cost, &rest->cost),
                          .need = p->need > behind ? p->need : behind,
                          .method = row->way[w].method,
                          .state = state,
                          .next = next};
        heddle_status st = add_candidate(l, step, &label);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

static heddle_status over_edge(hd_label *rest, hd_search *s, int step, int from, int to, const hd_label *behind)
{
    *rest = *behind;
    if (from == to) {
        return HEDDLE_OK;
    }
    const hd_priced *edge = NULL;
    heddle_status st = hd_search_edge_price(&edge, s, step, from, to);
    if (st == HEDDLE_OK) {
        rest->cost = hd_cost_add(&edge->cost, &behind->cost);
        rest->need = edge->need > behind->need ? edge->need : behind->need;
    }
    return st;
}

static heddle_status list_candidates(labels *l, int step, int state)
{
    heddle_status st = HEDDLE_OK;
    hd_search *s = l->s;
    l->ncandidates = 0;
    if (step + 1 == s->nsteps) {
        hd_priced last;
        HD_TRY(hd_search_last_price(&last, s, state));
        const hd_label rest = {.cost = last.cost, .need = last.need};
        st = add_ways(l, step, state, &rest, -1);
        goto out;
    }
    const hd_row *row = &s->row[s->row_of[step + 1]];
    for (int i = 0; i < row->nadmitted; i++) {
        int to = row->admitted[i];
        for (int k = l->first[to]; k < l->first[to + 1]; k++) {
            hd_label rest;
            HD_TRY(over_edge(&rest, s, step + 1, state, to, &l->label[k]));
            HD_TRY(add_ways(l, step, state, &rest, k));
        }
    }
out:
    return st;
}

/* In the order of costs a label is kept unless two before it need no more. */
static heddle_status keep_best(labels *l)
{
    int64_t least[2] = {INT64_MAX, INT64_MAX};
    if (l->ncandidates > 0) {
        qsort(l->candidate, (size_t)l->ncandidates, sizeof *l->candidate, by_cost);
    }
    for (int i = 0; i < l->ncandidates; i++) {
        const hd_label *c = &l->candidate[i];
        if (c->need >= least[1] && least[1] != INT64_MAX) {
            continue;
        }
        if (l->count == LABELS_MAX) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                           "under a cap on memory %d partial plans of model '%s' are neither slower nor larger than "
                           "others, and more are not kept; take fewer layers or fewer mesh axes, or a cap that binds "
                           "less",
                           LABELS_MAX, l->s->m->name);
        }
        heddle_status st = hd_grow((void **)&l->label, &l->capacity, l->count, sizeof *l->label, "labels");
        if (st != HEDDLE_OK) {
            return st;
        }
        l->label[l->count++] = *c;
        least[1] = c->need < least[0] ? least[0] : c->need < least[1] ? c->need : least[1];
        least[0] = c->need < least[0] ? c->need : least[0];
    }
    return HEDDLE_OK;
}

static heddle_status label_step(labels *l, int step)
{
    heddle_status st = HEDDLE_OK;
    for (int state = 0; state < l->s->nstates; state++) {
        l->here[state] = l->count;
        HD_TRY(list_candidates(l, step, state));
        HD_TRY(keep_best(l));
    }
    l->here[l->s->nstates] = l->count;
    int *swap = l->here;
    l->here = l->first;
    l->first = swap;
out:
    return st;
}

static heddle_status labels_open(labels *l)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    hd_search *s = l->s;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates + 1, sizeof *l->first, "labels"));
    l->first = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates + 1, sizeof *l->here, "labels"));
    l->here = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nsteps, sizeof *l->before, "labels"));
    l->before = memory;
    for (int i = 0; i + 1 < s->nsteps; i++) {
        const hd_row *row = &s->row[s->row_of[i]];
        int64_t least = INT64_MAX;
        for (int w = 0; w < row->nways; w++) {
            least = row->way[w].price.kept < least ? row->way[w].price.kept : least;
        }
        l->before[i + 1] = hd_add_saturated(l->before[i], least);
    }
out:
    return st;
}

/* The best and the next best label of the first step, behind the prologue. */
static heddle_status choose(hd_walk *out, int *first, labels *l)
{
    heddle_status st = HEDDLE_OK;
    hd_search *s = l->s;
    *first = -1;
    for (int state = 0; state < s->nstates; state++) {
        for (int k = l->first[state]; k < l->first[state + 1]; k++) {
            hd_label whole;
            HD_TRY(over_edge(&whole, s, 0, s->prologue >= 0 ? s->prologue : state, state, &l->label[k]));
            if (whole.need > s->cap) {
                continue;
            }
            if (*first < 0 || hd_cost_compare(&whole.cost, &out->cost) < 0) {
                out->second = *first < 0 ? out->second : out->cost;
                out->cost = whole.cost;
                *first = k;
            } else if (hd_cost_compare(&whole.cost, &out->second) < 0) {
                out->second = whole.cost;
            }
        }
    }
out:
    return st;
}

heddle_status hd_search_labels(hd_walk *out, hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    labels l = {.s = s};
    int at = 0;
    HD_TRY(labels_open(&l));
    for (int step = s->nsteps - 1; step >= 0; step--) {
        HD_TRY(label_step(&l, step));
    }
    HD_TRY(choose(out, &at, &l));
    for (int step = 0; at >= 0; step++) {
        out->state[step] = (int16_t)l.label[at].state;
        out->method[step] = l.label[at].method;
        at = l.label[at].next;
    }
out:
    HD_FREE_ALL(l.label, l.first, l.here, l.candidate, l.before);
    return st;
}
