/* Groups of ranks: who shares a sequence, and how much of it each one has. */
#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"
#include "runtime/method/method.h"

#include <stdio.h>
#include <string.h>

static unsigned mixed_dims(const hd_method_stage *stage)
{
    return stage->dims != 0 ? stage->dims : 1U << stage->dim;
}

static int is_mixed(const hd_method_stage *stage, int dim)
{
    return dim >= 0 && (mixed_dims(stage) >> dim & 1) != 0;
}

/* Axes of more than one rank that shard one of `dims`, the major one first; how many. */
static int axes_of(int *axes, const heddle_mesh *mesh, const heddle_layout *layout, unsigned dims)
{
    int count = 0;
    for (int a = 0; a < mesh->naxes; a++) {
        int dim = layout->dim_of_axis[a];
        if (dim >= 0 && (dims >> dim & 1) != 0 && mesh->axis[a].size > 1) {
            axes[count++] = a;
        }
    }
    return count;
}

/* Block i of so many tokens along an axis. */
static int64_t block_length(const heddle_mesh *mesh, const heddle_layout *layout, int axis, int64_t tokens, int i)
{
    const int64_t *blocks = hd_layout_blocks(layout, axis);
    return blocks != NULL ? blocks[i] : heddle_shard_len(tokens, mesh->axis[axis].size, i);
}

/* The product of the lengths of `dims` on the ranks with coordinate `index` on their axes taken together, 0 on all
 * others. Axes that shard nothing of them stay at coordinate 0: they do not change it. */
static int64_t length_at(const hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout, unsigned dims,
                         int index)
{
    int axes[HEDDLE_MAX_AXES];
    int coords[HEDDLE_MAX_AXES] = {0};
    int64_t product = 1;
    for (int i = axes_of(axes, mesh, layout, dims) - 1; i >= 0; i--) {
        coords[axes[i]] = index % mesh->axis[axes[i]].size;
        index /= mesh->axis[axes[i]].size;
    }
    for (int d = 0; d < g->shape->ndim; d++) {
        int64_t length = g->shape->dim[d].extent;
        for (int a = 0; a < mesh->naxes && (dims >> d & 1) != 0; a++) {
            if (layout->dim_of_axis[a] == d) {
                length = block_length(mesh, layout, a, length, coords[a]);
            }
        }
        product *= (dims >> d & 1) != 0 ? length : 1;
    }
    return product;
}

static int ranks_over(const heddle_mesh *mesh, const heddle_layout *layout, unsigned dims)
{
    int axes[HEDDLE_MAX_AXES];
    int n = 1;
    for (int i = axes_of(axes, mesh, layout, dims) - 1; i >= 0; i--) {
        n *= mesh->axis[axes[i]].size;
    }
    return n;
}

/* Of the blocks that `axes` cut from `extent`, the first of them first, those that are not empty. */
static int64_t full_blocks(int64_t extent, const heddle_mesh *mesh, const int *axes, int count)
{
    if (extent == 0 || count == 0) {
        return extent > 0;
    }
    const int64_t n = mesh->axis[axes[0]].size, longer = extent % n;
    return longer * full_blocks(extent / n + 1, mesh, axes + 1, count - 1) +
           (n - longer) * full_blocks(extent / n, mesh, axes + 1, count - 1);
}

/* The largest block of dim d, and how many are not empty. Even ones are not looked at one by one: the first is the
 * largest. */
static int64_t longest_block(int64_t *full, const hd_method_group *g, const heddle_mesh *mesh,
                             const heddle_layout *layout, int d)
{
    int axes[HEDDLE_MAX_AXES], is_even = 1;
    const int count = axes_of(axes, mesh, layout, 1U << d), n = ranks_over(mesh, layout, 1U << d);
    int64_t longest = 0;
    for (int i = 0; i < count; i++) {
        is_even = is_even && hd_layout_blocks(layout, axes[i]) == NULL;
    }
    *full = is_even ? full_blocks(g->shape->dim[d].extent, mesh, axes, count) : 0;
    for (int i = 0; i < (is_even ? 1 : n); i++) {
        const int64_t length = length_at(g, mesh, layout, 1U << d, i);
        longest = length > longest ? length : longest;
        *full += !is_even && length > 0;
    }
    return longest;
}

/* A fibre for every combination of the other dims: sums, largest and non-empty blocks are products over the dims. */
static void count_fibres(hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout)
{
    __int128 most = 1;
    __int128 busy = heddle_mesh_size(mesh) / g->n;
    g->fibres_total = 1;
    for (int d = 0; d < g->shape->ndim - 1; d++) {
        int64_t full = 0;
        if (is_mixed(&g->stage, d)) {
            continue;
        }
        most *= longest_block(&full, g, mesh, layout, d);
        g->fibres_total *= g->shape->dim[d].extent;
        busy = busy / ranks_over(mesh, layout, 1U << d) * full;
    }
    g->fibres_max = hd_saturated(most);
    g->busy_groups = (int64_t)busy;
    for (int a = 0; a < mesh->naxes; a++) {
        g->fibres_total *= layout->dim_of_axis[a] == HEDDLE_REPLICATED ? mesh->axis[a].size : 1;
    }
}

/* What rules out every method but local. */
static void judge(hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout)
{
    const heddle_shape *shape = g->shape;
    const char *dim = shape->dim[g->stage.dim].name;
    int64_t channels = shape->dim[shape->ndim - 1].extent;
    size_t size = sizeof g->why_not;
    if (g->naxes == 0) {
        snprintf(g->why_not, size, "dim '%s' is whole on every rank", dim);
    } else if (g->stage.heads < 1 || channels % g->stage.heads != 0) {
        snprintf(g->why_not, size, "%lld heads do not divide %lld channels", (long long)g->stage.heads,
                 (long long)channels);
    } else if (g->stage.kv_heads > 0 && g->stage.heads % g->stage.kv_heads != 0) {
        snprintf(g->why_not, size, "%lld key heads do not divide %lld query heads", (long long)g->stage.kv_heads,
                 (long long)g->stage.heads);
    } else if (g->stage.kind == HEDDLE_STAGE_LINEAR && channels / g->stage.heads > HD_LINEAR_WIDTH_MAX) {
        snprintf(g->why_not, size, "heads of width %lld; linear attention takes up to %d",
                 (long long)(channels / g->stage.heads), HD_LINEAR_WIDTH_MAX);
    } else if (hd_method_takes_axes(g->why_not, dim, mesh, g->axis, g->naxes) == HEDDLE_OK) {
        heddle_ignore(hd_method_takes_arrays(g->why_not, shape, mesh, layout, 2));
    }
}

/* Text is dealt to all members like a dim: the first ones have a row more. */
static heddle_status add_with_text(hd_method_group *g, int64_t rows, int count)
{
    heddle_status st = HEDDLE_OK;
    const int first = g->nruns > 0 ? g->run[g->nruns].first : 0;
    const int64_t text = g->stage.joined_rows / g->n, left = g->stage.joined_rows % g->n - first;
    const int more = left <= 0 ? 0 : left < count ? (int)left : count;
    HD_TRY(more > 0 ? hd_method_group_add(g, rows + text + 1, more) : HEDDLE_OK);
    HD_TRY(more < count ? hd_method_group_add(g, rows + text, count - more) : HEDDLE_OK);
out:
    return st;
}

/* The blocks of so many tokens along the inner axis, every token of `rows` rows. */
static heddle_status add_blocks(hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout,
                                int64_t tokens, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    const int axis = g->axis[g->naxes - 1], n = mesh->axis[axis].size;
    const int longer = hd_layout_blocks(layout, axis) == NULL ? (int)(tokens % n) : 0;
    for (int i = 0, next = 0; i < n; i = next) {
        next = hd_layout_blocks(layout, axis) != NULL ? i + 1 : i < longer ? longer : n;
        HD_TRY(add_with_text(g, rows * block_length(mesh, layout, axis, tokens, i), next - i));
    }
out:
    return st;
}

/* Members are neighbours on one axis or two with nothing between them: their ranks are evenly spaced. */
static heddle_status list_members(hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout)
{
    heddle_status st = HEDDLE_OK;
    const int outer = g->axis[0], inner = g->axis[g->naxes - 1];
    const int dim = layout->dim_of_axis[inner], outer_dim = layout->dim_of_axis[outer];
    int64_t rest = 1;
    for (int d = 0; d < g->shape->ndim - 1; d++) {
        rest *= is_mixed(&g->stage, d) && d != dim && d != outer_dim ? g->shape->dim[d].extent : 1;
    }
    for (int i = 0; i < (g->naxes == 2 ? mesh->axis[outer].size : 1); i++) {
        int64_t tokens = g->shape->dim[dim].extent, rows = rest;
        if (g->naxes == 2 && outer_dim == dim) {
            tokens = block_length(mesh, layout, outer, tokens, i);
        } else if (g->naxes == 2) {
            rows *= block_length(mesh, layout, outer, g->shape->dim[outer_dim].extent, i);
        }
        HD_TRY(add_blocks(g, mesh, layout, tokens, rows));
    }
    g->stride = 1;
    for (int a = inner + 1; a < mesh->naxes; a++) {
        g->stride *= mesh->axis[a].size;
    }
    hd_method_group_count(g, g->n, g->inner);
out:
    return st;
}

/* Part p of a dim that the group's axes cut. */
static int64_t part_length(const hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout, int dim,
                           int p)
{
    int64_t tokens = g->shape->dim[dim].extent;
    const int inner = g->axis[g->naxes - 1], size = mesh->axis[inner].size;
    if (layout->dim_of_axis[inner] != dim) {
        return block_length(mesh, layout, g->axis[0], tokens, p);
    }
    if (g->naxes == 2 && layout->dim_of_axis[g->axis[0]] == dim) {
        tokens = block_length(mesh, layout, g->axis[0], tokens, p / size);
    }
    return block_length(mesh, layout, inner, tokens, p % size);
}

/* One dim's parts: those with tokens, and where they begin. */
static heddle_status list_parts(hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout, int dim)
{
    heddle_status st = HEDDLE_OK;
    const int64_t extent = g->shape->dim[dim].extent, window = g->stage.window[dim];
    const int n = ranks_over(mesh, layout, 1U << dim), i = g->halo.count++;
    int full = 0;
    int64_t shortest = extent;
    void *memory = NULL;
    g->halo.along[i].back = window > 0 && window < extent ? window : extent;
    g->halo.along[i].ahead = g->stage.causal ? 0 : g->halo.along[i].back;
    HD_TRY(hd_alloc(&memory, (size_t)n + 1, sizeof *g->halo.along[i].start, "parts of a dim"));
    g->halo.along[i].start = memory;
    HD_TRY(hd_alloc(&memory, (size_t)n + 1, sizeof *g->halo.along[i].place, "parts of a dim"));
    g->halo.along[i].place = memory;
    for (int p = 0; p < n; p++) {
        const int64_t length = part_length(g, mesh, layout, dim, p);
        g->halo.along[i].place[p] = full;
        if (length > 0) {
            g->halo.along[i].start[full + 1] = g->halo.along[i].start[full] + length;
            shortest = length < shortest ? length : shortest;
            full++;
        }
    }
    g->halo.along[i].place[n] = g->halo.along[i].full = full;
    g->halo.along[i].parts = n;
    /* Empty parts between others are passed over. */
    const int is_plain = g->halo.along[i].place[full] == full && full > 0;
    const int64_t reach = is_plain ? g->halo.along[i].back / shortest + 2 : n;
    g->halo.along[i].reach = reach < n ? (int)reach : n;
out:
    return st;
}

/* The dims in the order of their axes, as the members are. Text that joins sees all tokens, so with it nothing is left
 * out. */
static heddle_status list_halo(hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout)
{
    heddle_status st = HEDDLE_OK;
    int64_t windows = 0;
    g->halo.rest = 1;
    for (int d = 0; d < g->shape->ndim - 1; d++) {
        int is_sharded = is_mixed(&g->stage, d) && ranks_over(mesh, layout, 1U << d) > 1;
        windows |= is_sharded ? g->stage.window[d] : 0;
    }
    unsigned listed = 0;
    for (int a = 0; a < mesh->naxes && windows != 0 && g->stage.joined_rows == 0; a++) {
        int dim = layout->dim_of_axis[a];
        if (is_mixed(&g->stage, dim) && mesh->axis[a].size > 1 && (listed >> dim & 1) == 0) {
            HD_TRY(list_parts(g, mesh, layout, dim));
            listed |= 1U << dim;
        }
    }
    for (int d = 0; d < g->shape->ndim - 1; d++) {
        g->halo.rest *= is_mixed(&g->stage, d) && (listed >> d & 1) == 0 ? g->shape->dim[d].extent : 1;
    }
out:
    return st;
}

void hd_method_group_begin(hd_method_group *out, const heddle_shape *shape, const heddle_mesh *mesh,
                           const heddle_layout *layout, const hd_method_stage *stage)
{
    memset(out, 0, sizeof *out);
    out->shape = shape;
    out->stage = *stage;
    out->n = 1;
    if (stage->dim < 0) {
        return;
    }
    out->naxes = hd_method_axes(out->axis, mesh, layout, mixed_dims(stage), 2);
    for (int a = 0; a < mesh->naxes; a++) {
        const int dim = layout->dim_of_axis[a];
        out->cut |= is_mixed(stage, dim) && mesh->axis[a].size > 1 ? 1U << dim : 0;
    }
    out->n = ranks_over(mesh, layout, mixed_dims(stage));
    judge(out, mesh, layout);
    if (out->why_not[0] != '\0') {
        return;
    }
    out->inner = out->naxes == 2 ? mesh->axis[out->axis[1]].size : 1;
    out->heads = stage->heads;
    out->kv_heads = stage->kv_heads > 0 ? stage->kv_heads : stage->heads;
    out->heads_a_kv_head = out->heads / out->kv_heads;
    out->fibres = 1;
    out->width = shape->dim[shape->ndim - 1].extent / stage->heads;
    out->width_v = out->padded_width_v = out->width;
    out->elem_bytes = (int64_t)heddle_dtype_bytes(shape->dtype);
    out->real_bytes = shape->dtype == HEDDLE_F64 ? 8 : 4;
}

/* A stage on a layout, as its methods see it. Where no method can run (why_not) only what local needs is filled in. */
heddle_status hd_method_group_make(hd_method_group *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                   const heddle_layout *layout, const hd_method_stage *stage)
{
    heddle_status st = HEDDLE_OK;
    hd_method_group_begin(out, shape, mesh, layout, stage);
    if (stage->dim < 0 || out->why_not[0] != '\0') {
        return HEDDLE_OK;
    }
    HD_TRY(list_members(out, mesh, layout));
    HD_TRY(list_halo(out, mesh, layout));
    count_fibres(out, mesh, layout);
out:
    if (st != HEDDLE_OK) {
        hd_method_group_free(out);
    }
    return st;
}

void hd_method_group_free(hd_method_group *group)
{
    hd_free(group->run);
    for (int i = 0; i < 2; i++) {
        HD_FREE_ALL(group->halo.along[i].start, group->halo.along[i].place);
    }
    memset(group, 0, sizeof *group);
}
