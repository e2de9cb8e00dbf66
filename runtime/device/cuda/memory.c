/* Memory of a device: where it lies, and copies. */
#include "runtime/device/cuda/cuda.h"

#include <time.h>

heddle_status hd_cuda_alloc(void **out, int device, size_t bytes)
{
    int before = 0;
    size_t available = 0, total = 0;
    heddle_status st = hd_cuda_enter(&before, device);
    if (st != HEDDLE_OK) {
        return st;
    }
    cudaError_t error = cudaMalloc(out, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&available, &total);
        st = hd_cuda_fail(HEDDLE_ERR_NOMEM, "device cuda:%d has no %zu bytes: %zu of %zu are free", device, bytes,
                          available, total);
    } else {
        st = hd_cuda_status(error, device, "cudaMalloc");
    }
    hd_cuda_leave(before);
    return st;
}

void hd_cuda_free(void *memory, int device)
{
    if (memory != NULL) {
        HD_CUDA_END_ON(device, cudaFree(memory));
    }
}

static heddle_status copy_row_by_row(char *dst, int64_t dst_step_bytes, const char *src, int64_t src_step_bytes,
                                     int64_t run_bytes, int64_t rows, int device, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    for (int64_t row = 0; row < rows && st == HEDDLE_OK; row++) {
        st = HD_CUDA(device, cudaMemcpyAsync(dst + row * dst_step_bytes, src + row * src_step_bytes, (size_t)run_bytes,
                                             cudaMemcpyDefault, stream));
    }
    return st;
}

static int is_pageable(const void *memory)
{
    struct cudaPointerAttributes about;
    if (cudaPointerGetAttributes(&about, memory) != cudaSuccess) {
        (void)cudaGetLastError(); /* the copy will say it */
        return 0;
    }
    return about.type == cudaMemoryTypeUnregistered;
}

/* A copy of pageable memory waits inside CUDA for what its stream has, with a lock that the calls of all other threads
 * want. Where these are ranks for which the stream waits, nobody would go on: so it is waited for here. */
static heddle_status come_to_pageable(const void *dst, const void *src, int64_t bytes, int device, heddle_stream stream)
{
    enum { ALONG_BYTES = 64 << 10 }; /* to the device CUDA takes so many along, and does not wait */
    const struct timespec nap = {.tv_nsec = 20000};
    void *event = NULL;
    int captures = 0, done = 0;
    heddle_status st = HEDDLE_OK;
    if (!is_pageable(dst) && (bytes <= ALONG_BYTES || !is_pageable(src))) {
        return HEDDLE_OK;
    }
    st = hd_cuda_stream_captures(&captures, device, stream);
    if (st != HEDDLE_OK || captures) {
        return st;
    }
    st = hd_cuda_event_create(&event, device);
    st = st == HEDDLE_OK ? hd_cuda_event_record(event, device, stream) : st;
    while (st == HEDDLE_OK && (st = hd_cuda_event_test(event, device, &done)) == HEDDLE_OK && !done) {
        (void)nanosleep(&nap, NULL);
    }
    hd_cuda_event_destroy(event, device);
    return st;
}

static heddle_status copy(void *dst, int64_t dst_step_bytes, const void *src, int64_t src_step_bytes, int64_t run_bytes,
                          int64_t rows, int device, heddle_stream stream)
{
    enum { MAX_PITCH = INT32_MAX }; /* cudaDevAttrMaxPitch, on every device there is */
    const heddle_status st = come_to_pageable(dst, src, run_bytes * rows, device, stream);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (rows == 1 || dst_step_bytes > MAX_PITCH || src_step_bytes > MAX_PITCH) {
        return copy_row_by_row(dst, dst_step_bytes, src, src_step_bytes, run_bytes, rows, device, stream);
    }
    return HD_CUDA(device, cudaMemcpy2DAsync(dst, (size_t)dst_step_bytes, src, (size_t)src_step_bytes,
                                             (size_t)run_bytes, (size_t)rows, cudaMemcpyDefault, stream));
}

heddle_status hd_cuda_copy(void *dst, int64_t dst_step_bytes, const void *src, int64_t src_step_bytes,
                           int64_t run_bytes, int64_t rows, int device, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    if (run_bytes > 0 && rows > 0) {
        HD_CUDA_ON(device, copy(dst, dst_step_bytes, src, src_step_bytes, run_bytes, rows, device, stream));
    }
    return st;
}

/* For kernels, too, which have the host's address of it: CUDA promises that for memory it has allocated itself only. */
static heddle_status check_address(const void *memory, int device)
{
    void *there = NULL;
    heddle_status st = HD_CUDA(device, cudaHostGetDevicePointer(&there, (void *)(uintptr_t)memory, 0));
    return st != HEDDLE_OK || there == memory
               ? st
               : hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED,
                              "device cuda:%d has other addresses for registered host memory than the host: %p for %p",
                              device, there, memory);
}

static heddle_status pin(void *memory, size_t bytes, int device)
{
    heddle_status st =
        HD_CUDA(device, cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    if (st == HEDDLE_OK && (st = check_address(memory, device)) != HEDDLE_OK) {
        (void)cudaHostUnregister(memory);
    }
    return st;
}

heddle_status hd_cuda_pin(void *memory, size_t bytes, int device)
{
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, pin(memory, bytes, device));
    return st;
}

void hd_cuda_unpin(void *memory, int device)
{
    HD_CUDA_END_ON(device, cudaHostUnregister(memory));
}

/* Any device can say. Managed memory can be had from everywhere; it is the device's that it was allocated on. */
heddle_status hd_cuda_look(heddle_space *space, int *device, const void *memory)
{
    struct cudaPointerAttributes about;
    int any = hd_cuda_opened();
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(any, HD_CUDA(any, cudaPointerGetAttributes(&about, memory)));
    if (st == HEDDLE_OK) {
        int is_device = about.type == cudaMemoryTypeDevice || about.type == cudaMemoryTypeManaged;
        *space = is_device ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
        *device = is_device ? about.device : 0;
    }
    return st;
}
