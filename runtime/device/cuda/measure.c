/* Times by the device's clock, graphs and how much memory there is, for who measures. */
#include "cuda.h"

heddle_status hd_cuda_timer_create(void **out, int device)
{
    cudaEvent_t event = NULL;
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, HD_CUDA(device, cudaEventCreateWithFlags(&event, cudaEventDefault)));
    *out = event;
    return st;
}

heddle_status hd_cuda_timer_read(double *ms, void *begin, void *end, int device)
{
    float between = 0;
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, HD_CUDA(device, cudaEventElapsedTime(&between, begin, end)));
    *ms = between;
    return st;
}

/* Other threads may do what they like meanwhile. */
heddle_status hd_cuda_capture_begin(int device, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, HD_CUDA(device, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
    return st;
}

/* The capture ends in any case: else whatever a capture forbids would be forbidden to this thread for good. */
heddle_status hd_cuda_capture_end(void **graph, int device, heddle_stream stream)
{
    int before = 0;
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t exec = NULL;
    (void)hd_context_enter(&before, device);
    heddle_status st = HD_CUDA(device, cudaStreamEndCapture(stream, &recorded));
    st = st == HEDDLE_OK ? HD_CUDA(device, cudaGraphInstantiate(&exec, recorded, 0)) : st;
    if (recorded != NULL && cudaGraphDestroy(recorded) != cudaSuccess) {
        (void)cudaGetLastError(); /* the next launch shall not find it */
    }
    hd_cuda_leave(before);
    *graph = exec;
    return st;
}

heddle_status hd_cuda_graph_launch(void *graph, int device, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, HD_CUDA(device, cudaGraphLaunch(graph, stream)));
    return st;
}

void hd_cuda_graph_destroy(void *graph, int device)
{
    if (graph != NULL) {
        HD_CUDA_END_ON(device, cudaGraphExecDestroy(graph));
    }
}

heddle_status hd_cuda_memory(int64_t *bytes, int device)
{
    size_t available = 0, total = 0;
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, HD_CUDA(device, cudaMemGetInfo(&available, &total)));
    *bytes = (int64_t)total;
    return st;
}
