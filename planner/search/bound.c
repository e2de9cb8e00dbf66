/* What no plan can be below, proven without a walk: edges are left out, but where the layouts of two stages have
 * nothing in common.
 *
 * Between two stages that mix, whatever the layouts in between are, every rank must receive what it holds at the second
 * and did not hold at the first, so all ranks together send at least the bytes of the direct move; the busiest sends at
 * least the mean. The least over all pairs of layouts that the two stages admit bounds the edges between them. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

enum { PAIRS_MAX = 1 << 12 }; /* that are looked at; with more the bound of that pair is 0 */

hd_cost hd_search_floor(const hd_search *s)
{
    hd_cost sum = {{0}};
    for (int i = 0; i < s->nsteps; i++) {
        sum = hd_cost_add(&sum, &s->row[s->row_of[i]].least);
    }
    return sum;
}

void hd_search_drop_dear(hd_search *s, const hd_cost *bound, int keeps_equal)
{
    hd_cost floor = hd_search_floor(s);
    for (int i = 0; i < s->nrows; i++) {
        hd_row *row = &s->row[i];
        int nadmitted = 0;
        for (int k = 0; k < row->nadmitted; k++) {
            const hd_way *best = &row->way[row->first[row->admitted[k]]];
            hd_cost least = hd_cost_add(&floor, &best->price.cost);
            for (int p = 0; p < HD_COST_PARTS; p++) {
                least.part[p] -= row->least.part[p];
            }
            if (hd_cost_compare(&least, bound) < keeps_equal) {
                row->admitted[nadmitted++] = row->admitted[k];
            }
        }
        row->nadmitted = nadmitted;
    }
}

/* 1 when a layout serves both: nothing has to move. */
static int have_common(const hd_row *a, const hd_row *b)
{
    for (int i = 0, k = 0; i < a->nadmitted && k < b->nadmitted;) {
        if (a->admitted[i] == b->admitted[k]) {
            return 1;
        }
        if (a->admitted[i] < b->admitted[k]) {
            i++;
        } else {
            k++;
        }
    }
    return 0;
}

static heddle_status least_move(int64_t *out, hd_search *s, const hd_row *a, const hd_row *b)
{
    heddle_status st = HEDDLE_OK;
    int nranks = heddle_mesh_size(&s->mesh);
    *out = 0;
    if (have_common(a, b) || (int64_t)a->nadmitted * b->nadmitted > PAIRS_MAX) {
        return HEDDLE_OK;
    }
    *out = INT64_MAX;
    for (int i = 0; i < a->nadmitted; i++) {
        for (int k = 0; k < b->nadmitted; k++) {
            hd_edge_cost cost;
            HD_TRY(
                hd_edge_cost_of(&cost, &s->m->shape, &s->mesh, &s->layout[a->admitted[i]], &s->layout[b->admitted[k]]));
            int64_t mean = (cost.bytes_total + nranks - 1) / nranks;
            *out = mean < *out ? mean : *out;
        }
    }
out:
    return st;
}

/* The same two stages meet in every repetition; `between` keeps what was found. */
static heddle_status moves_between(int64_t *out, hd_search *s, int64_t *known, int from, int to)
{
    heddle_status st = HEDDLE_OK;
    int64_t *at = &known[(size_t)from * (size_t)s->nrows + (size_t)to];
    if (*at < 0) {
        st = least_move(at, s, &s->row[from], &s->row[to]);
    }
    *out = *at;
    return st;
}

static heddle_status forced_moves(int64_t *out, hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    size_t pairs = (size_t)s->nrows * (size_t)s->nrows;
    int last = -1;
    HD_TRY(hd_alloc(&memory, pairs, sizeof(int64_t), "rows of stages"));
    for (size_t i = 0; i < pairs; i++) {
        ((int64_t *)memory)[i] = -1;
    }
    *out = 0;
    for (int i = 0; i < s->nsteps; i++) {
        int row = s->row_of[i];
        int64_t bytes = 0;
        if (s->mixes[i % s->m->nstages].dim < 0) {
            continue;
        }
        HD_TRY(last >= 0 ? moves_between(&bytes, s, memory, last, row) : HEDDLE_OK);
        *out = hd_add_saturated(*out, bytes);
        last = row;
    }
out:
    hd_free(memory);
    return st;
}

heddle_status hd_search_lower_bound(double *out, hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    int64_t moves = 0;
    hd_cost floor = hd_search_floor(s);
    if (s->aim.objective == HD_OBJECTIVE_BYTES) {
        HD_TRY(forced_moves(&moves, s));
        floor.part[0] = hd_add_saturated(floor.part[0], moves);
    }
    *out = hd_search_value(s, &floor);
out:
    return st;
}
