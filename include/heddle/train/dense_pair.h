/* A pair of linear layers divided over a tensor axis, with gather and reduce-scatter of the sequence (Megatron sequence
 * parallelism, arXiv 2205.05198, section 4.2): y = act(x W1^T + b1) W2^T + b2.
 *
 * x and y are sharded over the tensor axis along a batch or sequence dim (and over other axes as they like). Every rank
 * of the axis holds a block of W1's rows and the same block of W2's columns. Forward gathers x over the axis (a reshard
 * t@tp -> *) and reduce-scatters y (sum@tp -> t@tp); backward gathers dy, and x again, and reduce-scatters dx.
 *
 * A rank with m of the M gathered rows, each of r bytes, on an axis of N ranks sends (N-1) m r for a gather and (M-m) r
 * for a reduce-scatter: with even rows 2 (N-1)/N M r forward and 3 (N-1)/N M r backward (2 with keep_gathered).
 *
 * Results: a row does not depend on where it lies nor on the number of threads, but on how many ranks share the hidden
 * width, whose sums are cut there; partial sums are added in rank order in f32. With bf16 each partial sum is rounded
 * to bf16 before it travels and the sum once more; so are the hidden layer and dx. Gradients of parameters are f32.
 *
 * Threads: a pair may be used by one thread at a time; with options.threads > 1 a call starts and ends its own. It
 * works on host memory: the stream of a call is ignored (heddle/space.h), the call returns when it is done.
 */
#ifndef HEDDLE_DENSE_PAIR_H
#define HEDDLE_DENSE_PAIR_H

#include <heddle/block.h>
#include <heddle/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_dense_pair heddle_dense_pair;

typedef enum heddle_activation { HEDDLE_ACTIVATION_NONE = 0, HEDDLE_ACTIVATION_GELU = 1 } heddle_activation;

typedef struct heddle_dense_pair_options {
    size_t struct_bytes;
    int64_t hidden;               /* rows of W1; balanced blocks over the axis, need not divide */
    heddle_activation activation; /* default GELU (tanh form) */
    int threads;                  /* of this rank, 0 .. 256; 0 = 1 */
    int keep_gathered;   /* 1: the gathered x and the hidden layer of the last forward are kept for its backward.
                            0: backward makes both again from its x; any number of forwards before it */
    int forward_only;    /* 1: no gradients, no memory for them */
    int64_t deadline_ms; /* 0: the communicator's */
    heddle_space space;  /* of the arrays; host memory; HEDDLE_ERR_UNSUPPORTED otherwise */
    int device;          /* of that space, this rank's own; 0 on the host */
} heddle_dense_pair_options;

HEDDLE_API void heddle_dense_pair_options_init(heddle_dense_pair_options *options);

/* Collective over comm, which is borrowed. shape: F32 or BF16 activation, last dim the channels; layout: of x and y,
 * shards some dim other than the last over mesh axis `axis`; other axes may shard others, or the same one, or be
 * replicated. Where the axis is not the innermost of its dim the gathered rows are not those of the axis's ranks, and
 * more is sent than the formula says. Parameters are zero at first.
 *   HEDDLE_ERR_ARG          NULL, no hidden channels, an option out of range, no such axis
 *   HEDDLE_ERR_LAYOUT       shape, mesh, layout and communicator contradict one another, the channels are sharded,
 *                           partial sums, the axis shards nothing
 *   HEDDLE_ERR_UNSUPPORTED  another dtype; space is not host memory; this libheddle was built without oneDNN
 *   HEDDLE_ERR_MISMATCH     on every rank: the ranks ask for different pairs (threads and deadline may differ)
 *   HEDDLE_ERR_NOMEM        names the bytes
 *   HEDDLE_ERR_PEER         another rank failed; its sentence
 * The communicator stays usable after these, and not after the other errors of waiting (heddle/comm.h). */
HEDDLE_CHECKED heddle_status heddle_dense_pair_create(heddle_dense_pair **out, heddle_comm *comm,
                                                      const heddle_shape *shape, const heddle_mesh *mesh,
                                                      const heddle_layout *layout, int axis,
                                                      const heddle_dense_pair_options *options);
HEDDLE_API void heddle_dense_pair_destroy(heddle_dense_pair *pair); /* NULL is legal; before the communicator */

/* Parameters of this rank, f32, owned by the pair: fc1.weight [hidden_local, c], fc1.bias [hidden_local], fc2.weight
 * [c, hidden_local], fc2.bias [c] (replicated over the axis, added once). Gradients likewise; that of fc2.bias is this
 * rank's part of a sum over the axis, those of the others are whole with respect to it (over axes that shard other rows
 * they are parts). A rank may have no hidden channels: hidden_local 0. Call _commit after writing parameters.
 * HEDDLE_ERR_ARG: NULL, no such index, gradients of a pair that is forward only. nparams of NULL is 0. */
HEDDLE_API int heddle_dense_pair_nparams(const heddle_dense_pair *pair);
HEDDLE_CHECKED heddle_status heddle_dense_pair_param(heddle_param *out, heddle_dense_pair *pair, int index);
HEDDLE_CHECKED heddle_status heddle_dense_pair_gradient(heddle_param *out, heddle_dense_pair *pair, int index);
/* Sets all of them to zero. NULL is legal. */
HEDDLE_API void heddle_dense_pair_zero_gradients(heddle_dense_pair *pair, heddle_stream stream);
/* The rows of the whole W1 this rank holds. lo and len may be NULL; 0 and 0 for a pair that is NULL. */
HEDDLE_API void heddle_dense_pair_rows(int64_t *lo, int64_t *len, const heddle_dense_pair *pair);
/* Parameters are ready: packs them. Not collective. What a forward kept is forgotten. HEDDLE_ERR_NOMEM. */
HEDDLE_CHECKED heddle_status heddle_dense_pair_commit(heddle_dense_pair *pair);

/* Collective. Dense local parts, in any memory; y may be x. Never allocates. HEDDLE_ERR_ARG: NULL (unless empty), not
 * committed; nothing has moved on this rank, and the others wait for it. Otherwise errors as for
 * heddle_reshard_execute. */
HEDDLE_CHECKED heddle_status heddle_dense_pair_forward(heddle_dense_pair *pair, void *y, const void *x,
                                                       heddle_stream stream);
/* dx may be dy. Adds to the gradients. x: that of the forward call (not read with keep_gathered). May be called several
 * times for one forward. Parameters must not have changed since. HEDDLE_ERR_ARG also: nothing is kept, forward only. */
HEDDLE_CHECKED heddle_status heddle_dense_pair_backward(heddle_dense_pair *pair, void *dx, const void *dy,
                                                        const void *x, heddle_stream stream);

typedef struct heddle_dense_pair_info {
    size_t struct_bytes;
    int64_t planned_forward_bytes, planned_backward_bytes; /* sent by this rank per call */
    int64_t measured_bytes;                                /* all calls together */
    int64_t forwards, backwards;
    int64_t saved_bytes;     /* kept between forward and backward; part of the next */
    int64_t workspace_bytes; /* everything besides parameters and gradients */
} heddle_dense_pair_info;
/* Not collective. HEDDLE_ERR_ARG: NULL, struct_bytes (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_dense_pair_get_info(heddle_dense_pair_info *out, const heddle_dense_pair *pair);

#ifdef __cplusplus
}
#endif

#endif
