/* What an edge moves, exactly, in closed form.
 *
 * Rank p sends peer q the part of p's source box that q's destination box needs, if p and q have the same coordinate on
 * every axis over which the source is replicated. A box is a product over dims, so the sum over a set of peers that is
 * a box of coordinates factors: per dim the overlaps summed over the set's coordinates on the axes that shard it in
 * `to`, times the set's replicas of `to`. What a rank receives factors in the same way over `from`. The sets of the
 * levels lie in one another, so what moves by the links of one level is the difference of two sums.
 *
 * Balanced blocks have two lengths, those of a block cut again two as well; so along an axis there are few kinds of
 * coordinates, and one rank of each kind is looked at. Where two layouts cut a dim across each other, or blocks have
 * lengths of their own, every coordinate is a kind. Tests hold all this against heddle_reshard_sends; partial sums that
 * end replicated, and levels that are no boxes of coordinates, use that function itself.
 */
#include "runtime/schedule/edge_internal.h"

#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"

#include <string.h>

typedef struct range {
    int64_t lo, len;
} range;

/* Elements that two ranks have in common, and pairs of ranks that have any. */
typedef struct tally {
    __int128 elems, count;
} tally;

static int64_t overlap(range a, range b)
{
    int64_t lo = a.lo > b.lo ? a.lo : b.lo;
    int64_t hi = a.lo + a.len < b.lo + b.len ? a.lo + a.len : b.lo + b.len;
    return hi > lo ? hi - lo : 0;
}

/* --- two layouts -------------------------------------------------------------------------------------------------- */

static void cut_by(hd_cut *c, const hd_edge *e, const heddle_layout *layout, int dim)
{
    for (int a = 0; a < e->mesh->naxes; a++) {
        if (layout->dim_of_axis[a] == dim && e->mesh->axis[a].size > 1) {
            c->lengths = c->naxes == 0 ? hd_layout_blocks(layout, a) : c->lengths;
            c->axis[c->naxes++] = a;
        }
    }
}

static void cut_dims(hd_edge *e, const heddle_shape *shape)
{
    e->row_bytes = (int64_t)heddle_dtype_bytes(shape->dtype);
    for (int d = 0; d < shape->ndim; d++) {
        hd_cut_dim c = {.extent = shape->dim[d].extent};
        cut_by(&c.from, e, e->from, d);
        cut_by(&c.to, e, e->to, d);
        if (c.from.naxes > 0 || c.to.naxes > 0) {
            e->dim[e->ndims++] = c;
        } else {
            e->row_bytes *= c.extent;
        }
    }
}

/* Without levels all ranks are one set. */
static void set_widths(hd_edge *e, const hd_levels *levels)
{
    e->nlevels = levels != NULL ? levels->count : 1;
    for (int level = 0; level < e->nlevels; level++) {
        int left = levels != NULL ? levels->within[level] : heddle_mesh_size(e->mesh);
        for (int a = e->mesh->naxes - 1; a >= 0; a--) {
            int size = e->mesh->axis[a].size, is_whole = left % size == 0;
            e->width[level][a] = is_whole ? size : left < size ? left : size;
            left = is_whole ? left / size : 1;
        }
    }
    for (int a = 0; a < e->mesh->naxes; a++) {
        e->is_free[a] = e->from->dim_of_axis[a] != HEDDLE_REPLICATED && e->to->dim_of_axis[a] != HEDDLE_PARTIAL;
    }
}

/* --- one rank ----------------------------------------------------------------------------------------------------- */

/* Block `coordinate` of `size` of `whole`. */
static range block_of(const hd_cut *c, int i, range whole, int size, int coordinate)
{
    if (i == 0 && c->lengths != NULL) {
        return (range){whole.lo + heddle_split_start(c->lengths, coordinate), c->lengths[coordinate]};
    }
    return (range){whole.lo + heddle_shard_start(whole.len, size, coordinate),
                   heddle_shard_len(whole.len, size, coordinate)};
}

static range own_block(const hd_edge *e, const hd_cut *c, int64_t extent, const int *coords)
{
    range block = {0, extent};
    for (int i = 0; i < c->naxes; i++) {
        block = block_of(c, i, block, e->mesh->axis[c->axis[i]].size, coords[c->axis[i]]);
    }
    return block;
}

static tally meet(const hd_edge *e, const hd_cut *c, int i, const range *peers, range want, range block);

static void add_tally(tally *sum, int64_t times, tally one)
{
    sum->elems += times * one.elems;
    sum->count += times * one.count;
}

/* Pieces `numbers` of a block of `len`, all of them wanted as a whole: they have two lengths. */
static tally meet_whole(const hd_edge *e, const hd_cut *c, int i, const range *peers, int64_t len, range numbers)
{
    tally sum = {0, 0};
    int size = e->mesh->axis[c->axis[i]].size;
    int64_t rest = len % size;
    range coords = peers[c->axis[i]];
    coords = (range){coords.lo > numbers.lo ? coords.lo : numbers.lo, overlap(coords, numbers)};
    int64_t long_ones = overlap(coords, (range){0, rest});
    const int64_t number[2] = {coords.len - long_ones, long_ones};
    for (int k = 0; k < 2; k++) {
        range piece = {0, len / size + k};
        if (number[k] > 0) {
            add_tally(&sum, number[k], meet(e, c, i + 1, peers, piece, piece));
        }
    }
    return sum;
}

/* What of `want` lies in those pieces of `block`, cut by the axes from i on, that the peers hold. Of balanced pieces
 * only the first and the last that it reaches may be wanted in part. */
static tally meet(const hd_edge *e, const hd_cut *c, int i, const range *peers, range want, range block)
{
    tally sum = {0, 0};
    int64_t elems = overlap(want, block);
    if (elems == 0 || i == c->naxes) {
        return (tally){elems, elems > 0};
    }
    const range coords = peers[c->axis[i]];
    const int size = e->mesh->axis[c->axis[i]].size, balanced = i > 0 || c->lengths == NULL;
    const int64_t lo = want.lo > block.lo ? want.lo - block.lo : 0;
    int64_t first = balanced ? heddle_shard_owner(block.len, size, lo) : 0;
    int64_t last = balanced ? heddle_shard_owner(block.len, size, lo + elems - 1) : size - 1;
    if (balanced) {
        sum = meet_whole(e, c, i, peers, block.len, (range){first + 1, last > first ? last - first - 1 : 0});
    }
    for (int64_t k = first; k <= last; k += balanced && last > first ? last - first : 1) {
        if (k >= coords.lo && k < coords.lo + coords.len) {
            add_tally(&sum, 1, meet(e, c, i + 1, peers, want, block_of(c, i, block, size, (int)k)));
        }
    }
    return sum;
}

/* What a rank with these blocks sends to the peers, itself included, or with `back` receives from them. */
static tally exchanged(const hd_edge *e, const range *own, const range *peers, int back)
{
    tally product = {1, 1};
    const heddle_layout *there = back ? e->from : e->to;
    for (int a = 0; a < e->mesh->naxes; a++) {
        if (there->dim_of_axis[a] < 0) {
            product.elems *= peers[a].len;
            product.count *= peers[a].len;
        }
    }
    for (int d = 0; d < e->ndims && product.elems > 0; d++) {
        const hd_cut_dim *dim = &e->dim[d];
        tally one = meet(e, back ? &dim->from : &dim->to, 0, peers, own[d], (range){0, dim->extent});
        product.elems *= one.elems;
        product.count *= one.count;
    }
    return product;
}

static void list_peers(range *peers, const hd_edge *e, const int *coords, int level)
{
    for (int a = 0; a < e->mesh->naxes; a++) {
        int width = e->is_free[a] ? e->width[level][a] : 1;
        int first = coords[a] / width * width, left = e->mesh->axis[a].size - first;
        peers[a] = (range){first, width < left ? width : left};
    }
}

static void add_times(int64_t *sum, __int128 value, int64_t times)
{
    *sum = hd_add_saturated(*sum, hd_saturated((__int128)hd_saturated(value) * times));
}

static void raise_to(int64_t *most, __int128 value)
{
    int64_t v = hd_saturated(value);
    *most = v > *most ? v : *most;
}

/* `times` ranks like the one at `coords`. */
static void add_rank(hd_edge_cost *out, hd_link_bytes *link, const hd_edge *e, const int *coords, int64_t times)
{
    range peers[HEDDLE_MAX_AXES], from[HEDDLE_MAX_DIMS], to[HEDDLE_MAX_DIMS];
    tally sent, received, own = {1, 1};
    for (int d = 0; d < e->ndims; d++) {
        from[d] = own_block(e, &e->dim[d].from, e->dim[d].extent, coords);
        to[d] = own_block(e, &e->dim[d].to, e->dim[d].extent, coords);
        own.elems *= overlap(from[d], to[d]);
    }
    own.count = own.elems > 0;
    tally sent_below = own, received_below = own;
    for (int level = 0; level < e->nlevels; level++) {
        list_peers(peers, e, coords, level);
        sent = exchanged(e, from, peers, 0);
        received = exchanged(e, to, peers, 1);
        if (link != NULL) {
            raise_to(&link[level].sent_max, (sent.elems - sent_below.elems) * e->row_bytes);
            raise_to(&link[level].received_max, (received.elems - received_below.elems) * e->row_bytes);
            add_times(&link[level].total, (sent.elems - sent_below.elems) * e->row_bytes, times);
        }
        sent_below = sent;
        received_below = received;
    }
    raise_to(&out->bytes_per_rank_max, (sent_below.elems - own.elems) * e->row_bytes);
    raise_to(&out->bytes_received_max, (received_below.elems - own.elems) * e->row_bytes);
    add_times(&out->bytes_total, (sent_below.elems - own.elems) * e->row_bytes, times);
    add_times(&out->messages, sent_below.count - own.count, times);
}

/* All ranks that have `coords` on the axes before `axis`. Of replicas that become partial sums the first has the sum,
 * the others add nothing. */
static void add_ranks(hd_edge_cost *out, hd_link_bytes *link, const hd_edge *e, int axis, int *coords, int64_t times)
{
    if (axis == e->mesh->naxes) {
        add_rank(out, link, e, coords, times);
        return;
    }
    const hd_kinds *k = &e->kind[axis];
    int size = e->mesh->axis[axis].size;
    if (e->from->dim_of_axis[axis] == HEDDLE_REPLICATED && e->to->dim_of_axis[axis] == HEDDLE_PARTIAL) {
        coords[axis] = 0;
        add_ranks(out, link, e, axis + 1, coords, times);
        return;
    }
    for (int i = 0; i < (k->every ? size : k->count); i++) {
        int first = k->every ? i : k->from[i];
        int end = k->every ? i + 1 : i + 1 < k->count ? k->from[i + 1] : size;
        coords[axis] = first;
        add_ranks(out, link, e, axis + 1, coords, times * (end - first));
    }
}

/* Partial sums into a replicated layout go in two phases, which have no closed form here. */
static int completes_everywhere(const heddle_mesh *mesh, const heddle_layout *from, const heddle_layout *to)
{
    for (int a = 0; a < mesh->naxes; a++) {
        if (from->dim_of_axis[a] == HEDDLE_PARTIAL && to->dim_of_axis[a] == HEDDLE_REPLICATED) {
            return 1;
        }
    }
    return 0;
}

heddle_status hd_edge_links_of(hd_edge_cost *out, hd_link_bytes *link, const hd_levels *levels,
                               const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *from,
                               const heddle_layout *to)
{
    heddle_status st = HEDDLE_OK;
    hd_edge e = {.mesh = mesh, .from = from, .to = to};
    int coords[HEDDLE_MAX_AXES] = {0};
    if (completes_everywhere(mesh, from, to) || (levels != NULL && !hd_levels_nest(levels, mesh))) {
        return hd_edge_links_listed(out, link, levels, shape, mesh, from, to);
    }
    memset(out, 0, sizeof *out);
    if (link != NULL) {
        memset(link, 0, (size_t)levels->count * sizeof *link);
    }
    HD_TRY(heddle_layout_check(from, shape, mesh));
    HD_TRY(heddle_layout_check(to, shape, mesh));
    cut_dims(&e, shape);
    set_widths(&e, levels);
    hd_edge_kinds(&e);
    if (e.row_bytes > 0) {
        add_ranks(out, link, &e, 0, coords, 1);
    }
out:
    return st;
}

heddle_status hd_edge_cost_of(hd_edge_cost *out, const heddle_shape *shape, const heddle_mesh *mesh,
                              const heddle_layout *from, const heddle_layout *to)
{
    return hd_edge_links_of(out, NULL, NULL, shape, mesh, from, to);
}

void hd_edge_backward(heddle_layout *behind, heddle_layout *before, const heddle_mesh *mesh, const heddle_layout *from,
                      const heddle_layout *to, int is_last)
{
    *behind = heddle_layout_dual(to);
    *before = heddle_layout_dual(from);
    for (int a = 0; is_last && a < mesh->naxes; a++) {
        if (to->dim_of_axis[a] == HEDDLE_REPLICATED) {
            behind->dim_of_axis[a] = HEDDLE_REPLICATED;
        }
    }
}

heddle_status hd_edge_backward_cost_of(hd_edge_cost *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                       const heddle_layout *from, const heddle_layout *to, int is_last)
{
    heddle_layout behind, before;
    hd_edge_backward(&behind, &before, mesh, from, to, is_last);
    return hd_edge_cost_of(out, shape, mesh, &behind, &before);
}
