/* Memory that peers reach, handed out again when the array that lay in it is gone: a result in fresh memory costs ten
 * times the move in page faults. An array of a pool is DLPack's DLManagedTensor, so that PyTorch, JAX, CuPy or TVM take
 * it over as it is (torch.from_dlpack of a capsule "dltensor"), and say by its deleter when they have done with it.
 *
 *     heddle_pool_create(&pool, comm);
 *     heddle_reshard_execute_pooled(&y, plan, x, pool, HEDDLE_NO_STREAM);     heddle/reshard.h
 *     ... y->tensor.data ...                                                  heddle/dlpack.h
 *     y->deleter(y);
 *     heddle_pool_destroy(pool);
 *
 * Blocks come in sizes an eighth apart, so that arrays whose lengths vary share them. What is held is at most twice
 * what arrays have ever taken at once; beyond that those blocks are freed whose size was not asked for longest. Once a
 * rank has given up (heddle_comm_abort, a deadline) none is handed out again: a late peer may still write to it.
 *
 * Threads: a pool is used like its communicator, by one thread at a time, but any thread may give an array back, at any
 * time and without waiting for anybody. */
#ifndef HEDDLE_POOL_H
#define HEDDLE_POOL_H

#include <heddle/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_pool heddle_pool;
/* DLManagedTensor: heddle/dlpack.h has its fields. */
typedef struct heddle_dl_managed heddle_dl_managed;

/* Of a communicator, or of the one that it is an axis group of. Not collective. HEDDLE_ERR_ARG: a pointer is NULL, or
 * the call comes from a fork. HEDDLE_ERR_NOMEM. */
HEDDLE_CHECKED heddle_status heddle_pool_create(heddle_pool **out, heddle_comm *comm);
/* Frees what no array lies in; arrays stay, and each frees its memory when it is given back, which may be after
 * heddle_comm_destroy. (heddle_run_ranks frees what is still out when a rank returns: give back before.) To be called
 * before heddle_comm_destroy; NULL is legal. */
HEDDLE_API void heddle_pool_destroy(heddle_pool *pool);

/* *out: a dense array, row-major, not initialised, 4096-byte aligned, in host memory. len has ndim extents. It is the
 * caller's until its deleter is called, or heddle_pool_give_back. Not collective.
 *   HEDDLE_ERR_ARG    a pointer is NULL (len: but for ndim 0), no such dtype, ndim not in 0..HEDDLE_MAX_DIMS, an extent
 *                     is negative; the call comes from a fork
 *   HEDDLE_ERR_NOMEM  names the bytes; blocks that no array lies in were freed first */
HEDDLE_CHECKED heddle_status heddle_pool_take(heddle_dl_managed **out, heddle_pool *pool, heddle_dtype dtype, int ndim,
                                              const int64_t *len);
/* What the array's deleter does. Any thread; NULL is legal. No peer may be using it. Once: a second time it does
 * nothing but say so (heddle_last_error), as long as nobody else has taken the memory since and the pool has not freed
 * it. */
HEDDLE_API void heddle_pool_give_back(heddle_dl_managed *array);

/* Frees what no array lies in. NULL is legal. */
HEDDLE_API void heddle_pool_trim(heddle_pool *pool);
/* What the pool has taken from the communicator and not freed, arrays included. NULL: 0. */
HEDDLE_API size_t heddle_pool_held_bytes(const heddle_pool *pool);

#ifdef __cplusplus
}
#endif

#endif
