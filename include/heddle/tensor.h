/* A tensor as a rank sees it: the global shape, the layout it is in, and how its local part is stored.
 *
 * A plain value that may be copied and made by hand. The local part is the box that heddle_layout_box gives for the
 * rank; element (i0, i1, ...) of it, counted from the box's lower corner, is at data + (i0*stride[0] + i1*stride[1] +
 * ...) * heddle_dtype_bytes(dtype). Strides need not be dense: a framework's slice or permuted view is described as it
 * lies. Zeroed fields `space` and `device` are host memory. Another space wants a device attached to the communicator;
 * without one whoever is given the tensor returns HEDDLE_ERR_UNSUPPORTED, which names tensor and transport.
 */
#ifndef HEDDLE_TENSOR_H
#define HEDDLE_TENSOR_H

#include <heddle/layout.h>
#include <heddle/space.h>

#ifdef __cplusplus
extern "C" {
#endif

/* heddle never owns `data`. stride_elems is per dim of `shape` (not of the memory order), in elements. */
typedef struct heddle_tensor {
    void *data;            /* local part; may be NULL when the box is empty */
    size_t capacity_bytes; /* bytes that may be accessed from data on */
    heddle_shape shape;    /* global */
    heddle_layout layout;  /* on the mesh of the session or reshard it is used with */
    int64_t stride_elems[HEDDLE_MAX_DIMS];
    heddle_space space; /* of data; 0 is host memory */
    int device;         /* of its space; 0 on the host */
} heddle_tensor;

/* Describe a dense local array in host memory of `rank` in memory order `order` (NULL = the shape's). capacity_bytes is
 * set to its exact size. shape and layout may be those of *out. Pure; any thread. HEDDLE_ERR_ARG: no such rank, a
 * pointer is NULL (data: although the rank holds elements); HEDDLE_ERR_LAYOUT: shape, mesh, layout or order are not
 * valid. */
HEDDLE_CHECKED heddle_status heddle_tensor_init(heddle_tensor *out, void *data, const heddle_shape *shape,
                                                const heddle_mesh *mesh, const heddle_layout *layout,
                                                const heddle_order *order, int rank);

#ifdef __cplusplus
}
#endif

#endif
