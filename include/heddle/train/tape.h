/* Backward of the blocks: what a forward call keeps, gradients of the activation, of the parameters and of the
 * conditioning.
 *
 *     heddle_block_forward_tape(block, x, &box, &conditioning, tape, stream);         same bits as heddle_block_forward
 *     ...
 *     heddle_block_backward(block, dx, &conditioning, &dconditioning, tape, stream);  dx in: of the output; out: of the
 *                                                                                     input
 *
 * Gradients are those of a loss that is the sum over all ranks, and are never scaled. The gradient of the activation is
 * exact per row: any sharding gives the same bits as one rank. Gradients of parameters and conditioning are sums over
 * the rows of *this rank's box*; the sum over the ranks (heddle/train/bucket.h) is the whole gradient, equal to one
 * rank's up to the order of f32 sums. docs/blocks.md has the formulas.
 *
 * Streams are those of heddle/space.h. Of a block on a device dx and dconditioning lie there, and gradients of
 * parameters are memory of the device. Threads: as for the block.
 */
#ifndef HEDDLE_TAPE_H
#define HEDDLE_TAPE_H

#include <heddle/block.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one forward call keeps for its backward. Several forward calls of a block may be in flight, each with a tape of
 * its own (micro-batches of a pipeline). */
typedef struct heddle_tape heddle_tape;

typedef struct heddle_tape_options {
    size_t struct_bytes;
    int recompute; /* 1: keep the stage's input only and run its forward again inside backward */
} heddle_tape_options;

HEDDLE_API void heddle_tape_options_init(heddle_tape_options *options);

/* A tape for calls of `block`, which it borrows; destroy it before the block. options may be NULL. Not collective.
 * HEDDLE_ERR_ARG: out or block is NULL, options without their _init function, recompute other than 0 and 1.
 * HEDDLE_ERR_NOMEM. */
HEDDLE_CHECKED heddle_status heddle_tape_create(heddle_tape **out, heddle_block *block,
                                                const heddle_tape_options *options);
HEDDLE_API void heddle_tape_destroy(heddle_tape *tape); /* NULL is legal */
/* As heddle_block_reserve, for heddle_block_forward_tape and heddle_block_backward with this tape: what it keeps, the
 * gradients and the block's workspace. Collective where heddle_block_forward is, on a device. */
HEDDLE_CHECKED heddle_status heddle_tape_reserve(heddle_tape *tape, const heddle_box *box);
/* Activation memory: what the last forward call keeps, 0 before it and after one that failed half way. NULL: 0. Where
 * attention is sharded what its object keeps of that call is counted, as long as there was no later one of the block;
 * not where the tape recomputes. docs/blocks.md has the formula of each stage. */
HEDDLE_API int64_t heddle_tape_bytes(const heddle_tape *tape);

/* heddle_block_forward that also fills the tape, with the same bits in x; grows the tape on the first call for a larger
 * box and replaces what it held. Collective where heddle_block_forward is. Errors as there; HEDDLE_ERR_ARG also: a
 * NULL, or the tape is of another block. A call that is refused (HEDDLE_ERR_ARG, _LAYOUT, _UNSUPPORTED) leaves the tape
 * as it was; after another error it holds nothing. */
HEDDLE_CHECKED heddle_status heddle_block_forward_tape(heddle_block *block, const heddle_tensor *x,
                                                       const heddle_box *box, const heddle_conditioning *conditioning,
                                                       heddle_tape *tape, heddle_stream stream);

/* Where gradients of the conditioning are added; f32, indexed by the global batch like heddle_conditioning. Only the
 * rows that the stage reads are touched: of the box's samples, rows 0..2 (ATTENTION, LINEAR) or 3..5 (MLP) of the
 * vector, the first text_lengths[b] rows of the text (CROSS). */
typedef struct heddle_conditioning_gradient {
    float *vector; /* [b, 6, c]; NULL: not wanted */
    float *text;   /* [b, text_tokens, c]; NULL: not wanted */
} heddle_conditioning_gradient;

/* dx: dense like x of the forward call, in its dtype; gradient of the stage's output on entry, of its input on return.
 * conditioning: as in the forward call. Parameter gradients are added to heddle_block_gradient. dconditioning may be
 * NULL. May be called several times for one forward (each adds). Weights must not have changed since the forward. The
 * first call after heddle_block_commit packs the transposed weights. Collective where the forward was. NaN and infinity
 * spread to what depends on them and no further, except within the sums over rows.
 * HEDDLE_ERR_ARG: a NULL; the tape is of another block or holds no forward; weights were committed since it;
 * conditioning missing. HEDDLE_ERR_NOMEM: workspace of the first call of a box; nothing is allocated afterwards. After
 * an error dx and the gradients may be partly done. */
HEDDLE_CHECKED heddle_status heddle_block_backward(heddle_block *block, const heddle_tensor *dx,
                                                   const heddle_conditioning *conditioning,
                                                   const heddle_conditioning_gradient *dconditioning, heddle_tape *tape,
                                                   heddle_stream stream);

/* Gradient of parameter `index`: like heddle_block_param, data is [extents] f32, owned by the block until it is
 * destroyed (the address does not change), zero until the first backward. HEDDLE_ERR_ARG: a NULL, no such parameter.
 * HEDDLE_ERR_NOMEM: made on first use. */
HEDDLE_CHECKED heddle_status heddle_block_gradient(heddle_param *out, heddle_block *block, int index);
/* Sets all of them to zero. NULL is legal. */
HEDDLE_API void heddle_block_zero_gradients(heddle_block *block, heddle_stream stream);

/* Blocks hold workspace for the rows of a box in backward (and in the forward of a sharded dim): docs/blocks.md says
 * how much. From now on `block` works in the one of `with` and of all blocks that share it already, which must be used
 * by one thread at a time together; its own is freed. It grows to what the largest needs, lives until the last of them
 * is destroyed, in any order, and is counted in heddle_block_workspace_bytes of each. Blocks of as many threads share
 * what those work in, too. Tapes are not shared. Not collective. HEDDLE_ERR_ARG: NULL. HEDDLE_ERR_NOMEM. */
HEDDLE_CHECKED heddle_status heddle_block_share_workspace(heddle_block *block, heddle_block *with);

/* Backward of heddle_dense_forward: dx[rows, k] = dout W (written; NULL: not wanted, then weight may be NULL),
 * dweight[n, k] += dout^T x, dbias[n] += column sums of dout (NULL: not wanted). dx must not overlap the others. A row
 * of dx has the same bits whatever the other rows are; dweight and dbias do not depend on threads. Packs the weights on
 * every call. threads 0 .. 256, 0 = 1. HEDDLE_ERR_ARG: dweight, dout, x or weight is NULL with rows > 0, or a number is
 * out of range. HEDDLE_ERR_UNSUPPORTED: a libheddle that was built without oneDNN. HEDDLE_ERR_NOMEM. */
HEDDLE_CHECKED heddle_status heddle_dense_backward(float *dx, float *dweight, float *dbias, const float *dout,
                                                   const float *x, int64_t rows, int64_t k, const float *weight,
                                                   int64_t n, int threads, heddle_stream stream);

#ifdef __cplusplus
}
#endif

#endif
