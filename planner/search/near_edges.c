/* What edges cost at least, from a few ranks.
 *
 * What the first rank receives is known at once, and little less than the rest in most edges (near_open.c). Where it
 * matters the first rank is looked at, and its neighbours along every axis: wherever two layouts cut a dim by different
 * axes, one of them lies across. What they send and receive is a product over the dims, whose factors depend on which
 * axes cut a dim before and after, and are kept. Seconds are looked up in tables whose steps are rounded down. So an
 * edge takes some hundred nanoseconds, and is never above its price. */
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

unsigned hd_near_change(const hd_near *w, int from, int to)
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

/* Raises *ps to what such an exchange of so many bytes by the links of a level takes at least. */
static heddle_status take(double *ps, hd_near *w, int level, unsigned change, double bytes)
{
    heddle_status st = HEDDLE_OK;
    hd_near_table *t = NULL;
    HD_TRY(table_of(&t, w, level, change));
    const double least = least_ps(t, w->s->pricer.machine, bytes);
    *ps = least > *ps ? least : *ps;
out:
    return st;
}

heddle_status hd_near_first(double *edge, hd_near *w, double row_bytes)
{
    heddle_status st = HEDDLE_OK;
    for (int to = 0; to < w->n; to++) {
        const unsigned change = w->wanted[to] ? w->change[to] : 0;
        edge[to] = 0;
        for (int l = 0; l < w->levels.count && change >> 1 != 0; l++) {
            const double elems = w->lacks[(size_t)(l + 1) * (size_t)w->n + (size_t)to];
            HD_TRY(elems > 0 ? take(&edge[to], w, l, change, elems * row_bytes) : HEDDLE_OK);
        }
    }
out:
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
        hd_edge_part_at(&made, &w->s->m->shape, &w->s->mesh, &w->levels, &w->s->layout[w->layout[from]],
                        &w->s->layout[w->layout[to]], w->dim[d], w->coords[r]);
        p->is_known = 1;
        p->own = (double)made.own;
        for (int l = 0; l < w->levels.count; l++) {
            p->moved.x[2 * l] = (double)made.sent[l];
            p->moved.x[2 * l + 1] = (double)made.received[l];
        }
    }
    return p;
}

/* Elements by the links of every level: the most that one of the few ranks sends or receives. A neighbour along an axis
 * that does not change has what the first rank has. Loops run over all levels that there may be, those of the machine
 * or not: so compilers unroll them. */
static void moved_least(double most[HD_LEVELS], hd_near *w, int from, int to, unsigned changed)
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
            const hd_near_part *p = part_of(w, r, d, from, to);
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

/* An edge of rows of so many bytes. */
heddle_status hd_near_edge(double *out, hd_near *w, double row_bytes, int from, int to)
{
    heddle_status st = HEDDLE_OK;
    const unsigned change = hd_near_change(w, from, to);
    double most[HD_LEVELS] = {0};
    *out = 0;
    if (change >> 1 != 0) {
        moved_least(most, w, from, to, change >> 1);
    }
    for (int l = 0; l < w->levels.count; l++) {
        HD_TRY(most[l] > 0 ? take(out, w, l, change, most[l] * row_bytes) : HEDDLE_OK);
    }
out:
    return st;
}

double hd_near_row_bytes(const hd_near *w, int stage)
{
    return (double)w->s->m->stage[stage].in_channels * (double)heddle_dtype_bytes(w->s->m->dtype);
}

/* The edge is looked at by all of the few ranks; the search knows as much of it from now on. *more: it is dearer than
 * what was known. */
heddle_status hd_near_refine(int *more, hd_near *w, int stage, int from, int to)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)w->n, all = (size_t)w->s->nlayouts, width = (size_t)w->s->width_of[stage];
    const size_t at = (width * n + (size_t)from) * n + (size_t)to;
    double edge = 0;
    *more = 0;
    if (from != to && !w->is_refined[at]) {
        HD_TRY(hd_near_edge(&edge, w, hd_near_row_bytes(w, stage), from, to));
        *more = edge > w->edge[at];
        w->edge[at] = *more ? edge : w->edge[at];
        w->is_refined[at] = 1;
        int64_t *least = &w->s->least[(width * all + (size_t)w->layout[from]) * all + (size_t)w->layout[to]];
        *least = *least != 0 ? *least : (int64_t)w->edge[at] + 1;
    }
out:
    return st;
}
