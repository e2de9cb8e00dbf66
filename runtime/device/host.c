/* Host memory as a device: every call is done when it returns, so an event has always happened. */
#include "runtime/base/base.h"
#include "runtime/device/device.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 256 };

static char happened; /* the one event; not NULL */

static heddle_status open_host(int *device, const char *which, int local_rank, char *describe, size_t describe_bytes)
{
    (void)which;
    (void)local_rank;
    *device = 0;
    snprintf(describe, describe_bytes, "memory of the host");
    return HEDDLE_OK;
}

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

static heddle_status copy(void *dst, int64_t dst_step_bytes, const void *src, int64_t src_step_bytes, int64_t run_bytes,
                          int64_t rows, int device, heddle_stream stream)
{
    (void)device;
    (void)stream;
    for (int64_t i = 0; i < rows && run_bytes > 0; i++) {
        memcpy((char *)dst + i * dst_step_bytes, (const char *)src + i * src_step_bytes, (size_t)run_bytes);
    }
    return HEDDLE_OK;
}

static heddle_status pin(void *memory, size_t bytes, int device)
{
    (void)memory;
    (void)bytes;
    (void)device;
    return HEDDLE_OK;
}

static void unpin(void *memory, int device)
{
    (void)memory;
    (void)device;
}

static heddle_status event_create(void **out, int device)
{
    (void)device;
    *out = &happened;
    return HEDDLE_OK;
}

static void event_destroy(void *event, int device)
{
    (void)event;
    (void)device;
}

static heddle_status event_record(void *event, int device, heddle_stream stream)
{
    (void)device;
    (void)event;
    (void)stream;
    return HEDDLE_OK;
}

static heddle_status event_test(void *event, int device, int *done)
{
    (void)event;
    (void)device;
    *done = 1;
    return HEDDLE_OK;
}

static heddle_status stream_wait(heddle_stream stream, void *event, int device)
{
    (void)device;
    (void)stream;
    (void)event;
    return HEDDLE_OK;
}

static heddle_status stream_captures(int *captures, int device, heddle_stream stream)
{
    (void)device;
    (void)stream;
    *captures = 0;
    return HEDDLE_OK;
}

static heddle_status look(heddle_space *space, int *device, const void *memory)
{
    (void)memory;
    *space = HEDDLE_SPACE_HOST;
    *device = 0;
    return HEDDLE_OK;
}

static heddle_status check(int device)
{
    (void)device;
    return HEDDLE_OK;
}

static const heddle_device host = {
    .struct_bytes = sizeof host,
    .name = "host",
    .space = HEDDLE_SPACE_HOST,
    .open = open_host,
    .alloc = alloc,
    .free = release,
    .copy = copy,
    .pin = pin,
    .unpin = unpin,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_test = event_test,
    .stream_wait = stream_wait,
    .stream_captures = stream_captures,
    .look = look,
    .check = check,
};

const heddle_device *heddle_device_host(void)
{
    return &host;
}
