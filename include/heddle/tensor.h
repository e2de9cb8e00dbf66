/* A tensor as a rank sees it: the global shape, the layout it is in, and how its local part is stored. */
#ifndef HEDDLE_TENSOR_H
#define HEDDLE_TENSOR_H

#include <heddle/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A plain value. heddle never owns `data`. stride_elems is per dim of `shape` (not of the memory order). */
typedef struct heddle_tensor {
    void *data;           /* local part; may be NULL when the box is empty */
    size_t data_bytes;    /* bytes that may be accessed from data on */
    heddle_shape shape;   /* global */
    heddle_layout layout; /* on the mesh of the session or reshard it is used with */
    int64_t stride_elems[HEDDLE_MAX_DIMS];
} heddle_tensor;

/* Describe a dense local array in memory order `order` (NULL = the shape's). data_bytes is set to its exact size.
 * Errors: those of heddle_layout_box. */
HEDDLE_API heddle_status heddle_tensor_init(heddle_tensor *out, void *data, const heddle_shape *shape,
                                            const heddle_mesh *mesh, const heddle_layout *layout,
                                            const heddle_order *order, int rank);

#ifdef __cplusplus
}
#endif

#endif
