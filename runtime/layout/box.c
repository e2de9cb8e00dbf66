/* Which part of a tensor a rank holds, and how it lies in memory. */
#include "runtime/layout/algebra.h"

#include <heddle/tensor.h>
#include <string.h>

int heddle_mesh_size(const heddle_mesh *mesh)
{
    int size = mesh != NULL;
    for (int a = 0; mesh != NULL && a < mesh->naxes; a++) {
        size *= mesh->axis[a].size;
    }
    return size;
}

/* rank = ((coords[0] * size[1]) + coords[1]) * size[2] + ...: the last axis counts fastest. */
void hd_mesh_coords(int *coords, const heddle_mesh *mesh, int rank)
{
    for (int a = mesh->naxes - 1; a >= 0; a--) {
        coords[a] = rank % mesh->axis[a].size;
        rank /= mesh->axis[a].size;
    }
}

static heddle_status check_rank(const heddle_mesh *mesh, int rank)
{
    int size = heddle_mesh_size(mesh);
    if (rank < 0 || rank >= size) {
        return hd_fail(HEDDLE_ERR_ARG, "rank %d on a mesh of %d ranks", rank, size);
    }
    return HEDDLE_OK;
}

heddle_status heddle_mesh_coords(int *coords, const heddle_mesh *mesh, int rank)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(coords, mesh));
    HD_TRY(heddle_mesh_check(mesh));
    HD_TRY(check_rank(mesh, rank));
    hd_mesh_coords(coords, mesh, rank);
out:
    return st;
}

/* Starts with the whole tensor and cuts it once per axis. Axes of one dim cut one after the other, the major one
 * first, so an inner block always lies inside its outer one. Never fails: its arguments have been checked. */
void hd_layout_box(heddle_box *out, const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout,
                   const int *coords)
{
    memset(out, 0, sizeof *out);
    out->ndim = shape->ndim;
    for (int d = 0; d < shape->ndim; d++) {
        out->len[d] = shape->dim[d].extent;
    }
    for (int a = 0; a < mesh->naxes; a++) {
        int d = layout->dim_of_axis[a];
        if (d >= 0) {
            heddle_range_narrow(&out->lo[d], &out->len[d], hd_layout_blocks(layout, a), mesh->axis[a].size, coords[a]);
        }
    }
}

/* The public form of hd_layout_box: it checks everything first. */
heddle_status heddle_layout_box(heddle_box *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                const heddle_layout *layout, int rank)
{
    heddle_status st = HEDDLE_OK;
    int coords[HEDDLE_MAX_AXES];
    HD_TRY(HD_NEED(out, shape, mesh, layout));
    HD_TRY(heddle_layout_check(layout, shape, mesh));
    HD_TRY(check_rank(mesh, rank));
    hd_mesh_coords(coords, mesh, rank);
    hd_layout_box(out, shape, mesh, layout, coords);
out:
    return st;
}

int64_t heddle_box_elems(const heddle_box *box)
{
    int64_t elems = box != NULL;
    for (int d = 0; box != NULL && d < box->ndim; d++) {
        elems *= box->len[d];
    }
    return elems;
}

/* Place i of the memory order, outermost first. No order is the order of the shape. */
int hd_order_dim(const heddle_order *order, int i)
{
    return order == NULL || order->ndim == 0 ? i : order->dim[i];
}

int hd_order_equal(const heddle_order *a, const heddle_order *b, int ndim)
{
    for (int i = 0; i < ndim; i++) {
        if (hd_order_dim(a, i) != hd_order_dim(b, i)) {
            return 0;
        }
    }
    return 1;
}

heddle_status hd_order_check(const heddle_order *order, const heddle_shape *shape)
{
    if (order == NULL || order->ndim == 0) {
        return HEDDLE_OK;
    }
    if (order->ndim != shape->ndim) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "the memory order names %d dims, the shape has %d", order->ndim, shape->ndim);
    }
    unsigned seen = 0;
    for (int i = 0; i < order->ndim; i++) {
        int d = order->dim[i];
        if (d < 0 || d >= shape->ndim || (seen & (1u << d))) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "entry %d of the memory order is dim %d: %s", i, d,
                           d < 0 || d >= shape->ndim ? "no such dim" : "named before");
        }
        seen |= 1u << d;
    }
    return HEDDLE_OK;
}

/* Dense strides in the given order. A box without elements gets strides as if it had one in each empty dim: no
 * stride is 0, so nobody divides by it or takes two elements for one. */
void heddle_box_strides(int64_t *stride_elems, const heddle_box *box, const heddle_order *order)
{
    int64_t stride = 1;
    for (int i = stride_elems != NULL && box != NULL ? box->ndim - 1 : -1; i >= 0; i--) {
        int d = hd_order_dim(order, i);
        int64_t len = box->len[d] > 0 ? box->len[d] : 1; /* stride_elems may be box->len */
        stride_elems[d] = stride;
        stride *= len;
    }
}

static heddle_status check_apart(const heddle_box *box, const int64_t *stride_elems, const heddle_shape *shape)
{
    int dim[HEDDLE_MAX_DIMS], n = 0;
    int64_t below = 0;
    for (int d = 0; d < box->ndim; d++) {
        if (box->len[d] == 1) {
            continue;
        }
        int j = n++;
        for (; j > 0 && stride_elems[dim[j - 1]] > stride_elems[d]; j--) {
            dim[j] = dim[j - 1];
        }
        dim[j] = d;
    }
    for (int i = 0; i < n; i++) { /* ascending strides: each steps over all that lies below it */
        if (stride_elems[dim[i]] <= below) {
            return hd_fail(HEDDLE_ERR_ARG,
                           "stride of dim %s is %lld elements, but its rows reach over %lld: elements that are written "
                           "share no memory",
                           shape->dim[dim[i]].name, (long long)stride_elems[dim[i]], (long long)(below + 1));
        }
        below += stride_elems[dim[i]] * (box->len[dim[i]] - 1);
    }
    return HEDDLE_OK;
}

heddle_status hd_box_reach(int64_t *out_bytes, const heddle_box *box, const int64_t *stride_elems,
                           const heddle_shape *shape, int is_written)
{
    const int64_t elem_bytes = (int64_t)heddle_dtype_bytes(shape->dtype), most = HD_MAX_BYTES / elem_bytes - 1;
    int64_t last = 0, reach = 0;
    *out_bytes = 0;
    if (heddle_box_elems(box) == 0) {
        return HEDDLE_OK;
    }
    for (int d = 0; d < box->ndim; d++) {
        if (box->len[d] == 1) {
            continue;
        }
        if (stride_elems[d] < 0) {
            return hd_fail(HEDDLE_ERR_ARG, "stride of dim %s is %lld elements, less than 0", shape->dim[d].name,
                           (long long)stride_elems[d]);
        }
        if (__builtin_mul_overflow(stride_elems[d], box->len[d] - 1, &reach) || reach > most - last) {
            return hd_fail(HEDDLE_ERR_ARG,
                           "stride of dim %s is %lld elements for %lld rows of %s: the array reaches beyond 2^62 bytes",
                           shape->dim[d].name, (long long)stride_elems[d], (long long)box->len[d],
                           heddle_dtype_name(shape->dtype));
        }
        last += reach;
    }
    *out_bytes = (last + 1) * elem_bytes;
    return is_written ? check_apart(box, stride_elems, shape) : HEDDLE_OK;
}

heddle_status heddle_box_reach(int64_t *out_bytes, const heddle_box *box, const int64_t *stride_elems,
                               const heddle_shape *shape, int is_written)
{
    heddle_status st = HEDDLE_OK;
    int64_t bytes = 0;
    HD_TRY(HD_NEED(out_bytes, box, stride_elems, shape));
    HD_TRY(heddle_shape_check(shape));
    if (box->ndim != shape->ndim) {
        return hd_fail(HEDDLE_ERR_ARG, "the box has %d dims, the shape has %d", box->ndim, shape->ndim);
    }
    for (int d = 0; d < box->ndim; d++) {
        if (box->len[d] < 0 || box->len[d] > shape->dim[d].extent) {
            return hd_fail(HEDDLE_ERR_ARG, "the box has %lld of dim %s, the shape has %lld", (long long)box->len[d],
                           shape->dim[d].name, (long long)shape->dim[d].extent);
        }
    }
    HD_TRY(hd_box_reach(&bytes, box, stride_elems, shape, is_written));
    *out_bytes = bytes;
out:
    return st;
}

heddle_status heddle_tensor_init(heddle_tensor *out, void *data, const heddle_shape *shape, const heddle_mesh *mesh,
                                 const heddle_layout *layout, const heddle_order *order, int rank)
{
    heddle_status st = HEDDLE_OK;
    heddle_box box;
    HD_TRY(HD_NEED(out, shape, mesh, layout));
    HD_TRY(heddle_layout_box(&box, shape, mesh, layout, rank));
    HD_TRY(hd_order_check(order, shape));
    int64_t elems = heddle_box_elems(&box);
    if (data == NULL && elems > 0) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_tensor_init: data is NULL, but rank %d holds %lld elements", rank,
                       (long long)elems);
    }
    heddle_tensor made; /* shape and layout may be those of *out */
    memset(&made, 0, sizeof made);
    made.data = data;
    made.capacity_bytes = (size_t)elems * heddle_dtype_bytes(shape->dtype);
    made.shape = *shape;
    made.layout = *layout;
    heddle_box_strides(made.stride_elems, &box, order);
    *out = made;
out:
    return st;
}
