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
 * they cannot be had, for whatever reason: a fork of a process that has some gets none. */
HEDDLE_API void *heddle_cuda_malloc(size_t bytes, int device, heddle_stream stream);

/* As cudaFree, waits for all that the device does, whichever stream is given. A piece that peers may have mapped is
 * kept until the last communicator that mapped it has been destroyed, and is given out again meanwhile, to who asks for
 * half as much at least or cannot get anything else; not if the wait was impossible (it takes 2 MiB of the device).
 * Any other piece goes back to the device. So where ranks are threads on one device, free nothing while a rank waits
 * for another one that has not come. Once CUDA has ended nothing happens, nor in a fork, nor with what is not from
 * here. NULL is legal. */
HEDDLE_API void heddle_cuda_free(void *memory, size_t bytes, int device, heddle_stream stream);

#ifdef __cplusplus
}
#endif

#endif
