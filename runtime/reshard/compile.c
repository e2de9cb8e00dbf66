/* Who sends which box to whom: a walk over the mesh, one axis at a time, that visits only peers with something to move.
 *
 * Seen from one rank, the other side's coordinate on each axis is fixed to its own, free, or limited to the blocks that
 * meet what is left of its box. Narrowing the other side's box axis by axis in mesh order gives nested blocks for free,
 * and lexicographic coordinates are ascending ranks.
 */
#include "runtime/reshard/compile.h"
#include "runtime/layout/algebra.h"

#include <string.h>

enum { FIRST_CAPACITY = 16 };

typedef enum axis_mode { AXIS_OWN, AXIS_ALL, AXIS_NONE } axis_mode;

typedef struct walk {
    const heddle_mesh *mesh;
    const heddle_layout *other; /* layout of the side that is walked */
    const int64_t *split[HEDDLE_MAX_AXES];
    axis_mode mode[HEDDLE_MAX_AXES];
    int own[HEDDLE_MAX_AXES]; /* coordinates of this rank */
    heddle_box theirs;        /* the other side's box as far as narrowed */
    heddle_box common;        /* its intersection with this rank's box */
    hd_pieces *pieces;
    int capacity;
} walk;

static heddle_status add_piece(hd_pieces *pieces, int *capacity, int peer, const heddle_box *box)
{
    if (pieces->count == *capacity) {
        int grown = *capacity > 0 ? *capacity * 4 : FIRST_CAPACITY;
        void *memory = NULL;
        heddle_status st = hd_alloc(&memory, (size_t)grown, sizeof *pieces->piece, "pieces of a reshard");
        if (st != HEDDLE_OK) {
            return st;
        }
        if (pieces->count > 0) {
            memcpy(memory, pieces->piece, (size_t)pieces->count * sizeof *pieces->piece);
        }
        hd_free(pieces->piece);
        pieces->piece = memory;
        *capacity = grown;
    }
    pieces->piece[pieces->count].peer = peer;
    pieces->piece[pieces->count].box = *box;
    pieces->count++;
    return HEDDLE_OK;
}

/* Coordinates first..last on axis a that can have something in common with this rank. */
static void axis_range(int *first, int *last, const walk *w, int a)
{
    int n = w->mesh->axis[a].size, d = w->other->dim_of_axis[a];
    if (w->mode[a] != AXIS_ALL) {
        *first = *last = w->own[a];
    } else if (d < 0) {
        *first = 0;
        *last = n - 1;
    } else {
        int64_t lo = w->common.lo[d], hi = lo + w->common.len[d] - 1;
        *first = heddle_range_owner(w->theirs.lo[d], w->theirs.len[d], w->split[a], n, lo);
        *last = heddle_range_owner(w->theirs.lo[d], w->theirs.len[d], w->split[a], n, hi);
    }
}

/* Invariant: w->common is not empty and lies inside w->theirs. */
static heddle_status walk_axis(walk *w, int a, int peer)
{
    if (a == w->mesh->naxes) {
        return add_piece(w->pieces, &w->capacity, peer, &w->common);
    }
    int first = 0, last = 0, d = w->other->dim_of_axis[a];
    axis_range(&first, &last, w, a);
    int64_t theirs_lo = d >= 0 ? w->theirs.lo[d] : 0, theirs_len = d >= 0 ? w->theirs.len[d] : 0;
    int64_t common_lo = d >= 0 ? w->common.lo[d] : 0, common_len = d >= 0 ? w->common.len[d] : 0;
    heddle_status st = HEDDLE_OK;
    for (int c = first; c <= last && st == HEDDLE_OK; c++) {
        if (d >= 0) {
            w->theirs.lo[d] = theirs_lo;
            w->theirs.len[d] = theirs_len;
            heddle_range_narrow(&w->theirs.lo[d], &w->theirs.len[d], w->split[a], w->mesh->axis[a].size, c);
            w->common.lo[d] = common_lo;
            w->common.len[d] = common_len;
            heddle_range_intersect(&w->common.lo[d], &w->common.len[d], w->theirs.lo[d], w->theirs.len[d]);
            if (w->common.len[d] == 0) {
                continue;
            }
        }
        st = walk_axis(w, a + 1, peer * w->mesh->axis[a].size + c);
    }
    if (d >= 0) {
        w->theirs.lo[d] = theirs_lo;
        w->theirs.len[d] = theirs_len;
        w->common.lo[d] = common_lo;
        w->common.len[d] = common_len;
    }
    return st;
}

/* The rule of heddle/reshard.h, per axis; the same from either side. */
static axis_mode mode_of_axis(int from, int to, int own)
{
    if (to == HEDDLE_PARTIAL) {
        return from == HEDDLE_REPLICATED && own != 0 ? AXIS_NONE : AXIS_OWN;
    }
    return from == HEDDLE_REPLICATED ? AXIS_OWN : AXIS_ALL;
}

static heddle_status compile_boxes(hd_pieces *out, const hd_problem *problem, const hd_phase *phase, int rank,
                                   hd_direction direction)
{
    const heddle_reshard_line *line = &problem->line;
    walk w;
    memset(&w, 0, sizeof w);
    w.mesh = &line->mesh;
    w.other = direction == HD_SEND ? &phase->to : &phase->from;
    w.pieces = out;
    hd_mesh_coords(w.own, w.mesh, rank);
    int none = 0;
    int64_t group = 1;
    for (int a = 0; a < w.mesh->naxes; a++) {
        int from = phase->from.dim_of_axis[a], to = phase->to.dim_of_axis[a];
        w.mode[a] = mode_of_axis(from, to, w.own[a]);
        w.split[a] = hd_layout_blocks(w.other, a);
        none |= w.mode[a] == AXIS_NONE;
        group *= from == HEDDLE_PARTIAL && to != HEDDLE_PARTIAL ? w.mesh->axis[a].size : 1;
    }
    hd_layout_box(&w.common, &line->shape, w.mesh, direction == HD_SEND ? &phase->from : &phase->to, w.own);
    w.theirs.ndim = line->shape.ndim;
    for (int d = 0; d < line->shape.ndim; d++) {
        w.theirs.len[d] = line->shape.dim[d].extent;
    }
    int64_t elems = heddle_box_elems(&w.common), moved = 0;
    if (elems == 0) {
        return HEDDLE_OK;
    }
    heddle_status st = none ? HEDDLE_OK : walk_axis(&w, 0, 0);
    if (direction == HD_RECV) {
        for (int i = 0; i < out->count; i++) {
            moved += heddle_box_elems(&out->piece[i].box);
        }
        out->sums = group > 1 && out->count > 0;
        out->zero_fill = moved < elems * group;
    }
    return st;
}

/* --- flat phases -------------------------------------------------------------------------------------------------- */

/* The ranks that share all coordinates outside the flat axes. */
typedef struct flat_group {
    int size, index; /* members; this rank's place among them */
    int64_t elems;   /* of the local array, the same for all members */
} flat_group;

static void flat_group_of(flat_group *out, const hd_problem *problem, const hd_phase *phase, int rank)
{
    const heddle_mesh *mesh = &problem->line.mesh;
    int coords[HEDDLE_MAX_AXES];
    heddle_box box;
    hd_mesh_coords(coords, mesh, rank);
    out->size = 1;
    out->index = 0;
    for (int a = 0; a < mesh->naxes; a++) {
        if (phase->flat_axes & (1u << a)) {
            out->size *= mesh->axis[a].size;
            out->index = out->index * mesh->axis[a].size + coords[a];
        }
    }
    hd_layout_box(&box, &problem->line.shape, mesh, &phase->from, coords);
    out->elems = heddle_box_elems(&box);
}

static int flat_member(const hd_problem *problem, const hd_phase *phase, int rank, int index)
{
    const heddle_mesh *mesh = &problem->line.mesh;
    int coords[HEDDLE_MAX_AXES], member = 0;
    hd_mesh_coords(coords, mesh, rank);
    for (int a = mesh->naxes - 1; a >= 0; a--) {
        if (phase->flat_axes & (1u << a)) {
            coords[a] = index % mesh->axis[a].size;
            index /= mesh->axis[a].size;
        }
    }
    for (int a = 0; a < mesh->naxes; a++) {
        member = member * mesh->axis[a].size + coords[a];
    }
    return member;
}

static void flat_box(heddle_box *out, const flat_group *group, int index)
{
    memset(out, 0, sizeof *out);
    out->ndim = 1;
    out->lo[0] = heddle_shard_start(group->elems, group->size, index);
    out->len[0] = heddle_shard_len(group->elems, group->size, index);
}

static heddle_status compile_flat(hd_pieces *out, const hd_problem *problem, const hd_phase *phase, int rank,
                                  hd_direction direction)
{
    flat_group group;
    int capacity = 0;
    flat_group_of(&group, problem, phase, rank);
    /* A reduce sends each member the member's block; a gather sends every member this rank's own. */
    int own_block = (phase->kind == HD_PHASE_FLAT_REDUCE) == (direction == HD_RECV);
    for (int i = 0; i < group.size; i++) {
        heddle_box box;
        flat_box(&box, &group, own_block ? group.index : i);
        if (box.len[0] == 0) {
            continue;
        }
        heddle_status st = add_piece(out, &capacity, flat_member(problem, phase, rank, i), &box);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    out->sums = phase->kind == HD_PHASE_FLAT_REDUCE && direction == HD_RECV && out->count > 0;
    return HEDDLE_OK;
}

heddle_status hd_phase_box(heddle_box *out, const hd_problem *problem, int phase_index, int is_dst, int rank)
{
    const hd_phase *phase = &problem->phase[phase_index];
    if (phase->kind == HD_PHASE_BOXES) {
        int coords[HEDDLE_MAX_AXES];
        hd_mesh_coords(coords, &problem->line.mesh, rank);
        hd_layout_box(out, &problem->line.shape, &problem->line.mesh, is_dst ? &phase->to : &phase->from, coords);
        return HEDDLE_OK;
    }
    flat_group group;
    flat_group_of(&group, problem, phase, rank);
    if ((phase->kind == HD_PHASE_FLAT_REDUCE) == (is_dst != 0)) {
        flat_box(out, &group, group.index);
    } else {
        memset(out, 0, sizeof *out);
        out->ndim = 1;
        out->len[0] = group.elems;
    }
    return HEDDLE_OK;
}

heddle_status hd_compile(hd_pieces *out, const hd_problem *problem, int phase_index, int rank, hd_direction direction)
{
    const hd_phase *phase = &problem->phase[phase_index];
    memset(out, 0, sizeof *out);
    heddle_status st = phase->kind == HD_PHASE_BOXES ? compile_boxes(out, problem, phase, rank, direction)
                                                     : compile_flat(out, problem, phase, rank, direction);
    if (st != HEDDLE_OK) {
        hd_pieces_free(out);
    }
    return st;
}

void hd_pieces_free(hd_pieces *pieces)
{
    hd_free(pieces->piece);
    memset(pieces, 0, sizeof *pieces);
}
