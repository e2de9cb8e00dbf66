/* Inside of libheddle_cuda: the CUDA runtime behind heddle's table of a device. Nothing of heddle is linked but the
 * kernels, where nvcc has compiled them (HD_CUDA_KERNELS). */
#ifndef HD_DEVICE_CUDA_H
#define HD_DEVICE_CUDA_H

#include "runtime/device/cuda/context.h"
#include "runtime/device/cuda/fail.h"

/* HEDDLE_ERR_DEVICE, with the call and CUDA's words; HEDDLE_OK for cudaSuccess. */
heddle_status hd_cuda_status(cudaError_t error, int device, const char *call);

/* Every call of CUDA that needs a context, also one about an event or a stream alone, is between enter and leave: in a
 * thread that has none it would make that of device 0. *before: for leave, which gives the thread back what it had. */
heddle_status hd_cuda_enter(int *before, int device);
void hd_cuda_leave(int before);

/* `call` on `device`, as one expression for HD_TRY's like: its status. */
#define HD_CUDA(device, call) hd_cuda_status((call), (device), #call)

/* Leaves in `st` what `expression` says while `device` is the thread's current one, or why it could not become that. */
#define HD_CUDA_ON(device, expression)                                                                                 \
    do {                                                                                                               \
        int before_ = 0;                                                                                               \
        st = hd_cuda_enter(&before_, (device));                                                                        \
        if (st == HEDDLE_OK) {                                                                                         \
            st = (expression);                                                                                         \
            hd_cuda_leave(before_);                                                                                    \
        }                                                                                                              \
    } while (0)

/* For what cannot be said: ends something on the device, or does nothing where that is out of reach. The error is not
 * left to the next launch. */
#define HD_CUDA_END_ON(device, call)                                                                                   \
    do {                                                                                                               \
        int before_ = 0;                                                                                               \
        if (hd_context_enter(&before_, device) != cudaSuccess || (call) != cudaSuccess) {                              \
            (void)cudaGetLastError();                                                                                  \
        }                                                                                                              \
        hd_context_leave(before_);                                                                                     \
    } while (0)

heddle_status hd_cuda_open(int *device, const char *which, int local_rank, char *describe, size_t describe_bytes);
int hd_cuda_opened(void); /* a device that was opened */

heddle_status hd_cuda_alloc(void **out, int device, size_t bytes);
void hd_cuda_free(void *memory, int device);
heddle_status hd_cuda_copy(void *dst, int64_t dst_step_bytes, const void *src, int64_t src_step_bytes,
                           int64_t run_bytes, int64_t rows, int device, heddle_stream stream);
heddle_status hd_cuda_pin(void *memory, size_t bytes, int device);
void hd_cuda_unpin(void *memory, int device);
heddle_status hd_cuda_look(heddle_space *space, int *device, const void *memory);

heddle_status hd_cuda_event_create(void **out, int device);
void hd_cuda_event_destroy(void *event, int device);
heddle_status hd_cuda_event_record(void *event, int device, heddle_stream stream);
heddle_status hd_cuda_event_test(void *event, int device, int *done);
heddle_status hd_cuda_stream_wait(heddle_stream stream, void *event, int device);
heddle_status hd_cuda_stream_captures(int *captures, int device, heddle_stream stream);
heddle_status hd_cuda_check(int device);

heddle_status hd_cuda_stream_create(heddle_stream *out, int device);
void hd_cuda_stream_destroy(heddle_stream stream, int device);
heddle_status hd_cuda_timer_create(void **out, int device);
heddle_status hd_cuda_timer_read(double *ms, void *begin, void *end, int device);
heddle_status hd_cuda_capture_begin(int device, heddle_stream stream);
heddle_status hd_cuda_capture_end(void **graph, int device, heddle_stream stream);
heddle_status hd_cuda_graph_launch(void *graph, int device, heddle_stream stream);
void hd_cuda_graph_destroy(void *graph, int device);
heddle_status hd_cuda_blocks(int *blocks, int device);
heddle_status hd_cuda_identify(char *out, size_t bytes, int device);
heddle_status hd_cuda_reach(int device, int peer);
heddle_status hd_cuda_ask_reached(int *is_reached, const void *memory, int device);
heddle_status hd_cuda_store(void *dst, const void *src, size_t bytes, int device, heddle_stream stream);

heddle_status hd_cuda_share(heddle_device_name *out, void *memory, int device);
heddle_status hd_cuda_map(void **out, const heddle_device_name *name, int device);
void hd_cuda_unmap(void *memory, int device);
void hd_cuda_hold(void **memory, size_t *bytes, int device, const void *after);
void hd_cuda_let_go(void *memory);
heddle_status hd_cuda_memory(int64_t *bytes, int device);

#endif
