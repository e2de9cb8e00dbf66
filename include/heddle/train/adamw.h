/* The optimiser on the own block of a bucket (heddle/train/bucket.h).
 *
 * Threads: an optimiser may be used by one thread at a time. The stream of a step is the bucket's.
 */
#ifndef HEDDLE_ADAMW_H
#define HEDDLE_ADAMW_H

#include <heddle/train/bucket.h>

#ifdef __cplusplus
extern "C" {
#endif

/* AdamW (decoupled weight decay; bias correction) on the own block of a bucket:
 *
 *     g = grad * min(1, max_norm / norm)
 *     m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
 *     param = param (1 - rate * weight_decay) - rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
 *
 * in f64 per element, every operation rounded by itself, m, v and param rounded to f32 once: sharded and not sharded
 * give the same bits, and so do the host and a device (but for those of a NaN). The state lies where the bucket's parts
 * do. On a device the norm stays there: by the wires peer and nccl a step only enqueues. By the wire host what goes
 * between ranks (the sum of norms, the gather) waits for the stream and for the others, as every reshard there, and so
 * does the sum of norms over more than 64 ranks by every wire. */
typedef struct heddle_adamw heddle_adamw;

typedef struct heddle_adamw_options {
    size_t struct_bytes;
    double beta1, beta2, epsilon; /* 0.9, 0.999, 1e-8 */
    double weight_decay;          /* 0.01 */
    double max_norm;              /* clip the gradient's norm (heddle_bucket_norm); 0: not */
} heddle_adamw_options;

HEDDLE_API void heddle_adamw_options_init(heddle_adamw_options *options);
/* Borrows the bucket; not collective. options may be NULL. HEDDLE_ERR_ARG: NULL, options out of range (betas in [0, 1),
 * epsilon more than 0, the others not negative) or without their _init function. HEDDLE_ERR_UNSUPPORTED: the bucket
 * lies on a device whose library has no kernels. HEDDLE_ERR_NOMEM. On a device it allocates, for which CUDA may wait:
 * before ranks execute anything there. */
HEDDLE_CHECKED heddle_status heddle_adamw_create(heddle_adamw **out, heddle_bucket *bucket,
                                                 const heddle_adamw_options *options);
/* NULL is legal; before its bucket. On a device it waits as heddle_bucket_destroy does. */
HEDDLE_API void heddle_adamw_destroy(heddle_adamw *adamw);
/* One step on reduced gradients: updates the own block, then heddle_bucket_gather. Collective with a shard axis or with
 * max_norm. HEDDLE_ERR_ARG: a learning rate that is negative or no number; the stream is being captured (steps are
 * counted on the host). HEDDLE_ERR_DEVICE: a call of the device failed; names it; the others are told. Errors as for
 * heddle_bucket_gather, with max_norm also of heddle_bucket_norm. */
HEDDLE_CHECKED heddle_status heddle_adamw_step(heddle_adamw *adamw, double learning_rate, heddle_stream stream);
/* The same with a norm the caller has made, where a model's parameters are in several buckets: the square root of the
 * sum of the squares of their norms. HEDDLE_ERR_ARG also: a negative norm. With a norm that is NaN nothing is clipped:
 * parameters whose own gradient is NaN become NaN, the others take a whole step; ask the norm first. */
HEDDLE_CHECKED heddle_status heddle_adamw_step_clipped(heddle_adamw *adamw, double learning_rate, double norm,
                                                       heddle_stream stream);
/* Bytes of m and v on this rank: 8 per element of the own block. NULL: 0. */
HEDDLE_API int64_t heddle_adamw_state_bytes(const heddle_adamw *adamw);

#ifdef __cplusplus
}
#endif

#endif
