/* The bytes of a reshard, copied contiguously: what a switch is measured against. */
#ifndef HD_ROOFLINE_H
#define HD_ROOFLINE_H

#include <heddle/reshard.h>

typedef struct hd_roofline hd_roofline;

/* Room that buffers need besides what the reshard asks for: parts start at cache lines here. */
size_t hd_roofline_slack_bytes(int nranks);

/* Collective. src and dst come from heddle_buffer_alloc and hold info's bytes plus the slack; both are borrowed. */
heddle_status hd_roofline_create(hd_roofline **out, heddle_comm *comm, const heddle_reshard_info *info, void *src,
                                 void *dst);
void hd_roofline_destroy(hd_roofline *roofline);

/* A way = kernel x direction x order of peers, numbered by kernel first. */
int hd_roofline_ways(const hd_roofline *roofline);
int hd_roofline_ways_per_kernel(void);
const char *hd_roofline_kernel(int way);
const char *hd_roofline_way_name(int way);
/* 1: some rank cannot be reached, its bytes are read from own memory instead. */
int hd_roofline_is_local(const hd_roofline *roofline);

/* Collective: flags, copy, flags. */
heddle_status hd_roofline_run(hd_roofline *roofline, int way, int64_t deadline_ns);

#endif
