/* What edges cost at least, from a few ranks.
 *
 * What the first rank receives is known at once, and little less than the rest in most edges (near_open.c). Where it
 * matters the first rank is looked at, and one along every axis: wherever two layouts cut a dim by different axes, one
 * of them lies across. What they send and receive is a product over the dims, whose factors depend on which
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

/* Picoseconds of an exchange by its bytes, rounded down to what a float holds; -1: not looked up yet. is_loose: the
 * least of those of all groups that are so many times as large, and of an all-to-all where it is a gather. */
struct hd_near_table {
    int level, exchange, group, is_loose;
    float ps[STEPS];
};

/* --- one edge ----------------------------------------------------------------------------------------------------- */

void hd_near_tables_free(hd_prices *p)
{
    for (int i = 0; i < p->ntables; i++) {
        hd_free(p->table[i]);
    }
    hd_free(p->table);
}

static heddle_status find_table(hd_near_table **out, hd_prices *p, int level, int exchange, int group, int is_loose)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    for (int i = 0; i < p->ntables; i++) {
        const hd_near_table *t = p->table[i];
        if (t->level == level && t->exchange == exchange && t->group == group && t->is_loose == is_loose) {
            *out = p->table[i];
            return HEDDLE_OK;
        }
    }
    HD_TRY(
        hd_grow((void **)&p->table, &p->tables_capacity, p->ntables, sizeof(hd_near_table *), "tables of exchanges"));
    HD_TRY(hd_alloc(&memory, 1, sizeof(hd_near_table), "a table of an exchange"));
    *out = p->table[p->ntables++] = memory;
    **out = (hd_near_table){.level = level, .exchange = exchange, .group = group, .is_loose = is_loose};
    for (int i = 0; i < STEPS; i++) {
        (*out)->ps[i] = -1;
    }
out:
    return st;
}

static double exchange_s(const hd_near_table *t, const heddle_machine *machine, int ranks, double bytes)
{
    const int link = machine->level[t->level].link;
    double least = hd_machine_exchange_s(machine, link, t->exchange, t->group, bytes);
    for (int group = t->group; t->is_loose && group <= ranks; group += t->group) {
        const int is_one = ranks % group == 0;
        const double some = is_one ? hd_machine_exchange_s(machine, link, t->exchange, group, bytes) : least;
        const double all = is_one ? hd_machine_exchange_s(machine, link, HD_EXCHANGE_ALL_TO_ALL, group, bytes) : least;
        least = some < least ? some : least;
        least = all < least ? all : least;
    }
    return least;
}

/* What at least as many bytes as this take at least; one less, for the last digit of a product of powers. */
static float least_ps(hd_near_table *t, const hd_near *w, double bytes)
{
    uint64_t bits = 0;
    memcpy(&bits, &bytes, sizeof bits);
    const int64_t at = (int64_t)(bits >> BITS_BELOW) - ((int64_t)1023 << STEP_BITS);
    if (at < 0) {
        return 0;
    }
    float *ps = &t->ps[at < STEPS ? at : STEPS - 1];
    if (*ps < 0) {
        bits = bits >> BITS_BELOW << BITS_BELOW;
        memcpy(&bytes, &bits, sizeof bytes);
        double least = floor(exchange_s(t, w->s->pricer.machine, heddle_mesh_size(&w->s->mesh), bytes) * 1e12) - 1;
        least = least > EXACT ? EXACT : least > 0 ? least : 0;
        *ps = (float)least > least ? nextafterf((float)least, 0) : (float)least;
    }
    return *ps;
}

hd_near_view hd_near_see(const hd_near *w, int layout)
{
    hd_near_view v = {.layout = &w->s->layout[layout]};
    for (int a = 0; a < w->s->mesh.naxes; a++) {
        const int dim = v.layout->dim_of_axis[a];
        v.shards |= (unsigned)(dim >= 0) << a;
        v.whole |= (unsigned)(dim == HEDDLE_REPLICATED) << a;
        for (int d = 0; d < w->ndims; d++) {
            v.cuts[d] |= (unsigned)(dim == w->dim[d]) << a & w->many;
        }
    }
    return v;
}

/* A bit for every axis that changes, and one more where all of them gather; of two classes those that must change. */
static unsigned change_of(const hd_near *w, int from, int to)
{
    unsigned same = w->whole[from] & w->whole[to];
    for (int d = 0; d < w->ndims; d++) {
        same |= w->cuts[d * w->n + from] & w->cuts[d * w->n + to];
    }
    const unsigned changed = w->many & ~same;
    return changed << 1 | ((changed & ~(~w->whole[from] & w->whole[to])) == 0);
}

static heddle_status table_of(hd_near_table **out, hd_near *w, int level, unsigned change)
{
    heddle_status st = HEDDLE_OK;
    hd_near_table **table = &w->table[level][change];
    if (*table == NULL) {
        int group = 1;
        for (int i = 0; i < w->s->mesh.naxes; i++) {
            group *= (change >> 1 >> i & 1) != 0 ? w->s->mesh.axis[i].size : 1;
        }
        st = find_table(table, w->s->prices, level, (change & 1) != 0 ? HD_EXCHANGE_ALL_GATHER : HD_EXCHANGE_ALL_TO_ALL,
                        group > 1 ? group : 2, w->idle_dim >= 0);
    }
    *out = *table;
    return st;
}

/* Raises *ps to what such an exchange of so many bytes by the links of a level takes at least. */
static heddle_status take(float *ps, hd_near *w, int level, unsigned change, double bytes)
{
    heddle_status st = HEDDLE_OK;
    hd_near_table *t = NULL;
    HD_TRY(table_of(&t, w, level, change));
    const float least = least_ps(t, w, bytes);
    *ps = least > *ps ? least : *ps;
out:
    return st;
}

/* What becomes of all classes where the dims of one of them are exchanged as in the first one that it becomes. */
const int16_t *hd_near_image(const hd_near *w, int of)
{
    return w->image + (size_t)w->swap[of] * (size_t)w->n;
}

heddle_status hd_near_first(hd_near *w, int width, int from)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)w->n;
    float *edge = w->edge + ((size_t)width * n + (size_t)from) * n;
    for (size_t to = 0; to < n; to++) {
        const unsigned change = w->wanted[to] || w->nswaps > 1 ? w->change[to] : 0;
        edge[to] = 0;
        for (int l = 0; l < w->levels.count && change >> 1 != 0; l++) {
            const double elems = w->lacks[(size_t)(l + 1) * n + to];
            HD_TRY(elems > 0 ? take(&edge[to], w, l, change, elems * w->row_bytes[width]) : HEDDLE_OK);
        }
    }
out:
    return st;
}

/* What two layouts do to a dim: an axis cuts it before, before and behind, behind alone, with another dim cut before or
 * none, or never. */
static unsigned way_of(const hd_near *w, unsigned shards, unsigned a, unsigned b)
{
    const unsigned other = b & ~a & shards;
    return w->power[a & ~b] + 2 * w->power[a & b] + 3 * w->power[other] + 4 * w->power[b & ~a & ~other];
}

static void make_part(double *p, const hd_near *w, int r, int d, const heddle_layout *from, const heddle_layout *to)
{
    hd_edge_part made;
    hd_edge_part_at(&made, &w->s->m->shape, &w->s->mesh, &w->levels, w->s->pricer.parts, from, to, w->dim[d],
                    w->coords[r]);
    *p++ = (double)made.own;
    for (int l = 0; l < w->levels.count; l++) {
        *p++ = (double)made.sent[l];
        *p++ = (double)made.received[l];
    }
}

/* most[l]: elements by the links of level l, raised to what one rank sends or receives: the product of what two layouts
 * do to every dim. For most machines `levels` is a constant where this is called: then compilers unroll the loops. */
static inline void raise_to(double *most, const hd_near *w, const double *const part[], const double *copies,
                            int levels)
{
    double moved[2 * HD_LEVELS], own = 1;
    for (int i = 0; i < 2 * levels; i++) {
        moved[i] = copies[i];
    }
    for (int d = 0; d < w->ndims; d++) {
        own *= part[d][0];
        for (int i = 0; i < 2 * levels; i++) {
            moved[i] *= part[d][1 + i];
        }
    }
    for (int l = 0; l < levels; l++) {
        const double sent = moved[2 * l] - (l > 0 ? moved[2 * l - 2] : own);
        const double received = moved[2 * l + 1] - (l > 0 ? moved[2 * l - 1] : own);
        most[l] = sent > most[l] ? sent : most[l];
        most[l] = received > most[l] ? received : most[l];
    }
}

/* Axes along which a rank is looked at besides the first: those that change, for else it has what the first rank has.
 * One along an axis that is idle before holds nothing in some layouts of a class, all in others. */
static unsigned looked_along(const hd_near *w, int from, unsigned change)
{
    return change >> 1 & (w->idle_dim >= 0 ? w->out[from].shards : w->many);
}

/* Along an axis that cuts nothing of a dim, each of the few ranks has of it what the first one has. */
heddle_status hd_near_edge(float *out, hd_near *w, double row_bytes, int from, int to)
{
    heddle_status st = HEDDLE_OK;
    const hd_near_view *a = &w->out[from], *b = &w->into[to];
    const unsigned change = change_of(w, from, to), along = looked_along(w, from, change) << 1 | 1;
    const size_t values = 1 + (size_t)w->nmoved, ranks = (size_t)w->ndims * w->nways * values;
    double *first[HEDDLE_MAX_DIMS];
    const double *part[HEDDLE_MAX_DIMS];
    double most[HD_LEVELS] = {0};
    for (int d = 0; d < w->ndims; d++) {
        first[d] = &w->part[((unsigned)w->alike[d] * w->nways + way_of(w, a->shards, a->cuts[d], b->cuts[d])) * values];
    }
    for (int r = 0; r <= w->s->mesh.naxes && change >> 1 != 0; r++) {
        if ((along >> r & 1) == 0) {
            continue;
        }
        for (int d = 0; d < w->ndims; d++) {
            const int has = ((a->cuts[d] | b->cuts[d]) << 1 >> r & 1) != 0 ? r : 0;
            double *p = first[d] + (size_t)has * ranks;
            if (*p < 0) {
                make_part(p, w, has, d, a->layout, b->layout);
            }
            part[d] = p;
        }
        const double *copies = w->copies[r][a->shards & ~b->shards].x;
        if (w->levels.count == 2) {
            raise_to(most, w, part, copies, 2);
        } else {
            raise_to(most, w, part, copies, w->levels.count);
        }
    }
    *out = 0;
    for (int l = 0; l < w->levels.count; l++) {
        HD_TRY(most[l] > 0 ? take(out, w, l, change, most[l] * row_bytes) : HEDDLE_OK);
    }
out:
    return st;
}

static heddle_status look(hd_near *w, size_t width, int from, int to)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)w->n, at = (width * n + (size_t)from) * n + (size_t)to;
    const int16_t *image = hd_near_image(w, from);
    float cost = 0;
    if (w->is_full[at]) {
        return HEDDLE_OK;
    }
    if (image[from] < from && image[to] >= 0) {
        HD_TRY(look(w, width, image[from], image[to]));
        cost = w->edge[(width * n + (size_t)image[from]) * n + (size_t)image[to]];
    } else {
        HD_TRY(hd_near_edge(&cost, w, w->row_bytes[width], from, to));
    }
    w->edge[at] = cost > w->edge[at] ? cost : w->edge[at];
    w->is_full[at] = 1;
out:
    return st;
}

heddle_status hd_near_copy(hd_near *w, int width, int from)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)w->n;
    const int16_t *image = hd_near_image(w, from);
    float *edge = w->edge + ((size_t)width * n + (size_t)from) * n;
    const float *known = w->edge + ((size_t)width * n + (size_t)image[from]) * n;
    for (size_t to = 0; to < n; to++) {
        edge[to] = image[to] >= 0 ? known[image[to]] : 0;
        HD_TRY(w->wanted[to] && image[to] < 0 ? look(w, (size_t)width, from, (int)to) : HEDDLE_OK);
    }
out:
    return st;
}

heddle_status hd_near_look(hd_near *w, int stage, int from, int to)
{
    return look(w, (size_t)w->s->width_of[stage], from, to);
}

heddle_status hd_near_tell(int64_t *out, hd_near *w, int stage, int from, int to)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)w->n, width = (size_t)w->s->width_of[stage];
    const int a = w->index[from], b = w->index[to];
    *out = 0;
    if (a >= 0 && b >= 0) {
        HD_TRY(hd_near_look(w, stage, a, b));
        *out = (int64_t)w->edge[(width * n + (size_t)a) * n + (size_t)b] + 1;
    }
out:
    return st;
}
