/* Arrays in the memory of a communicator's device, as judges need them: filled and read on the host. */
#ifndef HD_VERIFY_DEVICE_ARRAY_H
#define HD_VERIFY_DEVICE_ARRAY_H

#include <heddle/comm.h>

/* Between memory of the host and of comm's device, either way, or within the device. Done on return. */
heddle_status judge_device_copy(const heddle_comm *comm, void *dst, const void *src, size_t bytes);
/* Done is all that the default stream of comm's device was given so far. HEDDLE_ERR_TIMEOUT: not within a minute. */
heddle_status judge_device_settle(const heddle_comm *comm);

#endif
