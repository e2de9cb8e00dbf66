/* What an edge moves, exactly, in closed form.
 *
 * Rank p sends peer q the part of p's source box that q's destination box needs, if p and q have the same coordinate on
 * every axis over which the source is replicated. A box is a product over dims, so the sum over peers factors: per dim
 * the overlaps summed over the free coordinates of the axes that shard it in `to`, times the replicas of `to` along
 * free axes. What a rank receives factors in the same way over `from`. Both layouts cut a dim into blocks in ascending
 * order, so all overlaps of a dim are found in one walk over both, and a rank looks its own sums up: the work is
 * linear in the ranks. Tests hold it against heddle_reshard_sends; partial sums that end replicated use that function
 * itself.
 */
#include "runtime/schedule/schedule_internal.h"

#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"

#include <heddle/reshard.h>
#include <string.h>

typedef struct range {
    int64_t lo, len;
} range;

/* How one layout cuts one dim. */
typedef struct cut {
    int nblocks;
    int step[HEDDLE_MAX_AXES]; /* of the block's index with the coordinate on an axis; 0: the axis does not cut it */
    range *block;              /* [nblocks] ascending */
} cut;

/* Overlaps of every block of one cut with those blocks of the other cut that a rank deals with: all of them, but for
 * bound axes, on which the two ranks have the same coordinate. */
typedef struct sums {
    int nbound;                /* combinations of coordinates on the bound axes */
    int step[HEDDLE_MAX_AXES]; /* of the combination with a coordinate; 0: the axis is not bound */
    int64_t *elems, *count;    /* [nblocks][nbound] elements, and blocks that have any */
} sums;

typedef struct cut_dim {
    cut from, to;
    sums sent, received;
} cut_dim;

typedef struct edge {
    const heddle_shape *shape;
    const heddle_mesh *mesh;
    const heddle_layout *from, *to;
    int64_t copies;    /* replicas of `to` along free axes: each is sent */
    int64_t terms;     /* partial sums along axes that shard `to`: one of each is received */
    int64_t row_bytes; /* of the dims that neither layout cuts */
    int ncut;
    int cut[HEDDLE_MAX_DIMS]; /* the other dims */
    cut_dim dim[HEDDLE_MAX_DIMS];
    range *blocks; /* of all cuts */
    int64_t *sums; /* of all dims */
} edge;

static int64_t overlap(range a, range b)
{
    int64_t lo = a.lo > b.lo ? a.lo : b.lo;
    int64_t hi = a.lo + a.len < b.lo + b.len ? a.lo + a.len : b.lo + b.len;
    return hi > lo ? hi - lo : 0;
}

/* Partial sums into a replicated layout go in two phases, which have no closed form here. */
static int completes_everywhere(const edge *e)
{
    for (int a = 0; a < e->mesh->naxes; a++) {
        if (e->from->dim_of_axis[a] == HEDDLE_PARTIAL && e->to->dim_of_axis[a] == HEDDLE_REPLICATED) {
            return 1;
        }
    }
    return 0;
}

/* Sizes of all tables. From the last axis to the first, since the first is the major one of a block's index. */
static void cut_axes(edge *e)
{
    e->copies = 1;
    e->terms = 1;
    for (int d = 0; d < e->shape->ndim; d++) {
        e->dim[d].from.nblocks = e->dim[d].to.nblocks = 1;
        e->dim[d].sent.nbound = e->dim[d].received.nbound = 1;
    }
    for (int a = e->mesh->naxes - 1; a >= 0; a--) {
        int size = e->mesh->axis[a].size;
        int from = e->from->dim_of_axis[a];
        int to = e->to->dim_of_axis[a];
        if (from >= 0) {
            cut_dim *d = &e->dim[from];
            d->from.step[a] = d->from.nblocks;
            d->from.nblocks *= size;
            d->received.step[a] = to == HEDDLE_PARTIAL ? d->received.nbound : 0;
            d->received.nbound *= to == HEDDLE_PARTIAL ? size : 1;
        }
        if (to >= 0) {
            cut_dim *d = &e->dim[to];
            d->to.step[a] = d->to.nblocks;
            d->to.nblocks *= size;
            d->sent.step[a] = from == HEDDLE_REPLICATED ? d->sent.nbound : 0;
            d->sent.nbound *= from == HEDDLE_REPLICATED ? size : 1;
        }
        e->copies *= from != HEDDLE_REPLICATED && to == HEDDLE_REPLICATED ? size : 1;
        e->terms *= from == HEDDLE_PARTIAL && to >= 0 ? size : 1;
    }
    e->row_bytes = (int64_t)heddle_dtype_bytes(e->shape->dtype);
    for (int d = 0; d < e->shape->ndim; d++) {
        if (e->dim[d].from.nblocks > 1 || e->dim[d].to.nblocks > 1) {
            e->cut[e->ncut++] = d;
        } else {
            e->row_bytes *= e->shape->dim[d].extent;
        }
    }
}

static int coordinate_of(const edge *e, const cut *c, int block, int axis)
{
    return c->step[axis] > 0 ? block / c->step[axis] % e->mesh->axis[axis].size : 0;
}

/* Axis by axis, each block of the axes before cut again, from the last one on: its pieces lie behind it in the list. */
static void cut_blocks(cut *c, const edge *e, const heddle_layout *layout, int dim)
{
    int nblocks = 1;
    c->block[0] = (range){0, e->shape->dim[dim].extent};
    for (int a = 0; a < e->mesh->naxes; a++) {
        const int64_t *lengths = hd_layout_blocks(layout, a);
        int size = e->mesh->axis[a].size;
        if (layout->dim_of_axis[a] != dim) {
            continue;
        }
        for (int k = nblocks - 1; k >= 0; k--) {
            int64_t lo = c->block[k].lo;
            int64_t each = c->block[k].len / size;
            int64_t rest = c->block[k].len % size;
            for (int i = 0; i < size; i++) {
                int64_t len = lengths != NULL ? lengths[i] : each + (i < rest);
                c->block[k * size + i] = (range){lo, len};
                lo += len;
            }
        }
        nblocks *= size;
    }
}

/* Adds to the sums of block `mine` an overlap with `block` of the other cut. */
static void add_overlap(sums *s, const edge *e, int mine, const cut *other, int block, int64_t elems)
{
    size_t at = (size_t)mine * (size_t)s->nbound;
    for (int a = 0; s->nbound > 1 && a < e->mesh->naxes; a++) {
        at += (size_t)(s->step[a] * coordinate_of(e, other, block, a));
    }
    s->elems[at] += elems;
    s->count[at]++;
}

static void sum_overlaps(cut_dim *d, const edge *e)
{
    int first = 0;
    for (int i = 0; i < d->from.nblocks; i++) {
        range mine = d->from.block[i];
        while (first < d->to.nblocks && d->to.block[first].lo + d->to.block[first].len <= mine.lo) {
            first++;
        }
        for (int k = first; k < d->to.nblocks && d->to.block[k].lo < mine.lo + mine.len; k++) {
            int64_t elems = overlap(mine, d->to.block[k]);
            if (elems > 0) {
                add_overlap(&d->sent, e, i, &d->to, k, elems);
                add_overlap(&d->received, e, k, &d->from, i, elems);
            }
        }
    }
}

static heddle_status cut_dims(edge *e)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    size_t nblocks = 0;
    size_t nsums = 0;
    for (int d = 0; d < e->shape->ndim; d++) {
        const cut_dim *c = &e->dim[d];
        nblocks += (size_t)c->from.nblocks + (size_t)c->to.nblocks;
        nsums += (size_t)c->from.nblocks * (size_t)c->sent.nbound;
        nsums += (size_t)c->to.nblocks * (size_t)c->received.nbound;
    }
    HD_TRY(hd_alloc(&memory, nblocks, sizeof *e->blocks, "blocks of two layouts"));
    e->blocks = memory;
    HD_TRY(hd_alloc(&memory, 2 * nsums, sizeof *e->sums, "overlaps of two layouts"));
    e->sums = memory;
    range *block = e->blocks;
    int64_t *sum = e->sums;
    for (int d = 0; d < e->shape->ndim; d++) {
        cut_dim *c = &e->dim[d];
        size_t sent = (size_t)c->from.nblocks * (size_t)c->sent.nbound;
        size_t received = (size_t)c->to.nblocks * (size_t)c->received.nbound;
        c->from.block = block;
        c->to.block = block + c->from.nblocks;
        block = c->to.block + c->to.nblocks;
        c->sent.elems = sum;
        c->sent.count = sum + sent;
        c->received.elems = sum + 2 * sent;
        c->received.count = sum + 2 * sent + received;
        sum += 2 * (sent + received);
        cut_blocks(&c->from, e, e->from, d);
        cut_blocks(&c->to, e, e->to, d);
        sum_overlaps(c, e);
    }
out:
    return st;
}

static int64_t saturated(__int128 value)
{
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

/* Where a rank finds what it needs of one dim; every index is a sum of steps over the rank's coordinates. */
typedef struct place {
    size_t from, to;             /* its blocks */
    size_t to_peers, from_peers; /* its sums: sent, received */
} place;

/* To the next coordinate on an axis. */
static void step(place *at, const cut_dim *c, int axis)
{
    size_t from = (size_t)c->from.step[axis];
    size_t to = (size_t)c->to.step[axis];
    at->from += from;
    at->to += to;
    at->to_peers += from * (size_t)c->sent.nbound + (size_t)c->sent.step[axis];
    at->from_peers += to * (size_t)c->received.nbound + (size_t)c->received.step[axis];
}

static void add_rank(hd_edge_cost *out, const edge *e, const place *at)
{
    __int128 sent = e->copies;
    __int128 messages = e->copies;
    __int128 received = e->terms;
    __int128 own = 1;
    for (int i = 0; i < e->ncut; i++) {
        const cut_dim *c = &e->dim[e->cut[i]];
        sent *= c->sent.elems[at[i].to_peers];
        messages *= c->sent.count[at[i].to_peers];
        received *= c->received.elems[at[i].from_peers];
        own *= overlap(c->from.block[at[i].from], c->to.block[at[i].to]);
    }
    int64_t sent_bytes = saturated((sent - own) * e->row_bytes);
    int64_t received_bytes = saturated((received - own) * e->row_bytes);
    out->messages = hd_add_saturated(out->messages, saturated(messages - (own > 0)));
    out->bytes_total = hd_add_saturated(out->bytes_total, sent_bytes);
    out->bytes_per_rank_max = sent_bytes > out->bytes_per_rank_max ? sent_bytes : out->bytes_per_rank_max;
    out->bytes_received_max = received_bytes > out->bytes_received_max ? received_bytes : out->bytes_received_max;
}

/* Of replicas that become partial sums the first has the sum, the others add nothing. */
static int ranks_that_add(const edge *e, int axis)
{
    int is_first = e->from->dim_of_axis[axis] == HEDDLE_REPLICATED && e->to->dim_of_axis[axis] == HEDDLE_PARTIAL;
    return is_first ? 1 : e->mesh->axis[axis].size;
}

/* All ranks with the coordinates that `at` stands for on the axes before `axis`. */
static void add_ranks(hd_edge_cost *out, const edge *e, int axis, const place *at)
{
    place here[HEDDLE_MAX_DIMS];
    if (axis >= HEDDLE_MAX_AXES || axis == e->mesh->naxes) {
        add_rank(out, e, at);
        return;
    }
    memcpy(here, at, sizeof here);
    for (int k = ranks_that_add(e, axis); k > 0; k--) {
        add_ranks(out, e, axis + 1, here);
        for (int i = 0; i < e->ncut; i++) {
            step(&here[i], &e->dim[e->cut[i]], axis);
        }
    }
}

heddle_status hd_edge_cost_listed(hd_edge_cost *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                  const heddle_layout *from, const heddle_layout *to)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line = {.shape = *shape, .mesh = *mesh, .from = *from, .to = *to};
    heddle_peer_bytes *peers = NULL;
    int64_t *received = NULL;
    void *memory = NULL;
    int nranks = heddle_mesh_size(mesh);
    memset(out, 0, sizeof *out);
    HD_TRY(hd_alloc(&memory, (size_t)nranks, sizeof *peers, "peers of a rank"));
    peers = memory;
    HD_TRY(hd_alloc(&memory, (size_t)nranks, sizeof *received, "bytes of the ranks"));
    received = memory;
    for (int rank = 0; rank < nranks; rank++) {
        int count = 0;
        int64_t bytes = 0;
        HD_TRY(heddle_reshard_sends(peers, nranks, &count, &line, rank));
        for (int i = 0; i < count; i++) {
            int64_t *to_peer = &received[peers[i].peer];
            bytes = hd_add_saturated(bytes, peers[i].bytes);
            *to_peer = hd_add_saturated(*to_peer, peers[i].bytes);
            out->messages = hd_add_saturated(out->messages, peers[i].messages);
        }
        out->bytes_total = hd_add_saturated(out->bytes_total, bytes);
        out->bytes_per_rank_max = bytes > out->bytes_per_rank_max ? bytes : out->bytes_per_rank_max;
    }
    for (int rank = 0; rank < nranks; rank++) {
        out->bytes_received_max = received[rank] > out->bytes_received_max ? received[rank] : out->bytes_received_max;
    }
out:
    hd_free(peers);
    hd_free(received);
    return st;
}

heddle_status hd_edge_backward_cost_of(hd_edge_cost *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                       const heddle_layout *from, const heddle_layout *to, int is_last)
{
    heddle_layout behind = heddle_layout_dual(to);
    heddle_layout before = heddle_layout_dual(from);
    for (int a = 0; is_last && a < mesh->naxes; a++) {
        if (to->dim_of_axis[a] == HEDDLE_REPLICATED) {
            behind.dim_of_axis[a] = HEDDLE_REPLICATED;
        }
    }
    return hd_edge_cost_of(out, shape, mesh, &behind, &before);
}

heddle_status hd_edge_cost_of(hd_edge_cost *out, const heddle_shape *shape, const heddle_mesh *mesh,
                              const heddle_layout *from, const heddle_layout *to)
{
    heddle_status st = HEDDLE_OK;
    edge e = {.shape = shape, .mesh = mesh, .from = from, .to = to};
    if (completes_everywhere(&e)) {
        return hd_edge_cost_listed(out, shape, mesh, from, to);
    }
    memset(out, 0, sizeof *out);
    HD_TRY(heddle_layout_check(from, shape, mesh));
    HD_TRY(heddle_layout_check(to, shape, mesh));
    cut_axes(&e);
    HD_TRY(cut_dims(&e));
    if (e.row_bytes > 0) {
        add_ranks(out, &e, 0, (place[HEDDLE_MAX_DIMS]){{0}});
    }
out:
    hd_free(e.blocks);
    hd_free(e.sums);
    return st;
}
