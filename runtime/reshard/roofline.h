/* The bytes of a reshard, copied contiguously: what a switch is measured against. */
#ifndef HD_ROOFLINE_H
#define HD_ROOFLINE_H

#include "kernels/table.h"

#include <heddle/reshard.h>

typedef struct hd_roofline hd_roofline;

/* Room that buffers need besides what the reshard asks for: parts start at cache lines here. */
size_t hd_roofline_slack_bytes(int nranks);

/* Collective. src and dst come from heddle_buffer_alloc and hold info's bytes plus the slack; both are borrowed. */
heddle_status hd_roofline_create(hd_roofline **out, heddle_comm *comm, const heddle_reshard_info *info, void *src,
                                 void *dst);
/* Collective, of a line that adds. Where each rank's whole part is the sum of as many bytes from itself and from those
 * who send to it, and all are reached, the ways become sums of contiguous terms, plain and past the caches, whole and
 * in pieces: what must be read is n times what is written, which no copy does. Elsewhere the copies stay. */
heddle_status hd_roofline_add(hd_roofline *roofline, const heddle_reshard_info *info, const hd_kernels *kernels,
                              heddle_dtype dtype);
void hd_roofline_destroy(hd_roofline *roofline);

/* A way = kernel x direction x order of peers, numbered by kernel first. */
int hd_roofline_ways(const hd_roofline *roofline);
int hd_roofline_ways_per_kernel(void);
const char *hd_roofline_kernel(const hd_roofline *roofline, int way);
const char *hd_roofline_way_name(const hd_roofline *roofline, int way);
/* 1: some rank cannot be reached, its bytes are read from own memory instead. */
int hd_roofline_is_local(const hd_roofline *roofline);

/* Collective: flags, copy, flags. */
heddle_status hd_roofline_run(hd_roofline *roofline, int way, int64_t deadline_ns);

#endif
