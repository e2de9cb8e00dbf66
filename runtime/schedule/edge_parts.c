/* What two layouts do to one dim, as seen by one rank. It depends on the rank's coordinates on the axes that cut the
 * dim alone, and of the other axes on nothing but which of the cutting ones are free: edges between a few hundred
 * layouts have a few hundred such parts a dim, so a search keeps them. */
#include "runtime/schedule/edge_internal.h"

#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"

#include <string.h>

enum { AXES_MASK = (1 << HEDDLE_MAX_AXES) - 1, PART_RANKS_MAX = 1 << 12, PARTS_MAX = 1 << 21, LATEST = 64 };

/* Elements that two ranks have in common, and pairs of ranks that have any. */
typedef struct tally {
    int64_t elems, count;
} tally;

typedef struct range {
    int64_t lo, len;
} range;

static int64_t overlap(range a, range b)
{
    int64_t lo = a.lo > b.lo ? a.lo : b.lo;
    int64_t hi = a.lo + a.len < b.lo + b.len ? a.lo + a.len : b.lo + b.len;
    return hi > lo ? hi - lo : 0;
}

/* Block `coordinate` of `size` of `whole`. */
static range block_of(const hd_cut *c, int i, range whole, int size, int coordinate)
{
    if (i == 0 && c->lengths != NULL) {
        return (range){whole.lo + heddle_split_start(c->lengths, coordinate), c->lengths[coordinate]};
    }
    return (range){whole.lo + heddle_shard_start(whole.len, size, coordinate),
                   heddle_shard_len(whole.len, size, coordinate)};
}

static range own_block(const heddle_mesh *mesh, const hd_cut *c, int64_t extent, const int *coords)
{
    range block = {0, extent};
    for (int i = 0; i < c->naxes; i++) {
        block = block_of(c, i, block, mesh->axis[c->axis[i]].size, coords[c->axis[i]]);
    }
    return block;
}

static tally meet(const heddle_mesh *mesh, const hd_cut *c, int i, const range *peers, range want, range block);

static void add_tally(tally *sum, int64_t times, tally one)
{
    sum->elems += times * one.elems;
    sum->count += times * one.count;
}

/* Pieces `numbers` of a block of `len`, all of them wanted as a whole: they have two lengths. */
static tally meet_whole(const heddle_mesh *mesh, const hd_cut *c, int i, const range *peers, int64_t len, range numbers)
{
    tally sum = {0, 0};
    int size = mesh->axis[c->axis[i]].size;
    int64_t rest = len % size;
    range coords = peers[c->axis[i]];
    coords = (range){coords.lo > numbers.lo ? coords.lo : numbers.lo, overlap(coords, numbers)};
    int64_t long_ones = overlap(coords, (range){0, rest});
    const int64_t number[2] = {coords.len - long_ones, long_ones};
    for (int k = 0; k < 2; k++) {
        range piece = {0, len / size + k};
        if (number[k] > 0) {
            add_tally(&sum, number[k], meet(mesh, c, i + 1, peers, piece, piece));
        }
    }
    return sum;
}

/* What of `want` lies in those pieces of `block`, cut by the axes from i on, that the peers hold. Of balanced pieces
 * only the first and the last that it reaches may be wanted in part. */
static tally meet(const heddle_mesh *mesh, const hd_cut *c, int i, const range *peers, range want, range block)
{
    tally sum = {0, 0};
    int64_t elems = overlap(want, block);
    if (elems == 0 || i == c->naxes) {
        return (tally){elems, elems > 0};
    }
    const range coords = peers[c->axis[i]];
    const int size = mesh->axis[c->axis[i]].size, balanced = i > 0 || c->lengths == NULL;
    const int64_t lo = want.lo > block.lo ? want.lo - block.lo : 0;
    int64_t first = balanced ? heddle_shard_owner(block.len, size, lo) : 0;
    int64_t last = balanced ? heddle_shard_owner(block.len, size, lo + elems - 1) : size - 1;
    if (balanced) {
        sum = meet_whole(mesh, c, i, peers, block.len, (range){first + 1, last > first ? last - first - 1 : 0});
    }
    for (int64_t k = first; k <= last; k += balanced && last > first ? last - first : 1) {
        if (k >= coords.lo && k < coords.lo + coords.len) {
            add_tally(&sum, 1, meet(mesh, c, i + 1, peers, want, block_of(c, i, block, size, (int)k)));
        }
    }
    return sum;
}

static void make_part(hd_edge_part *out, const hd_edge *e, const hd_cut_dim *d, const int *coords)
{
    const range whole = {0, d->extent};
    const range from = own_block(e->mesh, &d->from, d->extent, coords);
    const range to = own_block(e->mesh, &d->to, d->extent, coords);
    range peers[HEDDLE_MAX_AXES];
    out->own = overlap(from, to);
    for (int level = 0; level < e->nlevels; level++) {
        for (int a = 0; a < e->mesh->naxes; a++) {
            int first = 0, count = hd_edge_peers(&first, e, a, coords[a], level);
            peers[a] = (range){first, count};
        }
        tally sent = meet(e->mesh, &d->to, 0, peers, from, whole);
        out->sent[level] = sent.elems;
        out->messages[level] = sent.count;
        out->received[level] = meet(e->mesh, &d->from, 0, peers, to, whole).elems;
    }
}

/* The number of an equal part among the latest ones, or of this one behind them; 0: there is no room. */
static unsigned number_of(hd_edge_slot *slot, const hd_edge_part *part)
{
    const int first = slot->nparts > LATEST ? slot->nparts - LATEST : 0;
    for (int i = slot->nparts - 1; i >= first; i--) {
        if (memcmp(&slot->part[i], part, sizeof *part) == 0) {
            return (unsigned)i + 1;
        }
    }
    if (hd_grow((void **)&slot->part, &slot->capacity, slot->nparts, sizeof *part, "parts of edges") != HEDDLE_OK) {
        return 0;
    }
    slot->part[slot->nparts++] = *part;
    return (unsigned)slot->nparts;
}

unsigned hd_edge_part_which(const hd_edge *e, int dim, const int *coords)
{
    const hd_cut_dim *d = &e->dim[dim];
    int at = 0;
    if (d->parts == NULL) {
        return 0;
    }
    for (int a = 0; a < e->mesh->naxes; a++) {
        at += coords[a] * d->stride[a];
    }
    uint16_t *which = &d->parts->which[at];
    if (*which == 0) {
        hd_edge_part part;
        memset(&part, 0, sizeof part);
        make_part(&part, e, d, coords);
        *which = (uint16_t)number_of(d->parts, &part);
    }
    return *which;
}

const hd_edge_part *hd_edge_part_of(hd_edge_part *room, const hd_edge *e, int dim, const int *coords)
{
    const hd_cut_dim *d = &e->dim[dim];
    const unsigned which = hd_edge_part_which(e, dim, coords);
    if (which > 0) {
        return &d->parts->part[which - 1];
    }
    make_part(room, e, d, coords);
    return room;
}

heddle_status hd_edge_parts_new(hd_edge_parts **out, const heddle_mesh *mesh, const hd_levels *levels)
{
    void *memory = NULL;
    heddle_status st = hd_alloc(&memory, 1, sizeof **out, "parts of edges");
    *out = memory;
    if (st == HEDDLE_OK) {
        (*out)->nests = levels == NULL || hd_levels_nest(levels, mesh);
        hd_edge_widths((*out)->width, mesh, levels);
    }
    return st;
}

void hd_edge_parts_free(hd_edge_parts *parts)
{
    while (parts != NULL && parts->made != NULL) {
        hd_edge_slot *slot = parts->made;
        parts->made = slot->next;
        HD_FREE_ALL(slot->which, slot->part, slot);
    }
    hd_free(parts);
}

static unsigned axes_of(const hd_cut *c)
{
    unsigned axes = 0;
    for (int i = 0; i < c->naxes; i++) {
        axes |= 1u << c->axis[i];
    }
    return axes;
}

/* Lengths of blocks are the layout's own, and so is another extent than the first one seen: nothing to keep. */
heddle_status hd_edge_parts_find(hd_edge *e, hd_edge_parts *parts, int dim, int at)
{
    heddle_status st = HEDDLE_OK;
    hd_cut_dim *d = &e->dim[dim];
    void *memory = NULL;
    unsigned from = axes_of(&d->from), to = axes_of(&d->to), both = from | to, is_free = 0;
    int64_t count = 1;
    for (int a = e->mesh->naxes - 1; a >= 0; a--) {
        int cuts = (both >> a & 1) != 0;
        d->stride[a] = cuts ? (int)count : 0;
        count *= cuts ? e->mesh->axis[a].size : 1;
        is_free |= (unsigned)(cuts && e->is_free[a]) << a;
        if (count > PART_RANKS_MAX) {
            return HEDDLE_OK;
        }
    }
    parts->extent[at] = parts->extent[at] != 0 ? parts->extent[at] : d->extent;
    if (d->from.lengths != NULL || d->to.lengths != NULL || d->extent != parts->extent[at]) {
        return HEDDLE_OK;
    }
    hd_edge_slot **slot =
        &parts->slot[(((unsigned)at << HEDDLE_MAX_AXES | from) << HEDDLE_MAX_AXES | to) << HEDDLE_MAX_AXES |
                     (is_free & AXES_MASK)];
    if (*slot == NULL && count + parts->count <= PARTS_MAX) {
        HD_TRY(hd_alloc(&memory, 1, sizeof **slot, "parts of edges"));
        *slot = memory;
        (*slot)->next = parts->made;
        parts->made = *slot;
        HD_TRY(hd_alloc(&memory, (size_t)count, sizeof *(*slot)->which, "parts of edges"));
        (*slot)->which = memory;
        parts->count += (int)count;
    }
    d->parts = *slot;
out:
    return st;
}

void hd_edge_part_at(hd_edge_part *out, const heddle_shape *shape, const heddle_mesh *mesh, const hd_levels *levels,
                     const hd_edge_parts *parts, const heddle_layout *from, const heddle_layout *to, int dim,
                     const int *coords)
{
    hd_edge e = {.mesh = mesh, .from = from, .to = to, .ndims = 1};
    e.dim[0].extent = shape->dim[dim].extent;
    hd_edge_set_widths(&e, levels, parts);
    hd_edge_cut_by(&e.dim[0].from, &e, from, dim);
    hd_edge_cut_by(&e.dim[0].to, &e, to, dim);
    make_part(out, &e, &e.dim[0], coords);
}
