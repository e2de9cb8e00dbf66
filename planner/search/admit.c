/* What a stage admits: the layouts in which it may run and by which methods, and the division of work. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOCAL_PERCENT = 150 };

/* A row while it is made: every way that may run, before work is divided. */
typedef struct candidates {
    hd_row *row;
    int16_t *state; /* [row->nways], like the next */
    char *is_base;  /* of the methods that are chosen among when nothing is forced */
    int capacity_state, capacity_base;
    int seen, kept;           /* ways, of the states so far */
    int64_t uneven;           /* elements of the busiest rank in the most even layout that is too uneven */
    int64_t best, best_local; /* elements of the busiest rank in the most even layout; by whole dims */
} candidates;

/* What the ranks together hold more than the tensor, when each works as long as the busiest one. */
double hd_search_waste_percent(const hd_search *s, int64_t elems)
{
    double total = 1.0;
    for (int d = 0; d < s->m->shape.ndim; d++) {
        total *= (double)s->m->shape.dim[d].extent;
    }
    return total > 0 ? ((double)elems * heddle_mesh_size(&s->mesh) / total - 1.0) * 100.0 : 0.0;
}

static int wastes_too_much(const hd_search *s, int64_t elems)
{
    return s->max_waste_percent > 0 && hd_search_waste_percent(s, elems) > s->max_waste_percent + 1e-9;
}

static heddle_status add_way(candidates *c, int state, const hd_method *method, int is_base)
{
    heddle_status st = HEDDLE_OK;
    hd_row *row = c->row;
    HD_TRY(hd_grow((void **)&c->state, &c->capacity_state, row->nways, sizeof *c->state, "ways"));
    HD_TRY(hd_grow((void **)&c->is_base, &c->capacity_base, row->nways, sizeof *c->is_base, "ways"));
    HD_TRY(hd_grow((void **)&row->way, &row->ways_capacity, row->nways, sizeof *row->way, "ways"));
    c->state[row->nways] = (int16_t)state;
    c->is_base[row->nways] = (char)is_base;
    row->way[row->nways++] = (hd_way){.method = method};
out:
    return st;
}

static int is_base(const hd_search *s, const hd_row *row, const hd_method *method)
{
    int is_named = s->mixes[row->stage].kind == HEDDLE_STAGE_MODULE; /* by the model */
    return row->wanted != NULL ? row->wanted == method : is_named || !method->only_named;
}

static const hd_force *force_of(const hd_search *s, const hd_row *row)
{
    return row->force >= 0 ? &s->force[row->force] : NULL;
}

/* NULL: a method may run in a layout. Else why it cannot, or leaves too many ranks without heads; "": it was not asked
 * for. */
static const char *why_not(char *buffer, const hd_search *s, const hd_row *row, const hd_method_group *group,
                           const hd_method *method)
{
    const hd_force *force = force_of(s, row);
    if (!is_base(s, row, method) && (force == NULL || force->method != method)) {
        return "";
    }
    const char *why = hd_method_why_not(buffer, method, group);
    if (why != NULL || row->wanted != NULL || s->aim.is_time ||
        hd_method_head_waste_percent(method, group) <= s->slack_percent) {
        return why;
    }
    snprintf(buffer, HD_METHOD_REASON_BYTES,
             "%lld heads over %d ranks leave the busiest %.0f%% more work than an even share", (long long)group->heads,
             hd_group_spread(method, group), hd_method_head_waste_percent(method, group));
    return force != NULL ? buffer : "";
}

/* The layout that shards the dims which the stage mixes as `state` does, and no others: it admits the same methods. */
static int mixed_alone(const hd_search *s, const hd_method_stage *mixes, int state)
{
    const int base = s->m->shape.ndim; /* digits of a state: all dims but the channels, and replicated, which is last */
    int alone = state;
    for (int a = 0, place = 1; a < s->mesh.naxes; a++, place *= base) {
        const int dim = s->layout[state].dim_of_axis[a];
        alone += hd_search_mixes(mixes, dim) ? 0 : (base - 1 - state / place % base) * place;
    }
    return alone;
}

/* A bit for every method that may run in the state. */
static unsigned ask_methods(const hd_search *s, const hd_row *row, int state)
{
    char buffer[HD_METHOD_REASON_BYTES];
    const hd_method_stage *mixes = &s->mixes[row->stage];
    const hd_method *method = NULL;
    unsigned may = 0;
    hd_method_group group;
    hd_method_group_begin(&group, &s->m->shape, &s->mesh, &s->layout[state], mixes);
    for (int k = 0; (method = hd_method_of(mixes, k)) != NULL; k++) {
        may |= (unsigned)(why_not(buffer, s, row, &group, method) == NULL) << k;
    }
    return may;
}

static heddle_status gather(candidates *c, hd_search *s)
{
    enum { KNOWN = 1 << HD_METHODS_MAX };
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    const hd_method_stage *mixes = &s->mixes[c->row->stage];
    const hd_method *method = NULL;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates, sizeof(unsigned), "methods of layouts"));
    unsigned *may = memory;
    for (int i = 0; i < s->nstates; i++) {
        unsigned *bits = &may[mixed_alone(s, mixes, i)];
        *bits = *bits != 0 ? *bits : KNOWN | ask_methods(s, c->row, i);
        for (int k = 0; (method = hd_method_of(mixes, k)) != NULL; k++) {
            HD_TRY((*bits >> k & 1) != 0 ? add_way(c, i, method, is_base(s, c->row, method)) : HEDDLE_OK);
        }
    }
    c->best = c->best_local = INT64_MAX;
    for (int i = 0; i < c->row->nways; i++) {
        int64_t elems = s->elems[c->state[i]];
        int is_local = c->row->way[i].method == &hd_method_local;
        c->best = c->is_base[i] && elems < c->best ? elems : c->best;
        c->best_local = c->is_base[i] && is_local && elems < c->best_local ? elems : c->best_local;
    }
out:
    hd_free(memory);
    return st;
}

/* Why methods cannot run that might have: what the last layout says that shards a dim of theirs. */
static void find_reason(char reason[HD_METHOD_REASON_BYTES], const hd_search *s, const hd_row *row)
{
    char buffer[HD_METHOD_REASON_BYTES];
    const hd_method_stage *mixes = &s->mixes[row->stage];
    const hd_force *force = force_of(s, row);
    const hd_method *method = NULL;
    reason[0] = '\0';
    for (int i = 0; i < s->nstates; i++) {
        hd_method_group group;
        hd_method_group_begin(&group, &s->m->shape, &s->mesh, &s->layout[i], mixes);
        for (int k = 0; (method = hd_method_of(mixes, k)) != NULL; k++) {
            const char *why = why_not(buffer, s, row, &group, method);
            int is_asked = force == NULL || ((force->state < 0 || force->state == i) &&
                                             (force->method == NULL || force->method == method));
            if (why != NULL && why[0] != '\0' && is_asked && (group.naxes > 0 || reason[0] == '\0')) {
                snprintf(reason, HD_METHOD_REASON_BYTES, "%s", why);
            }
        }
    }
}

static heddle_status refuse_stage(const candidates *c, const hd_search *s)
{
    char shape[HEDDLE_LINE_BYTES];
    char mesh[256];
    char reason[HD_METHOD_REASON_BYTES];
    const hd_row *row = c->row;
    heddle_ignore(heddle_shape_format(shape, sizeof shape, &s->m->shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &s->mesh));
    if (c->best == INT64_MAX) {
        find_reason(reason, s, row);
        return hd_fail(HEDDLE_ERR_INFEASIBLE, "stage '%s': no layout of %s on %s lets it run by method %s: %s",
                       s->m->stage[row->stage].name, shape, mesh, row->wanted != NULL ? row->wanted->name : "auto",
                       reason);
    }
    return hd_fail(HEDDLE_ERR_INFEASIBLE,
                   "stage '%s': the most even layout of %s on %s leaves the ranks %.1f%% more work than an even "
                   "split; at most %d%% is allowed",
                   s->m->stage[row->stage].name, shape, mesh, hd_search_waste_percent(s, c->best),
                   s->max_waste_percent);
}

/* Layouts too uneven go: by the limit on waste, and where work has no price by the slack. Those with the whole dim are
 * measured against one another: local results are those of one rank bit for bit, so a method must be worth it. Where
 * even the best of them leaves half as much work again as a sharded dim would, or more waste than is allowed, they go
 * too. */
static int is_too_uneven(const candidates *c, const hd_search *s, int way)
{
    int64_t elems = s->elems[c->state[way]];
    int is_local = c->row->way[way].method == &hd_method_local;
    int drop_local =
        (__int128)c->best_local * 100 >= (__int128)c->best * LOCAL_PERCENT || wastes_too_much(s, c->best_local);
    int64_t measure = is_local && (c->best_local == c->best || !drop_local) ? c->best_local : c->best;
    if (s->aim.is_time) {
        return wastes_too_much(s, elems);
    }
    return (double)elems * 100.0 > (double)measure * (100.0 + s->slack_percent) || wastes_too_much(s, elems);
}

/* Whether a way is what was forced. */
static int is_asked_for(const candidates *c, const hd_search *s, int way)
{
    const hd_force *f = c->row->force >= 0 ? &s->force[c->row->force] : NULL;
    if (f == NULL) {
        return c->is_base[way];
    }
    return (f->state < 0 || f->state == c->state[way]) &&
           (f->method != NULL ? f->method == c->row->way[way].method : c->is_base[way]);
}

static heddle_status refuse_force(const candidates *c, const hd_search *s, int64_t uneven)
{
    const hd_force *f = &s->force[c->row->force];
    const char *stage = s->m->stage[c->row->stage].name;
    char reason[HD_METHOD_REASON_BYTES];
    if (uneven != INT64_MAX) {
        return hd_fail(HEDDLE_ERR_INFEASIBLE,
                       "stage '%s' cannot run as '%s': the busiest rank has %lld elements, %lld in the most even "
                       "layout, which is more than the %d%% that uneven layouts may have",
                       stage, f->text, (long long)uneven, (long long)c->best, s->slack_percent);
    }
    find_reason(reason, s, c->row);
    return hd_fail(HEDDLE_ERR_INFEASIBLE, "stage '%s' cannot run as '%s': %s", stage, f->text,
                   reason[0] != '\0' ? reason : "no method that may be chosen runs in that layout");
}

static int compare_ways(const void *a, const void *b)
{
    return hd_cost_compare(&((const hd_way *)a)->price.cost, &((const hd_way *)b)->price.cost);
}

/* Ways of one state, best first, those preferred first where equal: there are few. */
static void sort_ways(hd_way *way, int n)
{
    for (int i = 1; i < n; i++) {
        for (int k = i; k > 0 && compare_ways(&way[k - 1], &way[k]) > 0; k--) {
            hd_way swap = way[k];
            way[k] = way[k - 1];
            way[k - 1] = swap;
        }
    }
}

/* Do states that differ in what idle axes do have the same ways, at the same prices? As prices.c shares these: where no
 * idle axis shards a dim that the stage mixes, nor cuts text that joins. */
static int are_alike(const candidates *c, const hd_search *s)
{
    const int stage = c->row->stage;
    int alike =
        c->row->force < 0 && s->m->stage[stage].joined_rows == 0 && s->aim.is_time && hd_pricer_nests(&s->pricer);
    for (int d = 0; d < s->m->shape.ndim; d++) {
        alike = alike && !(s->m->shape.dim[d].extent == 1 && hd_search_mixes(&s->mixes[stage], d));
    }
    return alike;
}

/* What stays of a state's ways, with its price. */
static heddle_status settle_state(candidates *c, hd_search *s, int state)
{
    heddle_status st = HEDDLE_OK;
    hd_row *row = c->row;
    for (; c->seen < row->nways && c->state[c->seen] == state; c->seen++) {
        int asked = is_asked_for(c, s, c->seen);
        if (!asked || is_too_uneven(c, s, c->seen)) {
            c->uneven = asked && s->elems[state] < c->uneven ? s->elems[state] : c->uneven;
            continue;
        }
        hd_way way = row->way[c->seen];
        HD_TRY(hd_search_stage_price(&way.price, s, row->stage, state, way.method));
        row->way[c->kept++] = way;
    }
    sort_ways(&row->way[row->first[state]], c->kept - row->first[state]);
out:
    return st;
}

/* What stayed of a state before, which is all that stays of one that is alike. */
static void copy_state(candidates *c, int before, int state)
{
    hd_row *row = c->row;
    const int n = row->first[before + 1] - row->first[before];
    while (c->seen < row->nways && c->state[c->seen] == state) {
        c->seen++;
    }
    memmove(&row->way[c->kept], &row->way[row->first[before]], (size_t)n * sizeof *row->way);
    c->kept += n;
}

static heddle_status settle(candidates *c, hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    hd_row *row = c->row;
    const int is_alike = are_alike(c, s);
    row->least = hd_cost_none;
    for (int state = 0; state < s->nstates; state++) {
        const int before = is_alike ? hd_search_like(s, state, s->idle_digit) : state;
        const int first = row->first[state] = c->kept;
        if (before < state) {
            copy_state(c, before, state);
        } else {
            HD_TRY(settle_state(c, s, state));
        }
        if (c->kept > first) {
            row->admitted[row->nadmitted++] = (int16_t)state;
            row->least =
                hd_cost_compare(&row->way[first].price.cost, &row->least) < 0 ? row->way[first].price.cost : row->least;
        }
    }
    row->nways = row->first[s->nstates] = c->kept;
    st = c->kept > 0 ? HEDDLE_OK : row->force >= 0 ? refuse_force(c, s, c->uneven) : refuse_stage(c, s);
out:
    return st;
}

static heddle_status admit_row(hd_search *s, hd_row *row)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    candidates c = {.row = row, .uneven = INT64_MAX};
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates, sizeof *row->admitted, "admitted layouts"));
    row->admitted = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates + 1, sizeof *row->first, "admitted layouts"));
    row->first = memory;
    HD_TRY(gather(&c, s));
    int is_forced = row->force >= 0;
    if ((c.best == INT64_MAX && !is_forced) || (c.best != INT64_MAX && wastes_too_much(s, c.best))) {
        st = refuse_stage(&c, s);
        goto out;
    }
    st = settle(&c, s);
out:
    HD_FREE_ALL(c.state, c.is_base);
    return st;
}

/* A model's stage without what makes no difference to its price. */
static hd_model_stage nameless(const hd_model_stage *stage)
{
    hd_model_stage s = *stage;
    memset(s.name, 0, sizeof s.name);
    s.mark = (hd_mark){0, 0};
    return s;
}

static int are_twins(const hd_search *s, int a, int b)
{
    const hd_model_stage x = nameless(&s->m->stage[a]);
    const hd_model_stage y = nameless(&s->m->stage[b]);
    return a == b || (s->wanted[a] == s->wanted[b] && memcmp(&x, &y, sizeof x) == 0);
}

/* The row of stage k under a force, made where no earlier stage has the same. */
static heddle_status row_for(int *out, hd_search *s, int k, int force)
{
    for (int i = 0; i < s->nrows; i++) {
        if (s->row[i].force == force && are_twins(s, s->row[i].stage, k)) {
            *out = i;
            return HEDDLE_OK;
        }
    }
    heddle_status st = hd_grow((void **)&s->row, &s->rows_capacity, s->nrows, sizeof *s->row, "rows of stages");
    if (st != HEDDLE_OK) {
        return st;
    }
    *out = s->nrows++;
    s->row[*out] = (hd_row){.stage = k, .wanted = s->wanted[k], .force = force};
    return admit_row(s, &s->row[*out]);
}

void hd_row_free(hd_row *row)
{
    HD_FREE_ALL(row->admitted, row->first, row->way);
}

heddle_status hd_search_admit(hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    HD_TRY(hd_alloc(&memory, (size_t)s->nsteps, sizeof *s->row_of, "steps"));
    s->row_of = memory;
    for (int i = 0; i < s->nsteps; i++) {
        int period = s->m->nstages;
        int force = hd_search_forced(s, i);
        if (i >= period && force == hd_search_forced(s, i - period)) {
            s->row_of[i] = s->row_of[i - period];
            continue;
        }
        HD_TRY(row_for(&s->row_of[i], s, i % period, force));
    }
out:
    return st;
}
