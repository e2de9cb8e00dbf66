/* The functions for frameworks' pools (heddle/cuda.h), found as PyTorch finds them: by the library and two names. */
#ifndef HD_DEVICE_POOL_H
#define HD_DEVICE_POOL_H

#include "own_stream.h"

#include <dlfcn.h>
#include <heddle/cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

enum { GRAIN = 2 << 20, OFFSET = 4096 }; /* what a piece is a multiple of; where in one a tensor lies */

/* As torch calls them. The runtime's own functions are those that the library is linked to. */
typedef struct pool_api {
    device_sim sim; /* its own `handle` is that of the library */
    void *(*take)(size_t bytes, int device, void *stream);
    void (*give)(void *memory, size_t bytes, int device, void *stream);
    int (*error)(void);
    int (*get_device)(int *device);
    int (*set_device)(int device);
} pool_api;

static heddle_status find(void *out, void *handle, const char *name)
{
    void *found = dlsym(handle, name);
    memcpy(out, &found, sizeof found);
    return found != NULL ? HEDDLE_OK : heddle_set_error(HEDDLE_ERR_INTERNAL, "the library has no %s", name);
}

static heddle_status pool_get(pool_api *out)
{
    heddle_status st = HEDDLE_OK;
    void *handle = dlopen(HEDDLE_DEVICE_SIM "/libheddle_cuda.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(handle != NULL);
    HD_TRY(device_sim_get(&out->sim));
    HD_TRY(find(&out->take, handle, "heddle_cuda_malloc"));
    HD_TRY(find(&out->give, handle, "heddle_cuda_free"));
    HD_TRY(find(&out->error, handle, "cudaPeekAtLastError"));
    HD_TRY(find(&out->get_device, handle, "cudaGetDevice"));
    HD_TRY(find(&out->set_device, handle, "cudaSetDevice"));
out:
    return st;
}

#endif
