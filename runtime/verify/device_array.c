/* Copies and waits of judges, with the device's own table. */
#include "runtime/verify/device_array.h"

#include <heddle/sys/device.h>
#include <time.h>

enum { PATIENCE_S = 60 };

heddle_status judge_stream_create(heddle_stream *out, const heddle_comm *comm)
{
    const heddle_device *table = heddle_comm_device_table(comm);
    *out = HEDDLE_NO_STREAM;
    return table != NULL && table->stream_create != NULL ? table->stream_create(out, heddle_comm_device(comm))
                                                         : HEDDLE_OK;
}

void judge_stream_destroy(const heddle_comm *comm, heddle_stream stream)
{
    if (stream != HEDDLE_NO_STREAM) {
        heddle_comm_device_table(comm)->stream_destroy(stream, heddle_comm_device(comm));
    }
}

heddle_status judge_device_settle(const heddle_comm *comm, heddle_stream stream)
{
    const heddle_device *table = heddle_comm_device_table(comm);
    const int device = heddle_comm_device(comm);
    const struct timespec nap = {.tv_nsec = 20000};
    struct timespec start, now;
    void *event = NULL;
    int done = 0;
    heddle_status st = table->event_create(&event, device);
    st = st == HEDDLE_OK ? table->event_record(event, device, stream) : st;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (st == HEDDLE_OK && (st = table->event_test(event, device, &done)) == HEDDLE_OK && !done) {
        nanosleep(&nap, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - start.tv_sec > PATIENCE_S) {
            st = heddle_set_error(HEDDLE_ERR_TIMEOUT, "device %d has not done what it was given within %d s", device,
                                  PATIENCE_S);
        }
    }
    table->event_destroy(event, device);
    return st;
}

heddle_status judge_device_copy(const heddle_comm *comm, void *dst, const void *src, size_t bytes, heddle_stream stream)
{
    const heddle_device *table = heddle_comm_device_table(comm);
    heddle_status st = table->copy(dst, 0, src, 0, (int64_t)bytes, 1, heddle_comm_device(comm), stream);
    return st == HEDDLE_OK ? judge_device_settle(comm, stream) : st;
}
