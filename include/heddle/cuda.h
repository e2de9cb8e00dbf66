/* Memory of CUDA devices for a framework's pool: two functions of libheddle_cuda, in the form of PyTorch's
 * CUDAPluggableAllocator, which finds them by the library's path and their names. Nothing links to that library, and
 * once loaded it stays. heddle.torch.mem_pool() of the Python package makes a torch.cuda.MemPool of them.
 *
 * What they are good for: the wire "peer" between processes stores straight into memory that the peers have mapped,
 * and copies from memory of the plan into any other (docs/gpu.md). A plan that is made (heddle_reshard_create) maps on
 * all of its ranks what each has from here by then, as it does with heddle_buffer_alloc; so tensors of the pool,
 * wherever they lie in it, are stored to directly, also by plans that were there before. Between threads, and by other
 * wires, it is memory like any other.
 *
 * Both may be called by any thread at any time, also while a stream captures; they leave the calling thread's device as
 * it was and no error behind, heddle's sentence (heddle_last_error) neither. */
#ifndef HEDDLE_CUDA_H
#define HEDDLE_CUDA_H

#include <heddle/export.h>
#include <heddle/space.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* At least `bytes` bytes of `device`, not initialised: whole pieces of 2 MiB from cudaMalloc, which CUDA shares with
 * other processes one by one. For any stream; the one that is given tells nothing. NULL: no bytes were asked for, or
 * they cannot be had, for whatever reason. */
HEDDLE_API void *heddle_cuda_malloc(size_t bytes, int device, heddle_stream stream);

/* `stream` is the one that work with the memory was enqueued on. A piece that peers may have mapped is kept until the
 * last communicator that mapped it has been destroyed; the call waits for the stream, so that it may be the next one of
 * about its size, or leaves it unused where the stream captures. Any other piece goes back to the device at once, which
 * waits for all of the device's work. Once CUDA has ended nothing happens, nor with what is not from here. NULL is
 * legal. */
HEDDLE_API void heddle_cuda_free(void *memory, size_t bytes, int device, heddle_stream stream);

#ifdef __cplusplus
}
#endif

#endif
