/* Softmax attention over a sequence that is sharded over ranks, forward and backward.
 *
 *   f32[b=2 s=37 h=6 d=16] on [sp=4]: s@sp       method ring
 *
 * The four dims of the shape are batch, sequence, heads and head width, whatever their names. The sequence may be
 * sharded over one mesh axis or over two neighbouring ones; batch and heads may be sharded over others (data, tensor
 * parallelism). o = softmax(scale * q k^T + mask) v per sample and head; query head i uses key head i / (heads /
 * kv_heads). Any extents: shards are as uneven as the layout says, ranks may be empty.
 *
 * Methods (docs/attention.md has a page on each, with the traffic formulas and the papers' sections):
 *   local      the whole sequence is on this rank
 *   ulysses    q, k, v to heads in one packed exchange, o back
 *   ring       k and v travel, or are read where they lie, online softmax; backward with dk and dv travelling in f32
 *   rsa        Ring Self-Attention in two passes over whole score rows (arXiv 2105.13120, section 3); also its sparse
 *              case, where keys and values are projected to a fixed length (Linformer)
 *   usp        Ulysses on the second sequence axis, ring on the first
 *   gather-kv  every rank gathers all k and v
 *
 * Storage is f32 or bf16 with arithmetic in f32, or f64 with arithmetic in f64. Gradients are exact and never scaled:
 * they are those of a loss that is the sum over all ranks.
 *
 * NaN and infinity go where a single process would put them: a query that sees a NaN has a NaN row. A query that sees
 * no key at all (key length 0) has o = 0, lse = -infinity and gives no gradient.
 *
 * Arrays are host memory, where the stream of a call is ignored (heddle/space.h) and the call returns when it is done;
 * or options.space and device say otherwise: then q, k, v, o, their gradients and lse lie in that device's memory, and
 * a call only enqueues. There types are f32, bf16 and f16, heads have up to 128 elements, of bf16 and f16 a multiple
 * of 8, which lie together, and methods are all but rsa. What has gone wrong on the way is said by a later call or
 * heddle_comm_poll. Calls may be captured where the communicator's reshards may. Keys that a causal mask hides have to
 * be finite.
 *
 * Threads: an attention object may be used by one thread at a time. With options.threads > 1 every call starts and ends
 * its own: key heads and samples are divided among them, forward also the queries of a head where heads are too few
 * (not rsa). The result has the same bits for any number of threads.
 *
 * Memory: all of it is reserved and touched on creation (heddle_attention_info has the bytes), what backward needs too
 * unless options.forward_only; calls allocate nothing. "saved" is what the next backward needs of the last forward.
 */
#ifndef HEDDLE_ATTENTION_H
#define HEDDLE_ATTENTION_H

#include <heddle/comm.h>
#include <heddle/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEDDLE_ATTENTION_METHOD_LIST(X)                                                                                \
    X(LOCAL, "local")                                                                                                  \
    X(ULYSSES, "ulysses")                                                                                              \
    X(RING, "ring")                                                                                                    \
    X(RSA, "rsa")                                                                                                      \
    X(USP, "usp")                                                                                                      \
    X(GATHER_KV, "gather-kv")

typedef enum heddle_attention_method {
#define HEDDLE_ATTENTION_METHOD_ENUM(name, text) HEDDLE_ATTENTION_##name,
    HEDDLE_ATTENTION_METHOD_LIST(HEDDLE_ATTENTION_METHOD_ENUM)
#undef HEDDLE_ATTENTION_METHOD_ENUM
        HEDDLE_ATTENTION_METHOD_COUNT
} heddle_attention_method;

/* "unknown" for a value outside the list. */
HEDDLE_API const char *heddle_attention_method_name(heddle_attention_method method);
/* HEDDLE_ERR_PARSE lists the names. */
HEDDLE_CHECKED heddle_status heddle_attention_method_parse(heddle_attention_method *out, const char *text);

/* Which rows of the sequence a rank holds. */
typedef enum heddle_placement {
    HEDDLE_PLACEMENT_CONTIGUOUS = 0, /* the rows of the layout's shard */
    HEDDLE_PLACEMENT_ZIGZAG = 1 /* of 2N balanced chunks, member i of N holds chunk i, then chunk 2N-1-i: with a causal
                                 * mask every rank has the same work. Needs balanced blocks */
} heddle_placement;

typedef struct heddle_attention_options {
    size_t struct_bytes;
    heddle_attention_method method;
    int64_t kv_heads;           /* of k and v, divides the heads of q; 0: the same */
    int causal;                 /* 1: query i sees keys 0..i */
    heddle_placement placement; /* of q, k, v and o alike */
    const int64_t *key_lengths; /* [global batch] keys from this position on are not seen; NULL: all are. Copied */
    double scale;               /* 0: 1 / sqrt(head width) */
    int log_sum_exp;            /* 1: forward may be asked for it */
    int forward_only;           /* 1: backward is never called, its memory is not reserved */
    int rsa_all_reduce;         /* 1: rsa adds dk and dv up by all-reduce as in the paper, not by reduce-scatter */
    int64_t projected_length;   /* rsa: keys and values are projected to this length; 0: not */
    int64_t deadline_ms;        /* every wait; 0: the communicator's */
    int threads;                /* of this rank, 0..256; 0 = 1. Any number gives the same bits */
    heddle_space space;         /* of the arrays; a device's: the one that is attached (heddle_comm_attach_device) */
    int device;                 /* of that space, this rank's own; 0 on the host */
} heddle_attention_options;

HEDDLE_API void heddle_attention_options_init(heddle_attention_options *options);

/* The rows of the sequence that one rank holds, in the order of its local arrays. */
typedef struct heddle_attention_rows {
    int64_t rows;          /* len[0] + len[1] */
    int64_t lo[2], len[2]; /* global positions; len may be 0 */
} heddle_attention_rows;

/* Pure. HEDDLE_ERR_ARG, HEDDLE_ERR_LAYOUT as for heddle_attention_create. */
HEDDLE_CHECKED heddle_status heddle_attention_local_rows(heddle_attention_rows *out, const heddle_shape *shape,
                                                         const heddle_mesh *mesh, const heddle_layout *layout,
                                                         heddle_placement placement, int rank);

/* What one rank sends. Bytes to itself are never counted; a transfer is one message or one box read by a peer. */
typedef struct heddle_attention_traffic {
    int64_t forward_bytes, forward_messages;
    int64_t backward_bytes, backward_messages;
} heddle_attention_traffic;

/* Planned traffic of `rank` per call, without a communicator. Pure. Errors as for heddle_attention_create. */
HEDDLE_CHECKED heddle_status heddle_attention_plan_traffic(heddle_attention_traffic *out, const heddle_shape *shape,
                                                           const heddle_mesh *mesh, const heddle_layout *layout,
                                                           const heddle_attention_options *options, int rank);

typedef struct heddle_attention heddle_attention;

/* Collective over comm, which the object borrows. shape is that of q: [batch, sequence, heads, width]; k and v have
 * kv_heads heads and the same layout. options may be NULL (local).
 *   HEDDLE_ERR_ARG          NULL; an option out of range (kv_heads does not divide heads, a causal mask with a
 *                           projection, ...)
 *   HEDDLE_ERR_LAYOUT       shape, mesh and layout contradict one another, the width is sharded, partial sums, more
 *                           ranks than the mesh, blocks of the heads that separate a query head from its key head, a
 *                           method that needs other axes
 *   HEDDLE_ERR_UNSUPPORTED  dtype; a sequence on more than two axes or on axes that are not neighbours; more ranks than
 *                           a layout has explicit blocks; no device is attached, or it does not do what is asked for
 *   HEDDLE_ERR_MISMATCH     on every rank: they ask for different things; names the first rank and field that differ
 *   HEDDLE_ERR_NOMEM        names the bytes
 *   HEDDLE_ERR_PEER         another rank failed; its sentence
 * The communicator stays usable after these. Other errors of waiting (heddle/comm.h): a collective step ended half way,
 * perhaps in a group of some ranks only; the communicator is aborted, so that all ranks hear of it. */
HEDDLE_CHECKED heddle_status heddle_attention_create(heddle_attention **out, heddle_comm *comm,
                                                     const heddle_shape *shape, const heddle_mesh *mesh,
                                                     const heddle_layout *layout,
                                                     const heddle_attention_options *options);
/* Not collective. NULL is legal. No call may be in progress on any rank. On a device it waits as heddle_bucket_destroy
 * does (heddle/train/bucket.h), at the same price where what was enqueued does not end. */
HEDDLE_API void heddle_attention_destroy(heddle_attention *attention);

/* A caller's local array [batch, rows, heads, width] of the shape's dtype; any memory. Element (b, s, h, d) is at
 * data[b*stride[0] + s*stride[1] + h*stride[2] + d*stride[3]]. All four strides 0: dense in this order. Not negative,
 * not beyond 2^62 bytes, and where the array is written no two elements share memory (heddle_box_reach). */
typedef struct heddle_attention_array {
    void *data; /* may be NULL when the local part is empty */
    int64_t stride_elems[4];
} heddle_attention_array;

/* Collective over the ranks that share the sequence. Returns when o is complete. lse: NULL, or dense [batch, heads,
 * rows] f32 (f64 for f64), the logarithm of the sum of exp(scale q k) per query; needs options.log_sum_exp. Rounded to
 * that type, of scores of 1e5 to 0.004 in f32: good to merge results, too coarse to make weights of large scores from.
 * The object keeps what backward needs (info.saved_bytes): q, k and v need not be kept. o must not overlap q, k, v.
 * HEDDLE_ERR_ARG: a NULL array of a rank that is not empty, strides that an array must not have, lse without the
 * option, no projection set; the object is as it was before the call. A mistake that the others cannot see (all but
 * the last) ends the communicator, so that they do not wait for this rank. Errors of waiting (heddle/comm.h) name rank
 * and peer; after them the object only fails. */
HEDDLE_CHECKED heddle_status heddle_attention_forward(heddle_attention *attention, const heddle_attention_array *q,
                                                      const heddle_attention_array *k, const heddle_attention_array *v,
                                                      const heddle_attention_array *o, void *lse, heddle_stream stream);
/* Gradients of the last forward: d_o is the gradient of o; dq, dk, dv are written, not added to. May be called several
 * times. HEDDLE_ERR_ARG: there was no forward, or options.forward_only: nobody waits, forward may follow. Else as
 * above. */
HEDDLE_CHECKED heddle_status heddle_attention_backward(heddle_attention *attention, const heddle_attention_array *d_o,
                                                       const heddle_attention_array *dq,
                                                       const heddle_attention_array *dk,
                                                       const heddle_attention_array *dv, heddle_stream stream);

/* rsa with projected_length: this rank's columns of the two projections, dense [projected_length, rows] of the shape's
 * dtype, used by the next calls; keys become e k, values f v, summed over all ranks. de and df get their gradients in
 * backward, summed over the local batch and heads; NULL: not wanted. All borrowed until the next call of this function.
 * Not collective. HEDDLE_ERR_ARG: NULL (e, f: of a rank that holds rows), no projected length in the options. */
HEDDLE_CHECKED heddle_status heddle_attention_set_projection(heddle_attention *attention, const void *e, const void *f,
                                                             void *de, void *df);

typedef struct heddle_attention_info {
    size_t struct_bytes;
    const char *method;
    heddle_attention_traffic planned;  /* per call */
    heddle_attention_traffic measured; /* counted while moving, all calls together; a device's when it has done so */
    int64_t forwards, backwards;       /* finished */
    int64_t saved_bytes;               /* kept from forward to backward */
    int64_t workspace_bytes;           /* the rest of what the object holds */
    const char *kernel;                /* "generic" "avx2" "avx512" "f64" "cuda" */
    const char *why;                   /* one sentence: how the method divides the work here */
    /* The same by the formulas of the method, which the planner uses, too (it does not know whether blocks of a ring
     * travel or are read where they lie, and counts them as travelling); room_bytes: what the kernels of all threads
     * work in, which comes on top. saved_bytes = planned_saved_bytes, workspace_bytes = planned_workspace_bytes +
     * room_bytes */
    int64_t planned_saved_bytes, planned_workspace_bytes, room_bytes; /* on a device 0 */
    /* Of the products of one call on this rank, two for a multiplication and an addition; pairs that a mask hides do
     * not count */
    int64_t forward_flops, backward_flops;
} heddle_attention_info;

/* A snapshot; its texts belong to the object. Not collective. HEDDLE_ERR_ARG: NULL, struct_bytes (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_attention_get_info(heddle_attention_info *out, const heddle_attention *attention);

#ifdef __cplusplus
}
#endif

#endif
