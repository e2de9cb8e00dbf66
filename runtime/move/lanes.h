/* Copies ready for a kernel: which peers are walked together, in which order, by which kernel. */
#ifndef HD_MOVE_LANES_H
#define HD_MOVE_LANES_H

#include "kernels/table.h"
#include "runtime/base/base.h"
#include "runtime/move/copy.h"

/* What a lane carries. */
typedef struct hd_load {
    int peer;
    int64_t bytes;
} hd_load;

/* Lanes that share their loops, so that the interleaved side is walked in row order. */
typedef struct hd_lane_group {
    int first, nlanes, nloops;
    int64_t count[HD_MAX_LOOPS];
    const hd_copy_kernel *kernel;
} hd_lane_group;

typedef struct hd_lanes {
    hd_lane *lane;
    hd_load *load;
    hd_lane_group *group;
    int nlanes, ngroups;
} hd_lanes;

/* Fuses copies with equal loops when the walked side is interleaved more finely than fuse_bytes. Copies are
 * reordered: row order inside a group, own rank's successor first between groups. */
enum { HD_LONG_RUN_BYTES = 65536 }; /* fuse_bytes, where there is no reason for less */
heddle_status hd_lanes_build(hd_lanes *out, const hd_copy *copy, const int *peer, int ncopies, hd_side walk, int rank,
                             int nranks, int64_t fuse_bytes);
void hd_lanes_free(hd_lanes *lanes);
/* That side lies at the peers, and has an address of each; the other one, and without this call both, has one. */
void hd_lanes_at_peers(hd_lanes *lanes, hd_side side);
/* Use `kernel` wherever it fits (NULL: the rule). */
void hd_lanes_choose(hd_lanes *lanes, const hd_copy_kernel *kernel, const hd_copy_hint *hint);
int64_t hd_lanes_bytes(const hd_lanes *lanes);
/* The group that moves most; NULL when there is none. */
const hd_lane_group *hd_lanes_largest(const hd_lanes *lanes);
int hd_lanes_candidates(const hd_lanes *lanes, const hd_copy_kernel **out, int capacity, const hd_copy_hint *hint);
/* Where the arrays of a run lie. */
typedef struct hd_bases {
    const void *const *src; /* [peer], or one: hd_lanes_at_peers */
    void *const *dst;
    int64_t *moved; /* [peer] grows by the bytes copied; may be NULL */
} hd_bases;

void hd_lanes_run(const hd_lanes *lanes, const hd_bases *bases);
void hd_lanes_run_groups(const hd_lanes *lanes, const hd_bases *bases, int first, int end);
/* How many groups, from the first on, copy inside this rank only. */
int hd_lanes_own(const hd_lanes *lanes, int rank);

#endif
