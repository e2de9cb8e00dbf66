/* A launch with more threads than its kernel says ends the program: a GPU does not run it. */
#include "case.h"
#include "cudasim.h"
#include "kernels/cuda/lang.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

typedef struct store_args {
    uint32_t *at;
} store_args;

HD_KERNEL_BESIDE(store_beside, store_args, a, 32, 1)
{
    hd_store_4(a.at + HD_THREAD % 2, HD_THREADS);
}

/* Does a child with a launch of so many threads end well? In one, before this process has used the device. */
static int ends_well(unsigned threads)
{
    int status = 1;
    const pid_t child = fork();
    if (child == 0) {
        store_args a = {NULL};
        (void)freopen("/dev/null", "w", stderr);
        OK(cudaMalloc((void **)&a.at, 8));
        HD_LAUNCH(store_beside, 1, threads, NULL, &a);
        OK(cudaDeviceSynchronize());
        _exit(*(const uint32_t *)hd_sim_view(a.at, 4) == threads ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status == 0;
}

HD_CASE(threads_of_a_launch_are_those_of_its_kernel)
{
    assert_true(ends_well(31));
    assert_true(ends_well(32));
    assert_false(ends_well(33));
}
