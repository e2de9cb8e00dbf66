/* Elements of dense boxes. */
#ifndef HD_TEST_GLOBAL_INDEX_H
#define HD_TEST_GLOBAL_INDEX_H

#include <heddle/layout.h>

/* Of element `i` of a dense box, in the whole tensor. */
static inline int64_t global_index(const heddle_shape *shape, const heddle_box *box, int64_t i)
{
    int64_t global = 0, step = 1;
    for (int d = box->ndim - 1; d >= 0; d--) {
        global += (box->lo[d] + i % box->len[d]) * step;
        i /= box->len[d];
        step *= shape->dim[d].extent;
    }
    return global;
}

#endif
