/* heddle_plan: the options, the search over one mesh, its parts in their order. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <string.h>

#ifndef HD_STEPS_MAX
#define HD_STEPS_MAX 4e9 /* a test has a copy of this file with fewer */
#endif

enum { DEFAULT_SLACK_PERCENT = 25 };

void heddle_plan_options_init(heddle_plan_options *options)
{
    if (options != NULL) {
        *options = (heddle_plan_options){.struct_bytes = sizeof *options, .slack_percent = DEFAULT_SLACK_PERCENT};
    }
}

/* The caller's options over the defaults; a caller built with an older header has a shorter struct. */
heddle_status hd_search_options(heddle_plan_options *out, const heddle_plan_options *options)
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
    if (out->memory_bytes < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "a rank's memory is at least 0 bytes (0: no limit), found %lld",
                       (long long)out->memory_bytes);
    }
    if (out->workspace_bytes < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "workspace_bytes %lld: 0 or more", (long long)out->workspace_bytes);
    }
    out->backward = out->backward || out->training;
    return HEDDLE_OK;
}

/* Prices of edges between the layouts that stages admit; each takes as long as there are ranks, or pairs of ranks where
 * hosts cut across the axes. Where many are the same, or too dear to be looked at, it is less. */
static heddle_status check_effort(const hd_search *s)
{
    double steps = 0;
    for (int i = 0; i < s->nsteps && i <= s->m->nstages; i++) {
        int next = i + 1 < s->nsteps ? i + 1 : i;
        steps += (double)s->row[s->row_of[i]].nadmitted * s->row[s->row_of[next]].nadmitted;
    }
    int ranks = heddle_mesh_size(&s->mesh);
    steps *= hd_pricer_nests(&s->pricer) ? ranks : (double)ranks * ranks;
    if (steps > HD_STEPS_MAX) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "%d layouts through %d stages on %d ranks are %.1e steps of search; at most %.0e are taken (use "
                       "fewer mesh axes or fewer stages)",
                       s->nstates, s->m->nstages, ranks, steps, HD_STEPS_MAX);
    }
    return HEDDLE_OK;
}

static heddle_status read_ends(hd_search *s, const heddle_plan_options *options)
{
    heddle_status st = HEDDLE_OK;
    const char *epilogue = options->epilogue != NULL ? options->epilogue : "*";
    s->prologue = -1;
    s->epilogue = -1;
    if (options->prologue != NULL) {
        HD_TRY(hd_search_end(&s->prologue, s, "prologue", options->prologue));
    }
    if (strcmp(epilogue, "any") != 0) {
        HD_TRY(hd_search_end(&s->epilogue, s, "epilogue", epilogue));
    }
out:
    return st;
}

static heddle_status read_memory(hd_search *s, const heddle_plan_options *o)
{
    heddle_status st = HEDDLE_OK;
    s->cap = INT64_MAX;
    if (o->memory_bytes > 0 || s->aim.objective == HD_OBJECTIVE_MEMORY) {
        HD_TRY(hd_price_resident(&s->resident, &s->pricer));
        s->resident = hd_add_saturated(s->resident, hd_price_conditioning(s->m));
    }
    if (o->memory_bytes > 0) {
        s->cap = o->memory_bytes - s->resident;
    }
out:
    return st;
}

/* The search stays where it is: prices refer to its mesh. */
heddle_status hd_search_open(hd_search *s, const heddle_model *model, const heddle_mesh *mesh,
                             const heddle_plan_options *o, hd_prices *prices)
{
    heddle_status st = HEDDLE_OK;
    *s = (hd_search){.m = model, .mesh = *mesh, .prices = prices};
    s->slack_percent = o->slack_percent;
    s->max_waste_percent = o->max_waste_percent;
    s->nsteps = model->nstages * model->repeat;
    s->pricer = (hd_pricer){.model = model,
                            .machine = o->machine,
                            .mesh = &s->mesh,
                            .backward = o->backward,
                            .recompute = o->recompute,
                            .in_parts = o->workspace_bytes};
    HD_TRY(hd_aim_read(&s->aim, o, heddle_mesh_size(mesh)));
    s->always_ps = s->aim.is_time ? hd_price_gradients_ps(&s->pricer) : 0;
    HD_TRY(hd_search_states(s));
    HD_TRY(read_ends(s, o));
    HD_TRY(hd_search_methods(s, o->methods));
    HD_TRY(hd_search_force(s, o->force));
    HD_TRY(read_memory(s, o));
    HD_TRY(hd_search_widths(s));
    HD_TRY(hd_pricer_keep(&s->pricer));
    HD_TRY(hd_search_admit(s));
    st = hd_search_fit(s);
out:
    return st;
}

void hd_search_close(hd_search *s)
{
    for (int i = 0; i < s->nrows; i++) {
        hd_row_free(&s->row[i]);
    }
    HD_FREE_ALL(s->layout, s->box, s->elems, s->even, s->mixes, s->wanted, s->force, s->row, s->row_of, s->width_of,
                s->edge, s->least);
    hd_edge_parts_free(s->pricer.parts);
}

void hd_walk_free(hd_walk *walk)
{
    HD_FREE_ALL(walk->state, walk->method);
}

/* The peak comes first, then the seconds under it. */
static heddle_status take_least_memory(hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    hd_needs needs;
    HD_TRY(hd_search_edges(s));
    HD_TRY(hd_search_least_need(&needs, s));
    if (needs.least > s->cap) {
        st = hd_search_refuse_memory(s, needs.least);
        goto out;
    }
    s->next_need = needs.next <= s->cap ? needs.next : INT64_MAX;
    s->cap = needs.least;
    st = hd_search_fit(s);
out:
    return st;
}

/* Under a cap with a way back kept bytes add up. */
static int adds_up(const hd_search *s)
{
    int64_t kept = 0;
    for (int i = 0; i < s->nrows && s->cap != INT64_MAX; i++) {
        for (int w = 0; w < s->row[i].nways; w++) {
            kept = s->row[i].way[w].price.kept > kept ? s->row[i].way[w].price.kept : kept;
        }
    }
    return kept > 0;
}

/* The best walk of all, where it fits, is the best that fits; then labels are for the next best one alone, which is not
 * known where there are too many of them. */
static heddle_status walk_under_cap(hd_walk *out, hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    int64_t need = 0;
    HD_TRY(hd_search_walk(out, s, HD_WALK_TWO));
    const hd_cost best = out->cost;
    if (hd_cost_compare(&best, &hd_cost_none) == 0) {
        goto out;
    }
    HD_TRY(hd_search_need(&need, s, out));
    out->cost = out->second = hd_cost_none;
    st = hd_search_labels(out, s);
    if (st == HEDDLE_ERR_UNSUPPORTED && need <= s->cap) {
        st = hd_search_walk(out, s, HD_WALK_TWO);
        out->second = hd_cost_none;
    }
out:
    return st;
}

static heddle_status walk_any(hd_walk *out, int *is_hopeless, hd_search *s, const hd_cost *bound)
{
    heddle_status st = HEDDLE_OK;
    const hd_walk_kind kind = bound != NULL ? HD_WALK_BEST : HD_WALK_TWO;
    int is_done = 0;
    int64_t found = INT64_MAX;
    HD_TRY(adds_up(s) ? HEDDLE_OK : hd_search_walk_few(out, &is_done, s, kind, bound));
    if (is_done) {
        *is_hopeless = hd_cost_compare(&out->cost, &hd_cost_none) == 0;
        goto out;
    }
    HD_TRY(hd_search_edges(s));
    HD_TRY(bound != NULL ? hd_search_hope(is_hopeless, &found, out, s, bound) : HEDDLE_OK);
    if (!*is_hopeless) {
        HD_TRY(check_effort(s));
        st = adds_up(s) ? walk_under_cap(out, s) : hd_search_walk(out, s, kind);
    } else {
        out->cost = hd_cost_none;
    }
out:
    return st;
}

heddle_status hd_search_run(hd_walk *out, int *found, hd_search *s, const hd_cost *bound)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    hd_needs needs;
    int is_hopeless = 0;
    *out = (hd_walk){.cost = hd_cost_none, .second = hd_cost_none};
    *found = 0;
    HD_TRY(s->aim.objective == HD_OBJECTIVE_MEMORY ? take_least_memory(s) : HEDDLE_OK);
    HD_TRY(hd_alloc(&memory, (size_t)s->nsteps, sizeof *out->state, "a walk"));
    out->state = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nsteps, sizeof *out->method, "a walk"));
    out->method = memory;
    HD_TRY(walk_any(out, &is_hopeless, s, bound));
    *found = hd_cost_compare(&out->cost, &hd_cost_none) < 0;
    if (!*found && !is_hopeless) {
        HD_TRY(hd_search_least_need(&needs, s));
        st = needs.least > s->cap ? hd_search_refuse_memory(s, needs.least)
                                  : hd_fail(HEDDLE_ERR_UNSUPPORTED, "a plan of model '%s' %s", s->m->name,
                                            s->aim.is_time ? "takes more than 2^63 picoseconds, which are 106 days"
                                                           : "moves more than 2^63 bytes");
    }
out:
    return st;
}

heddle_status heddle_plan(heddle_schedule **out, const heddle_model *model, const heddle_mesh *mesh,
                          const heddle_plan_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_plan_options o;
    hd_prices prices = {0};
    hd_search s = {0};
    hd_walk walk = {0};
    int found = 0;
    HD_TRY(HD_NEED(out, model, mesh));
    HD_TRY(hd_search_options(&o, options));
    HD_TRY(heddle_mesh_check(mesh));
    HD_TRY(hd_search_open(&s, model, mesh, &o, &prices));
    HD_TRY(hd_search_run(&walk, &found, &s, NULL));
    st = hd_search_write_down(out, &s, &walk);
out:
    hd_walk_free(&walk);
    hd_search_close(&s);
    hd_prices_free(&prices);
    return st;
}
