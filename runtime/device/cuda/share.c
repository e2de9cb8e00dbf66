/* Memory of a device in other processes: CUDA IPC. */
#include "runtime/device/cuda/cuda.h"

#include <string.h>

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(heddle_device_name), "a name is a handle");

heddle_status hd_cuda_share(heddle_device_name *out, void *memory, int device)
{
    int before = 0;
    cudaIpcMemHandle_t handle;
    heddle_status st = hd_cuda_enter(&before, device);
    if (st == HEDDLE_OK) {
        st = HD_CUDA(device, cudaIpcGetMemHandle(&handle, memory));
        memcpy(out, &handle, sizeof handle);
        hd_cuda_leave(before);
    }
    return st;
}

heddle_status hd_cuda_map(void **out, const heddle_device_name *name, int device)
{
    int before = 0;
    cudaIpcMemHandle_t handle;
    heddle_status st = hd_cuda_enter(&before, device);
    if (st == HEDDLE_OK) {
        memcpy(&handle, name, sizeof handle);
        st = HD_CUDA(device, cudaIpcOpenMemHandle(out, handle, cudaIpcMemLazyEnablePeerAccess));
        hd_cuda_leave(before);
    }
    return st;
}

void hd_cuda_unmap(void *memory, int device)
{
    int before = 0;
    if (hd_cuda_enter(&before, device) == HEDDLE_OK) {
        (void)cudaIpcCloseMemHandle(memory);
        hd_cuda_leave(before);
    }
}
