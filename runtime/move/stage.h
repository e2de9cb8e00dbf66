/* Arrays of a device by way of host memory (the wire "host"): what is sent is copied there before, what was received is
 * copied from there after. The memory is one that peers reach, so in between everything goes as for arrays of the host.
 */
#ifndef HD_MOVE_STAGE_H
#define HD_MOVE_STAGE_H

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/copy.h"

/* Enqueues a strided copy within the device's memory, or between it and the host's. One call of the device per outer
 * step: made for few of them. */
heddle_status hd_device_copy(const hd_device *device, const hd_copy *copy, void *dst, const void *src,
                             heddle_stream stream);

typedef struct hd_stage_spec {
    hd_copy in, out; /* array to array of the same form: src to its image on the host, the image of dst to dst */
    size_t src_bytes, dst_bytes;
    int64_t deadline_ms; /* 0: the communicator's */
    const char *what;    /* how sentences call an execution: "reshard"; borrowed */
    const char *line;    /* what overdue waits say behind it; borrowed */
} hd_stage_spec;

typedef struct hd_stage hd_stage;

/* Not collective. The communicator has a device. */
heddle_status hd_stage_create(hd_stage **out, heddle_comm *comm, const hd_stage_spec *spec);
void hd_stage_destroy(hd_stage *stage); /* waits for what is enqueued. NULL is legal */

/* The images of src and dst. */
void *hd_stage_src(const hd_stage *stage);
void *hd_stage_dst(const hd_stage *stage);
/* Returns when the image of src is there, which is when the stream has come so far, and that of dst is free. */
heddle_status hd_stage_in(hd_stage *stage, const void *src, heddle_stream stream);
/* Enqueued behind what the stream of hd_stage_in has by now. */
heddle_status hd_stage_out(hd_stage *stage, void *dst);
/* Is dst complete; wait until it is; let another stream wait. */
heddle_status hd_stage_test(hd_stage *stage, int *done);
heddle_status hd_stage_wait(hd_stage *stage);
heddle_status hd_stage_wait_on(const hd_stage *stage, heddle_stream stream);

int64_t hd_stage_bytes(const hd_stage *stage);
int hd_stage_is_pinned(const hd_stage *stage); /* copies go without help of the host */

#endif
