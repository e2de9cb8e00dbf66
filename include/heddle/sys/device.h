/* Bring your own device: what heddle asks of a device library, libheddle_NAME.so.
 *
 * A library serves the devices of one kind: memory, copies and events in the order of a stream. The host's own table is
 * built in, where work is done when a call returns. A device is not a transport: who the ranks are, deadlines and
 * aborts stay with the communicator, which gets a device attached (heddle_comm_attach_device).
 *
 * The functions return heddle_status; on failure they say why with what their library got as `fail`. `device` is the
 * library's number of a device, 0 on the host. They may be called by any thread, of several communicators at a time,
 * and leave the calling thread's current device and context as they are; none: none. None of them waits for work that
 * is enqueued, unless it says so.
 */
#ifndef HEDDLE_DEVICE_H
#define HEDDLE_DEVICE_H

#include <heddle/comm.h>
#include <heddle/export.h>
#include <heddle/space.h>
#include <heddle/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What other processes of the host are told of memory so that they can have it, too. */
typedef struct heddle_device_name {
    unsigned char bytes[64];
} heddle_device_name;

typedef struct heddle_device {
    size_t struct_bytes;
    const char *name; /* "host", "cuda" */
    heddle_space space;
    /* The number of the device that `which` names: "" the local_rank-th, beginning again behind the last one; "3";
     * "current" the calling thread's. Makes it ready, and describes it in a few words. HEDDLE_ERR_UNSUPPORTED: there is
     * no driver, no such device, or the process cannot use one; the sentence says what is missing. */
    heddle_status (*open)(int *device, const char *which, int local_rank, char *describe, size_t describe_bytes);
    /* At least 256-byte aligned, not zeroed. HEDDLE_ERR_NOMEM names the bytes. */
    heddle_status (*alloc)(void **out, int device, size_t bytes);
    void (*free)(void *memory, int device); /* NULL is legal */
    /* Between memory of this space and of the host, either way, or within this space, in stream order: `rows` runs of
     * run_bytes, their beginnings dst_step_bytes and src_step_bytes apart (rows > 1: at least run_bytes). Memory of the
     * host is free when the stream is past it. */
    heddle_status (*copy)(void *dst, int64_t dst_step_bytes, const void *src, int64_t src_step_bytes, int64_t run_bytes,
                          int64_t rows, int device, heddle_stream stream);
    /* Memory of the host that copies read and write without help of the host, until unpin. It may fail: then they are
     * slow. */
    heddle_status (*pin)(void *memory, size_t bytes, int device);
    void (*unpin)(void *memory, int device);
    heddle_status (*event_create)(void **out, int device);
    void (*event_destroy)(void *event, int device); /* NULL is legal */
    /* The event happens when what was enqueued on the stream so far is done. */
    heddle_status (*event_record)(void *event, int device, heddle_stream stream);
    heddle_status (*event_test)(void *event, int device, int *done);
    /* What is enqueued on the stream from now on waits for the event; the calling thread does not. */
    heddle_status (*stream_wait)(heddle_stream stream, void *event, int device);
    /* 1: what is enqueued on the stream is recorded for later (a graph), nothing happens now. */
    heddle_status (*stream_captures)(int *captures, int device, heddle_stream stream);
    /* Where memory lies: its space, and the number of the device. What the library does not know is the host's. */
    heddle_status (*look)(heddle_space *space, int *device, const void *memory);
    /* What has gone wrong on the device, if anything has; the sentence of the call that it is due to may be lost. */
    heddle_status (*check)(int device);

    /* What follows is for wires between devices (heddle_wire). All of it is NULL in a library that has no kernels: then
     * arrays of its devices go through host memory. */

    const void *kernels; /* launchers, of heddle's own form (hd_device_kernels in kernels/table_device.h) */
    /* The device that the calling thread launches kernels on, until leave; *before: for leave, in pairs. */
    heddle_status (*enter)(int *before, int device);
    void (*leave)(int before);
    /* What a launcher returned, in words. 0: HEDDLE_OK. */
    heddle_status (*status)(int code, int device, const char *call);
    /* A stream that the default stream of the device has no order with. What is in it comes before what others have
     * that has not begun: peers wait for it. */
    heddle_status (*stream_create)(heddle_stream *out, int device);
    void (*stream_destroy)(heddle_stream stream, int device); /* NULL is legal */
    /* For who measures: an event that also says when it happened, for event_record, event_test and event_destroy; the
     * time between two that have happened; and a graph of what this thread enqueues on the stream between begin and
     * end, which begins no execution of it. */
    heddle_status (*timer_create)(void **out, int device);
    heddle_status (*timer_read)(double *ms, void *begin, void *end, int device);
    heddle_status (*capture_begin)(int device, heddle_stream stream);
    heddle_status (*capture_end)(void **graph, int device, heddle_stream stream);
    heddle_status (*graph_launch)(void *graph, int device, heddle_stream stream);
    void (*graph_destroy)(void *graph, int device); /* NULL is legal */
    /* How many blocks of kernels that wait for other ranks the device is sure to run at the same time, all ranks that
     * share it together. */
    heddle_status (*blocks)(int *blocks, int device);
    /* A word of at most 32 letters for the device: the same in all processes, and no other device's on any host. */
    heddle_status (*identify)(char *out, size_t bytes, int device);
    /* Kernels of `device` may touch the memory of `peer`, too, a device of the same process. HEDDLE_ERR_UNSUPPORTED:
     * they cannot reach it. */
    heddle_status (*reach)(int device, int peer);
    /* *is_reached: memory of `device` is among what `reach` is about. Not what a pool gave out, say, which is reached
     * by those whom its owner lets. */
    heddle_status (*ask_reached)(int *is_reached, const void *memory, int device);
    /* Kernels of `device` store there what lies on `device`, as those of wires do where a copy might go another way: a
     * multiple of 16 bytes, in stream order. It may wait for what the device does. */
    heddle_status (*store)(void *dst, const void *src, size_t bytes, int device, heddle_stream stream);
    /* Memory of `alloc`, for other processes. All three are NULL in a library whose memory stays in its process. */
    heddle_status (*share)(heddle_device_name *out, void *memory, int device);
    /* Where kernels of `device` find what another process has shared, until unmap; once for each name and
     * communicator. Not while kernels wait for other ranks: it may wait for them. */
    heddle_status (*map)(void **out, const heddle_device_name *name, int device);
    void (*unmap)(void *memory, int device); /* before the memory is freed there */
    /* Memory that the program has of the library itself (heddle/cuda.h), for `share`: the piece of `device` that lies
     * next behind `after` (NULL: the first). *memory NULL: there is none. Until let_go, which every hold wants, it is
     * not given back to the device, whatever the program does. Both are NULL in a library that gives none out. */
    void (*hold)(void **memory, size_t *bytes, int device, const void *after);
    void (*let_go)(void *memory);
    /* Bytes of memory that the device has in all. NULL in a library that has no kernels. */
    heddle_status (*memory)(int64_t *bytes, int device);
} heddle_device;

/* The built-in table of host memory. Static storage. */
HEDDLE_API const heddle_device *heddle_device_host(void);
/* The table of the device that is attached to comm, for its number heddle_comm_device: so that who measures or judges
 * heddle copies and waits as it does itself. Valid as long as comm. NULL: none, or comm is NULL. */
HEDDLE_API const heddle_device *heddle_comm_device_table(const heddle_comm *comm);
/* graph_launch of comm's device, for a graph with executions of plans of comm or its groups. By the wire peer it counts
 * as one more of them until it has ended: a peer that ends meanwhile, or has given up, frees no memory that it stores
 * to. Replays of a communicator come one behind another, whatever their streams. Returns once it is enqueued; graph and
 * stream are the caller's. One thread at a time per communicator. Not collective. Errors: those of graph_launch, and of
 * waiting, where somebody has given up: then nothing was launched. HEDDLE_ERR_ARG: NULL, comm has no device. */
HEDDLE_CHECKED heddle_status heddle_comm_replay(heddle_comm *comm, void *graph, heddle_stream stream);

/* What is looked for in libheddle_NAME.so: the table, in static storage. A library is linked to nothing of heddle:
 * `fail` is heddle_set_error of the one that asks; ranks that are threads ask at the same time. HEDDLE_ERR_UNSUPPORTED,
 * with a sentence: it cannot be used here. */
#define HEDDLE_DEVICE_LIBRARY "heddle_device_library_v1"
typedef heddle_status (*heddle_device_fail_fn)(heddle_status status, const char *format, ...);
typedef heddle_status (*heddle_device_library_fn)(const heddle_device **out, heddle_device_fail_fn fail);

#ifdef __cplusplus
}
#endif

#endif
