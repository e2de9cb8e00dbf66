/* Linear attention with decay over a sequence that is sharded over ranks, forward and backward.
 *
 *   f32[b=2 s=37 h=6 d=16] on [sp=4]: s@sp       method lasp, dv 24
 *
 * Per sample and head with decay g in (0, 1]:
 *
 *   causal          o_i = sum over j <= i of g^(i-j) (q_i . k_j) v_j
 *   bidirectional   o_i = sum over all j  of g^|i-j| (q_i . k_j) v_j
 *
 * No softmax, no denominator, no scale. What one rank has to know of the others is a state [dk, dv] per sample and
 * head, whatever the length. The shape is that of q and k: batch, sequence, heads, width dk, whatever their names; v
 * and o have width dv. The sequence may be sharded over any mesh axes; batch and heads over others. Any extents: shards
 * are as uneven as the layout says, ranks may be empty.
 *
 * Methods (docs/linear-attention.md has a section on each):
 *   local   the whole sequence is on this rank
 *   lasp    states travel from rank to rank (LASP, arXiv 2404.02882). All work on the own rows comes first, so that
 *           only g^length S + M per rank is serial; receive_first gives the published order instead
 *   lasp2   every rank gathers all states (LASP-2, arXiv 2502.07563)
 *   scan    exclusive scan of (g^length, state) in ceil(log2 N) steps
 *
 * State convention: the state between rows i and i+1 is S_i = g S_(i-1) + k_i v_i^T, and o_i = q_i S_i: what is sent is
 * not decayed for the step to the next row. Code that follows the LASP repository sends g S instead;
 * heddle_linear_attention_state gives either. Gradients of states are gradients of S in this convention.
 *
 * Storage is f32 or bf16 (on a device f16, too) with arithmetic and states in f32, or f64 with both in f64. Gradients
 * are exact and never scaled: those of a loss that is the sum over all ranks. A NaN spreads as it would in the
 * recurrence above.
 *
 * Arrays are where options.space says (heddle/space.h). Host memory: the stream of a call is ignored, the call returns
 * when it is done. On a device a call enqueues. There: f32, bf16, f16; widths up to 128, of bf16 and f16 multiples of
 * 8, whose heads begin at multiples of 16 bytes; the elements of a head lie together; what is not finite spreads over
 * up to 64 rows beside it; receive_first is refused; chunk_rows and threads mean nothing.
 *
 * Threads: an object may be used by one thread at a time; options.threads > 1 starts and ends its own in every call.
 */
#ifndef HEDDLE_LINEAR_ATTENTION_H
#define HEDDLE_LINEAR_ATTENTION_H

#include <heddle/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEDDLE_LINEAR_METHOD_LIST(X)                                                                                   \
    X(LOCAL, "local")                                                                                                  \
    X(LASP, "lasp")                                                                                                    \
    X(LASP2, "lasp2")                                                                                                  \
    X(SCAN, "scan")

typedef enum heddle_linear_method {
#define HEDDLE_LINEAR_METHOD_ENUM(name, text) HEDDLE_LINEAR_##name,
    HEDDLE_LINEAR_METHOD_LIST(HEDDLE_LINEAR_METHOD_ENUM)
#undef HEDDLE_LINEAR_METHOD_ENUM
        HEDDLE_LINEAR_METHOD_COUNT
} heddle_linear_method;

/* "unknown" for a value outside the list. */
HEDDLE_API const char *heddle_linear_method_name(heddle_linear_method method);
/* HEDDLE_ERR_PARSE lists the names. */
HEDDLE_CHECKED heddle_status heddle_linear_method_parse(heddle_linear_method *out, const char *text);

typedef struct heddle_linear_attention_options {
    size_t struct_bytes;
    heddle_linear_method method; /* default local */
    int64_t dv;                  /* width of v and o; 0: that of the shape */
    const double *decay;         /* [heads of the shape] each 0 < g <= 1; NULL: all 1. Copied */
    int bidirectional;           /* 0: causal */
    int receive_first;   /* lasp, causal: 1 waits for the state before any work and sends after all of it, as the
                            published code does; for comparison */
    int64_t chunk_rows;  /* rows worked on at once, 1..1024; 0: chosen by the widths (64..256) */
    int threads;         /* of this rank, 0..256; 0 = 1. Samples and heads are divided among them */
    int64_t deadline_ms; /* every wait; 0: the communicator's */
    heddle_space space;  /* of all arrays of a call */
    int device;          /* of that space, this rank's own: heddle_comm_device; 0 on the host */
} heddle_linear_attention_options;

HEDDLE_API void heddle_linear_attention_options_init(heddle_linear_attention_options *options);

/* Slopes of ALiBi as TNL and the LASP repository use them: decay[h] = exp(-2^(-8(h+1)/heads)) for a power of two of
 * heads, otherwise those of the next smaller power of two and then every other one of the next larger. Pure.
 * HEDDLE_ERR_ARG: out is NULL or heads < 1. */
HEDDLE_CHECKED heddle_status heddle_linear_attention_slopes(double *out, int64_t heads);

/* Planned traffic of `rank` per call, without a communicator: one message of one state per transfer. Pure. Errors as
 * for heddle_linear_attention_create. */
HEDDLE_CHECKED heddle_status heddle_linear_attention_plan_traffic(heddle_attention_traffic *out,
                                                                  const heddle_shape *shape, const heddle_mesh *mesh,
                                                                  const heddle_layout *layout,
                                                                  const heddle_linear_attention_options *options,
                                                                  int rank);

typedef struct heddle_linear_attention heddle_linear_attention;

/* Collective over comm, which the object borrows and whose size is the mesh's. options may be NULL (local).
 *   HEDDLE_ERR_ARG          NULL; an option out of range (the sentence names it)
 *   HEDDLE_ERR_LAYOUT       shape, mesh and layout contradict one another, other than four dims, the width is sharded,
 *                           partial sums, method local with a sharded sequence
 *   HEDDLE_ERR_UNSUPPORTED  dtype; on a device: comm has none, widths, receive_first
 *   HEDDLE_ERR_MISMATCH     on every rank: they ask for different things; names the first rank and field that differ
 *   HEDDLE_ERR_NOMEM        names the bytes
 *   HEDDLE_ERR_PEER         another rank failed; its sentence
 * The communicator stays usable after these, and not after the other errors of waiting (heddle/comm.h). */
HEDDLE_CHECKED heddle_status heddle_linear_attention_create(heddle_linear_attention **out, heddle_comm *comm,
                                                            const heddle_shape *shape, const heddle_mesh *mesh,
                                                            const heddle_layout *layout,
                                                            const heddle_linear_attention_options *options);
/* Not collective. NULL is legal. No call may be in progress on any rank. On a device it waits as heddle_bucket_destroy
 * does (heddle/train/bucket.h), at the same price where what was enqueued does not end. */
HEDDLE_API void heddle_linear_attention_destroy(heddle_linear_attention *attention);

/* Collective over the ranks that share the sequence. Arrays are local parts [batch, rows, heads, width] of the shape's
 * dtype in any memory, see heddle_attention_array. Returns when o is complete. The state at the beginning of every
 * chunk is kept for backward (info.saved_bytes), the first of them being the one that came from other ranks, so that
 * backward moves no forward states again; q, k and v are the caller's to keep. o must not overlap q, k, v. Allocates
 * nothing. HEDDLE_ERR_ARG: a NULL array of a rank that is not empty, strides that an array must not have; the object is
 * as it was before the call, but the communicator ends, so that the others do not wait for this rank: they get
 * HEDDLE_ERR_PEER. Errors of waiting (heddle/comm.h) name rank and peer; after them the object only fails. */
HEDDLE_CHECKED heddle_status heddle_linear_attention_forward(heddle_linear_attention *attention,
                                                             const heddle_attention_array *q,
                                                             const heddle_attention_array *k,
                                                             const heddle_attention_array *v,
                                                             const heddle_attention_array *o, heddle_stream stream);
/* Gradients of the last forward, given the same q, k and v: d_o is the gradient of o; dq, dk, dv are written, not added
 * to, and must not overlap the others. May be called several times. Errors as above; HEDDLE_ERR_ARG: there was no
 * forward: nobody waits, forward may follow. */
HEDDLE_CHECKED heddle_status heddle_linear_attention_backward(
    heddle_linear_attention *attention, const heddle_attention_array *q, const heddle_attention_array *k,
    const heddle_attention_array *v, const heddle_attention_array *d_o, const heddle_attention_array *dq,
    const heddle_attention_array *dk, const heddle_attention_array *dv, heddle_stream stream);

typedef enum heddle_linear_state {
    HEDDLE_LINEAR_STATE_PLAIN = 0,  /* S as above */
    HEDDLE_LINEAR_STATE_DECAYED = 1 /* g S, as the LASP repository passes on */
} heddle_linear_state;

/* The state behind this rank's last row after a causal forward, dense [batch, heads, dk, dv] of this rank, f32 (f64 for
 * f64); on the last rank that holds rows the sequence's final state. out is memory of the object's
 * space, written in the order of stream. Not collective. HEDDLE_ERR_ARG: no forward, bidirectional, a NULL pointer,
 * memory elsewhere, a convention that is neither of the two. */
HEDDLE_CHECKED heddle_status heddle_linear_attention_state(void *out, const heddle_linear_attention *attention,
                                                           heddle_linear_state convention, heddle_stream stream);

typedef struct heddle_linear_attention_info {
    size_t struct_bytes;
    const char *method;
    heddle_attention_traffic planned;  /* per call */
    heddle_attention_traffic measured; /* counted while sending, all calls together */
    int64_t forwards, backwards;       /* finished */
    int64_t state_bytes;               /* of one message */
    int64_t serial_steps;              /* transfers of a call that follow one another on the longest path */
    int64_t saved_bytes;               /* kept from forward to backward */
    int64_t workspace_bytes;           /* the rest of what the object holds */
    int64_t wait_ns;                   /* waited for other ranks, all calls together */
    int64_t chunk_rows;
    const char *kernel; /* "generic" "avx2" "avx512" "f64" */
    const char *why;    /* one sentence */
    /* The same by the formulas of the method, which the planner uses; room_bytes: what the kernels of all threads work
     * in, which comes on top. saved_bytes = planned_saved_bytes, workspace_bytes = planned_workspace_bytes + room_bytes
     */
    int64_t planned_saved_bytes, planned_workspace_bytes, room_bytes;
    /* Of the products of one call on this rank, two for a multiplication and an addition; in the form of chunks */
    int64_t forward_flops, backward_flops;
} heddle_linear_attention_info;

/* HEDDLE_ERR_ARG: a pointer is NULL; struct_bytes (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_linear_attention_get_info(heddle_linear_attention_info *out,
                                                              const heddle_linear_attention *attention);

#ifdef __cplusplus
}
#endif

#endif
