/* The emulated CUDA runtime does what kernels and device libraries rely on. */
#include "case.h"
#include "cudasim.h"
#include "kernels/cuda/lang.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { THREADS = 32, BLOCKS = 3 };

typedef struct turn_args {
    const uint32_t *src;
    uint32_t *dst;
} turn_args;

/* Each block turns its row round, by way of the block's own memory. */
HD_KERNEL(turn_round, turn_args, a)
{
    typedef struct row {
        uint32_t x[THREADS];
    } row;
    HD_SHARED(row, mine);
    uint32_t at = HD_BLOCK * HD_THREADS + HD_THREAD;
    mine->x[HD_THREAD] = hd_load_4(a.src + at);
    hd_sync();
    hd_store_4(a.dst + at, mine->x[HD_THREADS - 1 - HD_THREAD]);
}

static cudaStream_t stream_new(void)
{
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void *device_new(size_t bytes)
{
    void *memory = NULL;
    OK(cudaMalloc(&memory, bytes));
    assert_non_null(memory);
    return memory;
}

HD_CASE(blocks_run_with_barriers)
{
    uint32_t in[BLOCKS * THREADS], out[BLOCKS * THREADS];
    for (uint32_t i = 0; i < BLOCKS * THREADS; i++) {
        in[i] = i;
    }
    turn_args a = {device_new(sizeof in), device_new(sizeof out)};
    cudaStream_t stream = stream_new();
    OK(cudaMemcpyAsync((void *)(uintptr_t)a.src, in, sizeof in, cudaMemcpyHostToDevice, stream));
    HD_LAUNCH(turn_round, BLOCKS, THREADS, stream, &a);
    OK(cudaGetLastError());
    OK(cudaMemcpyAsync(out, a.dst, sizeof out, cudaMemcpyDefault, stream));
    for (uint32_t i = 0; i < BLOCKS * THREADS; i++) {
        assert_int_equal(out[i], i / THREADS * THREADS + THREADS - 1 - i % THREADS);
    }
    assert_int_equal(hd_sim_kernels(), 1);
    OK(cudaFree((void *)(uintptr_t)a.src));
    OK(cudaFree(a.dst));
    OK(cudaStreamDestroy(stream));
    assert_int_equal(hd_sim_device_bytes(), 0);
}

typedef struct hand_args {
    uint64_t *flag, *other_flag;
    uint32_t *data, *other_data, *seen, *count;
} hand_args;

/* Two kernels of two streams: each writes to the other, says so, and waits for the other's word. */
HD_KERNEL(hand_over, hand_args, a)
{
    hd_store_4(a.other_data + HD_THREAD, 7 + HD_THREAD);
    hd_add_device(a.count, 1);
    hd_sync();
    if (HD_THREAD == 0) {
        hd_store_release_system(a.other_flag, 1);
        while (hd_load_acquire_system(a.flag) != 1) {
            hd_nap();
        }
    }
    hd_sync();
    hd_store_4(a.seen + HD_THREAD, hd_load_4(a.data + HD_THREAD));
}

HD_CASE(kernels_of_two_streams_meet)
{
    cudaStream_t stream[2] = {stream_new(), stream_new()};
    hand_args a[2];
    for (int i = 0; i < 2; i++) {
        a[i].flag = device_new(8);
        a[i].data = device_new(4 * THREADS);
        a[i].seen = device_new(4 * THREADS);
        a[i].count = device_new(4);
        OK(cudaMemset(a[i].flag, 0, 8));
        OK(cudaMemset(a[i].count, 0, 4));
    }
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 2; i++) {
        a[i].other_flag = a[!i].flag;
        a[i].other_data = a[!i].data;
        HD_LAUNCH(hand_over, 1, THREADS, stream[i], &a[i]);
    }
    for (int i = 0; i < 2; i++) {
        uint32_t seen[THREADS], count = 0;
        OK(cudaStreamSynchronize(stream[i]));
        OK(cudaMemcpy(seen, a[i].seen, sizeof seen, cudaMemcpyDeviceToHost));
        OK(cudaMemcpy(&count, a[i].count, 4, cudaMemcpyDeviceToHost));
        assert_int_equal(count, THREADS);
        for (uint32_t t = 0; t < THREADS; t++) {
            assert_int_equal(seen[t], 7 + t);
        }
    }
}

static _Atomic int gate;

static void pass_gate(void *user)
{
    (void)user;
    while (!atomic_load(&gate)) {
        usleep(100);
    }
}

static void dies_by(int signal, void (*what)(void *), void *argument)
{
    pid_t child = fork();
    if (child == 0) {
        what(argument);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (signal != 0 && WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), signal);
    } else {
        assert_int_equal(WEXITSTATUS(status) != 0, signal != 0); /* sanitizers end the program themselves */
    }
}

/* Behind a stream that is held in its first operation lies a second one; then another stream gets its only one. */
static void other_stream_is_kept_back(void *argument)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", argument, 1);
    setenv("HEDDLE_CUDASIM_CONNECTIONS", "1", 1);
    cudaStream_t held = stream_new(), other = stream_new();
    unsigned char *memory = device_new(100);
    OK(cudaLaunchHostFunc(held, pass_gate, NULL));
    OK(cudaMemsetAsync(memory, 5, 100, held));
    OK(cudaMemsetAsync(memory, 6, 100, other));
    int is_kept_back = atoi(argument) == 1;
    if (is_kept_back) {
        usleep(20000);
        assert_int_equal(cudaStreamQuery(other), cudaErrorNotReady);
        atomic_store(&gate, 1);
    }
    OK(cudaStreamSynchronize(other));
    atomic_store(&gate, 1);
    OK(cudaStreamSynchronize(held));
    _exit(0);
}

HD_CASE(streams_share_connections)
{
    dies_by(0, other_stream_is_kept_back, (void *)(uintptr_t) "1");
    dies_by(0, other_stream_is_kept_back, (void *)(uintptr_t) "2");
}

HD_CASE(events_order_streams)
{
    cudaStream_t first = stream_new(), second = stream_new();
    cudaEvent_t begin = NULL, end = NULL;
    OK(cudaEventCreateWithFlags(&begin, cudaEventDefault));
    OK(cudaEventCreateWithFlags(&end, cudaEventDefault));
    OK(cudaEventQuery(begin)); /* never recorded: done */
    unsigned char *memory = device_new(100), *host = NULL;
    OK(cudaHostAlloc((void **)&host, 100, cudaHostAllocPortable));
    memset(host, 0, 100);
    OK(cudaEventRecord(begin, first));
    OK(cudaLaunchHostFunc(first, pass_gate, NULL));
    OK(cudaMemsetAsync(memory, 5, 100, first));
    OK(cudaEventRecord(end, first));
    OK(cudaStreamWaitEvent(second, end, 0));
    OK(cudaMemcpyAsync(host, memory, 100, cudaMemcpyDeviceToHost, second));
    assert_int_equal(cudaStreamQuery(second), cudaErrorNotReady);
    assert_int_equal(cudaEventQuery(end), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    OK(cudaGetLastError());
    OK(cudaEventSynchronize(begin));
    usleep(2000);
    atomic_store(&gate, 1);
    OK(cudaStreamSynchronize(second));
    assert_int_equal(host[99], 5);
    OK(cudaEventSynchronize(end));
    float ms = 0;
    OK(cudaEventElapsedTime(&ms, begin, end));
    assert_true(ms >= 1);
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    OK(cudaFreeHost(host));
    OK(cudaFree(memory));
}

/* The legacy default stream and blocking streams wait for one another, others do not. */
HD_CASE(the_legacy_stream_orders_blocking_ones)
{
    cudaStream_t blocking = NULL, other = stream_new();
    OK(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    unsigned char *memory = device_new(1), value = 0;
    OK(cudaLaunchHostFunc(blocking, pass_gate, NULL));
    OK(cudaMemsetAsync(memory, 1, 1, blocking));
    OK(cudaMemsetAsync(memory, 2, 1, NULL));
    OK(cudaMemsetAsync(memory, 3, 1, blocking));
    OK(cudaStreamSynchronize(other));
    assert_int_equal(cudaStreamQuery(cudaStreamLegacy), cudaErrorNotReady);
    atomic_store(&gate, 1);
    OK(cudaMemcpy(&value, memory, 1, cudaMemcpyDeviceToHost)); /* by the legacy stream */
    assert_int_equal(value, 3);
}

static void touch(void *argument)
{
    signal(SIGSEGV, SIG_DFL);
    (void)freopen("/dev/null", "w", stderr);
    ((volatile char *)argument)[0] = 1;
}

static void new_device_touches(void *argument)
{
    (void)argument;
    touch(device_new(64));
}

static void new_device_views(void *argument)
{
    (void)argument;
    void *memory = device_new(64);
    touch(hd_sim_view(memory, 64));
}

typedef struct store_args {
    uint32_t *at;
} store_args;

HD_KERNEL(store_one, store_args, a)
{
    hd_store_4(a.at, 1);
}

static void kernel_stores(void *argument)
{
    static uint32_t unknown[4];
    (void)freopen("/dev/null", "w", stderr);
    char *memory = device_new(60);
    uint32_t *place[] = {(uint32_t *)(void *)memory, unknown, (uint32_t *)(void *)(memory + 64),
                         (uint32_t *)(void *)(memory + 2)};
    store_args a = {place[*(int *)argument]};
    HD_LAUNCH(store_one, 1, 1, NULL, &a);
    OK(cudaDeviceSynchronize());
}

static void kernel_stores_to_host(void *argument)
{
    uint32_t *word = NULL, *there = NULL;
    unsigned flags = *(unsigned *)argument;
    (void)freopen("/dev/null", "w", stderr);
    assert_int_equal(posix_memalign((void **)&word, 4096, 4096), 0);
    OK(cudaHostRegister(word, 4096, flags));
    cudaError_t error = cudaHostGetDevicePointer((void **)&there, word, 0);
    assert_int_equal(error, (flags & cudaHostRegisterMapped) != 0 ? cudaSuccess : cudaErrorInvalidValue);
    store_args a = {word};
    HD_LAUNCH(store_one, 1, 1, NULL, &a);
    OK(cudaDeviceSynchronize());
    _exit(*word == 1 ? 0 : 1);
}

/* Host code cannot touch device memory; kernels cannot touch what no device knows, nor host memory that is registered
 * for copies only. In children, before this process has used the device. */
HD_CASE(memory_is_guarded)
{
    dies_by(SIGSEGV, new_device_touches, NULL);
    dies_by(0, new_device_views, NULL);
    for (int i = 0; i < 4; i++) {
        dies_by(i == 0 ? 0 : SIGABRT, kernel_stores, &i);
    }
    dies_by(SIGABRT, kernel_stores_to_host, &(unsigned){cudaHostRegisterPortable});
    dies_by(0, kernel_stores_to_host, &(unsigned){cudaHostRegisterPortable | cudaHostRegisterMapped});
}

static void use_in_child(void *argument)
{
    void *memory = NULL;
    (void)argument;
    _exit(cudaMalloc(&memory, 1) == cudaErrorInitializationError ? 0 : 1);
}

HD_CASE(a_child_cannot_go_on)
{
    OK(cudaFree(device_new(1)));
    dies_by(0, use_in_child, NULL);
}

HD_CASE(calls_fail_on_demand)
{
    void *memory = NULL;
    char host[8];
    hd_sim_fail_at(2, cudaErrorMemoryAllocation);
    OK(cudaFree(NULL));
    assert_int_equal(cudaMalloc(&memory, 8), cudaErrorMemoryAllocation);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaGetLastError());
    OK(cudaMalloc(&memory, 8));
    hd_sim_fail_at(1, cudaErrorLaunchFailure);
    store_args a = {memory};
    HD_LAUNCH(store_one, 1, 1, NULL, &a);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    HD_LAUNCH(store_one, 0, 1, NULL, &a);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    OK(cudaDeviceSynchronize());
    assert_int_equal(hd_sim_kernels(), 0);
    assert_string_equal(cudaGetErrorName(cudaErrorLaunchFailure), "cudaErrorLaunchFailure");
    OK(cudaHostRegister(host, sizeof host, 0));
    hd_sim_fail_at(1, cudaErrorUnknown);
    assert_int_equal(cudaHostUnregister(host), cudaErrorUnknown);
    OK(cudaHostRegister(host, sizeof host, 0)); /* others may have that memory by then */
}

HD_CASE(devices_are_counted)
{
    int count = 0, device = -1;
    struct cudaDeviceProp prop;
    struct cudaPointerAttributes attributes;
    OK(cudaGetDeviceCount(&count));
    assert_int_equal(count, 2);
    OK(cudaSetDevice(1));
    OK(cudaGetDevice(&device));
    assert_int_equal(device, 1);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    OK(cudaGetDeviceProperties(&prop, 1));
    char *memory = device_new(1000), host[8];
    OK(cudaPointerGetAttributes(&attributes, memory + 999));
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    assert_int_equal(attributes.device, 1);
    OK(cudaPointerGetAttributes(&attributes, host));
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
    OK(cudaHostRegister(host, sizeof host, 0));
    OK(cudaPointerGetAttributes(&attributes, host));
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    assert_int_equal(cudaHostRegister(host, 1, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostUnregister(host));
    assert_int_equal(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
    size_t available = 0, total = 0;
    OK(cudaMemGetInfo(&available, &total));
    assert_int_equal(total - available, 1000);
    void *more = NULL;
    assert_int_equal(cudaMalloc(&more, total), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMemcpy(memory, host, 8, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(memory + 996, host, 8, cudaMemcpyDefault), cudaErrorInvalidValue);
    OK(cudaFree(memory));
    assert_int_equal(cudaFree(memory), cudaErrorInvalidValue);
}

static void count_in_child(void *argument)
{
    int count = 9;
    setenv("HEDDLE_CUDASIM_DEVICES", argument, 1);
    cudaError_t error = cudaGetDeviceCount(&count);
    _exit(count == 0 && error == (atoi(argument) < 0 ? cudaErrorInsufficientDriver : cudaErrorNoDevice) ? 0 : 1);
}

HD_CASE(there_may_be_no_device)
{
    dies_by(0, count_in_child, (void *)(uintptr_t) "0");
    dies_by(0, count_in_child, (void *)(uintptr_t) "-1");
}

/* Rows of a pitched array, there and back, between device memory and host memory. */
HD_CASE(rows_are_copied)
{
    unsigned char host[5 * 16], back[5 * 16] = {0}, *memory = device_new(5 * 24);
    for (int i = 0; i < 80; i++) {
        host[i] = (unsigned char)i;
    }
    OK(cudaMemcpy2DAsync(memory, 24, host, 16, 9, 5, cudaMemcpyDefault, NULL));
    OK(cudaMemcpy2DAsync(back, 16, memory, 24, 9, 5, cudaMemcpyDefault, NULL));
    for (int i = 0; i < 80; i++) {
        assert_int_equal(back[i], i % 16 < 9 ? i : 0);
    }
    assert_int_equal(cudaMemcpy2DAsync(memory, 8, host, 16, 9, 5, cudaMemcpyDefault, NULL), cudaErrorInvalidValue);
}
