/* Which device, and whether this process can use one at all. */
#include "runtime/device/cuda/cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic pid_t began; /* the process that did */
static _Atomic int opened;  /* a device that can be used */

/* CUDA does not survive a fork: what a process has begun, its forks can neither use nor begin again. */
static heddle_status check_process(void)
{
    int by = (int)atomic_load(&began), me = (int)getpid();
    return by == 0 || by == me
               ? HEDDLE_OK
               : hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED,
                              "process %d is a fork of process %d, which used CUDA before: CUDA does not survive a "
                              "fork, so attach devices in the ranks only",
                              me, by);
}

static heddle_status say_unusable(cudaError_t error)
{
    int driver = 0, runtime = 0;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver && driver == 0) {
        return hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED, "no cuda device: there is no NVIDIA driver on this machine");
    }
    if (error == cudaErrorInsufficientDriver) {
        return hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED,
                            "no cuda device: the driver is for CUDA %d.%d, older than the %d.%d that heddle is built "
                            "for",
                            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (error == cudaErrorInitializationError) {
        return hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED,
                            "no cuda device: CUDA cannot be started here (%s); a process forked "
                            "after its parent used CUDA cannot use it",
                            cudaGetErrorString(error));
    }
    return hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED, "no cuda device: %s (error %d)", cudaGetErrorString(error), (int)error);
}

static heddle_status choose(int *device, const char *which, int local_rank, int count)
{
    if (which[0] == 0) {
        *device = local_rank % count;
        return HEDDLE_OK;
    }
    if (strcmp(which, "current") == 0) {
        return HD_CUDA(-1, cudaGetDevice(device));
    }
    *device = atoi(which);
    return *device < count
               ? HEDDLE_OK
               : hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED, "no device cuda:%s: this process sees %d", which, count);
}

/* An event makes the context, and shows that the device can be used. Unlike memory it goes without waiting for what
 * other ranks have on the device, which may be waiting for this one. */
static heddle_status make_ready(int device)
{
    void *event = NULL;
    heddle_status st = hd_cuda_event_create(&event, device);
    hd_cuda_event_destroy(event, device);
    return st;
}

int hd_cuda_opened(void)
{
    return atomic_load(&opened);
}

heddle_status hd_cuda_open(int *device, const char *which, int local_rank, char *describe, size_t describe_bytes)
{
    int count = 0;
    struct cudaDeviceProp about;
    heddle_status st = check_process();
    if (st != HEDDLE_OK) {
        return st;
    }
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count < 1) {
        return say_unusable(error != cudaSuccess ? error : cudaErrorNoDevice);
    }
    atomic_store(&began, getpid());
    st = choose(device, which, local_rank, count);
    st = st == HEDDLE_OK ? make_ready(*device) : st;
    st = st == HEDDLE_OK ? HD_CUDA(*device, cudaGetDeviceProperties(&about, *device)) : st;
    if (st == HEDDLE_OK) {
        atomic_store(&opened, *device);
        snprintf(describe, describe_bytes, "%.80s, sm_%d%d, %.1f GiB", about.name, about.major, about.minor,
                 (double)about.totalGlobalMem / (1 << 30));
    }
    return st;
}
