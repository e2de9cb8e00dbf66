/* The best walk under a cap where kept bytes add up: labels (cost to the end, need to the end), backwards, every pair
 * that no two others are at least as good as in both. Exact: what follows a worse label is worse in both, too; two are
 * kept where one would do for the best walk, so that the next best one is among them.
 *
 * The labels of a state lie in the order of their costs, and so they do before an edge and a way: those of all states
 * behind are merged, and most are passed over by their need alone. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

enum { LABELS_MAX = 1 << 20 };

typedef struct hd_label {
    hd_cost cost;
    int64_t need;
    const hd_method *method;
    int state, next; /* next: the label of the step behind; -1 behind the last step */
} hd_label;

/* The labels of a state behind, each after the same edge and way. */
typedef struct run {
    const hd_way *way;
    hd_cost cost; /* of both */
    int64_t edge_need;
    int at, end;
    hd_label label; /* what comes of the one at `at` */
} run;

typedef struct labels {
    hd_search *s;
    hd_label *label; /* of all steps */
    int count, capacity;
    int *first; /* [nstates + 1] of the step behind: labels of a state begin here */
    int *here;  /* the same of this step */
    int nruns, nheap;
    run *run;        /* [nruns] of one state */
    run **heap;      /* [nheap] of them, the one with the cheapest label first */
    int64_t *before; /* [nsteps] the least that the steps before keep */
} labels;

/* Equal ones in the order of the labels behind, then of the ways. */
static int is_before(const run *a, const run *b)
{
    const hd_label *x = &a->label, *y = &b->label;
    int order = hd_cost_compare(&x->cost, &y->cost);
    order = order != 0 ? order : x->need != y->need ? (x->need < y->need ? -1 : 1) : x->next - y->next;
    return order != 0 ? order < 0 : a->way < b->way;
}

/* Makes the next label of a run that fits and needs less than `limit`; 0: there is none. */
static int go_on(const labels *l, run *r, int step, int64_t limit)
{
    const hd_priced *way = &r->way->price;
    for (; r->at < r->end; r->at++) {
        const hd_label *behind = &l->label[r->at];
        const int64_t rest = hd_add_saturated(way->kept, r->edge_need > behind->need ? r->edge_need : behind->need);
        const int64_t need = way->need > rest ? way->need : rest;
        if (need < limit && hd_add_saturated(need, l->before[step]) <= l->s->cap) {
            r->label.cost = hd_cost_add(&r->cost, &behind->cost);
            r->label.need = need;
            r->label.method = r->way->method;
            r->label.next = r->at;
            return 1;
        }
    }
    return 0;
}

/* Every way of `state` before every label of a state behind. */
static heddle_status add_runs(labels *l, int step, int state, int to)
{
    heddle_status st = HEDDLE_OK;
    const hd_row *row = &l->s->row[l->s->row_of[step]];
    const hd_priced none = {.need = 0}, *edge = &none;
    if (l->first[to] == l->first[to + 1] || row->first[state] == row->first[state + 1]) {
        return HEDDLE_OK;
    }
    HD_TRY(state != to ? hd_search_edge_price(&edge, l->s, step + 1, state, to) : HEDDLE_OK);
    for (int w = row->first[state]; w < row->first[state + 1]; w++) {
        l->run[l->nruns++] = (run){.way = &row->way[w],
                                   .cost = hd_cost_add(&edge->cost, &row->way[w].price.cost),
                                   .edge_need = edge->need,
                                   .at = l->first[to],
                                   .end = l->first[to + 1],
                                   .label = {.state = state}};
    }
out:
    return st;
}

static heddle_status list_runs(labels *l, int step, int state)
{
    heddle_status st = HEDDLE_OK;
    const hd_search *s = l->s;
    const hd_row *next = step + 1 < s->nsteps ? &s->row[s->row_of[step + 1]] : NULL;
    l->nruns = 0;
    for (int i = 0; next != NULL && i < next->nadmitted; i++) {
        HD_TRY(add_runs(l, step, state, next->admitted[i]));
    }
    st = next == NULL ? add_runs(l, step, state, state) : HEDDLE_OK;
out:
    return st;
}

/* What came to `at` goes down the heap to its place. */
static void sift(labels *l, int at)
{
    for (int child = 2 * at + 1; child < l->nheap; child = 2 * at + 1) {
        child += child + 1 < l->nheap && is_before(l->heap[child + 1], l->heap[child]);
        if (!is_before(l->heap[child], l->heap[at])) {
            return;
        }
        run *swap = l->heap[at];
        l->heap[at] = l->heap[child];
        l->heap[child] = swap;
        at = child;
    }
}

static heddle_status keep(labels *l, const hd_label *label)
{
    if (l->count == LABELS_MAX) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "under a cap on memory %d partial plans of model '%s' are neither slower nor larger than "
                       "others, and more are not kept; take fewer layers or fewer mesh axes, or a cap that binds "
                       "less",
                       LABELS_MAX, l->s->m->name);
    }
    heddle_status st = hd_grow((void **)&l->label, &l->capacity, l->count, sizeof *l->label, "labels");
    if (st == HEDDLE_OK) {
        l->label[l->count++] = *label;
    }
    return st;
}

/* In the order of costs a label is kept unless two before it need no more. */
static heddle_status merge(labels *l, int step)
{
    heddle_status st = HEDDLE_OK;
    int64_t least[2] = {INT64_MAX, INT64_MAX};
    l->nheap = 0;
    for (int i = 0; i < l->nruns; i++) {
        l->heap[l->nheap] = &l->run[i];
        l->nheap += go_on(l, &l->run[i], step, INT64_MAX);
    }
    for (int i = l->nheap / 2 - 1; i >= 0; i--) {
        sift(l, i);
    }
    while (l->nheap > 0) {
        run *r = l->heap[0];
        const int64_t need = r->label.need;
        if (need < least[1]) {
            HD_TRY(keep(l, &r->label));
            least[1] = need < least[0] ? least[0] : need;
            least[0] = need < least[0] ? need : least[0];
        }
        r->at++;
        if (!go_on(l, r, step, least[1])) {
            l->heap[0] = l->heap[--l->nheap];
        }
        sift(l, 0);
    }
out:
    return st;
}

static heddle_status label_step(labels *l, int step)
{
    heddle_status st = HEDDLE_OK;
    for (int state = 0; state < l->s->nstates; state++) {
        l->here[state] = l->count;
        HD_TRY(list_runs(l, step, state));
        HD_TRY(merge(l, step));
    }
    l->here[l->s->nstates] = l->count;
    int *swap = l->here;
    l->here = l->first;
    l->first = swap;
out:
    return st;
}

/* What every layout of the last step leads to: the end. */
static heddle_status label_ends(labels *l)
{
    heddle_status st = HEDDLE_OK;
    hd_search *s = l->s;
    for (int state = 0; state < s->nstates; state++) {
        hd_priced last;
        HD_TRY(hd_search_last_price(&last, s, state));
        const hd_label end = {.cost = last.cost, .need = last.need, .state = state, .next = -1};
        l->first[state] = l->count;
        HD_TRY(keep(l, &end));
    }
    l->first[s->nstates] = l->count;
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
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates * HD_METHODS_MAX, sizeof *l->run, "labels"));
    l->run = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates * HD_METHODS_MAX, sizeof *l->heap, "labels"));
    l->heap = memory;
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
    for (int k = l->first[0]; k < l->first[s->nstates]; k++) {
        const hd_label *label = &l->label[k];
        const hd_priced none = {.need = 0}, *edge = &none;
        if (s->prologue >= 0 && s->prologue != label->state) {
            HD_TRY(hd_search_edge_price(&edge, s, 0, s->prologue, label->state));
        }
        const hd_cost whole = hd_cost_add(&edge->cost, &label->cost);
        if (edge->need > s->cap || label->need > s->cap) {
            continue;
        }
        if (*first < 0 || hd_cost_compare(&whole, &out->cost) < 0) {
            out->second = *first < 0 ? out->second : out->cost;
            out->cost = whole;
            *first = k;
        } else if (hd_cost_compare(&whole, &out->second) < 0) {
            out->second = whole;
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
    HD_TRY(label_ends(&l));
    for (int step = s->nsteps - 1; step >= 0; step--) {
        HD_TRY(label_step(&l, step));
    }
    HD_TRY(choose(out, &at, &l));
    for (int step = 0; at >= 0 && step < s->nsteps; step++) {
        out->state[step] = (int16_t)l.label[at].state;
        out->method[step] = l.label[at].method;
        at = l.label[at].next;
    }
out:
    HD_FREE_ALL(l.label, l.first, l.here, l.run, l.heap, l.before);
    return st;
}
