/* What edges cost at least, from a few ranks.
 *
 * The first rank is looked at, and its neighbours along every axis: wherever two layouts cut a dim by different axes,
 * one of them lies across. What they send and receive is a product over the dims, whose factors depend on which axes
 * cut a dim before and after, and are kept. Seconds are looked up in tables whose steps are rounded down. So an edge
 * takes some ten nanoseconds, and is never above its price. */
#include "planner/search/near.h"

#include "runtime/base/base.h"

#include <math.h>
#include <string.h>

enum {
    STEP_BITS = 6, /* 64 steps of a table to every power of two */
    BITS_BELOW = 52 - STEP_BITS,
    STEPS = 63 << STEP_BITS
};
static const double EXACT = 0x1p52;

/* Picoseconds of an exchange by its bytes; -1: not looked up yet. */
struct hd_near_table {
    int level, exchange, group;
    double ps[STEPS];
};

/* --- one edge ----------------------------------------------------------------------------------------------------- */

void hd_near_tables_free(hd_prices *p)
{
    for (int i = 0; i < p->ntables; i++) {
        hd_free(p->table[i]);
    }
    hd_free(p->table);
}

static heddle_status find_table(hd_near_table **out, hd_prices *p, int level, int exchange, int group)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    for (int i = 0; i < p->ntables; i++) {
        if (p->table[i]->level == level && p->table[i]->exchange == exchange && p->table[i]->group == group) {
            *out = p->table[i];
            return HEDDLE_OK;
        }
    }
    HD_TRY(
        hd_grow((void **)&p->table, &p->tables_capacity, p->ntables, sizeof(hd_near_table *), "tables of exchanges"));
    HD_TRY(hd_alloc(&memory, 1, sizeof(hd_near_table), "a table of an exchange"));
    *out = p->table[p->ntables++] = memory;
    **out = (hd_near_table){.level = level, .exchange = exchange, .group = group};
    for (int i = 0; i < STEPS; i++) {
        (*out)->ps[i] = -1;
    }
out:
    return st;
}

/* What at least as many bytes as this take at least; one less, for the last digit of a product of powers. */
static double least_ps(hd_near_table *t, const heddle_machine *machine, double bytes)
{
    uint64_t bits = 0;
    memcpy(&bits, &bytes, sizeof bits);
    const int64_t at = (int64_t)(bits >> BITS_BELOW) - ((int64_t)1023 << STEP_BITS);
    if (at < 0) {
        return 0;
    }
    double *ps = &t->ps[at < STEPS ? at : STEPS - 1];
    if (*ps < 0) {
        bits = bits >> BITS_BELOW << BITS_BELOW;
        memcpy(&bytes, &bits, sizeof bytes);
        const double seconds =
            hd_machine_exchange_s(machine, machine->level[t->level].link, t->exchange, t->group, bytes);
        *ps = floor(seconds * 1e12) - 1;
        *ps = *ps > EXACT ? EXACT : *ps > 0 ? *ps : 0;
    }
    return *ps;
}

/* A bit for every axis that changes, and one more where all of them gather. */
static unsigned change_of(const hd_near *w, int from, int to)
{
    unsigned same = w->whole[from] & w->whole[to];
    for (int d = 0; d < w->ndims; d++) {
        same |= w->cuts[d * w->n + from] & w->cuts[d * w->n + to];
    }
    const unsigned changed = w->many & ~same;
    return changed << 1 | ((changed & ~(w->shards[from] & w->whole[to])) == 0);
}

static heddle_status table_of(hd_near_table **out, hd_near *w, int level, unsigned change)
{
    heddle_status st = HEDDLE_OK;
    if (w->table[level][change] == NULL) {
        int group = 1;
        for (int i = 0; i < w->s->mesh.naxes; i++) {
            group *= (change >> 1 >> i & 1) != 0 ? w->s->mesh.axis[i].size : 1;
        }
        st = find_table(&w->table[level][change], w->s->prices, level,
                        (change & 1) != 0 ? HD_EXCHANGE_ALL_GATHER : HD_EXCHANGE_ALL_TO_ALL, group > 1 ? group : 2);
    }
    *out = w->table[level][change];
    return st;
}

/* What two layouts do to a dim, as rank `r` of the few sees it: as the first one does, along an axis that cuts nothing
 * of it. An axis cuts it before, before and behind, behind alone, with another dim cut before or none, or never. */
static const hd_near_part *part_of(hd_near *w, int r, int d, int from, int to)
{
    const unsigned a = w->cuts[d * w->n + from], b = w->cuts[d * w->n + to], other = b & ~a & w->shards[from];
    const unsigned way = w->power[a & ~b] + 2 * w->power[a & b] + 3 * w->power[other] + 4 * w->power[b & ~a & ~other];
    r = ((a | b) >> r & 1) != 0 ? r : 0;
    hd_near_part *p = &w->part[((unsigned)r * (unsigned)w->ndims + (unsigned)d) * w->nways + way];
    if (!p->is_known) {
        hd_edge_part made;
        hd_edge_part_at(&made, &w->s->m->shape, &w->s->mesh, &w->levels, &w->s->layout[from], &w->s->layout[to],
                        w->dim[d], w->coords[r]);
        p->is_known = 1;
        p->own = (double)made.own;
        for (int l = 0; l < w->levels.count; l++) {
            p->moved.x[2 * l] = (double)made.sent[l];
            p->moved.x[2 * l + 1] = (double)made.received[l];
        }
    }
    return p;
}

typedef const hd_near_part *hd_near_seen[HD_NEAR_RANKS][HEDDLE_MAX_DIMS][HD_NEAR_MASKS];

/* Elements by the links of every level: the most that one of the few ranks sends or receives. A neighbour along an axis
 * that does not change has what the first rank has. Loops run over all levels that there may be, those of the machine
 * or not: so compilers unroll them. */
static void moved_least(double most[HD_LEVELS], const hd_near *w, hd_near_seen seen, int from, int to, unsigned changed)
{
    const unsigned gathered = w->shards[from] & ~w->shards[to];
    hd_near_moved all = {{0}};
    for (int r = 0; r < w->s->mesh.naxes; r++) {
        if (r > 0 && (changed >> r & 1) == 0) {
            continue;
        }
        hd_near_moved moved = w->copies[r][gathered];
        double own = 1;
        for (int d = 0; d < w->ndims; d++) {
            const hd_near_part *p = seen[r][d][w->cuts[d * w->n + to]];
            own *= p->own;
            for (int i = 0; i < 2 * HD_LEVELS; i++) {
                moved.x[i] *= p->moved.x[i];
            }
        }
        for (int i = 0; i < 2 * HD_LEVELS; i++) {
            const double more = moved.x[i] - (i > 1 ? moved.x[i - 2] : own);
            all.x[i] = more > all.x[i] ? more : all.x[i];
        }
    }
    for (int l = 0; l < HD_LEVELS; l++) {
        most[l] = all.x[2 * l] > all.x[2 * l + 1] ? all.x[2 * l] : all.x[2 * l + 1];
    }
}

/* Edges from a state to those that some stage admits, or to one alone; the others are left as they are. */
heddle_status hd_near_edges_from(double *out, hd_near *w, double row_bytes, int from, const char *wanted)
{
    heddle_status st = HEDDLE_OK;
    hd_near_seen seen;
    unsigned known[HEDDLE_MAX_DIMS] = {0};
    for (int to = 0; to < w->n; to++) {
        for (int d = 0; d < w->ndims && wanted[to]; d++) {
            const unsigned cut = w->cuts[d * w->n + to];
            for (int r = 0; r < w->s->mesh.naxes && (known[d] >> cut & 1) == 0; r++) {
                seen[r][d][cut] = part_of(w, r, d, from, to);
            }
            known[d] |= 1u << cut;
        }
    }
    for (int to = 0; to < w->n; to++) {
        const unsigned change = wanted[to] ? change_of(w, from, to) : 0;
        double most[HD_LEVELS];
        out[to] = 0;
        if (change >> 1 == 0) {
            continue;
        }
        moved_least(most, w, seen, from, to, change >> 1);
        for (int l = 0; l < w->levels.count; l++) {
            hd_near_table *t = NULL;
            if (most[l] > 0) {
                HD_TRY(table_of(&t, w, l, change));
                const double ps = least_ps(t, w->s->pricer.machine, most[l] * row_bytes);
                out[to] = ps > out[to] ? ps : out[to];
            }
        }
    }
out:
    return st;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* The search knows as much of these edges from now on. */
static void tell(hd_search *s, int width, const double *edge, int from, const char *wanted)
{
    int64_t *least = s->least + ((size_t)width * (size_t)s->nlayouts + (size_t)from) * (size_t)s->nlayouts;
    for (int to = 0; to < s->nlayouts; to++) {
        if (wanted[to] && least[to] == 0) {
            least[to] = (int64_t)edge[to] + 1;
        }
    }
}

static heddle_status make_edges(hd_near *w)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)w->n;
    for (int k = 0; k < w->s->m->nstages; k++) {
        double row_bytes = (double)w->s->m->stage[k].in_channels * (double)heddle_dtype_bytes(w->s->m->dtype);
        double *edge = w->edge + (size_t)w->s->width_of[k] * n * n;
        int is_made = 0;
        for (int before = 0; before < k; before++) {
            is_made = is_made || w->s->width_of[before] == w->s->width_of[k];
        }
        for (size_t from = 0; !is_made && from < n && st == HEDDLE_OK; from++) {
            if (w->wanted[from]) {
                st = hd_near_edges_from(edge + from * n, w, row_bytes, (int)from, w->wanted);
                tell(w->s, w->s->width_of[k], edge + from * n, (int)from, w->wanted);
            }
        }
    }
    return st;
}

static void set_powers(hd_near *w)
{
    w->nways = 1;
    for (int a = 0; a < w->s->mesh.naxes; a++, w->nways *= 5) {
        for (unsigned axes = 0; axes < HD_NEAR_MASKS; axes++) {
            w->power[axes] += (axes >> a & 1) != 0 ? w->nways : 0;
        }
    }
}

static heddle_status room(hd_near *w)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    const size_t n = (size_t)w->n, steps = (size_t)w->s->m->nstages * n;
    const size_t repetitions = (size_t)(w->s->m->repeat < HD_NEAR_REPETITIONS ? w->s->m->repeat : HD_NEAR_REPETITIONS);
    HD_TRY(hd_alloc(&memory, n, sizeof(unsigned), "layouts"));
    w->shards = memory;
    HD_TRY(hd_alloc(&memory, n, sizeof(unsigned), "layouts"));
    w->whole = memory;
    HD_TRY(hd_alloc(&memory, (size_t)w->ndims * n, sizeof(unsigned), "layouts"));
    w->cuts = memory;
    HD_TRY(hd_alloc(&memory, (size_t)(HD_NEAR_RANKS * w->ndims) * w->nways, sizeof(hd_near_part), "parts of edges"));
    w->part = memory;
    HD_TRY(hd_alloc(&memory, n, 1, "layouts"));
    w->wanted = memory;
    HD_TRY(hd_alloc(&memory, n, 1, "layouts"));
    w->ends = memory;
    HD_TRY(hd_alloc(&memory, (size_t)w->s->nwidths * n * n, sizeof(double), "edges"));
    w->edge = memory;
    HD_TRY(hd_alloc(&memory, n, sizeof(double), "costs"));
    w->behind = memory;
    HD_TRY(hd_alloc(&memory, repetitions * steps, sizeof(double), "costs"));
    w->to.cost = memory;
    HD_TRY(hd_alloc(&memory, repetitions * steps, sizeof(double), "costs"));
    w->from.cost = memory;
    HD_TRY(hd_alloc(&memory, (size_t)w->s->nrows * n, 1, "layouts"));
    w->kept = memory;
out:
    return st;
}

static void set_ranks(hd_near *w)
{
    int width[HD_LEVELS][HEDDLE_MAX_AXES];
    const heddle_mesh *mesh = &w->s->mesh;
    hd_edge_widths(width, mesh, &w->levels);
    for (int r = 0; r < w->s->mesh.naxes; r++) {
        w->many |= (unsigned)(mesh->axis[r].size > 1) << r;
        for (int a = 0; a < mesh->naxes; a++) {
            w->coords[r][a] = a == r && r > 0 && mesh->axis[a].size > 1;
        }
        for (int l = 0; l < w->levels.count; l++) {
            for (unsigned axes = 0; axes < 1u << mesh->naxes; axes++) {
                double copies = 1;
                for (int a = 0; a < mesh->naxes; a++) {
                    const int left = mesh->axis[a].size - w->coords[r][a] / width[l][a] * width[l][a];
                    const int peers = width[l][a] < left ? width[l][a] : left;
                    copies *= (axes >> a & 1) != 0 ? peers : 1;
                }
                w->copies[r][axes].x[2 * l] = copies;
                w->copies[r][axes].x[2 * l + 1] = 1;
            }
        }
    }
}

static void set_states(hd_near *w)
{
    for (int i = 0; i < w->s->nrows; i++) {
        for (int k = 0; k < w->s->row[i].nadmitted; k++) {
            w->wanted[w->s->row[i].admitted[k]] = 1;
        }
    }
    if (w->s->epilogue >= 0) {
        w->ends[w->s->epilogue] = 1;
    }
    for (int i = 0; i < w->n; i++) {
        for (int a = 0; a < w->s->mesh.naxes; a++) {
            const int dim = w->s->layout[i].dim_of_axis[a];
            w->shards[i] |= (unsigned)(dim >= 0) << a;
            w->whole[i] |= (unsigned)(dim == HEDDLE_REPLICATED) << a;
            for (int d = 0; d < w->ndims; d++) {
                w->cuts[d * w->n + i] |= (unsigned)(dim == w->dim[d] && w->s->mesh.axis[a].size > 1) << a;
            }
        }
    }
}

heddle_status hd_near_open(hd_near *w, hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    *w = (hd_near){.s = s, .n = s->nlayouts, .levels = hd_price_levels(s->pricer.machine, &s->mesh)};
    for (int d = 0; d < s->m->shape.ndim; d++) {
        if (d != s->m->channel_dim) {
            w->dim[w->ndims++] = d;
        }
    }
    set_powers(w);
    HD_TRY(room(w));
    set_ranks(w);
    set_states(w);
    st = make_edges(w);
out:
    return st;
}

void hd_near_close(hd_near *w)
{
    HD_FREE_ALL(w->shards, w->whole, w->cuts, w->part, w->wanted, w->ends, w->edge, w->behind, w->to.cost, w->from.cost,
                w->kept);
}
