/* The search: Viterbi over the layouts of the activation, one state per layout, one step per stage.
 *
 * States are all layouts that put every mesh axis on a batch or sequence dim or replicate over it. A stage admits a
 * state when the dim it mixes is whole and the state's largest box is not much larger than the smallest that any state
 * of this stage has (slack); so work is a constraint, and bytes decide among sensible layouts only. Costs are
 * lexicographic tuples; they add up along the chain, so the optimum is exact.
 */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_SLACK_PERCENT = 25, STEPS_MAX = 1000000000 };

static int less(const hd_search_cost *a, const hd_search_cost *b)
{
    if (a->bytes_per_rank_max != b->bytes_per_rank_max) {
        return a->bytes_per_rank_max < b->bytes_per_rank_max;
    }
    if (a->bytes_total != b->bytes_total) {
        return a->bytes_total < b->bytes_total;
    }
    if (a->methods != b->methods) {
        return a->methods < b->methods;
    }
    if (a->switches != b->switches) {
        return a->switches < b->switches;
    }
    return a->elems < b->elems;
}

/* What counts of an edge: forward bytes, with those of its adjoint where the backward pass counts; messages is 1 when
 * the forward pass moves anything. */
static heddle_status price_edge(hd_edge_cost *out, const hd_search *s, int from, int to, int is_last)
{
    heddle_status st = HEDDLE_OK;
    const heddle_layout *a = &s->layout[from];
    const heddle_layout *b = &s->layout[to];
    hd_edge_cost forward = {0};
    hd_edge_cost back = {0};
    if (from != to) {
        HD_TRY(hd_edge_cost_of(&forward, &s->m->shape, &s->mesh, a, b));
    }
    if (s->backward) {
        HD_TRY(hd_edge_backward_cost_of(&back, &s->m->shape, &s->mesh, a, b, is_last));
    }
    out->bytes_per_rank_max = hd_add_saturated(forward.bytes_per_rank_max, back.bytes_per_rank_max);
    out->bytes_total = hd_add_saturated(forward.bytes_total, back.bytes_total);
    out->messages = forward.bytes_total > 0;
out:
    return st;
}

static void add(hd_search_cost *total, int64_t bytes_per_rank_max, int64_t bytes_total)
{
    total->bytes_per_rank_max = hd_add_saturated(total->bytes_per_rank_max, bytes_per_rank_max);
    total->bytes_total = hd_add_saturated(total->bytes_total, bytes_total);
}

/* total = edge(from, to) + rest */
static heddle_status add_edge(hd_search_cost *total, hd_search *s, int from, int to, const hd_search_cost *rest)
{
    *total = *rest;
    if (from == to) {
        return HEDDLE_OK;
    }
    hd_edge_cost *e = &s->edge[(size_t)from * (size_t)s->nlayouts + (size_t)to];
    heddle_status st = e->messages >= 0 ? HEDDLE_OK : price_edge(e, s, from, to, 0);
    add(total, e->bytes_per_rank_max, e->bytes_total);
    total->switches += e->messages;
    return st;
}

/* The last edge's gradient is another one than that of an edge between stages. */
static heddle_status end_edge(hd_search_cost *total, const hd_search *s, int state)
{
    hd_edge_cost e = {0};
    heddle_status st = s->epilogue >= 0 ? price_edge(&e, s, state, s->epilogue, 1) : HEDDLE_OK;
    *total = (hd_search_cost){e.bytes_per_rank_max, e.bytes_total, 0, e.messages, 0};
    return st;
}

static const hd_search_node *nodes_of(const hd_search *s, int stage)
{
    return s->node + (size_t)(stage % s->m->nstages) * (size_t)s->nstates;
}

static int64_t power(int base, int exponent)
{
    int64_t result = 1;
    while (exponent-- > 0) {
        result *= base;
    }
    return result;
}

/* Digit a of state i in base (shardable dims + 1) says what axis a does; replicated comes last. */
static heddle_status list_states(hd_search *s)
{
    int dims[HEDDLE_MAX_DIMS];
    int ndims = 0;
    for (int d = 0; d < s->m->shape.ndim; d++) {
        if (d != s->m->channel_dim) {
            dims[ndims++] = d;
        }
    }
    int64_t count = power(ndims + 1, s->mesh.naxes);
    if (count > HD_SEARCH_STATES) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "%lld layouts of %d dims over %d mesh axes; the planner searches at most %d (meshes of one or "
                       "two axes)",
                       (long long)count, ndims, s->mesh.naxes, HD_SEARCH_STATES);
    }
    s->nstates = (int)count;
    for (int i = 0; i < s->nstates; i++) {
        heddle_box box;
        int rest = i;
        s->layout[i] = heddle_layout_replicated();
        for (int a = 0; a < s->mesh.naxes; a++, rest /= ndims + 1) {
            int digit = rest % (ndims + 1);
            s->layout[i].dim_of_axis[a] = digit < ndims ? dims[digit] : HEDDLE_REPLICATED;
        }
        /* Balanced blocks: rank 0 has the largest. */
        heddle_status st = heddle_layout_box(&box, &s->m->shape, &s->mesh, &s->layout[i], 0);
        if (st != HEDDLE_OK) {
            return st;
        }
        s->elems[i] = heddle_box_elems(&box);
    }
    s->nlayouts = s->nstates;
    return HEDDLE_OK;
}

/* The index of an end's layout, added to the table if no stage may be in it. */
static heddle_status read_end(int *out, hd_search *s, const char *what, const char *text)
{
    heddle_layout layout;
    heddle_status st = heddle_layout_parse(&layout, text, &s->m->shape, &s->mesh);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s", what);
    }
    for (int i = 0; i < s->nlayouts; i++) {
        if (heddle_layout_equal(&s->layout[i], &layout, &s->mesh)) {
            *out = i;
            return HEDDLE_OK;
        }
    }
    s->layout[s->nlayouts] = layout;
    *out = s->nlayouts++;
    return HEDDLE_OK;
}

/* The cheapest continuation of `state`; on a tie it stays, then the first. */
static heddle_status best_next(hd_search_cost *best, int *choice, hd_search *s, int stage, int state)
{
    const hd_search_node *node = nodes_of(s, stage + 1);
    *choice = -1;
    if (node[state].method != NULL) {
        *best = s->next[state];
        *choice = state;
    }
    for (int t = 0; t < s->nstates; t++) {
        hd_search_cost total;
        if (node[t].method == NULL || t == state) {
            continue;
        }
        heddle_status st = add_edge(&total, s, state, t, &s->next[t]);
        if (st != HEDDLE_OK) {
            return st;
        }
        if (*choice < 0 || less(&total, best)) {
            *best = total;
            *choice = t;
        }
    }
    return HEDDLE_OK;
}

/* Backwards, so that the forward walk may put a switch off for as long as it costs nothing. */
static heddle_status walk_back(hd_search *s)
{
    int last = s->m->nstages * s->m->repeat - 1;
    for (int i = last; i >= 0; i--) {
        const hd_search_node *node = nodes_of(s, i);
        for (int state = 0; state < s->nstates; state++) {
            heddle_status st = HEDDLE_OK;
            int choice = 0;
            if (node[state].method == NULL) {
                continue;
            }
            if (i < last) {
                st = best_next(&s->here[state], &choice, s, i, state);
            } else {
                st = end_edge(&s->here[state], s, state);
            }
            if (st != HEDDLE_OK) {
                return st;
            }
            add(&s->here[state], node[state].bytes_per_rank_max, node[state].bytes_total);
            s->here[state].methods += node[state].method != &hd_method_local;
            s->here[state].elems = hd_add_saturated(s->here[state].elems, s->elems[state]);
            s->choice[(size_t)i * (size_t)s->nstates + (size_t)state] = (int16_t)choice;
        }
        hd_search_cost *swap = s->here;
        s->here = s->next;
        s->next = swap;
    }
    return HEDDLE_OK;
}

static heddle_status first_state(int *out, hd_search *s)
{
    hd_search_cost best = {0, 0, 0, 0, 0};
    *out = -1;
    for (int state = 0; state < s->nstates; state++) {
        hd_search_cost total;
        if (s->node[state].method == NULL) {
            continue;
        }
        heddle_status st = add_edge(&total, s, s->prologue >= 0 ? s->prologue : state, state, &s->next[state]);
        if (st != HEDDLE_OK) {
            return st;
        }
        if (*out < 0 || less(&total, &best)) {
            best = total;
            *out = state;
        }
    }
    return HEDDLE_OK;
}

static void search_free(hd_search *s)
{
    HD_FREE_ALL(s->layout, s->elems, s->mixes, s->wanted, s->node, s->edge, s->here, s->next, s->choice);
}

/* Steps through the stages and prices of edges; both are in the nanoseconds. */
static heddle_status check_effort(const hd_search *s)
{
    double stages = (double)s->m->nstages * s->m->repeat;
    double pairs = (double)s->nstates * s->nstates;
    double steps = pairs * (stages + heddle_mesh_size(&s->mesh));
    if (steps > STEPS_MAX) {
        return hd_fail(
            HEDDLE_ERR_UNSUPPORTED,
            "%d layouts through %.0f stages on %d ranks are %.1e steps of search; at most %.0e are taken (use "
            "fewer mesh axes or fewer layers)",
            s->nstates, stages, heddle_mesh_size(&s->mesh), steps, (double)STEPS_MAX);
    }
    return HEDDLE_OK;
}

static heddle_status search_alloc(hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    size_t states = (size_t)s->nstates;
    size_t pairs = (size_t)s->nlayouts * (size_t)s->nlayouts;
    void *memory = NULL;
    HD_TRY(hd_alloc(&memory, (size_t)s->m->nstages * states, sizeof *s->node, "admitted layouts"));
    s->node = memory;
    HD_TRY(hd_alloc(&memory, pairs, sizeof *s->edge, "edge costs"));
    s->edge = memory;
    for (size_t i = 0; i < pairs; i++) {
        s->edge[i].messages = -1;
    }
    HD_TRY(hd_alloc(&memory, states, sizeof *s->here, "costs"));
    s->here = memory;
    HD_TRY(hd_alloc(&memory, states, sizeof *s->next, "costs"));
    s->next = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->m->nstages * (size_t)s->m->repeat * states, sizeof *s->choice, "choices"));
    s->choice = memory;
out:
    return st;
}

static heddle_status search_ends(hd_search *s, const heddle_plan_options *options)
{
    heddle_status st = HEDDLE_OK;
    const char *epilogue = options->epilogue != NULL ? options->epilogue : "*";
    s->prologue = -1;
    s->epilogue = -1;
    if (options->prologue != NULL) {
        HD_TRY(read_end(&s->prologue, s, "prologue", options->prologue));
    }
    if (strcmp(epilogue, "any") != 0) {
        HD_TRY(read_end(&s->epilogue, s, "epilogue", epilogue));
    }
out:
    return st;
}

void heddle_plan_options_init(heddle_plan_options *options)
{
    if (options != NULL) {
        *options = (heddle_plan_options){.struct_bytes = sizeof *options, .slack_percent = DEFAULT_SLACK_PERCENT};
    }
}

/* The caller's options over the defaults; a caller built with an older header has a shorter struct. */
static heddle_status take_options(heddle_plan_options *out, const heddle_plan_options *options)
{
    heddle_plan_options_init(out);
    heddle_status st = hd_struct_take(out, options, HD_STRUCT(heddle_plan_options, prologue));
    if (st != HEDDLE_OK) {
        return st;
    }
    if (out->slack_percent < 0 || out->max_waste_percent < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "slack and waste are percentages of at least 0, found %d and %d",
                       out->slack_percent, out->max_waste_percent);
    }
    return HEDDLE_OK;
}

heddle_status heddle_plan(heddle_schedule **out, const heddle_model *model, const heddle_mesh *mesh,
                          const heddle_plan_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_plan_options o;
    hd_search s = {.m = model};
    void *memory = NULL;
    int first = 0;
    HD_TRY(HD_NEED(out, model, mesh));
    HD_TRY(take_options(&o, options));
    HD_TRY(heddle_mesh_check(mesh));
    s.slack_percent = o.slack_percent;
    s.max_waste_percent = o.max_waste_percent;
    s.backward = o.backward;
    s.mesh = *mesh;
    HD_TRY(hd_alloc(&memory, HD_SEARCH_STATES + 2, sizeof *s.layout, "layouts"));
    s.layout = memory;
    HD_TRY(hd_alloc(&memory, HD_SEARCH_STATES, sizeof *s.elems, "layouts"));
    s.elems = memory;
    HD_TRY(list_states(&s));
    HD_TRY(search_ends(&s, &o));
    HD_TRY(check_effort(&s));
    HD_TRY(search_alloc(&s));
    HD_TRY(hd_search_methods(&s, o.methods));
    HD_TRY(hd_search_admit(&s));
    HD_TRY(walk_back(&s));
    HD_TRY(first_state(&first, &s));
    st = hd_search_write_down(out, &s, first);
out:
    search_free(&s);
    return st;
}
