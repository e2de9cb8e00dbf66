/* A device's context is pushed on what the thread has, and popped. cudaSetDevice cannot put back what was there: a
 * thread that has chosen nothing would have chosen device 0, and every process its context, some 500 MB of that device;
 * a context that is not the primary one would be lost. Nobody changes it between enter and leave, so who enters within
 * asks the driver nothing. The driver's functions are found by the runtime: libcuda is not linked. */
#include "runtime/device/cuda/context.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { MOST_DEVICES = 64, VERSION = 12000 /* of the functions' types */ };

static struct {
    CUresult (*get_current)(CUcontext *out);
    CUresult (*get_device)(CUdevice *device);
    CUresult (*retain)(CUcontext *out, CUdevice device);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *out);
    CUresult (*look)(void *out, CUpointer_attribute what, CUdeviceptr memory);
} driver;
static _Atomic int is_found;
static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;

/* Never released: CUDA's runtime keeps a primary context until its process ends, too, and what is in it (the caller's
 * arrays, graphs with work of heddle's) may outlive every communicator. */
static _Atomic(CUcontext) primary[MOST_DEVICES];

/* Copied: a pointer to data is none to a function. */
static cudaError_t find(void *function, const char *name)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, VERSION, cudaEnableDefault, &result);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    memcpy(function, &found, sizeof found);
    return error == cudaSuccess && found == NULL ? cudaErrorNotSupported : error;
}

/* A failure is no reason not to look again. */
static cudaError_t find_driver(void)
{
    cudaError_t error = cudaSuccess;
    if (atomic_load(&is_found)) {
        return cudaSuccess;
    }
    pthread_mutex_lock(&finding);
    if (!atomic_load(&is_found)) {
        int count = 0;
        error = cudaGetDeviceCount(&count); /* begins CUDA, and makes no context */
        error = error != cudaSuccess ? error : find(&driver.get_current, "cuCtxGetCurrent");
        error = error == cudaSuccess ? find(&driver.get_device, "cuCtxGetDevice") : error;
        error = error == cudaSuccess ? find(&driver.retain, "cuDevicePrimaryCtxRetain") : error;
        error = error == cudaSuccess ? find(&driver.push, "cuCtxPushCurrent") : error;
        error = error == cudaSuccess ? find(&driver.pop, "cuCtxPopCurrent") : error;
        error = error == cudaSuccess ? find(&driver.look, "cuPointerGetAttribute") : error;
        atomic_store(&is_found, error == cudaSuccess);
    }
    pthread_mutex_unlock(&finding);
    return error;
}

/* Errors of the driver have the runtime's numbers. Two threads may both retain it: it is the same one. */
static cudaError_t primary_of(CUcontext *out, int device)
{
    CUresult result = CUDA_SUCCESS;
    if (device < 0 || device >= MOST_DEVICES) {
        return cudaErrorInvalidDevice;
    }
    *out = atomic_load(&primary[device]);
    if (*out == NULL) {
        result = driver.retain(out, device);
        atomic_store(&primary[device], result == CUDA_SUCCESS ? *out : NULL);
    }
    return (cudaError_t)result;
}

/* Does the thread have a context of this device? Where it has none, compute-sanitizer takes the question of its device
 * for an error. */
static int is_current(int device)
{
    CUcontext context = NULL;
    CUdevice now = 0;
    return driver.get_current(&context) == CUDA_SUCCESS && context != NULL && driver.get_device(&now) == CUDA_SUCCESS &&
           now == device;
}

/* What the thread is within, of those that this file is compiled into: a device's number and 1. */
static _Thread_local int within;

/* *before: that, twice, and 1 where there is something to pop. Where the device is current already its context may be
 * another one than the primary: what the caller has is in it. */
cudaError_t hd_context_enter(int *before, int device)
{
    CUcontext context = NULL;
    *before = 2 * within;
    if (within == device + 1) {
        return cudaSuccess;
    }
    cudaError_t error = find_driver();
    if (error == cudaSuccess && !is_current(device)) {
        error = primary_of(&context, device);
        error = error == cudaSuccess ? (cudaError_t)driver.push(context) : error;
        *before += error == cudaSuccess;
    }
    within = error == cudaSuccess ? device + 1 : within;
    return error;
}

void hd_context_leave(int before)
{
    CUcontext gone = NULL;
    if (before % 2 != 0) {
        (void)driver.pop(&gone);
    }
    within = before / 2;
}

cudaError_t hd_context_is_shareable(int *out, const void *memory)
{
    unsigned char is_shareable = 0;
    const CUresult result =
        driver.look(&is_shareable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, (CUdeviceptr)(uintptr_t)memory);
    *out = is_shareable != 0;
    return (cudaError_t)result;
}
