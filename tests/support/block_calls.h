/* Calls of blocks on plain memory that holds a box, dense; NULL is passed on. */
#ifndef HD_TEST_BLOCK_CALLS_H
#define HD_TEST_BLOCK_CALLS_H

#include "runtime/block/back_internal.h"

#include <heddle/block.h>
#include <heddle/train/tape.h>

static inline heddle_tensor box_tensor(const heddle_block *block, void *data, const heddle_box *box)
{
    heddle_tensor x = {.data = data};
    if (block != NULL && box != NULL) {
        x.shape = block->options.shape;
        x.capacity_bytes = (size_t)heddle_box_elems(box) * heddle_dtype_bytes(x.shape.dtype);
        heddle_box_strides(x.stride_elems, box, NULL);
    }
    return x;
}

static inline heddle_status forward_on(heddle_block *block, void *data, const heddle_box *box,
                                       const heddle_conditioning *conditioning)
{
    const heddle_tensor x = box_tensor(block, data, box);
    return heddle_block_forward(block, data != NULL ? &x : NULL, box, conditioning, HEDDLE_NO_STREAM);
}

static inline heddle_status forward_tape_on(heddle_block *block, void *data, const heddle_box *box,
                                            const heddle_conditioning *conditioning, heddle_tape *tape)
{
    const heddle_tensor x = box_tensor(block, data, box);
    return heddle_block_forward_tape(block, data != NULL ? &x : NULL, box, conditioning, tape, HEDDLE_NO_STREAM);
}

static inline heddle_status backward_on(heddle_block *block, void *data, const heddle_conditioning *conditioning,
                                        const heddle_conditioning_gradient *dconditioning, heddle_tape *tape)
{
    const heddle_tensor dx = box_tensor(block, data, tape != NULL ? &tape->box : NULL);
    return heddle_block_backward(block, data != NULL ? &dx : NULL, conditioning, dconditioning, tape, HEDDLE_NO_STREAM);
}

#endif
