/* Copies and fills. Those of memory that is not pinned return when they are done. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    HD_SIM_MAX_PITCH = INT32_MAX, /* cudaDevAttrMaxPitch of every device there is */
    ALONG_BYTES = 64 << 10,       /* of pageable memory: so many are taken along */
};

static void run_copy(hd_sim_op *op)
{
    for (size_t row = 0; row < op->u.copy.height; row++) {
        memmove((char *)op->u.copy.dst + row * op->u.copy.dst_pitch,
                (const char *)op->u.copy.src + row * op->u.copy.src_pitch, op->u.copy.width);
    }
}

static int meets(const void *area, size_t pitch, const hd_sim_op *op, const void *memory, size_t bytes)
{
    const char *begin = area, *end = begin + (op->u.copy.height - 1) * pitch + op->u.copy.width;
    return begin < (const char *)memory + bytes && (const char *)memory < end;
}

int hd_sim_copies(const hd_sim_op *op, const void *memory, size_t bytes)
{
    return op->run == run_copy && (meets(op->u.copy.dst, op->u.copy.dst_pitch, op, memory, bytes) ||
                                   meets(op->u.copy.src, op->u.copy.src_pitch, op, memory, bytes));
}

static void run_set(hd_sim_op *op)
{
    memset(op->u.set.dst, op->u.set.value, op->u.set.bytes);
}

static cudaError_t finish(cudaStream_t handle)
{
    hd_sim_lock();
    cudaStream_t stream = hd_sim_stream(handle);
    if (stream != NULL) {
        hd_sim_finish(stream);
    }
    hd_sim_unlock();
    return cudaSuccess;
}

static int fits(enum cudaMemcpyKind kind, int dst_is_device, int src_is_device)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !dst_is_device && !src_is_device;
    case cudaMemcpyHostToDevice:
        return dst_is_device && !src_is_device;
    case cudaMemcpyDeviceToHost:
        return !dst_is_device && src_is_device;
    case cudaMemcpyDeviceToDevice:
        return dst_is_device && src_is_device;
    case cudaMemcpyDefault:
        return 1;
    }
    return 0;
}

static _Atomic int64_t copied;

static void say_copied(void)
{
    fprintf(stderr, "cudasim: %lld bytes were copied between host and devices\n", (long long)copied);
}

__attribute__((constructor)) static void say_at_exit(void)
{
    if (getenv("HEDDLE_CUDASIM_SAY_COPIED") != NULL) {
        (void)atexit(say_copied);
    }
}

int64_t hd_sim_copied(void)
{
    return copied;
}

/* Rows are pitch bytes apart; must_wait: whatever memory it is. */
static cudaError_t copy(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                        enum cudaMemcpyKind kind, cudaStream_t stream, int must_wait)
{
    HD_SIM_CALL();
    if (width == 0 || height == 0) {
        return cudaSuccess;
    }
    if (dst == NULL || src == NULL || (height > 1 && (dst_pitch < width || src_pitch < width))) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    if (height > 1 && (dst_pitch > HD_SIM_MAX_PITCH || src_pitch > HD_SIM_MAX_PITCH)) {
        return hd_sim_result(cudaErrorInvalidPitchValue);
    }
    void *dst_view = NULL, *src_view = NULL;
    int dst_is_pageable = 0, src_is_pageable = 0, dst_is_device = 0, src_is_device = 0;
    hd_sim_lock();
    cudaError_t error =
        hd_sim_check(dst, (height - 1) * dst_pitch + width, &dst_view, &dst_is_pageable, &dst_is_device);
    if (error == cudaSuccess) {
        error = hd_sim_check(src, (height - 1) * src_pitch + width, &src_view, &src_is_pageable, &src_is_device);
    }
    hd_sim_unlock();
    if (error == cudaSuccess && !fits(kind, dst_is_device, src_is_device)) {
        error = kind > cudaMemcpyDefault ? cudaErrorInvalidMemcpyDirection : cudaErrorInvalidValue;
    }
    if (error != cudaSuccess) {
        return hd_sim_result(error);
    }
    hd_sim_op op = {.run = run_copy, .u.copy = {dst_view, src_view, dst_pitch, src_pitch, width, height}};
    error = hd_sim_enqueue(stream, &op);
    copied += dst_is_device != src_is_device ? (int64_t)(width * height) : 0;
    if (error == cudaSuccess && (must_wait || dst_is_pageable || src_is_pageable) && !hd_sim_is_capturing(stream)) {
        if (dst_is_pageable || (src_is_pageable && width * height > ALONG_BYTES)) {
            hd_sim_keep_driver();
        }
        error = finish(stream);
        hd_sim_leave_driver();
    }
    return hd_sim_result(error);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    return copy(dst, bytes, src, bytes, bytes, 1, kind, NULL, 1);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy(dst, bytes, src, bytes, bytes, 1, kind, stream, 0);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy(dst, dst_pitch, src, src_pitch, width, height, kind, stream, 0);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    HD_SIM_CALL();
    if (bytes == 0) {
        return cudaSuccess;
    }
    void *view = NULL;
    int is_pageable = 0, is_device = 0;
    hd_sim_lock();
    cudaError_t error = hd_sim_check(dst, bytes, &view, &is_pageable, &is_device);
    hd_sim_unlock();
    if (error != cudaSuccess || is_pageable) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    hd_sim_op op = {.run = run_set, .u.set = {view, value, bytes}};
    return hd_sim_result(hd_sim_enqueue(stream, &op));
}

cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    return cudaMemsetAsync(dst, value, bytes, NULL);
}
