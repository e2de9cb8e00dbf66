/* What heddle asks of a device library: memory, copies and events in the order of a stream.
 *
 * One table per library; the host's own is built in, where work is done when a call returns. A device is not a
 * transport: who the ranks are, deadlines and aborts stay with the communicator. The functions return heddle_status; on
 * failure they say why with heddle_set_error. `device` is the library's number of a device, 0 on the host. */
#ifndef HEDDLE_DEVICE_H
#define HEDDLE_DEVICE_H

#include <heddle/export.h>
#include <heddle/space.h>
#include <heddle/status.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_device {
    size_t struct_bytes;
    const char *name; /* "host" */
    heddle_space space;
    /* At least 256-byte aligned, not zeroed. HEDDLE_ERR_NOMEM names the bytes. */
    heddle_status (*alloc)(void **out, int device, size_t bytes);
    void (*free)(void *memory, int device); /* NULL is legal */
    /* Between memory of this space and of the host, either way, in stream order. */
    heddle_status (*copy)(void *dst, const void *src, size_t bytes, int device, heddle_stream stream);
    heddle_status (*event_create)(void **out, int device);
    void (*event_destroy)(void *event); /* NULL is legal */
    /* The event happens when what was enqueued on the stream so far is done. */
    heddle_status (*event_record)(void *event, heddle_stream stream);
    heddle_status (*event_test)(void *event, int *done);
    /* What is enqueued on the stream from now on waits for the event; the calling thread does not. */
    heddle_status (*stream_wait)(heddle_stream stream, void *event);
} heddle_device;

/* The built-in table of host memory. Static storage. */
HEDDLE_API const heddle_device *heddle_device_host(void);

#ifdef __cplusplus
}
#endif

#endif
