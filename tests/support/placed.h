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

/* Private memory of the process, or of the device. NULL: there is none. */
static inline void *placed_alloc(heddle_comm *comm, size_t bytes)
{
    void *memory = NULL;
    if (!placed_on_device(comm)) {
        return malloc(bytes + 1);
    }
    return heddle_buffer_alloc(&memory, comm, bytes + 1, HEDDLE_SPACE_DEVICE) == HEDDLE_OK ? memory : NULL;
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
