/* Streams of an emulated device that stand still, and what comes behind them. */
#ifndef HD_TEST_HELD_STREAMS_H
#define HD_TEST_HELD_STREAMS_H

#include "check.h"
#include "device_sim.h"
#include "runtime/base/base.h"

enum { HELD_NS = 200000000 };

/* Does the stream come to its end within that time? */
static inline heddle_status stream_ends(int *out, const hd_device *device, heddle_stream stream, int64_t within_ns)
{
    heddle_status st = HEDDLE_OK;
    void *event = NULL;
    const int64_t until_ns = hd_now_ns() + within_ns;
    *out = 0;
    HD_TRY(device->library->event_create(&event, device->number));
    HD_TRY(device->library->event_record(event, device->number, stream));
    do {
        usleep(1000);
        HD_TRY(device->library->event_test(event, device->number, out));
    } while (!*out && hd_now_ns() < until_ns);
out:
    device->library->event_destroy(event, device->number);
    return st;
}

/* Of one that is to stand still: does it go on all the same? */
static inline heddle_status stream_has_ended(int *out, const hd_device *device, heddle_stream stream)
{
    return stream_ends(out, device, stream, HELD_NS);
}

/* *b is made again, under the handle of *a, which is gone before it has done what was given to it. */
static inline heddle_status stream_comes_again(heddle_stream *a, heddle_stream *b, const hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    const heddle_stream gone = *a;
    device->library->stream_destroy(*b, device->number);
    device->library->stream_destroy(*a, device->number);
    *a = *b = HEDDLE_NO_STREAM;
    HD_TRY(device->library->stream_create(b, device->number));
    CHECK(*b == gone);
out:
    return st;
}

#endif
