/* Arrays in the memory of a communicator's device, as judges need them: filled and read on the host. */
#ifndef HD_VERIFY_DEVICE_ARRAY_H
#define HD_VERIFY_DEVICE_ARRAY_H

#include <heddle/comm.h>

/* A stream of this rank's own: ranks that share a device would wait for one another on its default stream for ever.
 * HEDDLE_NO_STREAM where comm has no device, or one that knows of no streams. */
heddle_status judge_stream_create(heddle_stream *out, const heddle_comm *comm);
void judge_stream_destroy(const heddle_comm *comm, heddle_stream stream);
/* Between memory of the host and of comm's device, either way, or within the device. Done on return. */
heddle_status judge_device_copy(const heddle_comm *comm, void *dst, const void *src, size_t bytes,
                                heddle_stream stream);
/* Done is all that the stream was given so far. HEDDLE_ERR_TIMEOUT: not within a minute. */
heddle_status judge_device_settle(const heddle_comm *comm, heddle_stream stream);

#endif
