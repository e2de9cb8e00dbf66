/* Walks through few states, which are found much faster and are the best of all.
 *
 * What no walk is below is known without the price of an edge (near.h). Only states stay through which a walk may cost
 * little more than that; what is found at or below that cost is the best of all walks, and where nothing is, more is
 * allowed. Where nothing is known, a walk through the states that cost least by themselves is the bound. */
#include "planner/search/near.h"

#include "runtime/base/base.h"

#include <math.h>
#include <string.h>

enum { NARROW_STATES = 32 };
/* What the first bound is above the floor, how much the next is, and the last. */
static const double SLACK = 1.0 / 256, SLACK_GROWS = 2, SLACK_MAX = 1;

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

/* The bound grows from the floor, up to what a walk was found at, or to the bound that is given. */
static heddle_status grow(hd_walk *out, int *is_done, hd_near *near, const admitted *all, hd_walk_kind kind,
                          const hd_cost *bound, double floor)
{
    heddle_status st = HEDDLE_OK;
    hd_search *s = near->s;
    const hd_cost *found = kind == HD_WALK_TWO ? &out->second : &out->cost;
    double most = bound != NULL ? (double)bound->part[0] : INFINITY;
    for (double slack = SLACK; !*is_done && slack <= SLACK_MAX; slack *= SLACK_GROWS) {
        const double limit = floor * (1 + slack) < most ? floor * (1 + slack) : most;
        out->cost = out->second = hd_cost_none;
        int is_empty = 0;
        HD_TRY(hd_near_drop(&is_empty, near, limit));
        HD_TRY(is_empty ? HEDDLE_OK : hd_search_walk(out, s, kind));
        most = (double)found->part[0] < most ? (double)found->part[0] : most;
        *is_done = limit >= most;
        restore(s, all);
    }
out:
    return st;
}

heddle_status hd_search_walk_few(hd_walk *out, int *is_done, hd_search *s, hd_walk_kind kind, const hd_cost *bound)
{
    heddle_status st = HEDDLE_OK;
    hd_near near = {0};
    admitted all = {NULL, NULL};
    const double most = bound != NULL ? (double)bound->part[0] : INFINITY;
    double floor = 0;
    *is_done = 0;
    if (!s->aim.is_time) {
        return HEDDLE_OK;
    }
    HD_TRY(remember(&all, s));
    if (hd_near_applies(s)) {
        HD_TRY(hd_near_open(&near, s, 0));
        HD_TRY(hd_near_floor(&floor, &near, most + 1));
        floor = floor <= most && !hd_near_walk(&near) ? 0 : floor;
    }
    if (floor > most) {
        out->cost = out->second = hd_cost_none;
        *is_done = 1;
    } else if (floor > 0) {
        st = grow(out, is_done, &near, &all, kind, bound, floor);
    } else if (bound == NULL && s->nstates > 2 * NARROW_STATES) {
        st = drop_hopeless(out, s, &all);
    }
out:
    hd_near_close(&near);
    forget(&all, s);
    return st;
}

heddle_status hd_search_near_floor(int64_t *out, hd_search *s, int64_t bound)
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
        HD_TRY(hd_near_floor(&floor, &near, (double)bound));
    }
out:
    *out = is_empty ? INT64_MAX : (int64_t)floor;
    hd_near_close(&near);
    return st;
}
