/* Streams of an emulated device that stand still, and what comes behind them. */
#ifndef HD_TEST_HELD_STREAMS_H
#define HD_TEST_HELD_STREAMS_H

#include "check.h"
#include "device_sim.h"
#include "runtime/base/base.h"

enum { HELD_LOOKS = 200 /* a millisecond each */ };

/* Has the stream come to its end after a while? */
static inline heddle_status stream_has_ended(int *out, const hd_device *device, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    void *event = NULL;
    *out = 0;
    HD_TRY(device->library->event_create(&event, device->number));
    HD_TRY(device->library->event_record(event, device->number, stream));
    for (int i = 0; i < HELD_LOOKS && !*out; i++) {
        usleep(1000);
        HD_TRY(device->library->event_test(event, device->number, out));
    }
out:
    device->library->event_destroy(event, device->number);
    return st;
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
