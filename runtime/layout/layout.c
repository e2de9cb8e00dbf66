/* Layouts and memory orders: text forms and checks. */
#include "runtime/layout/algebra.h"
#include "runtime/layout/text.h"

#include <stdio.h>
#include <string.h>

heddle_layout heddle_layout_replicated(void)
{
    heddle_layout layout;
    memset(&layout, 0, sizeof layout);
    for (int a = 0; a < HEDDLE_MAX_AXES; a++) {
        layout.dim_of_axis[a] = HEDDLE_REPLICATED;
    }
    return layout;
}

const int64_t *hd_layout_blocks(const heddle_layout *layout, int axis)
{
    if (layout->nshards[axis] == 0) {
        return NULL;
    }
    const int64_t *block = layout->shard_len;
    for (int a = 0; a < axis; a++) {
        block += layout->nshards[a];
    }
    return block;
}

int hd_blocks_are_balanced(const int64_t *block, int n)
{
    int64_t sum = heddle_split_start(block, n);
    for (int i = 0; i < n; i++) {
        if (block[i] != heddle_shard_len(sum, n, i)) {
            return 0;
        }
    }
    return 1;
}

/* The first axis that shards the same dim as `axis`: itself unless the dim is nested. */
static int outer_axis(const heddle_layout *layout, int axis)
{
    int a = 0;
    while (layout->dim_of_axis[a] != layout->dim_of_axis[axis]) {
        a++;
    }
    return a;
}

/* Does the sentence of one axis's explicit blocks hold? HEDDLE_ERR_LAYOUT otherwise. */
static heddle_status check_blocks(const heddle_layout *layout, const heddle_shape *shape, const heddle_mesh *mesh,
                                  int axis, const int64_t *block, int count)
{
    const char *name = mesh->axis[axis].name;
    int outer = outer_axis(layout, axis);
    if (outer != axis) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "block lengths on '%s', the inner axis of dim '%s' (outer: '%s')", name,
                       shape->dim[layout->dim_of_axis[axis]].name, mesh->axis[outer].name);
    }
    if (count != mesh->axis[axis].size) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "%d block lengths for axis '%s' of size %d", count, name,
                       mesh->axis[axis].size);
    }
    const heddle_dim *dim = &shape->dim[layout->dim_of_axis[axis]];
    int64_t left = dim->extent;
    for (int i = 0; i < count; i++) {
        if (block[i] < 0 || block[i] > left) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "block lengths on '%s': length %lld of block %d with %lld of '%s' left",
                           name, (long long)block[i], i, (long long)left, dim->name);
        }
        left -= block[i];
    }
    if (left != 0) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "block lengths on '%s' add up to %lld, dim '%s' has %lld", name,
                       (long long)(dim->extent - left), dim->name, (long long)dim->extent);
    }
    return HEDDLE_OK;
}

static heddle_status check_axes(const heddle_layout *layout, const heddle_shape *shape, const heddle_mesh *mesh)
{
    int64_t total = 0;
    for (int a = 0; a < mesh->naxes; a++) {
        int dim = layout->dim_of_axis[a];
        if (dim < HEDDLE_PARTIAL || dim >= shape->ndim) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "axis '%s' shards dim %d, the shape has %d", mesh->axis[a].name, dim,
                           shape->ndim);
        }
        if (layout->nshards[a] < 0 || (dim < 0 && layout->nshards[a] != 0)) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "axis '%s' has %d block lengths but %s", mesh->axis[a].name,
                           layout->nshards[a], dim < 0 ? "shards no dim" : "less than 0 is not possible");
        }
        total += layout->nshards[a];
    }
    if (total > HEDDLE_MAX_SHARDS) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "%lld block lengths in one layout, at most %d are possible", (long long)total,
                       HEDDLE_MAX_SHARDS);
    }
    return HEDDLE_OK;
}

heddle_status heddle_layout_check(const heddle_layout *layout, const heddle_shape *shape, const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(layout, shape, mesh));
    HD_TRY(heddle_shape_check(shape));
    HD_TRY(heddle_mesh_check(mesh));
    HD_TRY(check_axes(layout, shape, mesh));
    for (int a = 0; a < mesh->naxes; a++) {
        if (layout->nshards[a] > 0) {
            HD_TRY(check_blocks(layout, shape, mesh, a, hd_layout_blocks(layout, a), layout->nshards[a]));
        }
    }
out:
    return st;
}

/* Explicit lengths that are the balanced ones mean the same as none. */
static const int64_t *blocks_if_uneven(const heddle_layout *layout, int axis)
{
    const int64_t *block = hd_layout_blocks(layout, axis);
    return block != NULL && !hd_blocks_are_balanced(block, layout->nshards[axis]) ? block : NULL;
}

int heddle_layout_equal(const heddle_layout *a, const heddle_layout *b, const heddle_mesh *mesh)
{
    if (a == NULL || b == NULL || mesh == NULL) {
        return 0;
    }
    for (int i = 0; i < mesh->naxes; i++) {
        if (a->dim_of_axis[i] != b->dim_of_axis[i]) {
            return 0;
        }
        const int64_t *blocks_a = blocks_if_uneven(a, i), *blocks_b = blocks_if_uneven(b, i);
        if ((blocks_a == NULL) != (blocks_b == NULL)) {
            return 0;
        }
        if (blocks_a != NULL && (a->nshards[i] != b->nshards[i] ||
                                 memcmp(blocks_a, blocks_b, (size_t)a->nshards[i] * sizeof *blocks_a) != 0)) {
            return 0;
        }
    }
    return 1;
}

heddle_layout heddle_layout_dual(const heddle_layout *layout)
{
    heddle_layout dual = layout != NULL ? *layout : heddle_layout_replicated();
    for (int a = 0; a < HEDDLE_MAX_AXES; a++) {
        if (dual.dim_of_axis[a] == HEDDLE_REPLICATED) {
            dual.dim_of_axis[a] = HEDDLE_PARTIAL;
        } else if (dual.dim_of_axis[a] == HEDDLE_PARTIAL) {
            dual.dim_of_axis[a] = HEDDLE_REPLICATED;
        }
    }
    return dual;
}

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Names of all dims or axes, for "unknown" sentences. */
static void list_names(char out[HEDDLE_MAX_DIMS * HEDDLE_NAME_BYTES], const heddle_shape *shape,
                       const heddle_mesh *mesh)
{
    int used = 0, count = shape ? shape->ndim : mesh->naxes;
    for (int i = 0; i < count; i++) {
        used += sprintf(out + used, "%s%s", i > 0 ? " " : "", shape ? shape->dim[i].name : mesh->axis[i].name);
    }
}

/* One of the shape's dims, or without a shape of the mesh's axes; *at: where its name stands. */
static heddle_status scan_known(int *index, const char **at, hd_scan *scan, const heddle_shape *shape,
                                const heddle_mesh *mesh)
{
    char name[HEDDLE_NAME_BYTES], names[HEDDLE_MAX_DIMS * HEDDLE_NAME_BYTES];
    heddle_status st = hd_scan_name(name, at, scan, shape ? "a dim name" : "an axis name");
    if (st != HEDDLE_OK) {
        return st;
    }
    *index = shape ? heddle_dim_index(shape, name) : heddle_axis_index(mesh, name);
    if (*index < 0) {
        list_names(names, shape, mesh);
        return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, *at, "unknown %s '%s' (%s: %s)", shape ? "dim" : "axis", name,
                            shape ? "dims" : "axes", names);
    }
    return HEDDLE_OK;
}

/* The layout while it is read: entries come in any order of axes, those of one dim in the mesh's. */
typedef struct layout_draft {
    int dim_of_axis[HEDDLE_MAX_AXES];
    int taken[HEDDLE_MAX_AXES], nshards[HEDDLE_MAX_AXES];
    int64_t block[HEDDLE_MAX_AXES][HEDDLE_MAX_SHARDS];
    const char *blocks_at[HEDDLE_MAX_AXES];
} layout_draft;

/* A dim on two axes is nested as the mesh has them. Written the other way round it would look like another layout than
 * it is. */
static heddle_status scan_axis(int *axis, layout_draft *draft, int dim, hd_scan *scan, const heddle_shape *shape,
                               const heddle_mesh *mesh)
{
    const char *at = NULL;
    heddle_status st = scan_known(axis, &at, scan, NULL, mesh);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (draft->taken[*axis]) {
        return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, at, "axis '%s' appears twice", mesh->axis[*axis].name);
    }
    for (int a = *axis + 1; dim >= 0 && a < mesh->naxes; a++) {
        if (draft->dim_of_axis[a] == dim) {
            const char *name = shape->dim[dim].name, *outer = mesh->axis[*axis].name, *inner = mesh->axis[a].name;
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, at,
                                "%s@%s behind %s@%s, but blocks nest in the mesh's order of axes: write %s@%s,%s@%s",
                                name, outer, name, inner, name, outer, name, inner);
        }
    }
    draft->taken[*axis] = 1;
    return HEDDLE_OK;
}

static heddle_status scan_blocks(layout_draft *draft, int axis, hd_scan *scan)
{
    draft->blocks_at[axis] = scan->at - 1;
    do {
        const char *at = NULL;
        int64_t length = 0;
        heddle_status st = hd_scan_number(&length, &at, scan, "a block length");
        if (st != HEDDLE_OK) {
            return st;
        }
        if (draft->nshards[axis] == HEDDLE_MAX_SHARDS) {
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, at, "more than %d block lengths", HEDDLE_MAX_SHARDS);
        }
        draft->block[axis][draft->nshards[axis]++] = length;
    } while (!hd_scan_accept(scan, ")"));
    return HEDDLE_OK;
}

static heddle_status scan_entry(layout_draft *draft, hd_scan *scan, const heddle_shape *shape, const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    int dim = HEDDLE_PARTIAL, axis = 0;
    const char *at = NULL;
    if (!hd_scan_accept(scan, "sum")) {
        HD_TRY(scan_known(&dim, &at, scan, shape, NULL));
    }
    HD_TRY(hd_scan_expect(scan, "@", dim == HEDDLE_PARTIAL ? "after 'sum'" : "after the dim's name"));
    HD_TRY(scan_axis(&axis, draft, dim, scan, shape, mesh));
    draft->dim_of_axis[axis] = dim;
    if (hd_scan_accept(scan, "(")) {
        if (dim == HEDDLE_PARTIAL) {
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, scan->at - 1, "partial sums have no block lengths");
        }
        HD_TRY(scan_blocks(draft, axis, scan));
    }
out:
    return st;
}

static heddle_status finish_draft(heddle_layout *out, const layout_draft *draft, const hd_scan *scan,
                                  const heddle_shape *shape, const heddle_mesh *mesh)
{
    heddle_layout layout = heddle_layout_replicated();
    memcpy(layout.dim_of_axis, draft->dim_of_axis, sizeof layout.dim_of_axis);
    int64_t *block = layout.shard_len;
    for (int a = 0; a < mesh->naxes; a++) {
        int count = draft->nshards[a];
        if (count == 0) {
            continue;
        }
        heddle_status st = check_blocks(&layout, shape, mesh, a, draft->block[a], count);
        if (st != HEDDLE_OK) {
            return hd_scan_fail(scan, st, draft->blocks_at[a], "%s", heddle_last_error());
        }
        if (hd_blocks_are_balanced(draft->block[a], count)) {
            continue;
        }
        if (block - layout.shard_len + count > HEDDLE_MAX_SHARDS) {
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, draft->blocks_at[a],
                                "more than %d block lengths in one layout", HEDDLE_MAX_SHARDS);
        }
        memcpy(block, draft->block[a], (size_t)count * sizeof *block);
        layout.nshards[a] = count;
        block += count;
    }
    *out = layout;
    return HEDDLE_OK;
}

heddle_status hd_scan_layout(heddle_layout *out, hd_scan *scan, const heddle_shape *shape, const heddle_mesh *mesh)
{
    if (hd_scan_accept(scan, "*")) {
        *out = heddle_layout_replicated();
        return HEDDLE_OK;
    }
    layout_draft draft;
    memset(&draft, 0, sizeof draft);
    for (int a = 0; a < HEDDLE_MAX_AXES; a++) {
        draft.dim_of_axis[a] = HEDDLE_REPLICATED;
    }
    do {
        heddle_status st = scan_entry(&draft, scan, shape, mesh);
        if (st != HEDDLE_OK) {
            return st;
        }
    } while (hd_scan_accept(scan, ","));
    return finish_draft(out, &draft, scan, shape, mesh);
}

heddle_status hd_scan_order(heddle_order *out, hd_scan *scan, const heddle_shape *shape)
{
    heddle_order order;
    memset(&order, 0, sizeof order);
    unsigned seen = 0;
    hd_scan_space(scan);
    const char *start = scan->at;
    do {
        hd_scan_space(scan);
        const char *at = NULL;
        int dim = 0;
        heddle_status st = scan_known(&dim, &at, scan, shape, NULL);
        if (st != HEDDLE_OK) {
            return st;
        }
        if (seen & (1u << dim)) {
            return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, at, "dim '%s' appears twice in the memory order",
                                shape->dim[dim].name);
        }
        seen |= 1u << dim;
        order.dim[order.ndim++] = dim;
    } while (hd_scan_accept(scan, ","));
    if (order.ndim != shape->ndim) {
        return hd_scan_fail(scan, HEDDLE_ERR_LAYOUT, start, "the memory order names %d of %d dims", order.ndim,
                            shape->ndim);
    }
    heddle_order own;
    memset(&own, 0, sizeof own);
    *out = hd_order_equal(&order, &own, shape->ndim) ? own : order;
    return HEDDLE_OK;
}

heddle_status heddle_layout_parse(heddle_layout *out, const char *text, const heddle_shape *shape,
                                  const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    heddle_layout layout;
    hd_scan scan = {"layout", text, text};
    HD_TRY(HD_NEED(out, text, shape, mesh));
    HD_TRY(heddle_shape_check(shape));
    HD_TRY(heddle_mesh_check(mesh));
    HD_TRY(hd_scan_layout(&layout, &scan, shape, mesh));
    HD_TRY(hd_scan_end(&scan));
    *out = layout;
out:
    return st;
}

void hd_write_layout(hd_writer *writer, const heddle_layout *layout, const heddle_shape *shape, const heddle_mesh *mesh)
{
    int entries = 0;
    for (int a = 0; a < mesh->naxes; a++) {
        int dim = layout->dim_of_axis[a];
        if (dim == HEDDLE_REPLICATED) {
            continue;
        }
        hd_write(writer, "%s%s@%s", entries++ > 0 ? "," : "", dim >= 0 ? shape->dim[dim].name : "sum",
                 mesh->axis[a].name);
        const int64_t *block = blocks_if_uneven(layout, a);
        for (int i = 0; block != NULL && i < layout->nshards[a]; i++) {
            hd_write(writer, "%s%lld%s", i > 0 ? " " : "(", (long long)block[i],
                     i + 1 == layout->nshards[a] ? ")" : "");
        }
    }
    if (entries == 0) {
        hd_write(writer, "*");
    }
}

void hd_write_order(hd_writer *writer, const heddle_order *order, const heddle_shape *shape)
{
    for (int i = 0; i < shape->ndim; i++) {
        hd_write(writer, "%s%s", i > 0 ? "," : "", shape->dim[hd_order_dim(order, i)].name);
    }
}

heddle_status heddle_layout_format(char *out, size_t out_bytes, const heddle_layout *layout, const heddle_shape *shape,
                                   const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    hd_writer writer = {out, out_bytes, 0, 0};
    HD_TRY(HD_NEED(out, layout, shape, mesh));
    HD_TRY(heddle_layout_check(layout, shape, mesh));
    hd_write_layout(&writer, layout, shape, mesh);
    st = hd_writer_end(&writer, "layout");
out:
    return st;
}
