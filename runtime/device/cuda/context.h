/* Which device the calling thread's calls go to. Compiled into each library that calls CUDA. */
#ifndef HD_DEVICE_CUDA_CONTEXT_H
#define HD_DEVICE_CUDA_CONTEXT_H

#include <cuda_runtime_api.h>

/* *before: for leave, which gives the thread back what it had, also where enter has failed. */
cudaError_t hd_context_enter(int *before, int device);
void hd_context_leave(int before);
/* Within a context: is it memory that CUDA IPC shares, as that of cudaMalloc is? */
cudaError_t hd_context_is_shareable(int *out, const void *memory);

#endif
