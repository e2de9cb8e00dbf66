/* Memory of a device in other processes: CUDA IPC. */
#include "runtime/device/cuda/cuda.h"

#include <string.h>

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(heddle_device_name), "a name is a handle");

heddle_status hd_cuda_share(heddle_device_name *out, void *memory, int device)
{
    heddle_status st = HEDDLE_OK;
    cudaIpcMemHandle_t handle;
    HD_CUDA_ON(device, HD_CUDA(device, cudaIpcGetMemHandle(&handle, memory)));
    if (st == HEDDLE_OK) {
        memcpy(out, &handle, sizeof handle);
    }
    return st;
}

heddle_status hd_cuda_map(void **out, const heddle_device_name *name, int device)
{
    heddle_status st = HEDDLE_OK;
    cudaIpcMemHandle_t handle;
    memcpy(&handle, name, sizeof handle);
    HD_CUDA_ON(device, HD_CUDA(device, cudaIpcOpenMemHandle(out, handle, cudaIpcMemLazyEnablePeerAccess)));
    return st;
}

void hd_cuda_unmap(void *memory, int device)
{
    HD_CUDA_END_ON(device, cudaIpcCloseMemHandle(memory));
}
