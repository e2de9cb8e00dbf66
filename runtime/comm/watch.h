/* A thread beside the ranks' own, for what must end although no thread of the host waits: kernels of devices that wait
 * for peers. It looks whether anybody has given up or died, and then sets a word that kernels look at. From then on it
 * asks whether what is enqueued has ended, because peers wait for that (hd_comm_quiesce_devices), and the rank's own
 * thread may be elsewhere. */
#ifndef HD_COMM_WATCH_H
#define HD_COMM_WATCH_H

#include "runtime/comm/comm_internal.h"
#include "runtime/comm/ground/ground.h"
#include "runtime/device/device.h"

typedef struct hd_watch hd_watch;

/* The word is 0 until then; pinned memory that kernels of the device can read. */
heddle_status hd_watch_start(hd_watch **out, hd_group *group, const hd_device *device);
void hd_watch_stop(hd_watch *watch); /* before the group is left. NULL is legal; in a fork nothing is stopped */
const hd_outlook *hd_watch_outlooks(const hd_watch *watch); /* on the thread that adds and removes. NULL: none */

#endif
