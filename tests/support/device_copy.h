/* Copies between a test's memory and that of a communicator's device. */
#ifndef HD_TEST_DEVICE_COPY_H
#define HD_TEST_DEVICE_COPY_H

#include "runtime/comm/comm_internal.h"

#include <unistd.h>

/* Enqueue a copy of bytes in the host's or the device's memory. */
static inline heddle_status device_copy(const heddle_comm *comm, void *dst, const void *src, size_t bytes,
                                        heddle_stream stream)
{
    const hd_device *device = hd_comm_device(comm);
    return device->library->copy(dst, 0, src, 0, (int64_t)bytes, 1, device->number, stream);
}

/* Wait until the stream has come so far. */
static inline heddle_status device_settle(const heddle_comm *comm, heddle_stream stream)
{
    const hd_device *device = hd_comm_device(comm);
    void *event = NULL;
    int done = 0;
    heddle_status st = device->library->event_create(&event, device->number);
    st = st == HEDDLE_OK ? device->library->event_record(event, device->number, stream) : st;
    while (st == HEDDLE_OK && !done) {
        usleep(50);
        st = device->library->event_test(event, device->number, &done);
    }
    device->library->event_destroy(event, device->number);
    return st;
}

/* Done on return. */
static inline heddle_status device_copy_now(const heddle_comm *comm, void *dst, const void *src, size_t bytes)
{
    heddle_status st = device_copy(comm, dst, src, bytes, HEDDLE_NO_STREAM);
    return st == HEDDLE_OK ? device_settle(comm, HEDDLE_NO_STREAM) : st;
}

#endif
