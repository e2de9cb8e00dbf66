/* Unchecked inner forms of heddle/layout.h, for loops over ranks, and checks shared between files. */
#ifndef HD_ALGEBRA_H
#define HD_ALGEBRA_H

#include "runtime/base/base.h"
#include <heddle/layout.h>
#include <heddle/sys/index.h>

/* Bytes of a tensor, those that an array's strides reach over, and those that a reshard moves, the parts that stay
 * included, are at most so many, so that no sum overflows 64 bits. */
#define HD_MAX_BYTES ((int64_t)1 << 62)

/* Explicit lengths of axis a, or NULL when its blocks are balanced. */
const int64_t *hd_layout_blocks(const heddle_layout *layout, int axis);
/* heddle_layout_box for values that have been checked. */
void hd_layout_box(heddle_box *out, const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout,
                   const int *coords);
/* heddle_box_reach for a box of the shape, both checked. */
heddle_status hd_box_reach(int64_t *out_bytes, const heddle_box *box, const int64_t *stride_elems,
                           const heddle_shape *shape, int is_written);
void hd_mesh_coords(int *coords, const heddle_mesh *mesh, int rank);

/* Type and extents, and with `names` the names of the dims, of `x`; `what` it is and `whose` shape it must have begin
 * the two halves of the sentence ("x", "the block works on"). HEDDLE_ERR_LAYOUT. */
heddle_status hd_shape_need(const heddle_shape *x, const heddle_shape *wanted, int names, const char *what,
                            const char *whose);

/* 1 when the lengths are what a balanced split of their sum gives. */
int hd_blocks_are_balanced(const int64_t *block, int n);
heddle_status hd_order_check(const heddle_order *order, const heddle_shape *shape);
/* 1 when both mean the same memory order. */
int hd_order_equal(const heddle_order *a, const heddle_order *b, int ndim);
/* Dim at position `i` of the order. */
int hd_order_dim(const heddle_order *order, int i);

#endif
