/* One phase of a route as messages between devices (the wire nccl). Only what does not lie together is packed before
 * and unpacked after, by one launch each; everything is enqueued on the caller's stream. Partial sums come as messages
 * and are added in rank order. */
#ifndef HD_MOVE_NCCL_PHASE_H
#define HD_MOVE_NCCL_PHASE_H

#include "runtime/move/carrier.h"

typedef struct hd_nccl_phase hd_nccl_phase;

/* Not collective; waits for the device. any_adds: on any rank. HEDDLE_ERR_UNSUPPORTED: more terms of a sum than the
 * kernels add. */
heddle_status hd_nccl_phase_create(hd_nccl_phase **out, hd_route *route, int phase, int any_adds);
/* What it has enqueued has ended, or the device is left (hd_device_leave). NULL is legal. */
void hd_nccl_phase_destroy(hd_nccl_phase *phase);

/* Enqueues it, and counts what the route has sent. After a failure the communicator is of no more use. */
heddle_status hd_nccl_phase_run(hd_nccl_phase *phase, const void *src, void *dst, heddle_stream stream,
                                int is_captured);

typedef struct hd_nccl_info {
    int64_t bytes, messages, packed_bytes, memory_bytes; /* sent; copied before that or after; of the device */
} hd_nccl_info;
/* Adds to what is there. */
void hd_nccl_phase_inform(hd_nccl_info *info, const hd_nccl_phase *phase);

#endif
