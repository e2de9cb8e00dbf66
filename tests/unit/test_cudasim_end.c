/* A program that ends while an emulated kernel runs has leaked nothing, whatever stack the kernel is on just then. */
#include "case.h"
#include "cudasim.h"
#include "kernels/cuda/lang.h"

#include <unistd.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { THREADS = 32 };

typedef struct wait_args {
    uint64_t *has_begun, *never;
} wait_args;

HD_KERNEL(wait_for_ever, wait_args, a)
{
    hd_sync();
    if (HD_THREAD == 0) {
        hd_store_release_system(a.has_begun, 1);
    }
    while (hd_load_acquire_system(a.never) != 1) {
        hd_nap();
    }
}

HD_CASE(a_program_ends_within_a_kernel)
{
    uint64_t *memory = NULL;
    cudaStream_t stream = NULL;
    OK(cudaMalloc((void **)&memory, 2 * sizeof *memory));
    OK(cudaMemset(memory, 0, 2 * sizeof *memory));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    wait_args a = {memory, memory + 1};
    HD_LAUNCH(wait_for_ever, 1, THREADS, stream, &a);
    const uint64_t *has_begun = hd_sim_view(memory, sizeof *memory);
    while (__atomic_load_n(has_begun, __ATOMIC_ACQUIRE) != 1) { /* a case has a time limit */
        usleep(1000);
    }
    OK(cudaStreamDestroy(stream));
}
