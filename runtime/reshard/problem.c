/* A reshard as one to three phases. */
#include "runtime/layout/algebra.h"
#include "runtime/reshard/compile.h"

#include <string.h>

static heddle_status check_line(const heddle_reshard_line *line)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_layout_check(&line->from, &line->shape, &line->mesh));
    HD_TRY(heddle_layout_check(&line->to, &line->shape, &line->mesh));
    HD_TRY(hd_order_check(&line->from_order, &line->shape));
    HD_TRY(hd_order_check(&line->to_order, &line->shape));
out:
    return st;
}

/* Axes whose partial sums must be complete on every rank. An axis of one rank has nothing to add. */
static unsigned reduced_axes(const heddle_reshard_line *line)
{
    unsigned axes = 0;
    for (int a = 0; a < line->mesh.naxes; a++) {
        if (line->from.dim_of_axis[a] == HEDDLE_PARTIAL && line->to.dim_of_axis[a] == HEDDLE_REPLICATED &&
            line->mesh.axis[a].size > 1) {
            axes |= 1u << a;
        }
    }
    return axes;
}

static hd_phase *add_phase(hd_problem *problem, hd_phase_kind kind, const heddle_layout *from, const heddle_layout *to)
{
    hd_phase *phase = &problem->phase[problem->nphases++];
    const heddle_reshard_line *line = &problem->line;
    phase->kind = kind;
    phase->from = *from;
    phase->to = *to;
    phase->from_order = line->from_order;
    phase->to_order = kind == HD_PHASE_BOXES ? line->to_order : line->from_order;
    phase->flat_axes = 0;
    return phase;
}

static int same_blocks(const heddle_layout *x, const heddle_layout *y, int axis)
{
    const int64_t *of_x = hd_layout_blocks(x, axis), *of_y = hd_layout_blocks(y, axis);
    return of_x == NULL || of_y == NULL ? of_x == of_y
                                        : memcmp(of_x, of_y, (size_t)x->nshards[axis] * sizeof *of_x) == 0;
}

/* Every rank has what it is to hold: each axis cuts what was whole along it, or takes what a rank has as its addend, or
 * stays with its blocks, which then lie where they lay unless the dim was cut otherwise around them. */
static int nothing_moves(const heddle_reshard_line *line)
{
    const int *from = line->from.dim_of_axis, *to = line->to.dim_of_axis;
    for (int a = 0; a < line->mesh.naxes; a++) {
        if (line->mesh.axis[a].size == 1 || from[a] == HEDDLE_REPLICATED || to[a] == HEDDLE_PARTIAL) {
            continue;
        }
        int stays = from[a] == to[a] && same_blocks(&line->from, &line->to, a);
        for (int outer = 0; outer < a; outer++) {
            stays &= from[outer] == to[outer] || (from[outer] != from[a] && to[outer] != from[a]);
        }
        if (!stays) {
            return 0;
        }
    }
    return 1;
}

/* How often, at most, the tensor goes through a phase, all ranks and what stays on them taken together. */
static int64_t times_moved(const heddle_mesh *mesh, const hd_phase *phase)
{
    int64_t times = 1;
    for (int a = 0; a < mesh->naxes; a++) {
        int from = phase->from.dim_of_axis[a], to = phase->to.dim_of_axis[a];
        int is_once = phase->kind == HD_PHASE_BOXES ? from != HEDDLE_PARTIAL && to != HEDDLE_REPLICATED : from >= 0;
        times *= is_once ? 1 : mesh->axis[a].size;
    }
    return times;
}

static heddle_status check_bytes(const hd_problem *problem)
{
    const heddle_reshard_line *line = &problem->line;
    int64_t bytes = (int64_t)heddle_dtype_bytes(line->shape.dtype), times = 0;
    for (int d = 0; d < line->shape.ndim; d++) {
        bytes *= line->shape.dim[d].extent; /* checked: at most 2^62 */
    }
    for (int p = 0; p < problem->nphases; p++) {
        times += times_moved(&line->mesh, &problem->phase[p]);
    }
    if (times > 1 && bytes > HD_MAX_BYTES / times && !nothing_moves(line)) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "a tensor of %lld bytes on %d ranks: more than 2^62 bytes could move",
                       (long long)bytes, heddle_mesh_size(&line->mesh));
    }
    return HEDDLE_OK;
}

heddle_status hd_problem_make(hd_problem *out, const heddle_reshard_line *line)
{
    heddle_status st = check_line(line);
    if (st != HEDDLE_OK) {
        return st;
    }
    out->line = *line;
    out->nphases = 0; /* phases behind them are not looked at: much to clear for every rank of a mesh */
    unsigned axes = reduced_axes(line);
    heddle_layout summed = line->from;
    for (int a = 0; a < line->mesh.naxes; a++) {
        if (axes & (1u << a)) {
            summed.dim_of_axis[a] = HEDDLE_REPLICATED;
        }
    }
    if (axes != 0) {
        hd_phase *reduce = add_phase(out, HD_PHASE_FLAT_REDUCE, &line->from, &summed);
        hd_phase *gather = add_phase(out, HD_PHASE_FLAT_GATHER, &summed, &summed);
        reduce->flat_axes = gather->flat_axes = axes;
    }
    if (axes == 0 || !heddle_layout_equal(&summed, &line->to, &line->mesh) ||
        !hd_order_equal(&line->from_order, &line->to_order, line->shape.ndim)) {
        add_phase(out, HD_PHASE_BOXES, &summed, &line->to);
    }
    for (int p = 0; p < out->nphases; p++) {
        out->phase[p].src = p == 0 ? HD_PLACE_SRC : out->phase[p - 1].dst;
        out->phase[p].dst = p == out->nphases - 1 ? HD_PLACE_DST : p == 0 ? HD_PLACE_WORK0 : HD_PLACE_WORK1;
    }
    return check_bytes(out);
}
