/* Walks through few states, which are found much faster and are the best of all.
 *
 * What no walk is below is known without the price of an edge (near.h). Only states stay through which a walk may cost
 * little more than that; what is found at or below that cost is the best of all walks, and where nothing is, more is
 * allowed. Where nothing is known, a walk through the states that cost least by themselves is the bound. */
#include "planner/search/near.h"

#include "runtime/base/base.h"

#include <math.h>
#include <string.h>

enum { NARROW_STATES = 32, REFINEMENTS = 32, REFINED_RANKS = 128 };
/* What the first bound is above the floor, how much the next is, and the last. */
static const double SLACK = 1.0 / 256, SLACK_GROWS = 2, SLACK_MAX = 1, CLOSELY = 1.0 / 8192;

/* What every row admitted. */
typedef struct admitted {
    int16_t **state;
    int *count;
} admitted;

static void forget(admitted *all, const hd_search *s)
{
    for (int i = 0; all->state != NULL && i < s->nrows; i++) {
        hd_free(all->state[i]);
    }
    HD_FREE_ALL(all->state, all->count);
}

static heddle_status remember(admitted *all, const hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    HD_TRY(hd_alloc(&memory, (size_t)s->nrows, sizeof *all->state, "rows of stages"));
    all->state = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nrows, sizeof *all->count, "rows of stages"));
    all->count = memory;
    for (int i = 0; i < s->nrows; i++) {
        const hd_row *row = &s->row[i];
        HD_TRY(hd_alloc(&memory, (size_t)row->nadmitted + 1, sizeof **all->state, "admitted layouts"));
        all->state[i] = memory;
        all->count[i] = row->nadmitted;
        memcpy(memory, row->admitted, (size_t)row->nadmitted * sizeof **all->state);
    }
out:
    return st;
}

static void restore(hd_search *s, const admitted *all)
{
    for (int i = 0; i < s->nrows; i++) {
        s->row[i].nadmitted = all->count[i];
        memcpy(s->row[i].admitted, all->state[i], (size_t)all->count[i] * sizeof **all->state);
    }
}

/* Of every row the states that cost least by themselves. */
static void narrow(hd_search *s, const admitted *all)
{
    for (int i = 0; i < s->nrows; i++) {
        hd_row *row = &s->row[i];
        int kept = 0;
        for (int k = 0; k < all->count[i]; k++) {
            const hd_way *way = &row->way[row->first[all->state[i][k]]];
            int cheaper = 0;
            for (int other = 0; other < all->count[i] && cheaper < NARROW_STATES; other++) {
                const hd_way *rival = &row->way[row->first[all->state[i][other]]];
                int order = hd_cost_compare(&rival->price.cost, &way->price.cost);
                cheaper += order < 0 || (order == 0 && other < k);
            }
            if (cheaper < NARROW_STATES) {
                row->admitted[kept++] = all->state[i][k];
            }
        }
        row->nadmitted = kept;
    }
}

/* A walk through few states bounds what the best two of all cost, and with it the states that they may be in. */
static heddle_status drop_hopeless(hd_walk *walk, hd_search *s, const admitted *all)
{
    narrow(s, all);
    heddle_status st = hd_search_walk(walk, s, HD_WALK_TWO);
    restore(s, all);
    if (st == HEDDLE_OK && hd_cost_compare(&walk->second, &hd_cost_none) < 0) {
        hd_search_drop_dear(s, &walk->second, 1);
    }
    return st;
}

void hd_search_drop_through(int *is_empty, hd_search *s, const double *through, double bound)
{
    *is_empty = 0;
    for (int i = 0; i < s->nrows; i++, through += s->nstates) {
        hd_row *row = &s->row[i];
        int nadmitted = 0;
        for (int k = 0; k < row->nadmitted; k++) {
            const int state = row->admitted[k];
            row->admitted[nadmitted] = (int16_t)state;
            nadmitted += through[state] <= bound;
        }
        row->nadmitted = nadmitted;
        *is_empty |= nadmitted == 0;
    }
}

/* --- the best walk by what edges cost at least -------------------------------------------------------------------- */

/* What a walk costs, by prices; *found is lowered to that where none of its edges needs more than there is. */
static heddle_status price_walk(int64_t *whole, int64_t *found, hd_search *s, const hd_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    hd_priced edge;
    int fits = 1;
    *whole = 0;
    for (int i = 0; i <= s->nsteps; i++) {
        HD_TRY(hd_search_edge_of(&edge, s, walk, i));
        *whole = hd_add_saturated(*whole, edge.cost.part[0]);
        fits = fits && edge.need <= s->cap;
        if (i < s->nsteps) {
            const hd_row *row = &s->row[s->row_of[i]];
            *whole = hd_add_saturated(*whole, row->way[row->first[walk->state[i]]].price.cost.part[0]);
        }
    }
    *found = fits && *whole < *found ? *whole : *found;
out:
    return st;
}

/* It is worth it where a price takes long, on many ranks. */
static int rounds_of(const hd_search *s)
{
    const int rounds = 1 + heddle_mesh_size(&s->mesh) / REFINED_RANKS;
    return rounds < REFINEMENTS ? rounds : REFINEMENTS;
}

/* The best walk by what edges cost at least is no dearer than the best one. Where it is below the bound, its own edges
 * are priced, and it may be another one. */
heddle_status hd_search_hope(int *is_hopeless, int64_t *found, hd_walk *room, hd_search *s, const hd_cost *bound)
{
    heddle_status st = HEDDLE_OK;
    hd_cost floor = hd_search_floor(s);
    int64_t more = s->least != NULL, whole = 0;
    for (int i = 0; i < rounds_of(s) && more > 0 && hd_cost_compare(&floor, bound) < 0; i++) {
        HD_TRY(hd_search_walk(room, s, HD_WALK_FLOOR));
        floor = room->cost;
        if (hd_cost_compare(&floor, bound) < 0) {
            HD_TRY(price_walk(&whole, found, s, room));
            more = whole - floor.part[0];
        }
    }
    *is_hopeless = hd_cost_compare(&floor, bound) >= 0;
out:
    return st;
}

/* --- through few states ------------------------------------------------------------------------------------------- */

/* What a search through few states goes by. */
typedef struct few {
    hd_search *s;
    hd_near near;
    admitted all;
    double floor, *through; /* of all walks, and of those through each state; NULL: not known */
    double most;            /* what the walk that is looked for must not be above */
} few;

/* Is there no walk below the bound? Where some were priced, the best of them is the most that is looked at. On few
 * ranks the walk that the floor comes from is the only one: it is known already. */
static heddle_status look_below(int *is_hopeless, hd_walk *room, few *f, const hd_cost *bound)
{
    heddle_status st = HEDDLE_OK;
    int64_t found = bound->part[0], whole = 0;
    hd_search_drop_through(is_hopeless, f->s, f->through, f->most);
    if (!*is_hopeless && rounds_of(f->s) == 1) {
        hd_near_follow(room->state, &f->near);
        HD_TRY(price_walk(&whole, &found, f->s, room));
    } else if (!*is_hopeless) {
        HD_TRY(hd_search_hope(is_hopeless, &found, room, f->s, bound));
    }
    f->most = (double)found;
    room->cost = room->second = hd_cost_none;
    restore(f->s, &f->all);
out:
    return st;
}

static double next_slack(double slack, int is_enough)
{
    return is_enough && slack < SLACK_MAX ? SLACK_MAX : slack < SLACK ? SLACK : slack * SLACK_GROWS;
}

/* The limit grows from the floor, or from a little more than the best walk is likely to cost, up to what a walk was
 * found at, or to the bound that is given. Where there is one, the first walk that is found ends the growing: most
 * meshes have none below it, and then all states up to it are walked anyway. */
static heddle_status grow(hd_walk *out, int *is_done, few *f, hd_walk_kind kind)
{
    heddle_status st = HEDDLE_OK;
    const hd_cost *found = kind == HD_WALK_TWO ? &out->second : &out->cost;
    const double likely = f->floor < (double)f->s->likely ? (double)f->s->likely / f->floor - 1 : 0;
    for (double slack = kind == HD_WALK_TWO ? likely + CLOSELY : SLACK; !*is_done && slack <= SLACK_MAX;
         slack = next_slack(slack, kind == HD_WALK_BEST && found->part[0] < INT64_MAX)) {
        const double limit = f->floor * (1 + slack) < f->most ? f->floor * (1 + slack) : f->most;
        out->cost = out->second = hd_cost_none;
        int is_empty = 0;
        hd_search_drop_through(&is_empty, f->s, f->through, limit);
        HD_TRY(is_empty ? HEDDLE_OK : hd_search_walk(out, f->s, kind));
        f->most = (double)found->part[0] < f->most ? (double)found->part[0] : f->most;
        *is_done = limit >= f->most;
        restore(f->s, &f->all);
    }
out:
    return st;
}

/* *through, NULL: not known. */
static heddle_status find_through(double **through, hd_near *near)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    const hd_search *s = near->s;
    HD_TRY(hd_alloc(&memory, (size_t)s->nrows * (size_t)s->nstates, sizeof **through, "costs"));
    if (hd_near_through(memory, near)) {
        *through = memory;
        memory = NULL;
    }
out:
    hd_free(memory);
    return st;
}

heddle_status hd_search_walk_few(hd_walk *out, int *is_done, hd_search *s, hd_walk_kind kind, const hd_cost *bound)
{
    heddle_status st = HEDDLE_OK;
    few f = {.s = s, .most = bound != NULL ? (double)bound->part[0] : INFINITY};
    *is_done = 0;
    if (!s->aim.is_time) {
        return HEDDLE_OK;
    }
    HD_TRY(remember(&f.all, s));
    if (hd_near_applies(s)) {
        HD_TRY(hd_near_open(&f.near, s, 0));
        HD_TRY(hd_near_floor(&f.floor, &f.near, f.most + 1, 0));
        HD_TRY(f.floor > 0 && f.floor <= f.most ? find_through(&f.through, &f.near) : HEDDLE_OK);
    }
    if (f.floor > f.most) {
        out->cost = out->second = hd_cost_none;
        *is_done = 1;
    } else if (f.through != NULL) {
        s->near = &f.near;
        HD_TRY(hd_search_edges(s));
        HD_TRY(bound != NULL ? look_below(is_done, out, &f, bound) : HEDDLE_OK);
        st = grow(out, is_done, &f, kind);
    } else if (bound == NULL && s->nstates > 2 * NARROW_STATES) {
        HD_TRY(hd_search_edges(s));
        st = drop_hopeless(out, s, &f.all);
    }
out:
    s->near = NULL;
    hd_near_close(&f.near);
    hd_free(f.through);
    forget(&f.all, s);
    return st;
}

heddle_status hd_search_near_floor(int64_t *out, double **through, hd_search *s, int64_t bound)
{
    heddle_status st = HEDDLE_OK;
    hd_near near = {0};
    double floor = 0;
    int is_empty = 0;
    for (int i = 0; i < s->nrows; i++) {
        is_empty = is_empty || s->row[i].nadmitted == 0;
    }
    if (!is_empty && hd_near_applies(s)) {
        HD_TRY(hd_near_open(&near, s, hd_near_is_rough(s)));
        HD_TRY(hd_near_floor(&floor, &near, (double)bound, 1));
        HD_TRY(floor > 0 && floor < (double)bound ? find_through(through, &near) : HEDDLE_OK);
    }
out:
    *out = is_empty ? INT64_MAX : (int64_t)floor;
    hd_near_close(&near);
    return st;
}
