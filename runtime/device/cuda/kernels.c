/* What kernels are launched on, and with what. */
#include "runtime/device/cuda/cuda.h"
#ifdef HD_CUDA_KERNELS
#include "kernels/table_device.h"

#include <stdatomic.h>
#endif

#include <stdio.h>

static cudaError_t create_first(cudaStream_t *stream)
{
    int last = 0, first = 0;
    const cudaError_t error = cudaDeviceGetStreamPriorityRange(&last, &first);
    return error == cudaSuccess ? cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, first) : error;
}

heddle_status hd_cuda_stream_create(heddle_stream *out, int device)
{
    cudaStream_t stream = NULL;
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, hd_cuda_status(create_first(&stream), device, "cudaStreamCreateWithPriority"));
    *out = stream;
    return st;
}

void hd_cuda_stream_destroy(heddle_stream stream, int device)
{
    if (stream != NULL) {
        HD_CUDA_END_ON(device, cudaStreamDestroy(stream));
    }
}

#ifdef HD_CUDA_KERNELS
heddle_status hd_cuda_blocks(int *blocks, int device)
{
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, hd_cuda_status((cudaError_t)hd_kernels_cuda.resident(blocks), device, "cudaOccupancy"));
    return st;
}

/* Once on each device: what loads kernels asks for every one of them. */
static heddle_status load_once(int device)
{
    static _Atomic uint64_t loaded;
    const uint64_t bit = (uint64_t)1 << device % 64;
    heddle_status st = HEDDLE_OK;
    if ((atomic_load(&loaded) & bit) == 0 || device >= 64) {
        HD_CUDA_ON(device, hd_cuda_status((cudaError_t)hd_kernels_cuda.load(), device, "cudaFuncGetAttributes"));
        atomic_fetch_or(&loaded, st == HEDDLE_OK ? bit : 0);
    }
    return st;
}

/* The sum of one term. */
heddle_status hd_cuda_store(void *dst, const void *src, size_t bytes, int device, heddle_stream stream)
{
    heddle_status st = load_once(device);
    if (st == HEDDLE_OK) {
        HD_CUDA_ON(device,
                   hd_cuda_status((cudaError_t)hd_kernels_cuda.sum(dst, &src, 1, (int64_t)bytes, HEDDLE_U8, stream),
                                  device, "a kernel's launch"));
    }
    return st;
}
#endif

/* By its UUID: slices of one GPU (MIG) have one bus id, and so have GPUs of several hosts. */
heddle_status hd_cuda_identify(char *out, size_t bytes, int device)
{
    struct cudaDeviceProp about;
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, HD_CUDA(device, cudaGetDeviceProperties(&about, device)));
    for (size_t i = 0; st == HEDDLE_OK && i < sizeof about.uuid.bytes && 2 * i + 2 < bytes; i++) {
        snprintf(out + 2 * i, bytes - 2 * i, "%02x", (unsigned char)about.uuid.bytes[i]);
    }
    return st;
}

static heddle_status reach(int device, int peer)
{
    int can = 0;
    heddle_status st = HD_CUDA(device, cudaDeviceCanAccessPeer(&can, device, peer));
    if (st != HEDDLE_OK) {
        return st;
    }
    if (!can) {
        return hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED, "device cuda:%d cannot reach the memory of cuda:%d", device, peer);
    }
    cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        error = cudaSuccess;
    }
    return hd_cuda_status(error, device, "cudaDeviceEnablePeerAccess");
}

heddle_status hd_cuda_reach(int device, int peer)
{
    heddle_status st = HEDDLE_OK;
    if (device != peer) {
        HD_CUDA_ON(device, reach(device, peer));
    }
    return st;
}

/* cudaDeviceEnablePeerAccess covers what cudaMalloc gave, which is also what CUDA IPC shares, and managed memory; not
 * that of cudaMallocAsync and cuMemMap, where a peer's store ends that one's context. */
heddle_status hd_cuda_ask_reached(int *is_reached, const void *memory, int device)
{
    struct cudaPointerAttributes about;
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, HD_CUDA(device, cudaPointerGetAttributes(&about, memory)));
    *is_reached = st == HEDDLE_OK && about.type == cudaMemoryTypeManaged;
    if (st == HEDDLE_OK && !*is_reached) {
        HD_CUDA_ON(device,
                   hd_cuda_status(hd_context_is_shareable(is_reached, memory), device, "cuPointerGetAttribute"));
    }
    return st;
}
