/* What is known of the edges of a mesh before any is looked at: its layouts, the few ranks, and what the first of them
 * receives. */
#include "planner/search/near.h"

#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"

#include <math.h>
#include <string.h>

/* What the first rank lacks in each state, by the links of every level. Its blocks begin where their dims do, and so do
 * those of the ranks that it shares a set with, taken together. */
static void lacked(hd_near *w, int from)
{
    const int n = w->n, levels = w->levels.count;
    for (int l = 0; l <= levels; l++) {
        double *has = w->lacks + (size_t)l * (size_t)n;
        for (int to = 0; to < n; to++) {
            has[to] = 1;
        }
        for (int d = 0; d < w->ndims; d++) {
            if (w->s->m->shape.dim[w->dim[d]].extent == 1) {
                continue;
            }
            const double *length = w->covers + (size_t)d * (size_t)n;
            const double most = w->covers[(size_t)(l * w->ndims + d) * (size_t)n + (size_t)from];
            for (int to = 0; to < n; to++) {
                has[to] *= length[to] < most ? length[to] : most;
            }
        }
    }
    for (int l = levels; l > 0; l--) {
        double *more = w->lacks + (size_t)l * (size_t)n;
        for (int to = 0; to < n; to++) {
            more[to] -= more[to - n];
        }
    }
}

/* What changes between a layout and every other one. */
static void changes(hd_near *w, int from)
{
    const int n = w->n;
    for (int to = 0; to < n; to++) {
        w->change[to] = w->whole[from] & w->whole[to];
    }
    for (int d = 0; d < w->ndims; d++) {
        const unsigned *cuts = w->cuts + d * n;
        for (int to = 0; to < n; to++) {
            w->change[to] |= cuts[from] & cuts[to];
        }
    }
    for (int to = 0; to < n; to++) {
        const unsigned changed = w->many & ~w->change[to];
        w->change[to] = changed << 1 | ((changed & ~(~w->whole[from] & w->whole[to])) == 0);
    }
}

/* Steps from rows to rows, each pair of rows once. */
static void set_steps(hd_near *w)
{
    const hd_search *s = w->s;
    const int period = s->m->nstages;
    for (int step = 1; step < s->nsteps && step <= HD_NEAR_REPETITIONS * period; step++) {
        int same = 0;
        for (int i = 0; i < w->nsteps; i++) {
            const int *known = &s->row_of[w->step[i]], *row = &s->row_of[step];
            same = same || (known[-1] == row[-1] && known[0] == row[0] &&
                            s->width_of[w->step[i] % period] == s->width_of[step % period]);
        }
        w->step[w->nsteps] = step;
        w->nsteps += !same;
    }
}

/* Classes in which a stage with this width before it may be, where the stage before it may be in `from`. */
static void set_wanted(char *restrict wanted, const hd_near *w, int width, int from)
{
    const hd_search *s = w->s;
    memset(wanted, 0, (size_t)w->n);
    for (int i = 0; i < w->nsteps; i++) {
        const int step = w->step[i];
        const double *restrict own = w->own + (size_t)s->row_of[step] * (size_t)w->n;
        if (s->width_of[step % s->m->nstages] == width && w->own[s->row_of[step - 1] * w->n + from] < INFINITY) {
            for (int to = 0; to < w->n; to++) {
                wanted[to] |= own[to] < INFINITY;
            }
        }
    }
}

/* From one class, before all stages. What is known of those before it is known of those that they become. */
static heddle_status make_edges_from(hd_near *w, int from)
{
    heddle_status st = HEDDLE_OK;
    const int is_first = hd_near_image(w, from)[from] == from;
    if (is_first) {
        changes(w, from);
        lacked(w, from);
    }
    for (int width = 0; width < w->s->nwidths; width++) {
        set_wanted(w->wanted, w, width, from);
        st = is_first ? hd_near_first(w, width, from) : hd_near_copy(w, width, from);
        HD_TRY(st);
    }
out:
    return st;
}

static heddle_status make_edges(hd_near *w)
{
    heddle_status st = HEDDLE_OK;
    for (int from = 0; st == HEDDLE_OK && from < w->n; from++) {
        st = make_edges_from(w, from);
    }
    return st;
}

/* The state of the same class whose idle axes do what a digit of states says; of classes of one layout the same. */
static int like(const hd_near *w, int state, int digit)
{
    return w->idle_dim >= 0 ? hd_search_like(w->s, state, digit) : state;
}

/* Classes are numbered in the order of those states in which idle axes shard nothing. */
static heddle_status set_classes(hd_near *w)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    const hd_search *s = w->s;
    const int into = w->idle_dim >= 0 ? w->idle_dim : w->ndims;
    HD_TRY(hd_alloc(&memory, (size_t)s->nlayouts, sizeof *w->index, "layouts"));
    w->index = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates, sizeof *w->out, "layouts"));
    w->out = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates, sizeof *w->into, "layouts"));
    w->into = memory;
    for (int i = 0; i < s->nrows; i++) {
        for (int k = 0; k < s->row[i].nadmitted; k++) {
            w->index[like(w, s->row[i].admitted[k], w->ndims)] = 1;
        }
    }
    if (s->epilogue >= 0 && s->epilogue < s->nstates) {
        w->index[like(w, s->epilogue, w->ndims)] = 1;
    }
    for (int i = 0; i < s->nstates; i++) {
        if (w->index[i] != 0) {
            w->out[w->n] = hd_near_see(w, i);
            w->into[w->n] = hd_near_see(w, like(w, i, into));
            w->index[i] = ++w->n;
        }
    }
    for (int i = 0; i < s->nlayouts; i++) {
        w->index[i] = i < s->nstates ? w->index[like(w, i, w->ndims)] - 1 : -1;
    }
out:
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

static void *take(size_t *used, char *room, size_t count, size_t bytes)
{
    enum { ALIGNED = 64 };
    void *at = room != NULL ? room + *used : NULL;
    *used += (count * bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return at;
}

/* Puts all arrays into `room`, NULL: none; how many bytes of it they take. */
static size_t lay_out(hd_near *w, char *room)
{
    size_t used = 0;
    const hd_search *s = w->s;
    const size_t n = (size_t)w->n, ndims = (size_t)w->ndims, widths = (size_t)s->nwidths, rows = (size_t)s->nrows;
    const size_t repetitions = (size_t)(s->m->repeat < HD_NEAR_REPETITIONS ? s->m->repeat : HD_NEAR_REPETITIONS);
    const size_t steps = repetitions * (size_t)s->m->nstages;
    w->whole = take(&used, room, n, sizeof *w->whole);
    w->cuts = take(&used, room, ndims * n, sizeof *w->cuts);
    w->part = take(&used, room, HD_NEAR_RANKS * ndims * w->nways * (1 + (size_t)w->nmoved), sizeof *w->part);
    w->step = take(&used, room, steps + 1, sizeof *w->step);
    w->row_bytes = take(&used, room, widths, sizeof *w->row_bytes);
    w->change = take(&used, room, n, sizeof *w->change);
    w->wanted = take(&used, room, n, sizeof *w->wanted);
    w->own = take(&used, room, rows * n, sizeof *w->own);
    w->covers = take(&used, room, ((size_t)w->levels.count + 1) * ndims * n, sizeof *w->covers);
    w->lacks = take(&used, room, (HD_LEVELS + 1) * n, sizeof *w->lacks);
    w->image = take(&used, room, HD_NEAR_SWAPS * n, sizeof *w->image);
    w->swap = take(&used, room, n, sizeof *w->swap);
    w->edge = take(&used, room, widths * n * n, sizeof *w->edge);
    w->is_full = take(&used, room, widths * n * n, sizeof *w->is_full);
    w->behind = take(&used, room, n, sizeof *w->behind);
    w->sum = take(&used, room, n, sizeof *w->sum);
    w->to.cost = take(&used, room, steps * n, sizeof *w->to.cost);
    w->from.cost = take(&used, room, steps * n, sizeof *w->from.cost);
    w->through = take(&used, room, rows * n, sizeof *w->through);
    return used;
}

/* The memory of the mesh before, more of it where that is too little. What is not zeroed here is written before it is
 * read. */
static heddle_status room(hd_near *w)
{
    heddle_status st = HEDDLE_OK;
    hd_prices *p = w->s->prices;
    const size_t bytes = lay_out(w, NULL), n = (size_t)w->n;
    if (bytes > p->room_bytes) {
        hd_free(p->room);
        p->room = NULL;
        p->room_bytes = 0;
        HD_TRY(hd_alloc(&p->room, 1, bytes, "costs of layouts and edges"));
        p->room_bytes = bytes;
    }
    lay_out(w, p->room);
    for (size_t i = 0; i < HD_NEAR_RANKS * (size_t)w->ndims * w->nways; i++) {
        w->part[i * (1 + (size_t)w->nmoved)] = -1;
    }
    memset(w->is_full, 0, (size_t)w->s->nwidths * n * n * sizeof *w->is_full);
out:
    return st;
}

/* The first rank, and along every axis the first one on another host, or where there is none its neighbour. Where
 * blocks are uneven it may be the second host that lacks most: the first one's lie at the same end of both dims. */
static void set_ranks(hd_near *w)
{
    int width[HD_LEVELS][HEDDLE_MAX_AXES];
    const heddle_mesh *mesh = &w->s->mesh;
    hd_edge_widths(width, mesh, &w->levels);
    for (int r = 0; r <= mesh->naxes; r++) {
        for (int a = 0; a < mesh->naxes; a++) {
            const int reaches_out = w->levels.count > 1 && width[0][a] < mesh->axis[a].size;
            w->coords[r][a] = a + 1 != r || mesh->axis[a].size == 1 ? 0 : reaches_out ? width[0][a] : 1;
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
        const hd_row *row = &w->s->row[i];
        double *own = w->own + (size_t)i * (size_t)w->n;
        for (int k = 0; k < w->n; k++) {
            own[k] = INFINITY;
        }
        for (int k = 0; k < row->nadmitted; k++) {
            const int state = row->admitted[k], at = w->index[state];
            const double cost = (double)row->way[row->first[state]].price.cost.part[0];
            own[at] = cost < own[at] ? cost : own[at];
        }
    }
    for (int k = 0; k < w->s->m->nstages; k++) {
        w->row_bytes[w->s->width_of[k]] =
            (double)w->s->m->stage[k].in_channels * (double)heddle_dtype_bytes(w->s->m->dtype);
    }
    for (int i = 0; i < w->n; i++) {
        w->whole[i] = w->out[i].whole;
        for (int d = 0; d < w->ndims; d++) {
            w->cuts[d * w->n + i] = w->out[i].cuts[d];
        }
    }
}

static int64_t extent_of(const hd_near *w, int d)
{
    return w->s->m->shape.dim[w->dim[d]].extent;
}

/* Of every layout what the ranks of the first rank's set have of a dim together, of the sets of all levels; before
 * these what it has alone. */
static void set_covers(hd_near *w)
{
    int width[HD_LEVELS][HEDDLE_MAX_AXES];
    const heddle_mesh *mesh = &w->s->mesh;
    hd_edge_widths(width, mesh, &w->levels);
    for (int l = 0; l <= w->levels.count; l++) {
        for (int d = 0; d < w->ndims; d++) {
            double *covers = w->covers + (size_t)(l * w->ndims + d) * (size_t)w->n;
            for (int i = 0; i < w->n; i++) {
                int64_t length = extent_of(w, d);
                for (int a = 0; a < mesh->naxes; a++) {
                    const int is_cut = w->out[i].layout->dim_of_axis[a] == w->dim[d];
                    length =
                        is_cut ? heddle_shard_start(length, mesh->axis[a].size, l > 0 ? width[l - 1][a] : 1) : length;
                }
                covers[i] = (double)length;
            }
        }
    }
}

/* What becomes of every class where dim to[d] is in place of dim d. */
static void add_swap(hd_near *w, const int *to)
{
    const hd_search *s = w->s;
    const int base = w->ndims + 1;
    int16_t *image = w->image + (size_t)w->nswaps++ * (size_t)w->n;
    for (int i = 0; i < w->n; i++) {
        const int state = (int)(w->out[i].layout - s->layout);
        int becomes = 0;
        for (int a = 0, place = 1; a < s->mesh.naxes; a++, place *= base) {
            const int digit = state / place % base;
            becomes += (digit < w->ndims ? to[digit] : digit) * place;
        }
        image[i] = (int16_t)w->index[becomes];
    }
}

/* All that exchange dims from `d` on, of those that dims before it leave. */
static void add_swaps(hd_near *w, int *to, int d)
{
    if (d == w->ndims && w->nswaps < HD_NEAR_SWAPS) {
        add_swap(w, to);
    }
    for (int other = 0; d < w->ndims && other < w->ndims; other++) {
        int is_free = extent_of(w, other) == extent_of(w, d) && (other == d || extent_of(w, d) > 1);
        for (int before = 0; before < d; before++) {
            is_free = is_free && to[before] != other;
        }
        if (is_free) {
            to[d] = other;
            add_swaps(w, to, d + 1);
        }
    }
}

static void set_swaps(hd_near *w)
{
    int to[HEDDLE_MAX_DIMS];
    add_swaps(w, to, 0);
    for (int i = 0; i < w->n; i++) {
        int first = i;
        w->swap[i] = 0;
        for (int k = 1; k < w->nswaps; k++) {
            const int becomes = w->image[k * w->n + i];
            if (becomes >= 0 && becomes < first) {
                first = becomes;
                w->swap[i] = (char)k;
            }
        }
    }
}

heddle_status hd_near_open(hd_near *w, hd_search *s, int is_rough)
{
    heddle_status st = HEDDLE_OK;
    *w = (hd_near){.s = s, .levels = hd_price_levels(s->pricer.machine, &s->mesh)};
    for (int d = 0; d < s->m->shape.ndim; d++) {
        if (d != s->m->channel_dim) {
            w->dim[w->ndims++] = d;
        }
    }
    for (int d = 0; d < w->ndims; d++) {
        while (extent_of(w, w->alike[d]) != extent_of(w, d)) {
            w->alike[d]++;
        }
    }
    w->nmoved = 2 * w->levels.count;
    w->idle_dim = is_rough && s->idle_digit < w->ndims ? s->idle_digit : -1;
    for (int a = 0; a < s->mesh.naxes; a++) {
        w->many |= (unsigned)(s->mesh.axis[a].size > 1) << a;
    }
    set_powers(w);
    HD_TRY(set_classes(w));
    HD_TRY(room(w));
    set_ranks(w);
    set_states(w);
    set_steps(w);
    set_covers(w);
    set_swaps(w);
    st = make_edges(w);
out:
    return st;
}

void hd_near_close(hd_near *w)
{
    HD_FREE_ALL(w->index, w->out, w->into);
}
