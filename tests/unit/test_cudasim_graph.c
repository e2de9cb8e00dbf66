/* Graphs and names of memory in the emulated CUDA runtime, and launches that are replayed. */
#include "case.h"
#include "cudasim.h"
#include "kernels/cuda/lang.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

typedef struct add_args {
    uint32_t *to;
    uint32_t value;
} add_args;

HD_KERNEL(add, add_args, a)
{
    hd_store_4(a.to + HD_THREAD, hd_load_4(a.to + HD_THREAD) + a.value);
}

static cudaStream_t stream_new(void)
{
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t event_new(void)
{
    cudaEvent_t event = NULL;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

/* Captured over two streams; nothing runs before it is launched, and each launch adds once more. */
HD_CASE(a_graph_runs_again)
{
    cudaStream_t first = stream_new(), second = stream_new();
    cudaEvent_t fork_ = event_new(), join = event_new();
    uint32_t *memory = NULL, *host = NULL;
    OK(cudaMalloc((void **)&memory, 16));
    OK(cudaHostAlloc((void **)&host, 16, 0));
    OK(cudaMemset(memory, 0, 16));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed));
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(first, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    add_args a = {memory, 3};
    HD_LAUNCH(add, 1, 4, first, &a);
    a.value = 1000; /* the launch has its own copy */
    OK(cudaEventRecord(fork_, first));
    OK(cudaStreamWaitEvent(second, fork_, 0));
    OK(cudaMemcpyAsync(host, memory, 16, cudaMemcpyDeviceToHost, second));
    assert_int_equal(cudaStreamQuery(second), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaEventQuery(fork_), cudaErrorCapturedEvent);
    OK(cudaEventRecord(join, second));
    OK(cudaStreamWaitEvent(first, join, 0));
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    OK(cudaStreamEndCapture(first, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamIsCapturing(second, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    assert_int_equal(hd_sim_kernels(), 0);
    for (uint32_t i = 1; i <= 5; i++) {
        OK(cudaGraphLaunch(exec, first));
        OK(cudaStreamSynchronize(first));
        assert_int_equal(host[3], 3 * i);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaEventDestroy(fork_));
    OK(cudaEventDestroy(join));
    OK(cudaFree(memory));
    OK(cudaFreeHost(host));
}

static void end(cudaStream_t stream, cudaError_t wanted)
{
    cudaGraph_t graph = NULL;
    assert_int_equal(cudaStreamEndCapture(stream, &graph), wanted);
    assert_null(graph);
}

/* What a capture does not take, as the real one does not. */
HD_CASE(captures_are_refused)
{
    cudaStream_t stream = stream_new(), other = stream_new(), blocking = NULL;
    cudaEvent_t event = event_new();
    void *memory = NULL;
    end(stream, cudaErrorIllegalState);
    assert_int_equal(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
    assert_int_equal(cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported);
    end(stream, cudaErrorStreamCaptureInvalidated);
    OK(cudaMalloc(&memory, 8));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaMalloc(&memory, 8));
    OK(cudaEventRecord(event, stream));
    OK(cudaStreamWaitEvent(other, event, 0));
    OK(cudaMemsetAsync(memory, 0, 8, other));
    end(stream, cudaErrorStreamCaptureUnjoined);
    assert_int_equal(cudaStreamWaitEvent(other, event, 0), cudaErrorCapturedEvent);
    OK(cudaEventRecord(event, other));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    assert_int_equal(cudaStreamWaitEvent(stream, event, 0), cudaErrorStreamCaptureIsolation);
    assert_int_equal(cudaMemsetAsync(memory, 0, 8, stream), cudaErrorStreamCaptureInvalidated);
    end(stream, cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    assert_int_equal(cudaMemsetAsync(memory, 0, 8, NULL), cudaErrorStreamCaptureImplicit);
    end(blocking, cudaErrorStreamCaptureInvalidated);
    OK(cudaMemsetAsync(memory, 0, 8, NULL));
    OK(cudaDeviceSynchronize());
    OK(cudaEventDestroy(event));
}

/* What a thread may ask meanwhile goes by its own mode. */
HD_CASE(modes_are_of_threads)
{
    cudaStream_t stream = stream_new();
    cudaEvent_t event = event_new();
    for (int mode = cudaStreamCaptureModeGlobal; mode <= cudaStreamCaptureModeRelaxed; mode++) {
        enum cudaStreamCaptureMode own = cudaStreamCaptureModeRelaxed;
        cudaGraph_t graph = NULL;
        OK(cudaStreamBeginCapture(stream, mode));
        OK(cudaThreadExchangeStreamCaptureMode(&own));
        assert_int_equal(own, cudaStreamCaptureModeGlobal);
        OK(cudaEventQuery(event));
        OK(cudaThreadExchangeStreamCaptureMode(&own));
        assert_int_equal(own, cudaStreamCaptureModeRelaxed);
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphDestroy(graph));
    }
    OK(cudaEventDestroy(event));
}

static void read_all(int from, void *to, size_t bytes)
{
    assert_int_equal(read(from, to, bytes), bytes);
}

/* Writes into the memory behind the handle that comes through the pipe. */
static int other_process(int from, int to)
{
    cudaIpcMemHandle_t handle;
    char *memory = NULL, *again = NULL, word = 0;
    read_all(from, &handle, sizeof handle);
    if (cudaIpcOpenMemHandle((void **)&memory, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess ||
        cudaIpcOpenMemHandle((void **)&again, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess ||
        again != memory || cudaMemcpy(&word, memory + 4999, 1, cudaMemcpyDefault) != cudaSuccess || word != 7 ||
        cudaMemset(memory, 9, 5000) != cudaSuccess || cudaMemset(memory, 9, 5001) != cudaErrorInvalidValue ||
        cudaDeviceSynchronize() != cudaSuccess || cudaIpcCloseMemHandle(memory) != cudaSuccess ||
        cudaIpcCloseMemHandle(memory) != cudaSuccess || cudaIpcCloseMemHandle(memory) == cudaSuccess) {
        return 1;
    }
    return write(to, &word, 1) != 1;
}

HD_CASE(another_process_opens_memory)
{
    int there[2], back[2], status = 0;
    char word = 0, *memory = NULL, host[5000];
    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(back), 0);
    pid_t child = fork();
    if (child == 0) {
        _exit(other_process(there[0], back[1]));
    }
    OK(cudaMalloc((void **)&memory, 5000));
    OK(cudaMemset(memory, 7, 5000));
    OK(cudaDeviceSynchronize());
    cudaIpcMemHandle_t handle;
    OK(cudaIpcGetMemHandle(&handle, memory));
    void *own = NULL;
    assert_int_equal(cudaIpcOpenMemHandle(&own, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorDeviceUninitialized);
    assert_int_equal(write(there[1], &handle, sizeof handle), sizeof handle);
    close(back[1]);
    read_all(back[0], &word, 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    OK(cudaMemcpy(host, memory, 5000, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(host[i], 9);
    }
}
