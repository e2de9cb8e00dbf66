/* Shared by the files of this room: agreement on creation, buckets. */
#ifndef HD_PARALLEL_INTERNAL_H
#define HD_PARALLEL_INTERNAL_H

#include "kernels/table.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <heddle/reshard.h>
#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <heddle/train/pipeline.h>

/* --- agreement (agree.c) ------------------------------------------------------------------------------------------ */

/* The end of a creation that was collective over parts of comm: a rank that failed in its part tells the others, unless
 * the transport itself is of no more use. */
heddle_status hd_creation_end(heddle_comm *comm, heddle_status mine);

/* `layout` with another entry for `axis`; explicit lengths of that axis are dropped. */
heddle_layout hd_layout_with(const heddle_layout *layout, int axis, int dim);

/* --- exact sums of squares (squares.c) ---------------------------------------------------------------------------- */

double hd_squares_root(const hd_squares *squares);

/* --- buckets ------------------------------------------------------------------------------------------------------ */

enum { HD_BUCKET_STEPS = HEDDLE_MAX_AXES + 1 };

typedef struct hd_bucket_step {
    heddle_reshard *reshard;
    float *src, *dst;
} hd_bucket_step;

struct heddle_bucket {
    const hd_kernels *kernels;
    heddle_comm *comm;
    const hd_device *device; /* of parts and blocks; NULL: they are the host's */
    heddle_comm *group;      /* ranks that are summed */
    heddle_comm *norm_group; /* shard axis and norm axes; NULL: the own block is all there is */
    heddle_mesh mesh;        /* of the group */
    heddle_bucket_options options;
    heddle_bucket_part *part;
    int nparts;
    int shard;     /* axis of the group's mesh with more than one rank, or -1 */
    float divisor; /* ranks that are averaged */
    int64_t elems, own_lo, own_elems;
    float *flat;     /* [elems] */
    float *block[2]; /* parts of it */
    int64_t buffer_bytes;
    hd_bucket_step step[HD_BUCKET_STEPS]; /* of a reduce; the result is the last one's dst */
    int nsteps;
    heddle_reshard *gather; /* block[0] -> flat; NULL: not sharded */
    int64_t reduces, gathers;
};

/* The elements of part `index` that belong to the own block: *lo is their first in the part, *at in the block. Returns
 * how many. */
int64_t hd_bucket_own(const heddle_bucket *bucket, int index, int64_t first, int64_t *lo, int64_t *at);

#endif
