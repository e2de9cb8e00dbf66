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
#include "runtime/base/hash.h"
#include "runtime/layout/algebra.h"

#include <string.h>

/* Elements that two ranks have in common, and pairs of ranks that have any. */
typedef struct tally {
    __int128 elems, count;
} tally;

/* --- two layouts -------------------------------------------------------------------------------------------------- */

void hd_edge_cut_by(hd_cut *c, const hd_edge *e, const heddle_layout *layout, int dim)
{
    for (int a = 0; a < e->mesh->naxes; a++) {
        if (layout->dim_of_axis[a] == dim && e->mesh->axis[a].size > 1) {
            c->lengths = c->naxes == 0 ? hd_layout_blocks(layout, a) : c->lengths;
            c->axis[c->naxes++] = a;
        }
    }
}

static heddle_status cut_dims(hd_edge *e, const heddle_shape *shape, hd_edge_parts *parts)
{
    heddle_status st = HEDDLE_OK;
    e->row_bytes = (int64_t)heddle_dtype_bytes(shape->dtype);
    for (int d = 0; d < shape->ndim; d++) {
        hd_cut_dim c = {.extent = shape->dim[d].extent};
        hd_edge_cut_by(&c.from, e, e->from, d);
        hd_edge_cut_by(&c.to, e, e->to, d);
        if (c.from.naxes > 0 || c.to.naxes > 0) {
            e->dim[e->ndims++] = c;
            st = parts != NULL && st == HEDDLE_OK ? hd_edge_parts_find(e, parts, e->ndims - 1, d) : st;
        } else {
            e->row_bytes *= c.extent;
        }
    }
    return st;
}

/* Without levels all ranks are one set. */
void hd_edge_widths(int width[HD_LEVELS][HEDDLE_MAX_AXES], const heddle_mesh *mesh, const hd_levels *levels)
{
    int nlevels = levels != NULL ? levels->count : 1;
    for (int level = 0; level < nlevels; level++) {
        int left = levels != NULL ? levels->within[level] : heddle_mesh_size(mesh);
        for (int a = mesh->naxes - 1; a >= 0; a--) {
            int size = mesh->axis[a].size, is_whole = left % size == 0;
            width[level][a] = is_whole ? size : left < size ? left : size;
            left = is_whole ? left / size : 1;
        }
    }
}

void hd_edge_set_widths(hd_edge *e, const hd_levels *levels, const hd_edge_parts *parts)
{
    e->nlevels = levels != NULL ? levels->count : 1;
    if (parts != NULL) {
        memcpy(e->width, parts->width, sizeof e->width);
    } else {
        hd_edge_widths(e->width, e->mesh, levels);
    }
    for (int a = 0; a < e->mesh->naxes; a++) {
        e->is_free[a] = e->from->dim_of_axis[a] != HEDDLE_REPLICATED && e->to->dim_of_axis[a] != HEDDLE_PARTIAL;
    }
}

/* --- one rank ----------------------------------------------------------------------------------------------------- */

int hd_edge_peers(int *first, const hd_edge *e, int axis, int coordinate, int level)
{
    int width = e->is_free[axis] ? e->width[level][axis] : 1;
    *first = coordinate / width * width;
    int left = e->mesh->axis[axis].size - *first;
    return width < left ? width : left;
}

/* Replicas: every one of them has all of it. */
static void times_replicas(tally *product, const hd_edge *e, const heddle_layout *there, const int *coords, int level)
{
    for (int a = 0; a < e->mesh->naxes; a++) {
        if (there->dim_of_axis[a] < 0) {
            int first = 0, count = hd_edge_peers(&first, e, a, coords[a], level);
            product->elems *= count;
            product->count *= count;
        }
    }
}

static void add_times(int64_t *sum, __int128 value, int64_t times)
{
    *sum = times == 0 ? *sum : hd_add_saturated(*sum, hd_saturated((__int128)hd_saturated(value) * times));
}

static void raise_to(int64_t *most, __int128 value)
{
    int64_t v = hd_saturated(value);
    *most = v > *most ? v : *most;
}

/* `times` ranks like the one at `coords`. */
static void add_rank(hd_edge_cost *out, hd_link_bytes *link, const hd_edge *e, const int *coords, int64_t times)
{
    hd_edge_part room[HEDDLE_MAX_DIMS];
    const hd_edge_part *part[HEDDLE_MAX_DIMS];
    __int128 own = 1;
    for (int d = 0; d < e->ndims; d++) {
        part[d] = hd_edge_part_of(&room[d], e, d, coords);
        own *= part[d]->own;
    }
    tally sent_below = {own, own > 0}, received_below = {own, own > 0};
    for (int level = 0; level < e->nlevels; level++) {
        tally sent = {1, 1}, received = {1, 1};
        times_replicas(&sent, e, e->to, coords, level);
        times_replicas(&received, e, e->from, coords, level);
        for (int d = 0; d < e->ndims; d++) {
            sent.elems *= part[d]->sent[level];
            sent.count *= part[d]->messages[level];
            received.elems *= part[d]->received[level];
        }
        if (link != NULL) {
            raise_to(&link[level].sent_max, (sent.elems - sent_below.elems) * e->row_bytes);
            raise_to(&link[level].received_max, (received.elems - received_below.elems) * e->row_bytes);
            add_times(&link[level].total, (sent.elems - sent_below.elems) * e->row_bytes, times);
        }
        sent_below = sent;
        received_below = received;
    }
    raise_to(&out->bytes_per_rank_max, (sent_below.elems - own) * e->row_bytes);
    raise_to(&out->bytes_received_max, (received_below.elems - own) * e->row_bytes);
    add_times(&out->bytes_total, (sent_below.elems - own) * e->row_bytes, times);
    add_times(&out->messages, sent_below.count - (own > 0), times);
}

/* --- ranks that are alike ----------------------------------------------------------------------------------------- */

enum { ALIKE_SLOTS = 256, ALIKE_DIMS = 4 };

/* Where layouts cut dims across each other every coordinate is a kind, but few combinations of parts come of them:
 * ranks with the same parts are counted, and one of them is looked at. */
typedef struct crowd {
    int is_used, count;
    struct {
        uint64_t key; /* the numbers of the parts; 0: empty */
        int64_t times;
        int coords[HEDDLE_MAX_AXES];
    } rank[ALIKE_SLOTS];
} crowd;

/* Parts that are not kept have no numbers, and sets that are cut short have fewer replicas than others. */
static int may_be_alike(const hd_edge *e)
{
    int may = e->ndims <= ALIKE_DIMS;
    for (int d = 0; d < e->ndims; d++) {
        may = may && e->dim[d].parts != NULL;
    }
    for (int a = 0; a < e->mesh->naxes; a++) {
        for (int level = 0; level < e->nlevels; level++) {
            may = may && e->mesh->axis[a].size % e->width[level][a] == 0;
        }
    }
    return may;
}

static void look_at_crowd(hd_edge_cost *out, hd_link_bytes *link, const hd_edge *e, crowd *c)
{
    for (int i = 0; i < ALIKE_SLOTS && c->count > 0; i++) {
        if (c->rank[i].key != 0) {
            add_rank(out, link, e, c->rank[i].coords, c->rank[i].times);
            c->rank[i].key = 0;
            c->count--;
        }
    }
}

static void add_alike(hd_edge_cost *out, hd_link_bytes *link, const hd_edge *e, crowd *c, const int *coords,
                      int64_t times)
{
    uint64_t key = 0;
    for (int d = 0; d < e->ndims && c->is_used; d++) {
        const unsigned which = hd_edge_part_which(e, d, coords);
        if (which == 0) {
            key = 0;
            break;
        }
        key = key << 16 | which;
    }
    if (key == 0) {
        add_rank(out, link, e, coords, times);
        return;
    }
    if (2 * c->count >= ALIKE_SLOTS) {
        look_at_crowd(out, link, e, c);
    }
    unsigned at = (unsigned)((key * (HD_HASH_BASIS | 1)) >> 56) % ALIKE_SLOTS;
    while (c->rank[at].key != 0 && c->rank[at].key != key) {
        at = (at + 1) % ALIKE_SLOTS;
    }
    if (c->rank[at].key == 0) {
        c->rank[at].key = key;
        c->rank[at].times = 0;
        memcpy(c->rank[at].coords, coords, sizeof c->rank[at].coords);
        c->count++;
    }
    c->rank[at].times += times;
}

/* All ranks that have `coords` on the axes before `axis`. Of replicas that become partial sums the first has the sum,
 * the others add nothing. */
static void add_ranks(hd_edge_cost *out, hd_link_bytes *link, const hd_edge *e, crowd *c, int axis, int *coords,
                      int64_t times)
{
    if (axis == e->mesh->naxes) {
        add_alike(out, link, e, c, coords, times);
        return;
    }
    const hd_kinds *k = &e->kind[axis];
    int size = e->mesh->axis[axis].size;
    if (e->from->dim_of_axis[axis] == HEDDLE_REPLICATED && e->to->dim_of_axis[axis] == HEDDLE_PARTIAL) {
        coords[axis] = 0;
        add_ranks(out, link, e, c, axis + 1, coords, times);
        return;
    }
    for (int i = 0; i < (k->every ? size : k->count); i++) {
        int first = k->every ? i : k->from[i];
        int end = k->every ? i + 1 : i + 1 < k->count ? k->from[i + 1] : size;
        coords[axis] = first;
        add_ranks(out, link, e, c, axis + 1, coords, times * (end - first));
    }
}

/* The first rank, which has the largest boxes, and its neighbours along all axes but the first: wherever two layouts
 * cut a dim by different axes, one of them lies across. */
static void add_few(hd_edge_cost *out, hd_link_bytes *link, const hd_edge *e)
{
    int coords[HEDDLE_MAX_AXES] = {0};
    for (int a = 0; a < e->mesh->naxes; a++) {
        int is_one = e->from->dim_of_axis[a] == HEDDLE_REPLICATED && e->to->dim_of_axis[a] == HEDDLE_PARTIAL;
        coords[a] = a > 0 && e->mesh->axis[a].size > 1 && !is_one;
        add_rank(out, link, e, coords, 0);
        coords[a] = 0;
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

heddle_status hd_edge_links_by(hd_edge_cost *out, hd_link_bytes *link, const hd_levels *levels,
                               const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *from,
                               const heddle_layout *to, hd_edge_parts *parts, int of_few)
{
    heddle_status st = HEDDLE_OK;
    hd_edge e;
    int coords[HEDDLE_MAX_AXES] = {0};
    int nests = parts != NULL ? parts->nests : levels == NULL || hd_levels_nest(levels, mesh);
    if (!nests || completes_everywhere(mesh, from, to)) {
        return hd_edge_links_listed(out, link, levels, shape, mesh, from, to);
    }
    memset(out, 0, sizeof *out);
    if (link != NULL) {
        memset(link, 0, (size_t)levels->count * sizeof *link);
    }
    HD_TRY(parts == NULL ? heddle_layout_check(from, shape, mesh) : HEDDLE_OK);
    HD_TRY(parts == NULL ? heddle_layout_check(to, shape, mesh) : HEDDLE_OK);
    e.mesh = mesh;
    e.from = from;
    e.to = to;
    e.ndims = 0;
    hd_edge_set_widths(&e, levels, parts);
    HD_TRY(cut_dims(&e, shape, parts));
    if (of_few && e.row_bytes > 0) {
        add_few(out, link, &e);
        goto out;
    }
    if (e.row_bytes > 0) {
        hd_kinds kinds[HEDDLE_MAX_AXES] = {{0, 0, {0}}};
        e.kind = kinds;
        hd_edge_kinds(&e);
        crowd c;
        c.is_used = may_be_alike(&e);
        c.count = 0;
        for (int i = 0; i < ALIKE_SLOTS; i++) {
            c.rank[i].key = 0;
        }
        add_ranks(out, link, &e, &c, 0, coords, 1);
        look_at_crowd(out, link, &e, &c);
    }
out:
    return st;
}

heddle_status hd_edge_links_of(hd_edge_cost *out, hd_link_bytes *link, const hd_levels *levels,
                               const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *from,
                               const heddle_layout *to)
{
    return hd_edge_links_by(out, link, levels, shape, mesh, from, to, NULL, 0);
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
