/* What an edge moves, exactly, in closed form.
 *
 * Rank p sends peer q the part of p's source box that q's destination box needs, if p and q have the same coordinate on
 * every axis over which the source is replicated. A box is a product over dims, so the sum over peers factors: per dim
 * the overlaps summed over the free coordinates of the axes that shard it in `to`, times the replicas of `to` along
 * free axes. Tests hold it against heddle_reshard_sends; partial sums that end replicated use that function itself.
 */
#include "planner/search/schedule_internal.h"

#include "runtime/base/base.h"

#include <heddle/reshard.h>
#include <string.h>

typedef struct range {
    int64_t lo, len;
} range;

/* How `to` cuts one dim: ranges by the coordinates of its axes, the first axis the major one. */
typedef struct cut {
    int naxes;
    int axis[HEDDLE_MAX_AXES];
    int nfixed; /* axes on which a receiver has its sender's coordinate */
    int is_fixed[HEDDLE_MAX_AXES];
    int nblocks;
    range *block;
    int has_memo; /* sums for the range below, if no axis is fixed */
    range memo;
    int64_t memo_sum, memo_count;
} cut;

typedef struct edge {
    const heddle_shape *shape;
    const heddle_mesh *mesh;
    const heddle_layout *from, *to;
    int axis_stride[HEDDLE_MAX_AXES]; /* of a coordinate in the rank */
    int64_t copies;                   /* replicas of `to` along free axes */
    cut cut[HEDDLE_MAX_DIMS];
    range *blocks; /* of all cuts */
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

/* The coordinate of block `block` on the i-th axis of a cut. */
static int block_coordinate(const edge *e, const cut *c, int block, int i)
{
    for (int k = c->naxes - 1; k > i; k--) {
        block /= e->mesh->axis[c->axis[k]].size;
    }
    return block % e->mesh->axis[c->axis[i]].size;
}

static void cut_axes(edge *e)
{
    e->copies = 1;
    int stride = 1;
    for (int a = e->mesh->naxes - 1; a >= 0; a--) {
        e->axis_stride[a] = stride;
        stride *= e->mesh->axis[a].size;
    }
    for (int a = 0; a < e->mesh->naxes; a++) {
        int d = e->to->dim_of_axis[a];
        int is_fixed = e->from->dim_of_axis[a] == HEDDLE_REPLICATED || d == HEDDLE_PARTIAL;
        if (d >= 0) {
            cut *c = &e->cut[d];
            c->is_fixed[c->naxes] = is_fixed;
            c->nfixed += is_fixed;
            c->axis[c->naxes++] = a;
        } else if (!is_fixed) {
            e->copies *= e->mesh->axis[a].size;
        }
    }
}

/* Reads every block off the box of a rank that owns it. */
static heddle_status cut_blocks(edge *e)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    size_t total = 0;
    for (int d = 0; d < e->shape->ndim; d++) {
        cut *c = &e->cut[d];
        c->nblocks = 1;
        for (int i = 0; i < c->naxes; i++) {
            c->nblocks *= e->mesh->axis[c->axis[i]].size;
        }
        total += (size_t)c->nblocks;
    }
    HD_TRY(hd_alloc(&memory, total, sizeof *e->blocks, "blocks of a layout"));
    e->blocks = memory;
    range *block = e->blocks;
    for (int d = 0; d < e->shape->ndim; d++) {
        cut *c = &e->cut[d];
        c->block = block;
        block += c->nblocks;
        for (int k = 0; k < c->nblocks; k++) {
            heddle_box box;
            int rank = 0;
            for (int i = 0; i < c->naxes; i++) {
                rank += block_coordinate(e, c, k, i) * e->axis_stride[c->axis[i]];
            }
            HD_TRY(heddle_layout_box(&box, e->shape, e->mesh, e->to, rank));
            c->block[k] = (range){box.lo[d], box.len[d]};
        }
    }
out:
    return st;
}

static int rank_coordinate(const edge *e, int rank, int axis)
{
    return rank / e->axis_stride[axis] % e->mesh->axis[axis].size;
}

/* Overlaps of a sender's range with all receivers' ranges along one dim. */
static void sum_overlaps(int64_t *sum, int64_t *count, const edge *e, cut *c, range mine, int rank)
{
    if (c->has_memo && c->memo.lo == mine.lo && c->memo.len == mine.len) {
        *sum = c->memo_sum;
        *count = c->memo_count;
        return;
    }
    *sum = 0;
    *count = 0;
    for (int k = 0; k < c->nblocks; k++) {
        int64_t n = overlap(mine, c->block[k]);
        for (int i = 0; n > 0 && c->nfixed > 0 && i < c->naxes; i++) {
            if (c->is_fixed[i] && block_coordinate(e, c, k, i) != rank_coordinate(e, rank, c->axis[i])) {
                n = 0;
            }
        }
        *sum += n;
        *count += n > 0;
    }
    c->has_memo = c->nfixed == 0;
    c->memo = mine;
    c->memo_sum = *sum;
    c->memo_count = *count;
}

static range own_block(const edge *e, const cut *c, int rank)
{
    int k = 0;
    for (int i = 0; i < c->naxes; i++) {
        k = k * e->mesh->axis[c->axis[i]].size + rank_coordinate(e, rank, c->axis[i]);
    }
    return c->block[k];
}

static int64_t saturated(__int128 value)
{
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

static heddle_status add_rank(hd_edge_cost *out, edge *e, int rank)
{
    heddle_box box;
    heddle_status st = heddle_layout_box(&box, e->shape, e->mesh, e->from, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int a = 0; a < e->mesh->naxes; a++) {
        if (e->from->dim_of_axis[a] == HEDDLE_REPLICATED && e->to->dim_of_axis[a] == HEDDLE_PARTIAL &&
            rank_coordinate(e, rank, a) != 0) {
            return HEDDLE_OK; /* the first replica has the sum, the others add nothing */
        }
    }
    __int128 elems = e->copies;
    __int128 messages = e->copies;
    __int128 own = 1;
    for (int d = 0; d < e->shape->ndim; d++) {
        range mine = {box.lo[d], box.len[d]};
        int64_t sum = 0;
        int64_t count = 0;
        sum_overlaps(&sum, &count, e, &e->cut[d], mine, rank);
        elems *= sum;
        messages *= count;
        own *= overlap(mine, own_block(e, &e->cut[d], rank));
    }
    int64_t bytes = saturated((elems - own) * (__int128)heddle_dtype_bytes(e->shape->dtype));
    out->messages = hd_add_saturated(out->messages, saturated(messages - (own > 0)));
    out->bytes_total = hd_add_saturated(out->bytes_total, bytes);
    out->bytes_per_rank_max = bytes > out->bytes_per_rank_max ? bytes : out->bytes_per_rank_max;
    return HEDDLE_OK;
}

heddle_status hd_edge_cost_listed(hd_edge_cost *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                  const heddle_layout *from, const heddle_layout *to)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line = {.shape = *shape, .mesh = *mesh, .from = *from, .to = *to};
    heddle_peer_bytes *peers = NULL;
    void *memory = NULL;
    int nranks = heddle_mesh_size(mesh);
    memset(out, 0, sizeof *out);
    HD_TRY(hd_alloc(&memory, (size_t)nranks, sizeof *peers, "peers of a rank"));
    peers = memory;
    for (int rank = 0; rank < nranks; rank++) {
        int count = 0;
        int64_t bytes = 0;
        HD_TRY(heddle_reshard_sends(peers, nranks, &count, &line, rank));
        for (int i = 0; i < count; i++) {
            bytes = hd_add_saturated(bytes, peers[i].bytes);
            out->messages = hd_add_saturated(out->messages, peers[i].messages);
        }
        out->bytes_total = hd_add_saturated(out->bytes_total, bytes);
        out->bytes_per_rank_max = bytes > out->bytes_per_rank_max ? bytes : out->bytes_per_rank_max;
    }
out:
    hd_free(peers);
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
    int nranks = heddle_mesh_size(mesh);
    if (completes_everywhere(&e)) {
        return hd_edge_cost_listed(out, shape, mesh, from, to);
    }
    memset(out, 0, sizeof *out);
    cut_axes(&e);
    HD_TRY(cut_blocks(&e));
    for (int rank = 0; rank < nranks; rank++) {
        HD_TRY(add_rank(out, &e, rank));
    }
out:
    hd_free(e.blocks);
    return st;
}
