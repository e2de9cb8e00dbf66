/* Which device library serves a space of memory. */
#ifndef HD_DEVICE_H
#define HD_DEVICE_H

#include <heddle/sys/device.h>

/* Is there a library for `space`? HEDDLE_ERR_UNSUPPORTED names `what` (a tensor, a plan) and the transport that would
 * have to reach it; HEDDLE_ERR_ARG: no such space or device. */
heddle_status hd_device_need(heddle_space space, int device, const char *what, const char *transport);

#endif
