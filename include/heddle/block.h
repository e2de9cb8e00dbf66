/* Transformer blocks on the local shard: the pieces of a spatial-temporal diffusion transformer, forward.
 *
 * A stage works on the rank's box of the activation x[b, seq dims..., c] (dense, row-major, c last and whole) and never
 * communicates: the dim it attends over must be whole in the box. Results of a row never depend on how many rows the
 * rank holds, so any sharding gives the same bits as one rank.
 */
#ifndef HEDDLE_BLOCK_H
#define HEDDLE_BLOCK_H

#include <heddle/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum heddle_stage_kind {
    HEDDLE_STAGE_ATTENTION = 0, /* x += gate * proj(attention over one dim (qkv(modulate(norm(x))))) */
    HEDDLE_STAGE_CROSS = 1,     /* x += proj(attention of q(x) to k,v(text)) */
    HEDDLE_STAGE_MLP = 2        /* x += gate * fc2(gelu_tanh(fc1(modulate(norm(x))))) */
} heddle_stage_kind;

typedef struct heddle_block_options {
    size_t struct_bytes;
    heddle_stage_kind kind;
    heddle_shape shape;   /* global activation, F32 or BF16; dim 0 = batch, last = channels */
    int mixed_dim;        /* dim attended over (ATTENTION), else -1 */
    int heads;            /* channels % heads == 0 (ATTENTION, CROSS) */
    int64_t mlp_channels; /* MLP: hidden width */
    int64_t text_tokens;  /* CROSS: rows of text per sample (the largest length) */
    int modulate;         /* 1: shift, scale and gate come from the conditioning vector; 0: plain pre-norm residual */
    int rope;             /* 1: rotary positions along mixed_dim (temporal attention of STDiT3) */
    int qk_norm;          /* 1: RMS norm of q and k per head (STDiT3) */
    int threads;          /* threads of this rank; 0 = 1 */
} heddle_block_options;

HEDDLE_API void heddle_block_options_init(heddle_block_options *options);

typedef struct heddle_block heddle_block;

/* Parameters of a block in a fixed order; name is the last part of the safetensors key, e.g. "qkv.weight". */
typedef struct heddle_param {
    const char *name;
    int ndim;
    int64_t extent[2]; /* linear weights are [out, in] */
    float *data;       /* f32 master copy, owned by the block; call heddle_block_commit after writing */
} heddle_param;

HEDDLE_API heddle_status heddle_block_create(heddle_block **out, const heddle_block_options *options);
HEDDLE_API void heddle_block_destroy(heddle_block *block);

HEDDLE_API int heddle_block_nparams(const heddle_block *block);
HEDDLE_API heddle_status heddle_block_param(heddle_param *out, heddle_block *block, int index);
/* Fill all parameters from a counter-based generator: the same seed gives the same weights on every rank. Commits. */
HEDDLE_API heddle_status heddle_block_seed(heddle_block *block, uint64_t seed);
/* Weights are ready: convert and pack them. Must be called once after parameters were written. */
HEDDLE_API heddle_status heddle_block_commit(heddle_block *block);

/* Conditioning shared by all rows of a sample; f32, row-major, borrowed during the call. */
typedef struct heddle_conditioning {
    const float *vector;         /* [b, 6, c]: shift, scale, gate of attention, then of mlp; NULL if !modulate */
    const float *text;           /* [b, text_tokens, c]; CROSS only */
    const int64_t *text_lengths; /* [b], each 0..text_tokens; NULL: all text_tokens */
} heddle_conditioning;

/* In place on the local box of x. The block holds its workspace and grows it on the first call for a larger box.
 * HEDDLE_ERR_LAYOUT: mixed_dim or the channels are not whole in `box`. */
HEDDLE_API heddle_status heddle_block_forward(heddle_block *block, void *x, const heddle_box *box,
                                              const heddle_conditioning *conditioning);
HEDDLE_API int64_t heddle_block_workspace_bytes(const heddle_block *block);

/* out[rows, n] = act(x[rows, k]) times W[n, k]^T + bias for token-wise layers (patch embedding, final layer), with the
 * same row-independence. bias may be NULL. f32. */
HEDDLE_API heddle_status heddle_linear_forward(float *out, const float *x, int64_t rows, int64_t k, const float *weight,
                                               const float *bias, int64_t n, int threads);

#ifdef __cplusplus
}
#endif

#endif
