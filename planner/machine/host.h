/* What a host consists of, by hwloc. */
#ifndef HD_HOST_H
#define HD_HOST_H

#include <heddle/machine.h>

/* Of this host (xml NULL), or of the one whose export the file holds. */
heddle_status hd_host_read(heddle_host_info *out, const char *xml);

#endif
