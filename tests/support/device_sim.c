/* Part of the emulated libheddle_cuda: streams of a test's own, and one that does not go on until it is told to. */
#include <cuda_runtime_api.h>
#include <heddle/status.h>
#include <stdatomic.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

static _Atomic int held;

EXPORT heddle_status device_sim_stream_create(void **stream);
EXPORT void device_sim_stream_destroy(void *stream);
EXPORT heddle_status device_sim_capture(void *stream, int begins);
EXPORT void device_sim_hold(void *stream);
EXPORT void device_sim_release(void);

heddle_status device_sim_stream_create(void **stream)
{
    cudaStream_t made = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    *stream = made;
    return error == cudaSuccess ? HEDDLE_OK : HEDDLE_ERR_DEVICE;
}

void device_sim_stream_destroy(void *stream)
{
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
}

/* What is enqueued between the two is recorded, and thrown away. */
heddle_status device_sim_capture(void *stream, int begins)
{
    cudaGraph_t graph = NULL;
    cudaError_t error = begins ? cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)
                               : cudaStreamEndCapture(stream, &graph);
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    return error == cudaSuccess ? HEDDLE_OK : HEDDLE_ERR_DEVICE;
}

static void until_release(void *user)
{
    const struct timespec some = {.tv_nsec = 200000};
    (void)user;
    while (atomic_load(&held)) {
        nanosleep(&some, NULL);
    }
}

void device_sim_hold(void *stream)
{
    atomic_store(&held, 1);
    (void)cudaLaunchHostFunc(stream, until_release, NULL);
}

void device_sim_release(void)
{
    atomic_store(&held, 0);
}
