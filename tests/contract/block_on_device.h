/* A problem of a block whose block is on an emulated device, and arrays there. */
#ifndef HD_TEST_BLOCK_ON_DEVICE_H
#define HD_TEST_BLOCK_ON_DEVICE_H

#include "block_model.h"
#include "on_device.h"

typedef struct there {
    heddle_comm *comm;
    problem p; /* its block is on the device */
    heddle_conditioning conditioning;
} there;

/* Memory of the device with what the host has; NULL stays NULL. */
static inline void *placed_on(heddle_comm *comm, const void *host, size_t bytes)
{
    void *memory = NULL;
    if (host != NULL) {
        HD_OK(heddle_buffer_alloc(&memory, comm, bytes + 1, HEDDLE_SPACE_DEVICE));
        HD_OK(device_copy_now(comm, memory, host, bytes));
    }
    return memory;
}

static inline void *brought_back(heddle_comm *comm, const void *device, size_t bytes)
{
    void *memory = must_alloc((int64_t)bytes, 1);
    HD_OK(device_copy_now(comm, memory, device, bytes));
    return memory;
}

static inline void there_open(there *t, heddle_comm *comm, const heddle_block_options *options)
{
    heddle_block_options placed = *options;
    placed.space = HEDDLE_SPACE_DEVICE;
    placed.comm = comm;
    t->comm = comm;
    open_problem(&t->p, &placed);
    const size_t samples = (size_t)options->shape.dim[0].extent, row = (size_t)t->p.c * sizeof(float);
    t->conditioning = t->p.conditioning;
    t->conditioning.vector = placed_on(comm, t->p.conditioning.vector, samples * VECTOR_ROWS * row);
    t->conditioning.text = placed_on(comm, t->p.conditioning.text, samples * (size_t)options->text_tokens * row);
}

static inline void there_close(there *t)
{
    close_problem(&t->p);
    heddle_buffer_free(t->comm, (void *)(uintptr_t)t->conditioning.vector);
    heddle_buffer_free(t->comm, (void *)(uintptr_t)t->conditioning.text);
}

static inline heddle_tensor there_tensor(const there *t, void *data, const heddle_box *box)
{
    heddle_tensor x = box_tensor(t->p.block, data, box);
    x.space = HEDDLE_SPACE_DEVICE;
    x.device = heddle_comm_device(t->comm);
    return x;
}

static const heddle_dtype device_dtypes[] = {HEDDLE_F32, HEDDLE_BF16, HEDDLE_F16};

/* Any rows, whole fibres of the mixed dim. */
static inline heddle_box random_box(const heddle_block_options *options)
{
    const heddle_shape *shape = &options->shape;
    heddle_box box = whole_box(shape);
    for (int d = 0; d < shape->ndim - 1; d++) {
        const int64_t extent = shape->dim[d].extent;
        box.len[d] = d == options->mixed_dim ? extent : between(1, extent);
        box.lo[d] = between(0, extent - box.len[d]);
    }
    return box;
}

/* In place on host memory: there, and back. */
static inline void there_forward(there *t, void *x, const heddle_box *box)
{
    const size_t bytes = (size_t)heddle_box_elems(box) * heddle_dtype_bytes(t->p.options.shape.dtype);
    void *memory = placed_on(t->comm, x, bytes);
    const heddle_tensor tensor = there_tensor(t, memory, box);
    HD_OK(heddle_block_forward(t->p.block, &tensor, box, &t->conditioning, HEDDLE_NO_STREAM));
    HD_OK(device_copy_now(t->comm, x, memory, bytes));
    heddle_buffer_free(t->comm, memory);
}

#endif
