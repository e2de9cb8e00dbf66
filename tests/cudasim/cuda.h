/* The part of the CUDA driver's interface that heddle and tests use, for the emulator: contexts, and which one a thread
 * has. Same names, types and values as the real header has; what heddle calls it finds by
 * cudaGetDriverEntryPointByVersion.
 */
#ifndef HD_CUDASIM_CUDA_H
#define HD_CUDASIM_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError_enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
} CUresult;

typedef enum CUpointer_attribute_enum {
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10, /* of those there are */
} CUpointer_attribute;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuCtxPopCurrent(CUcontext *out);
CUresult cuCtxGetCurrent(CUcontext *out);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuPointerGetAttribute(void *out, CUpointer_attribute what, CUdeviceptr memory);

/* For tests: what else a program may do beside heddle. */
CUresult cuCtxSetCurrent(CUcontext context);

#ifdef __cplusplus
}
#endif

#endif
