/* Transformer blocks on the local shard: the stages of a spatial-temporal diffusion transformer, forward; backward is
 * in heddle/train/tape.h.
 *
 * A stage works on the rank's box of the activation x[b, seq dims..., c] (dense, row-major, c last and whole) and does
 * not communicate: the dim it attends over must be whole in the box, unless heddle_block_shard_attention gives it a
 * method for a sharded one. Results of a row never depend on how many rows the rank holds, on which, on where they lie
 * or on the number of threads, so any sharding gives the same bits as one rank (on the same kind of CPU: other
 * instruction sets round differently). docs/blocks.md has the formulas and says how.
 *
 * These are the stages between which Dynamic Sequence Parallelism switches the sharded dim (arXiv 2403.10266, sections
 * 3 and 4), with the block structure of STDiT3 (Open-Sora 1.2); Latte, TimeSformer and axial models use the same
 * stages.
 *
 * Threads: a block may be used by one thread at a time; different blocks at the same time by any. With options.threads
 * > 1 a forward call starts and ends its own threads. A block made before fork works in the child.
 *
 * Blocks work in host memory, where the stream of a call is ignored (heddle/space.h) and the call returns when it is
 * done; or on a device (options.space), where it enqueues. docs/blocks.md says what differs there.
 */
#ifndef HEDDLE_BLOCK_H
#define HEDDLE_BLOCK_H

#include <heddle/comm.h>
#include <heddle/layout.h>
#include <heddle/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum heddle_stage_kind {
    HEDDLE_STAGE_ATTENTION = 0, /* x += gate * proj(attention over one dim (qkv(modulate(norm(x))))) */
    HEDDLE_STAGE_CROSS = 1,     /* x += proj(attention of q(x) to k,v(text)) */
    HEDDLE_STAGE_MLP = 2,       /* x += gate * fc2(gelu_tanh(fc1(modulate(norm(x))))) */
    HEDDLE_STAGE_LINEAR = 3,    /* as ATTENTION with linear attention (heddle/linear_attention.h) instead of softmax, q
                                   scaled by 1/sqrt(d), and an RMS norm without weight of every head's result (the
                                   block of TransNormerLLM, which LASP was made for: arXiv 2404.02882) */
    HEDDLE_STAGE_MODULE = 4     /* planned only: a framework's module, known by its dims, flops and bytes; no block */
} heddle_stage_kind;

typedef struct heddle_block_options {
    size_t struct_bytes;
    heddle_stage_kind kind;
    heddle_shape shape;   /* global activation, F32 or BF16, on a device also F16 (stored; sums are f32); dim 0 = batch,
                             last = channels */
    int mixed_dim;        /* ATTENTION, LINEAR: dim attended over, 1 .. ndim-2; else ignored */
    int heads;            /* all but MLP: channels % heads == 0; default 1 */
    int64_t mlp_channels; /* MLP: hidden width, >= 1 */
    int64_t text_tokens;  /* CROSS: rows of text per sample (the largest length), >= 1 */
    int modulate;         /* 1 (default): shift, scale and gate come from the conditioning vector (all but CROSS);
                             0: plain pre-norm residual */
    int rope;             /* ATTENTION, LINEAR, 1: rotary positions along mixed_dim, pairs (2i, 2i+1), base 10000 */
    int qk_norm;          /* ATTENTION, 1: RMS norm of q and k per head */
    int threads;          /* threads of this rank, 0 .. 256; 0 = 1 */
    int causal;           /* LINEAR, 1: token i sees tokens 0..i of its fibre; 0: all */
    double decay;         /* LINEAR, per step and head: 0 < decay <= 1 (default 1), or 0: the heads' ALiBi slopes */
    heddle_space space;   /* DEVICE: the block computes on the device of comm, where its arrays lie */
    heddle_comm *comm;    /* DEVICE: has a device attached; borrowed, destroy the block before it. HOST: ignored */
    int64_t most_workspace_bytes; /* DEVICE: a call whose workspace would be larger goes through its box in parts, with
                                     the same bits in rows; HEDDLE_ERR_ARG where a part of one row, or fibre, takes
                                     more. 0: 2 GiB, and more where it takes more. HOST: ignored */
} heddle_block_options;

HEDDLE_API void heddle_block_options_init(heddle_block_options *options);

typedef struct heddle_block heddle_block;

/* Parameters of a block in a fixed order; name is the last part of the safetensors key:
 *   ATTENTION, LINEAR (no qk_norm there)
 *              qkv.weight [3c, c]  qkv.bias  proj.weight [c, c]  proj.bias  and with qk_norm q_norm.weight [c/heads]
 *              k_norm.weight; rows of qkv are q, k, v, each head after head
 *   CROSS      q_linear.weight [c, c]  q_linear.bias  proj.weight [c, c]  proj.bias  kv_linear.weight [2c, c]
 *              kv_linear.bias
 *   MLP        fc1.weight [mlp, c]  fc1.bias  fc2.weight [c, mlp]  fc2.bias */
typedef struct heddle_param {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    const char *name;    /* static */
    int ndim;
    int64_t extent[2]; /* linear weights are [out, in]; extent[1] is 0 when ndim is 1 */
    float *data;       /* f32 master copy, owned by the block, zero at first; call heddle_block_commit after writing */
} heddle_param;

/* HEDDLE_ERR_ARG: an option is out of its range (the sentence names it). HEDDLE_ERR_UNSUPPORTED: a dtype other than F32
 * and BF16; a libheddle that was built without oneDNN; on a device: comm has none, heads that its kernels do not take.
 * HEDDLE_ERR_LAYOUT: the shape is malformed. HEDDLE_ERR_NOMEM. Not collective; on a device it allocates, for which CUDA
 * may wait: before ranks execute anything there. */
HEDDLE_CHECKED heddle_status heddle_block_create(heddle_block **out, const heddle_block_options *options);
/* NULL is legal. On a device it waits as heddle_bucket_destroy does (heddle/train/bucket.h), at the same price where
 * what was enqueued does not end. */
HEDDLE_API void heddle_block_destroy(heddle_block *block);

HEDDLE_API int heddle_block_nparams(const heddle_block *block); /* NULL: 0 */
/* HEDDLE_ERR_ARG: NULL, index is not in 0 .. nparams-1. */
HEDDLE_CHECKED heddle_status heddle_block_param(heddle_param *out, heddle_block *block, int index);
/* From now on parameter `index` of a block on a device is a framework's array there, dense, borrowed until the block
 * ends or another one is lent (data NULL: the block's own again). It is F32 or of the activation's dtype, at a multiple
 * of 16 bytes. Of the dtype that kernels want (a weight [out, in]: the activation's) it is read where it lies, and the
 * block's memory for it is freed; else commit makes a copy, as of the F32 parameters that an optimiser trains. Commit
 * before the next forward, and whenever lent arrays have changed; by then what wrote them must be done (or
 * heddle_block_refresh). Not while a graph has calls of the block. Behind a call that used the parameter the host waits
 * for the device.
 * HEDDLE_ERR_ARG: NULL, no such parameter, another dtype, not on the block's device, its alignment.
 * HEDDLE_ERR_UNSUPPORTED: the block is in host memory, where weights are packed. HEDDLE_ERR_NOMEM, _TIMEOUT. */
HEDDLE_CHECKED heddle_status heddle_block_lend_param(heddle_block *block, int index, const void *data,
                                                     heddle_dtype dtype);
/* Fill all parameters from a counter-based generator: the same seed gives the same weights on every rank. Weights are
 * uniform within sqrt(6 / (in + out)), biases within 0.02, norm weights 1 within 0.02. Commits.
 * HEDDLE_ERR_ARG: NULL. */
HEDDLE_CHECKED heddle_status heddle_block_seed(heddle_block *block, uint64_t seed);
/* Weights are ready: convert and pack them, and check the kernels' row independence. Must be called after parameters
 * were written, as often as that happens. Of a device, the first time chooses how products of the stage and of its
 * backward are carried out, by trials that wait for the device (docs/gpu.md): before other ranks of a process that
 * share it enqueue what waits for this one. HEDDLE_ERR_ARG: NULL. HEDDLE_ERR_NOMEM. */
HEDDLE_CHECKED heddle_status heddle_block_commit(heddle_block *block);

/* Of a block on a device that was committed: what was enqueued in `stream` so far has changed arrays that are lent.
 * Enqueues the copies of those that kernels want in another dtype, allocates nothing, and does not wait; it may be
 * captured. Calls of the block on other streams that began before have ended when it begins. In host memory:
 * heddle_block_commit. HEDDLE_ERR_ARG: NULL, not committed. */
HEDDLE_CHECKED heddle_status heddle_block_refresh(heddle_block *block, heddle_stream stream);

/* Conditioning shared by all rows of a sample; f32, row-major, borrowed during the call. Of a block on a device vector
 * and text lie there, text_lengths on the host. b is the *global* batch: a rank reads the samples of its box. */
typedef struct heddle_conditioning {
    const float *vector;         /* [b, 6, c]: shift, scale, gate of attention, then of mlp; NULL if !modulate */
    const float *text;           /* [b, text_tokens, c]; CROSS only */
    const int64_t *text_lengths; /* [b], each 0..text_tokens, the first rows of a sample's text; NULL: all text_tokens.
                                    0: the stage leaves the sample as it is */
} heddle_conditioning;

/* Memory for calls on boxes of at most these lengths. Of a device all of it: calls of heddle_block_forward allocate
 * nothing then, and the first one may be captured into a graph. In host memory nothing is done: workspace grows with
 * the calls. Not collective. Behind a call that used it the host waits for the device. HEDDLE_ERR_ARG: NULL.
 * HEDDLE_ERR_ARG, HEDDLE_ERR_LAYOUT: as in heddle_block_forward. HEDDLE_ERR_NOMEM, HEDDLE_ERR_TIMEOUT. */
HEDDLE_CHECKED heddle_status heddle_block_reserve(heddle_block *block, const heddle_box *box);

/* Of blocks on devices, collective over comm: do ranks carry out their linear layers by the same algorithms? A rank
 * chooses by its own library and trials (docs/gpu.md), and a row would have other bits on another rank. Where two
 * differ all take heddle's own kernels, for this block and those that share its workspace. After heddle_block_commit on
 * every rank, before the first call; heddle_executor_create does it. In host memory nothing is done. HEDDLE_ERR_ARG:
 * NULL. Errors of waiting (heddle/comm.h). */
HEDDLE_CHECKED heddle_status heddle_block_agree(heddle_block *block, heddle_comm *comm);

/* In place on x, of which this rank holds `box`: its elements lie dense at x->data, in the shape's order, where the
 * block works. (A block knows no mesh, so the box says what x->layout means here: heddle_layout_box.) Returns when x is
 * done. Not collective. The block holds its workspace and grows it on the first call for a larger box; after that
 * nothing is allocated. An empty box is legal (x may be NULL). NaN and infinity spread to what depends on them and no
 * further.
 * HEDDLE_ERR_LAYOUT: mixed_dim or the channels are not whole in `box`, or the box is not within the shape; x has
 * other extents or another dtype than the block, or is not dense. HEDDLE_ERR_UNSUPPORTED: x is not in host memory.
 * HEDDLE_ERR_ARG: an array is not on the block's device; the stream is being captured and there is no workspace
 * (heddle_block_reserve); x is NULL, or its capacity_bytes are fewer than the box has; weights not committed,
 * conditioning missing, a text length out of range. HEDDLE_ERR_NOMEM. After an error x may be partly done.
 * What was found on the device lately is not looked at again until this communicator frees device memory; what a
 * program, its pool or another communicator frees is not noticed, and a kernel may then touch memory that is gone. */
HEDDLE_CHECKED heddle_status heddle_block_forward(heddle_block *block, const heddle_tensor *x, const heddle_box *box,
                                                  const heddle_conditioning *conditioning, heddle_stream stream);
/* Attention over a mixed dim that is sharded (ATTENTION, LINEAR). Collective over comm, which the block borrows
 * (destroy the block first, when no rank is in a call of it): from now on the block works on this rank's box of
 * `layout` only. The mixed dim may be sharded over one mesh axis or two neighbouring ones (LINEAR: any); other axes may
 * shard other dims, the channels stay whole. Forward and backward are collective over the ranks that share the mixed
 * dim, in the same order on all of them; a rank with an empty box calls too. `method` is a name of heddle/attention.h
 * (ATTENTION) or heddle/linear_attention.h (LINEAR); "local" where the mixed dim is whole. A mixed dim on axes of one
 * rank each takes any method and needs no communication.
 *
 * Results are those of the method: equal to one rank's up to f32 rounding, not bit for bit, and the same bits in every
 * run. A backward for another forward than the last one runs the attention's forward again (one more forward's
 * traffic); so does a tape that recomputes. ATTENTION of bf16: d_o and the gradients of q, k, v are rounded where they
 * go to the method. options.threads hold for the method too.
 *
 *   HEDDLE_ERR_ARG          a pointer is NULL (comm: the other ranks do not hear of it and wait), another kind of
 *                           stage, no such method (lists them), called twice
 *   HEDDLE_ERR_LAYOUT       shape, mesh and layout contradict one another, the mesh has another number of ranks than
 *                           comm, sharded channels, partial sums, a method that needs the dim sharded, whole or on two
 *                           axes
 *   HEDDLE_ERR_UNSUPPORTED  softmax attention over more than two axes
 *   HEDDLE_ERR_MISMATCH     on every rank: names the first rank that asks for something else
 *   HEDDLE_ERR_NOMEM        names the bytes
 *   errors of waiting       heddle/comm.h; HEDDLE_ERR_PEER: another rank refused or failed, the sentence is its
 * After an error the block is as before.
 *
 * In forward and backward afterwards: HEDDLE_ERR_LAYOUT: the box is not this rank's of the layout. A rank that fails
 * for whatever reason aborts the communicator, so that the others get HEDDLE_ERR_PEER with its sentence. */
HEDDLE_CHECKED heddle_status heddle_block_shard_attention(heddle_block *block, heddle_comm *comm,
                                                          const heddle_mesh *mesh, const heddle_layout *layout,
                                                          const char *method);

/* What this rank sends for the block's attention: planned per forward and per backward call, and counted while moving.
 * Bytes to itself are not counted. */
typedef struct heddle_block_traffic {
    size_t struct_bytes;
    int64_t planned_forward_bytes, planned_backward_bytes;
    int64_t measured_bytes; /* all calls together */
} heddle_block_traffic;
/* All zero for a block that never communicates. HEDDLE_ERR_ARG: NULL, struct_bytes (heddle/status.h). */
HEDDLE_CHECKED heddle_status heddle_block_get_traffic(heddle_block_traffic *out, const heddle_block *block);

/* Everything a block holds besides the f32 parameters: packed weights, and the workspace of the boxes seen so far.
 * NULL: 0.
 */
HEDDLE_API int64_t heddle_block_workspace_bytes(const heddle_block *block);

/* out[rows, n] = x[rows, k] times W[n, k]^T + bias for token-wise layers (patch embedding, final layer), with the same
 * row-independence. bias may be NULL. f32, dense; out must not overlap x. Packs the weights on every call, so it wants
 * many rows. threads 0 .. 256, 0 = 1. HEDDLE_ERR_ARG: a pointer is NULL or a number is out of range.
 * HEDDLE_ERR_UNSUPPORTED: a libheddle that was built without oneDNN. */
HEDDLE_CHECKED heddle_status heddle_dense_forward(float *out, const float *x, int64_t rows, int64_t k,
                                                  const float *weight, const float *bias, int64_t n, int threads,
                                                  heddle_stream stream);

#ifdef __cplusplus
}
#endif

#endif
