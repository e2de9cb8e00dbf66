/* Shared by the files of this room: agreement on creation, buckets. */
#ifndef HD_PARALLEL_INTERNAL_H
#define HD_PARALLEL_INTERNAL_H

#include "kernels/table.h"
#include "kernels/table_device.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/device/enqueued.h"

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

/* On a device whose library has kernels: what it computes there (bucket_on.c). */
typedef struct hd_bucket_on {
    const hd_device_kernels *kernels; /* NULL: it has none, or the parts are the host's */
    hd_squares *squares;              /* [2] this rank's, and of all ranks of the norm */
    void *scratch;
    double *clip;
    heddle_reshard *sum; /* of squares; NULL: this rank's are all there are, or of too many ranks for it */
    int is_lost;         /* no event says when what a call has enqueued is done */
} hd_bucket_on;

struct heddle_bucket {
    const hd_kernels *kernels;
    heddle_comm *comm;
    hd_device *device;       /* of parts and blocks; NULL: they are the host's */
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
    hd_bucket_on on;
    hd_enqueued used; /* of a device: what reads and writes memory of the bucket and of its optimiser */
};

/* The elements of part `index` that belong to the own block: *lo is their first in the part, *at in the block. Returns
 * how many. */
int64_t hd_bucket_own(const heddle_bucket *bucket, int index, int64_t first, int64_t *lo, int64_t *at);

heddle_status hd_bucket_on_make(heddle_bucket *bucket); /* of this rank alone */
/* Counters of all ranks of the norm, of this rank's: the same on all ranks. Made collectively over the norm's. */
int hd_bucket_on_has_sum(const heddle_bucket *bucket);
heddle_status hd_bucket_on_make_sum(heddle_bucket *bucket);
void hd_bucket_on_free(heddle_bucket *bucket);
/* A call has put all it does into `stream`, which goes on behind the call before. st, how that went, is returned. Not
 * on a device nothing is done. */
heddle_status hd_bucket_on_end(heddle_bucket *bucket, heddle_stream stream, heddle_status st);
/* Waits until what calls have enqueued has ended, and gives memory of the device back. What may be used later stays
 * with the communicator. */
void hd_bucket_on_release(heddle_bucket *bucket, void *memory);
/* Enqueued, where there are kernels. *out: the squares of all ranks of the norm, on the device. */
heddle_status hd_bucket_on_squares(const hd_squares **out, heddle_bucket *bucket, heddle_stream stream);
/* *out: what gradients are multiplied by, on the device. */
heddle_status hd_bucket_on_clip(const double **out, heddle_bucket *bucket, double max_norm, heddle_stream stream);
/* dst = src / the ranks that are averaged */
heddle_status hd_bucket_on_divide(heddle_bucket *bucket, float *dst, const float *src, int64_t elems,
                                  heddle_stream stream);
heddle_status hd_bucket_on_zero(heddle_bucket *bucket, float *data, int64_t elems, heddle_stream stream);

typedef struct hd_adamw_part {
    float *param;
    const float *grad;
    float *mean, *square;
    int64_t elems;
} hd_adamw_part;
/* clip: on the device; NULL: the step's. */
heddle_status hd_bucket_on_adamw(heddle_bucket *bucket, const hd_adamw_step *step, const double *clip,
                                 const hd_adamw_part *part, heddle_stream stream);

#endif
