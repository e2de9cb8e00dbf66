/* Arrays of a device by way of host memory (the wire "host"): what is sent is copied there before, what was received is
 * copied from there after. The memory is one that peers reach, so in between everything goes as for arrays of the host.
 */
#ifndef HD_MOVE_DEVICE_STAGING_H
#define HD_MOVE_DEVICE_STAGING_H

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/copy.h"

/* Enqueues a strided copy within the device's memory, or between it and the host's. One call of the device per outer
 * step: made for few of them. */
heddle_status hd_device_copy(const hd_device *device, const hd_copy *copy, void *dst, const void *src,
                             heddle_stream stream);

typedef struct hd_staging_spec {
    hd_copy in, out; /* array to array of the same form: src to its image on the host, the image of dst to dst */
    size_t src_bytes, dst_bytes;
    int64_t deadline_ms; /* 0: the communicator's */
    const char *what;    /* how sentences call an execution: "reshard"; borrowed */
    const char *line;    /* what overdue waits say behind it; borrowed */
} hd_staging_spec;

typedef struct hd_staging hd_staging;

/* Not collective. The communicator has a device. */
heddle_status hd_staging_create(hd_staging **out, heddle_comm *comm, const hd_staging_spec *spec);
/* Waits for what is enqueued, until the deadline. Memory that copies may still read then, or of which the device does
 * not say, is neither freed nor unpinned; only ranks that heddle_run_ranks began end with all that they have. NULL is
 * legal. */
void hd_staging_destroy(hd_staging *staging);

/* The images of src and dst. */
void *hd_staging_src(const hd_staging *staging);
void *hd_staging_dst(const hd_staging *staging);
/* Returns when the image of src is there, which is when the stream has come so far, and that of dst is free. */
heddle_status hd_staging_in(hd_staging *staging, const void *src, heddle_stream stream);
/* Enqueued behind what the stream of hd_staging_in has by now. */
heddle_status hd_staging_out(hd_staging *staging, void *dst);
/* Is dst complete; wait until it is; let another stream wait. */
heddle_status hd_staging_test(hd_staging *staging, int *done);
heddle_status hd_staging_wait(hd_staging *staging);
heddle_status hd_staging_wait_on(hd_staging *staging, heddle_stream stream);

int64_t hd_staging_bytes(const hd_staging *staging);
int hd_staging_is_pinned(const hd_staging *staging); /* copies go without help of the host */

#endif
