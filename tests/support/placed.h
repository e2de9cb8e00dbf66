/* Where a test's arrays lie: in the memory of the communicator's device where it has one, else on the host. A program
 * whose ranks get a device is an ordinary one that is started with HEDDLE_TEST_DEVICE (ranks_on_device.c). */
#ifndef HD_TEST_PLACED_H
#define HD_TEST_PLACED_H

#include "device_copy.h"

#include <stdlib.h>

/* The calling rank's own stream, where ranks_on_device.c has made one: ranks of one device would wait for one another
 * on its default stream for ever. Else HEDDLE_NO_STREAM. */
extern _Thread_local heddle_stream placed_stream;

static inline int placed_on_device(const heddle_comm *comm)
{
    return heddle_comm_device(comm) >= 0;
}

static inline heddle_space placed_space(const heddle_comm *comm)
{
    return placed_on_device(comm) ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
}

/* What options and tensors of that space have as `device`. */
static inline int placed_device(const heddle_comm *comm)
{
    return placed_on_device(comm) ? heddle_comm_device(comm) : 0;
}

/* Memory of the device for ranks that are threads, made before any of them executes anything: CUDA may wait where it
 * allocates, for kernels that wait for this rank. */
enum { PLACED_STORE_BYTES = 1 << 20, PLACED_ALIGNMENT = 256 };
typedef struct placed_memory {
    char *base; /* NULL: ranks are processes, and every array has memory of its own */
    size_t used_bytes;
} placed_memory;
extern _Thread_local placed_memory placed_store;

/* Private memory of the process, or of the device. NULL: there is none. */
static inline void *placed_alloc(heddle_comm *comm, size_t bytes)
{
    void *memory = NULL;
    if (!placed_on_device(comm)) {
        return malloc(bytes + 1);
    }
    const size_t whole = (bytes / PLACED_ALIGNMENT + 1) * PLACED_ALIGNMENT;
    if (placed_store.base != NULL && placed_store.used_bytes + whole <= PLACED_STORE_BYTES) {
        placed_store.used_bytes += whole;
        return placed_store.base + placed_store.used_bytes - whole;
    }
    return heddle_buffer_alloc(&memory, comm, bytes + 1, HEDDLE_SPACE_DEVICE) == HEDDLE_OK ? memory : NULL;
}

/* As heddle_buffer_alloc, and on a device as placed_alloc. */
static inline heddle_status placed_buffer(void **out, heddle_comm *comm, size_t bytes)
{
    if (!placed_on_device(comm)) {
        return heddle_buffer_alloc(out, comm, bytes, HEDDLE_SPACE_HOST);
    }
    *out = placed_alloc(comm, bytes);
    return *out != NULL ? HEDDLE_OK : HEDDLE_ERR_NOMEM;
}

/* A device's memory goes with the communicator, when the rank's function has returned: to free some now may wait until
 * the device is idle, where a kernel of another rank waits for this one. */
static inline void placed_free(heddle_comm *comm, void *memory)
{
    if (!placed_on_device(comm)) {
        free(memory);
    }
}

/* Done on return. */
static inline heddle_status placed_copy(const heddle_comm *comm, void *dst, const void *src, size_t bytes)
{
    heddle_status st = device_copy(comm, dst, src, bytes, placed_stream);
    return st == HEDDLE_OK ? device_settle(comm, placed_stream) : st;
}

/* Bytes to look at and to change, until placed_return: the array itself, or a copy of what the device has. */
static inline void *placed_borrow(const heddle_comm *comm, void *memory, size_t bytes)
{
    if (!placed_on_device(comm) || memory == NULL) {
        return memory;
    }
    void *image = malloc(bytes + 1);
    if (image != NULL && bytes > 0 && placed_copy(comm, image, memory, bytes) != HEDDLE_OK) {
        abort();
    }
    return image;
}

/* What was changed is in the array again. */
static inline void placed_return(const heddle_comm *comm, void *memory, void *image, size_t bytes)
{
    if (image == memory) {
        return;
    }
    if (bytes > 0 && placed_copy(comm, memory, image, bytes) != HEDDLE_OK) {
        abort();
    }
    free(image);
}

#endif
