/* Part of the emulated libheddle_cuda: streams of a test's own, and one that does not go on until it is told to. */
#include <cuda_runtime_api.h>
#include <cudasim.h>
#include <heddle/status.h>
#include <stdatomic.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

static _Atomic int held;

/* Kernels that move have 8 threads where races are looked for. What threads of the others do beside one another,
 * contract/test_cudasim_* look at. */
__attribute__((constructor)) static void tell_those_apart_that_move(void)
{
    hd_sim_tell_apart(8);
}

EXPORT heddle_status device_sim_stream_create(void **stream);
EXPORT void device_sim_stream_destroy(void *stream);
EXPORT heddle_status device_sim_capture(void *stream, int mode);
EXPORT heddle_status device_sim_record(void *stream, void **graph);
EXPORT heddle_status device_sim_replay(void *graph, void *stream);
EXPORT void device_sim_graph_free(void *graph);
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

heddle_status device_sim_capture(void *stream, int mode)
{
    return cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)mode) == cudaSuccess ? HEDDLE_OK
                                                                                           : HEDDLE_ERR_DEVICE;
}

/* Ends a capture: what it has recorded can be replayed. */
heddle_status device_sim_record(void *stream, void **graph)
{
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t made = NULL;
    cudaError_t error = cudaStreamEndCapture(stream, &recorded);
    error = error == cudaSuccess ? cudaGraphInstantiate(&made, recorded, 0) : error;
    if (recorded != NULL) {
        (void)cudaGraphDestroy(recorded);
    }
    *graph = made;
    return error == cudaSuccess ? HEDDLE_OK : HEDDLE_ERR_DEVICE;
}

heddle_status device_sim_replay(void *graph, void *stream)
{
    return cudaGraphLaunch(graph, stream) == cudaSuccess ? HEDDLE_OK : HEDDLE_ERR_DEVICE;
}

void device_sim_graph_free(void *graph)
{
    if (graph != NULL) {
        (void)cudaGraphExecDestroy(graph);
    }
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
