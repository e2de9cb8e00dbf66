/* Gradients over the axes of a mesh.
 *
 * A bucket is the list of a rank's parameters with their gradients. Over the axes on which the ranks hold different
 * rows of the same samples (sequence, and tensor for what is replicated over it) gradients are summed; over the data
 * axes they are summed or averaged, as the caller states. Nothing else ever scales a gradient. All of it is one reshard
 * of the flat bucket: partial sums into replicated, or, with a shard axis, into blocks over that axis (reduce-scatter):
 * the optimiser then (heddle/train/adamw.h) keeps its state for the own block only and the new parameters are gathered
 * (the simplest exact form of sharded data parallelism, ZeRO stage 1; LASP, arXiv 2404.02882, combines sequence and
 * sharded data parallelism so).
 *
 * The sum is in rank order: every rank gets the same bits.
 *
 * Threads: a bucket may be used by one thread at a time. Parts lie in host memory or on the communicator's device,
 * where calls are in the order of their stream (heddle/space.h).
 */
#ifndef HEDDLE_BUCKET_H
#define HEDDLE_BUCKET_H

#include <heddle/comm.h>
#include <heddle/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_bucket heddle_bucket;

typedef struct heddle_bucket_part {
    float *param; /* [elems] borrowed for the life of the bucket */
    float *grad;  /* [elems] */
    int64_t elems;
    int decay; /* 1: weight decay applies to it */
} heddle_bucket_part;

typedef struct heddle_bucket_options {
    size_t struct_bytes;
    unsigned sum_axes;     /* bit a: gradients are summed over mesh axis a */
    unsigned average_axes; /* bit a: averaged; no axis may be in both */
    int shard_axis;        /* -1, or an axis of sum_axes or average_axes: each of its ranks reduces, keeps and updates a
                              block of the bucket */
    int64_t deadline_ms;   /* 0: the communicator's */
    unsigned norm_axes;    /* bit a: ranks along mesh axis a hold other parameters of the same model (pipeline stages,
                              blocks of a tensor axis): heddle_bucket_norm covers theirs too. None of the axes above */
    heddle_space space;    /* of the arrays */
    int device;            /* of that space, this rank's own; 0 on the host */
} heddle_bucket_options;

HEDDLE_API void heddle_bucket_options_init(heddle_bucket_options *options);

/* Collective over comm, whose size is the mesh's. Copies the list, borrows comm and the memory of the parts (any of
 * that space; no two parts may overlap). options may be NULL: nothing is summed. Ranks along axes in neither set
 * keep gradients of their own and may have other parts.
 *   HEDDLE_ERR_ARG          NULL, numbers out of range, another number of ranks than the mesh has, an axis the mesh has
 *                           not or in more than one set, a shard axis in neither, parts of another space or device
 *   HEDDLE_ERR_UNSUPPORTED  memory of a device: comm has none, or axes are averaged and its library has
 *                           no kernels
 *   HEDDLE_ERR_MISMATCH     on every rank: other options, or other parts (number, elements, decay) on ranks that are
 *                           summed; names both ranks
 *   HEDDLE_ERR_NOMEM        names the bytes
 *   HEDDLE_ERR_PEER         another rank failed; its sentence
 * The communicator stays usable after these, and not after the other errors of waiting (heddle/comm.h). */
HEDDLE_CHECKED heddle_status heddle_bucket_create(heddle_bucket **out, heddle_comm *comm, const heddle_mesh *mesh,
                                                  const heddle_bucket_part *parts, int nparts,
                                                  const heddle_bucket_options *options);
/* NULL is legal; before comm. On a device it waits until what its calls have enqueued has ended, but not beyond the
 * deadline of comm and a second. If it has, memory goes back to the device, which may wait for all that its streams
 * have, and without a deadline (cudaFree). If it has not, or no event could say so, no memory that this rank has on the
 * device is freed or given out again any more, not with comm either, until the process ends. What a graph has stays
 * with comm. */
HEDDLE_API void heddle_bucket_destroy(heddle_bucket *bucket);
/* Collective. Every rank's parts get the reduced gradients; with a shard axis only the own block is complete and the
 * rest is left as it was. Errors as for heddle_reshard_execute; HEDDLE_ERR_DEVICE also of copies and launches, of which
 * the others are told. */
HEDDLE_CHECKED heddle_status heddle_bucket_reduce(heddle_bucket *bucket, heddle_stream stream);
/* Collective. Parameters of the own block to all ranks of the shard axis; without one nothing is done. Errors as for
 * heddle_bucket_reduce. */
HEDDLE_CHECKED heddle_status heddle_bucket_gather(heddle_bucket *bucket, heddle_stream stream);
/* Square root of the sum of squares of the reduced gradients, over the norm axes too: summed without rounding, so the
 * same bits on every rank and with or without a shard axis. Collective over the shard and norm axes. NaN and infinity
 * give NaN and infinity. Of a device's gradients the sums are made there; the call waits for the stream, and copies
 * some 200 bytes to the host.
 * HEDDLE_ERR_ARG: the stream is being captured. Errors as for heddle_comm_allreduce_sum, of a device's gradients as for
 * heddle_bucket_reduce. */
HEDDLE_CHECKED heddle_status heddle_bucket_norm(double *out, heddle_bucket *bucket, heddle_stream stream);
HEDDLE_API void heddle_bucket_zero(heddle_bucket *bucket, heddle_stream stream); /* gradients to 0; NULL is legal */

typedef struct heddle_bucket_info {
    size_t struct_bytes;
    int64_t elems;                         /* of the whole bucket */
    int64_t own_lo, own_elems;             /* this rank's block */
    int64_t planned_bytes, measured_bytes; /* sent by this rank: one reduce and one gather; all calls together */
    int64_t reduces, gathers;              /* finished */
    int64_t workspace_bytes;
} heddle_bucket_info;
/* Not collective. HEDDLE_ERR_ARG: NULL, struct_bytes (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_bucket_get_info(heddle_bucket_info *out, const heddle_bucket *bucket);

#ifdef __cplusplus
}
#endif

#endif
