/* Inside of the wire peer, stores from device to device: phases of a route as launches of the kernels in
 * kernels/table_device.h, which move every item to its final place and meet there. What is enqueued needs the host no
 * more: it may be captured into a graph and replayed. Made in device_push_make.c, enqueued in device_push_launch.c, run
 * in device_push.c.
 *
 * The address of what a phase writes goes with the flag READY, so every execution may bring another one. Partial sums
 * are stored into slots of the receiver's and added there in rank order.
 */
#ifndef HD_MOVE_DEVICE_PUSH_INSIDE_H
#define HD_MOVE_DEVICE_PUSH_INSIDE_H

#include "runtime/device/enqueued.h"
#include "runtime/move/carrier.h"

typedef struct hd_push_step {
    hd_device_list clear, push, unpack; /* unpack: sums to where they belong */
    hd_device_list land;                /* from where peers have stored to where it belongs */
    int64_t slots_at;    /* in the plan's memory: for terms, else for a destination that peers have not mapped */
    const void *told;    /* the destination that meet.place was made for */
    int lands;           /* peers store to the slots instead */
    hd_device_sums sums; /* of terms in slots */
    hd_device_meet meet;
    int64_t sent_bytes[HD_DEVICE_MAX_PEERS], all_bytes; /* by an execution; own entry too */
} hd_push_step;

typedef struct hd_push {
    heddle_comm *comm;
    hd_route *route;
    hd_device *device;
    const hd_device_kernels *kernels;
    const hd_route_spec *spec; /* the route's */
    int rank, nranks;
    hd_sharers sharers; /* of the device */
    int most_blocks;    /* of a launch */
    hd_push_step step[HD_MAX_LEGS];
    char *memory; /* of the device: work, slots, sums, and a state per phase; peers write there */
    int64_t states_at;
    int64_t memory_bytes;
    hd_device_report *report; /* [nphases] pinned */
    heddle_stream stream;     /* its own */
    void *begun;              /* an event of the caller's stream */
    hd_comm_view view;
    int is_settled;            /* after a failure: what was enqueued has ended */
    struct hd_push_news *news; /* [nranks] NULL: kernels wait; else streams do, for events */
    void *ready, *moved;       /* such events of this rank */
    hd_outlook outlook;
    hd_broken broken;
} hd_push;

/* device_push_make.c. Collective. */
heddle_status hd_push_make(hd_route *route, heddle_status mine);

/* device_push_launch.c. Takes the order in which executions meet, by kernels that wait or by streams that do. */
heddle_status hd_push_take_order(hd_push *push);
void hd_push_end_order(hd_push *push);
heddle_status hd_push_enqueue(hd_push *push, const void *src, void *dst, heddle_stream stream);
extern const hd_late hd_push_late;
heddle_status hd_push_look(void *push); /* has anything gone wrong on the device? */
void hd_push_look_beside(void *push);   /* on the communicator's thread beside the rank's: is it over? */

#endif
