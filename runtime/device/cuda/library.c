/* The entry point, and how errors of the CUDA runtime are said. */
#include "runtime/device/cuda/cuda.h"
#ifdef HD_CUDA_KERNELS
#include "kernels/table_device.h"
#endif

#include <string.h>

heddle_status hd_cuda_status(cudaError_t error, int device, const char *call)
{
    if (error == cudaSuccess) {
        return HEDDLE_OK;
    }
    (void)cudaGetLastError(); /* said here; nobody else's next call shall find it */
    return hd_cuda_fail(HEDDLE_ERR_DEVICE, "device cuda:%d: %.*s failed with error %d, %s (%s)", device,
                        (int)strcspn(call, "("), call, (int)error, cudaGetErrorName(error), cudaGetErrorString(error));
}

heddle_status hd_cuda_enter(int *before, int device)
{
    return hd_cuda_status(hd_context_enter(before, device), device, "entering its context");
}

void hd_cuda_leave(int before)
{
    hd_context_leave(before);
}

static heddle_status words_of(int code, int device, const char *call)
{
    return hd_cuda_status((cudaError_t)code, device, call);
}

static const heddle_device cuda = {
    .struct_bytes = sizeof cuda,
    .name = "cuda",
    .space = HEDDLE_SPACE_DEVICE,
    .open = hd_cuda_open,
    .alloc = hd_cuda_alloc,
    .free = hd_cuda_free,
    .copy = hd_cuda_copy,
    .pin = hd_cuda_pin,
    .unpin = hd_cuda_unpin,
    .event_create = hd_cuda_event_create,
    .event_destroy = hd_cuda_event_destroy,
    .event_record = hd_cuda_event_record,
    .event_test = hd_cuda_event_test,
    .stream_wait = hd_cuda_stream_wait,
    .stream_captures = hd_cuda_stream_captures,
    .look = hd_cuda_look,
    .check = hd_cuda_check,
    .status = words_of,
#ifdef HD_CUDA_KERNELS
    .kernels = &hd_kernels_cuda,
    .enter = hd_cuda_enter,
    .leave = hd_cuda_leave,
    .stream_create = hd_cuda_stream_create,
    .stream_destroy = hd_cuda_stream_destroy,
    .timer_create = hd_cuda_timer_create,
    .timer_read = hd_cuda_timer_read,
    .capture_begin = hd_cuda_capture_begin,
    .capture_end = hd_cuda_capture_end,
    .graph_launch = hd_cuda_graph_launch,
    .graph_destroy = hd_cuda_graph_destroy,
    .blocks = hd_cuda_blocks,
    .identify = hd_cuda_identify,
    .reach = hd_cuda_reach,
    .ask_reached = hd_cuda_ask_reached,
    .store = hd_cuda_store,
    .share = hd_cuda_share,
    .map = hd_cuda_map,
    .unmap = hd_cuda_unmap,
    .hold = hd_cuda_hold,
    .let_go = hd_cuda_let_go,
    .memory = hd_cuda_memory,
#endif
};

/* HEDDLE_DEVICE_LIBRARY. */
HEDDLE_API heddle_status heddle_device_library_v1(const heddle_device **out, heddle_device_fail_fn fail);

heddle_status heddle_device_library_v1(const heddle_device **out, heddle_device_fail_fn fail)
{
    hd_cuda_fail_by(fail);
    *out = &cuda;
    return HEDDLE_OK;
}
