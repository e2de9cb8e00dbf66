/* A pair of linear layers divided over a tensor axis, with gather and reduce-scatter of the sequence (Megatron sequence
 * parallelism, arXiv 2205.05198, section 4.2): y = act(x W1^T + b1) W2^T + b2.
 *
 * x and y are sharded over the tensor axis along a batch or sequence dim (and over other axes as they like). Every rank
 * of the axis holds a block of W1's rows and the same block of W2's columns. Forward gathers x over the axis (a reshard
 * t@tp -> *) and reduce-scatters y (sum@tp -> t@tp); backward gathers dy, and x again, and reduce-scatters dx.
 */
#ifndef HEDDLE_LINEAR_PAIR_H
#define HEDDLE_LINEAR_PAIR_H

#include <heddle/block.h>
#include <heddle/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_linear_pair heddle_linear_pair;

typedef enum heddle_activation { HEDDLE_ACTIVATION_NONE = 0, HEDDLE_ACTIVATION_GELU = 1 } heddle_activation;

typedef struct heddle_linear_pair_options {
    size_t struct_bytes;
    int64_t hidden;               /* rows of W1; balanced blocks over the axis, need not divide */
    heddle_activation activation; /* default GELU (tanh form) */
    int threads;                  /* 0 = 1 */
    int keep_gathered;            /* 1: keep the gathered x for backward instead of gathering it again */
    int forward_only;
    int64_t deadline_ms;
} heddle_linear_pair_options;

HEDDLE_API void heddle_linear_pair_options_init(heddle_linear_pair_options *options);

/* Collective. shape: F32 or BF16 activation, last dim the channels; layout: of x and y, shards some dim other than the
 * last over mesh axis `axis`. */
HEDDLE_API heddle_status heddle_linear_pair_create(heddle_linear_pair **out, heddle_comm *comm,
                                                   const heddle_shape *shape, const heddle_mesh *mesh,
                                                   const heddle_layout *layout, int axis,
                                                   const heddle_linear_pair_options *options);
HEDDLE_API void heddle_linear_pair_destroy(heddle_linear_pair *pair);

/* Parameters of this rank: fc1.weight [hidden_local, c], fc1.bias [hidden_local], fc2.weight [c, hidden_local],
 * fc2.bias [c] (replicated over the axis, added once). Gradients likewise; that of fc2.bias is this rank's part of a
 * sum over the axis, those of the others are whole with respect to it. Call _commit after writing parameters. */
HEDDLE_API int heddle_linear_pair_nparams(const heddle_linear_pair *pair);
HEDDLE_API heddle_status heddle_linear_pair_param(heddle_param *out, heddle_linear_pair *pair, int index);
HEDDLE_API heddle_status heddle_linear_pair_gradient(heddle_param *out, heddle_linear_pair *pair, int index);
HEDDLE_API void heddle_linear_pair_zero_gradients(heddle_linear_pair *pair);
/* The rows of the whole W1 this rank holds. */
HEDDLE_API void heddle_linear_pair_rows(int64_t *lo, int64_t *len, const heddle_linear_pair *pair);
HEDDLE_API heddle_status heddle_linear_pair_commit(heddle_linear_pair *pair);

/* Collective. Dense local parts; y may be x. */
HEDDLE_API heddle_status heddle_linear_pair_forward(heddle_linear_pair *pair, void *y, const void *x);
/* dx may be dy. Adds to the gradients. x: that of the forward call (not read with keep_gathered). */
HEDDLE_API heddle_status heddle_linear_pair_backward(heddle_linear_pair *pair, void *dx, const void *dy, const void *x);

typedef struct heddle_linear_pair_info {
    size_t struct_bytes;
    int64_t planned_forward_bytes, planned_backward_bytes; /* sent by this rank per call */
    int64_t measured_bytes;                                /* all calls together */
    int64_t forwards, backwards;
    int64_t saved_bytes, workspace_bytes;
} heddle_linear_pair_info;
HEDDLE_API heddle_status heddle_linear_pair_get_info(heddle_linear_pair_info *out, const heddle_linear_pair *pair);

#ifdef __cplusplus
}
#endif

#endif
