/* Streams and events: what comes after what. */
#include "runtime/device/cuda/cuda.h"

heddle_status hd_cuda_event_create(void **out, int device)
{
    cudaEvent_t event = NULL;
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, HD_CUDA(device, cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    *out = event;
    return st;
}

void hd_cuda_event_destroy(void *event, int device)
{
    if (event != NULL) {
        HD_CUDA_END_ON(device, cudaEventDestroy(event));
    }
}

heddle_status hd_cuda_event_record(void *event, int device, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    /* of the default stream: the current device's */
    HD_CUDA_ON(device, HD_CUDA(device, cudaEventRecord(event, stream)));
    return st;
}

/* A question about an event of heddle's, which is in no capture, does no harm to one: neither to the calling thread's
 * nor to one of mode "global". */
static cudaError_t ask(cudaEvent_t event)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error != cudaSuccess) {
        return error;
    }
    error = cudaEventQuery(event);
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) {
        (void)cudaGetLastError(); /* the next launch shall not find it */
    }
    return error;
}

heddle_status hd_cuda_event_test(void *event, int device, int *done)
{
    int before = 0;
    *done = 0;
    heddle_status st = hd_cuda_enter(&before, device);
    if (st != HEDDLE_OK) {
        return st;
    }
    cudaError_t error = ask(event);
    *done = error == cudaSuccess;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
    } else {
        st = hd_cuda_status(error, device, "cudaEventQuery");
    }
    hd_cuda_leave(before);
    return st;
}

heddle_status hd_cuda_stream_wait(heddle_stream stream, void *event, int device)
{
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, HD_CUDA(device, cudaStreamWaitEvent(stream, event, 0)));
    return st;
}

heddle_status hd_cuda_stream_captures(int *captures, int device, heddle_stream stream)
{
    int before = 0;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    heddle_status st = hd_cuda_enter(&before, device);
    if (st != HEDDLE_OK) {
        return st;
    }
    cudaError_t error = cudaStreamIsCapturing(stream, &status);
    if (error == cudaErrorStreamCaptureImplicit) { /* the default stream, while another one of the device captures */
        (void)cudaGetLastError();
        *captures = 1;
    } else {
        st = hd_cuda_status(error, device, "cudaStreamIsCapturing");
        *captures = status != cudaStreamCaptureStatusNone;
    }
    hd_cuda_leave(before);
    return st;
}

/* Errors of work that was enqueued stay, and whatever asks the device finds them. */
heddle_status hd_cuda_check(int device)
{
    size_t available = 0, total = 0;
    heddle_status st = HEDDLE_OK;
    HD_CUDA_ON(device, hd_cuda_status(cudaMemGetInfo(&available, &total), device, "work that was enqueued"));
    return st;
}
