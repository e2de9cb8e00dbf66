/* What no plan can be below, proven without a walk.
 *
 * By bytes: between two stages that mix, whatever the layouts in between are, every rank must receive what it holds at
 * the second and did not hold at the first, so all ranks together send at least the bytes of the direct move; the
 * busiest sends at least the mean. Each of the two belongs to two such pairs, the one before and the one behind it, so
 * half of what its own method sends counts in each. The least of that over all layouts of the two bounds the pair. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

enum { LOOKED_AT = 1 << 20 }; /* ranks of all direct moves of a pair; with more it is bound by its two stages alone */

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

/* What two stages send and what lies between them, doubled: half of a stage belongs to its other neighbour. */
typedef struct twice {
    int64_t a, b; /* how often a stage counts: 1, at an end of the model 2 */
} twice;

static __int128 of_stages(const hd_row *a, const hd_row *b, int i, int k, twice count)
{
    const int64_t before = a->way[a->first[a->admitted[i]]].price.cost.part[0];
    const int64_t behind = b->way[b->first[b->admitted[k]]].price.cost.part[0];
    return (__int128)before * count.a + (__int128)behind * count.b;
}

/* Bytes that the busiest rank sends at least, on the way back, too, where no rank has what another has as well. */
static heddle_status least_sent(int64_t *out, const hd_search *s, int from, int to)
{
    heddle_status st = HEDDLE_OK;
    const int nranks = heddle_mesh_size(&s->mesh);
    const heddle_layout *a = &s->layout[from], *b = &s->layout[to];
    hd_edge_cost cost;
    int is_spread = s->pricer.backward;
    *out = 0;
    if (from == to) {
        return HEDDLE_OK;
    }
    for (int axis = 0; axis < s->mesh.naxes; axis++) {
        is_spread = is_spread && a->dim_of_axis[axis] >= 0 && b->dim_of_axis[axis] >= 0;
    }
    HD_TRY(hd_edge_cost_of(&cost, &s->m->shape, &s->mesh, a, b));
    int64_t mean = (cost.bytes_total + nranks - 1) / nranks;
    *out = mean;
    if (is_spread) {
        HD_TRY(hd_edge_cost_of(&cost, &s->m->shape, &s->mesh, b, a));
        mean = (cost.bytes_total + nranks - 1) / nranks;
        *out = hd_add_saturated(*out, mean);
    }
out:
    return st;
}

/* Doubled. Pairs of layouts without a move come first: few others can be below the least of them. */
static heddle_status least_pair(__int128 *out, const hd_search *s, const hd_row *a, const hd_row *b, twice count)
{
    heddle_status st = HEDDLE_OK;
    int64_t looked_at = 0, moved = 0;
    *out = (__int128)INT64_MAX * 4;
    for (int is_move = 0; is_move < 2; is_move++) {
        for (int i = 0; i < a->nadmitted; i++) {
            for (int k = 0; k < b->nadmitted; k++) {
                const int from = a->admitted[i], to = b->admitted[k];
                __int128 sum = of_stages(a, b, i, k, count);
                if ((from != to) != is_move || sum >= *out) {
                    continue;
                }
                looked_at += is_move ? heddle_mesh_size(&s->mesh) : 0;
                HD_TRY(looked_at <= LOOKED_AT ? least_sent(&moved, s, from, to) : HEDDLE_OK);
                sum += looked_at <= LOOKED_AT ? (__int128)moved * 2 : 0;
                *out = sum < *out ? sum : *out;
            }
        }
    }
out:
    return st;
}

/* The same two stages meet in every repetition: `known` keeps what was found, -1: nothing yet. */
static heddle_status pair_between(__int128 *out, const hd_search *s, __int128 *known, int from, int to, twice count)
{
    heddle_status st = HEDDLE_OK;
    __int128 *at = &known[(size_t)from * (size_t)s->nrows + (size_t)to];
    const int is_inner = count.a == 1 && count.b == 1;
    *out = *at;
    if (!is_inner || *at < 0) {
        st = least_pair(out, s, &s->row[from], &s->row[to], count);
        *at = is_inner ? *out : *at;
    }
    return st;
}

static heddle_status bytes_at_least(int64_t *out, const hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    __int128 *known, pair, sum = 0;
    int last = -1, count = 0, nmixing = 0;
    const size_t pairs = (size_t)s->nrows * (size_t)s->nrows;
    HD_TRY(hd_alloc(&memory, pairs, sizeof *known, "rows of stages"));
    known = memory;
    for (size_t i = 0; i < pairs; i++) {
        known[i] = -1;
    }
    for (int i = 0; i < s->nsteps; i++) {
        nmixing += s->mixes[i % s->m->nstages].dim >= 0;
    }
    for (int i = 0; i < s->nsteps; i++) {
        const int row = s->row_of[i];
        const int64_t alone = s->row[row].least.part[0];
        if (s->mixes[i % s->m->nstages].dim < 0 || nmixing == 1) {
            sum += (__int128)alone * 2;
            continue;
        }
        if (last >= 0) {
            const twice times = {count == 1 ? 2 : 1, count == nmixing - 1 ? 2 : 1};
            HD_TRY(pair_between(&pair, s, known, last, row, times));
            sum += pair;
        }
        count++;
        last = row;
    }
    sum /= 2;
    *out = sum > INT64_MAX ? INT64_MAX : (int64_t)sum;
out:
    hd_free(memory);
    return st;
}

heddle_status hd_search_lower_bound(double *out, hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    hd_cost floor = hd_search_floor(s);
    if (s->aim.objective == HD_OBJECTIVE_BYTES) {
        HD_TRY(bytes_at_least(&floor.part[0], s));
    }
    *out = hd_search_value(s, &floor);
out:
    return st;
}

/* Of memory: what the stage needs that needs most. */
int64_t hd_search_least_stage(const hd_search *s)
{
    int64_t most = 0;
    for (int i = 0; i < s->nrows; i++) {
        int64_t least = INT64_MAX;
        for (int w = 0; w < s->row[i].nways; w++) {
            least = s->row[i].way[w].price.need < least ? s->row[i].way[w].price.need : least;
        }
        most = least > most ? least : most;
    }
    return most;
}
