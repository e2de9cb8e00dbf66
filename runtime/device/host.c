/* Host memory as a device: every call is done when it returns, so an event has always happened. */
#include "runtime/base/base.h"
#include "runtime/device/device.h"

#include <string.h>

enum { ALIGNMENT = 256 };

static char happened; /* the one event; not NULL */

static heddle_status alloc(void **out, int device, size_t bytes)
{
    (void)device;
    return hd_alloc_aligned(out, ALIGNMENT, bytes > 0 ? bytes : 1, "host memory");
}

static void release(void *memory, int device)
{
    (void)device;
    hd_free(memory);
}

static heddle_status copy(void *dst, const void *src, size_t bytes, int device, heddle_stream stream)
{
    (void)device;
    (void)stream;
    if (bytes > 0) {
        memcpy(dst, src, bytes);
    }
    return HEDDLE_OK;
}

static heddle_status event_create(void **out, int device)
{
    (void)device;
    *out = &happened;
    return HEDDLE_OK;
}

static void event_destroy(void *event)
{
    (void)event;
}

static heddle_status event_record(void *event, heddle_stream stream)
{
    (void)event;
    (void)stream;
    return HEDDLE_OK;
}

static heddle_status event_test(void *event, int *done)
{
    (void)event;
    *done = 1;
    return HEDDLE_OK;
}

static heddle_status stream_wait(heddle_stream stream, void *event)
{
    (void)stream;
    (void)event;
    return HEDDLE_OK;
}

static const heddle_device host = {
    .struct_bytes = sizeof host,
    .name = "host",
    .space = HEDDLE_SPACE_HOST,
    .alloc = alloc,
    .free = release,
    .copy = copy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_test = event_test,
    .stream_wait = stream_wait,
};

const heddle_device *heddle_device_host(void)
{
    return &host;
}
