/* What the questions of tests/device have in common. */
#ifndef HD_TEST_DEVICE_QUESTIONS_H
#define HD_TEST_DEVICE_QUESTIONS_H

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DO(call)                                                                                                       \
    do {                                                                                                               \
        cudaError_t error = (call);                                                                                    \
        if (error != cudaSuccess) {                                                                                    \
            printf("%s: %s\n", #call, cudaGetErrorString(error));                                                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static __device__ uint64_t now_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

static __global__ void work(uint64_t ns, uint32_t *sink)
{
    const uint64_t end = now_ns() + ns;
    uint32_t x = threadIdx.x;
    while (now_ns() < end) {
        x = x * 1664525u + 1013904223u;
    }
    if (x == 1) {
        *sink = x;
    }
}

static double now_ms()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* calls.cu */
void calls_beside_a_kernel();
void calls_beside_a_process();
void calls_beside_a_copy();

#endif
