/* Arrays of devices by stores from device to device (the wire "peer"): phases of a plan as launches of the kernels in
 * kernels/table_device.h, which move every part to its final place and meet there. What is enqueued needs the host no
 * more: it may be captured into a graph and replayed.
 *
 * The address of what a phase writes goes with the flag READY, so every execution may bring another one. Partial sums
 * are stored into slots of the receiver's and added there in rank order.
 */
#ifndef HD_MOVE_DEVICE_PUSH_H
#define HD_MOVE_DEVICE_PUSH_H

#include "runtime/move/device_list.h"

/* Where a phase reads and writes: the caller's arrays, or memory of the plan. */
typedef enum hd_push_array { HD_PUSH_SRC, HD_PUSH_DST, HD_PUSH_WORK } hd_push_array;
typedef struct hd_push_place {
    hd_push_array array;
    int64_t offset_bytes; /* in the plan's memory */
} hd_push_place;

/* A phase's parts are those of a transfer; all sides lie on devices. */
typedef struct hd_push_phase {
    const hd_parts *send, *recv;
    int adds;             /* parts that arrive for the same place are added, as in hd_transfer_spec */
    const hd_copy *clear; /* its destination is zeroed first; NULL: nothing */
    hd_push_place src, dst;
} hd_push_phase;

typedef struct hd_push_spec {
    hd_push_phase phase[HD_MAX_LEGS];
    int nphases;
    const hd_local *before, *after; /* src to the plan's memory, and from there to dst; borrowed */
    int64_t before_at, after_at;
    int64_t work_bytes, dst_bytes;
    heddle_dtype dtype;
    int64_t elem_bytes;
    int64_t deadline_ms; /* of every wait of a kernel; 0: the communicator's */
    const char *what;    /* how sentences call an execution: "reshard"; borrowed */
    const char *line;    /* borrowed */
} hd_push_spec;

typedef struct hd_push hd_push;

/* Collective; mine: the status of what this rank has done so far. All or none. The communicator's wire is peer. */
heddle_status hd_push_create(hd_push **out, heddle_comm *comm, const hd_push_spec *spec, heddle_status mine);
/* Not collective; waits for what is enqueued. NULL is legal. */
void hd_push_destroy(hd_push *push);

/* Enqueues one execution and returns; where the default stream is one of several ranks it waits for it. After a
 * failure the communicator is of no more use. */
heddle_status hd_push_execute(hd_push *push, const void *src, void *dst, heddle_stream stream);
/* On a stream of the plan's own, behind what `stream` has so far and behind the last execution. */
heddle_status hd_push_start(hd_push *push, const void *src, void *dst, heddle_stream stream);
heddle_status hd_push_test(hd_push *push, int *done);
heddle_status hd_push_wait(hd_push *push);
heddle_status hd_push_wait_on(hd_push *push, heddle_stream stream);

/* What the device has reported by now. */
typedef struct hd_push_report {
    int64_t executions, device_ns; /* finished; of the last one, from its first block to its last */
    int64_t memory_bytes;          /* of the device */
    int is_by_events; /* streams wait, not kernels: executions are counted when they are enqueued, and not captured */
    int is_captured;  /* some execution is in graphs */
    int lands;        /* the last one's dst was not mapped by peers, which have stored to the plan's memory instead */
} hd_push_report;
/* bytes_to: [nranks] stored for each peer so far; own entry 0. */
void hd_push_get_report(hd_push_report *out, int64_t *bytes_to, const hd_push *push);

#endif
