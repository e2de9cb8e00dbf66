/* What attention of either kind needs and has of a device. */
#ifndef HD_ATTENTION_ON_DEVICE_H
#define HD_ATTENTION_ON_DEVICE_H

#include "kernels/table_device.h"
#include "runtime/device/enqueued.h"

/* Collective: the same on all ranks, but for a device that is missing. *out: that of `space`, which has kernels; NULL:
 * the host. what: "attention". */
heddle_status hd_on_device_need(const hd_device **out, const heddle_comm *comm, heddle_space space, int device,
                                heddle_dtype dtype, const char *what);
/* Kernels are loaded, and `used` and *stream made. */
heddle_status hd_on_device_open(hd_enqueued *used, heddle_stream *stream, const heddle_comm *comm, const char *what);
/* Waits. 0: what is under way, or in a graph, may read and write memory at any time. Of memory that is to be freed
 * (hd_enqueued_lets_free). */
int hd_on_device_is_idle(hd_enqueued *used, const heddle_comm *comm);
/* A buffer; where it is not idle it stays with the communicator. NULL is legal. */
void hd_on_device_let_go(heddle_comm *comm, void *buffer, int is_idle);

#endif
