/* Which calls of CUDA wait for what runs on the device: where ranks are threads of one card, that may be a kernel that
 * waits for the caller. heddle takes it that those wait which allocate, pin, free, load a kernel or copy pageable
 * memory. */
#include "questions.h"

static __global__ void never_loaded(uint32_t *x)
{
    *x = 1;
}

static struct {
    cudaStream_t stream;
    char *piece, *large, *page, *pageable, *theirs;
    uint32_t *sink;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaIpcMemHandle_t name; /* of memory of another process, which the second form of the question has */
    int has_name;
} beside;

#define CALL(name, call)                                                                                               \
    static void name()                                                                                                 \
    {                                                                                                                  \
        DO(call);                                                                                                      \
    }

static char *made[3];
CALL(malloc_4k, cudaMalloc((void **)&made[0], 4096))
CALL(malloc_2m, cudaMalloc((void **)&made[1], 2 << 20))
CALL(malloc_1g, cudaMalloc((void **)&made[2], (size_t)1 << 30))
CALL(free_4k, cudaFree(beside.piece))
CALL(register_page, cudaHostRegister(beside.page, 4096, cudaHostRegisterMapped))
CALL(unregister_page, cudaHostUnregister(beside.page))
CALL(copy_pageable, cudaMemcpyAsync(beside.large, beside.pageable, 1 << 20, cudaMemcpyHostToDevice, beside.stream))
CALL(instantiate, cudaGraphInstantiate(&beside.exec, beside.graph, 0))
CALL(launch_graph, cudaGraphLaunch(beside.exec, beside.stream))
static void create_stream()
{
    cudaStream_t stream;
    DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}
static void create_event()
{
    cudaEvent_t event;
    DO(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
}
static void load_kernel()
{
    cudaFuncAttributes about;
    DO(cudaFuncGetAttributes(&about, never_loaded));
}
static void open_name()
{
    if (beside.has_name) {
        DO(cudaIpcOpenMemHandle((void **)&beside.theirs, beside.name, cudaIpcMemLazyEnablePeerAccess));
    }
}
static void close_name()
{
    if (beside.has_name) {
        DO(cudaIpcCloseMemHandle(beside.theirs));
    }
}

static void prepare_calls()
{
    DO(cudaStreamCreateWithFlags(&beside.stream, cudaStreamNonBlocking));
    DO(cudaMalloc((void **)&beside.piece, 4096));
    DO(cudaMalloc((void **)&beside.large, 1 << 20));
    DO(cudaMalloc((void **)&beside.sink, 4));
    beside.page = (char *)aligned_alloc(4096, 4096);
    beside.pageable = (char *)calloc(1, 1 << 20);
    DO(cudaStreamBeginCapture(beside.stream, cudaStreamCaptureModeThreadLocal));
    DO(cudaMemsetAsync(beside.large, 0, 4096, beside.stream));
    DO(cudaStreamEndCapture(beside.stream, &beside.graph));
    DO(cudaDeviceSynchronize());
}

/* Each call while a kernel of SPIN_MS runs, of this context or, if not `spins`, of another process: did it wait? */
static void ask_calls(int spins)
{
    enum { SPIN_MS = 300 };
    static const struct {
        const char *name;
        void (*call)();
    } calls[] = {{"cudaMalloc 4 KiB", malloc_4k},
                 {"2 MiB", malloc_2m},
                 {"1 GiB", malloc_1g},
                 {"cudaHostRegister", register_page},
                 {"cudaHostUnregister", unregister_page},
                 {"cudaFuncGetAttributes", load_kernel},
                 {"cudaStreamCreate", create_stream},
                 {"cudaEventCreate", create_event},
                 {"cudaMemcpyAsync of pageable memory", copy_pageable},
                 {"cudaGraphInstantiate", instantiate},
                 {"first cudaGraphLaunch", launch_graph},
                 {"cudaIpcOpenMemHandle", open_name},
                 {"cudaIpcCloseMemHandle", close_name},
                 {"cudaFree", free_4k}};
    cudaStream_t busy;
    DO(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
    work<<<1, 1, 0, busy>>>(1000, beside.sink); /* loaded */
    DO(cudaDeviceSynchronize());
    printf("%s:", spins ? "beside a kernel of this process" : "beside a kernel of another process");
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (spins) {
            work<<<1, 1, 0, busy>>>(SPIN_MS * 1000000ull, beside.sink);
            usleep(20000);
        }
        const double start = now_ms();
        calls[i].call();
        const double ms = now_ms() - start;
        DO(cudaDeviceSynchronize());
        printf(" %s %s (%.1f ms)%s", calls[i].name, ms > SPIN_MS / 2 ? "WAITS" : "returns", ms,
               i + 1 < sizeof calls / sizeof calls[0] ? "," : "\n");
    }
}

void calls_beside_a_kernel()
{
    prepare_calls();
    ask_calls(1);
}

/* The child keeps the device busy with kernels of 300 ms, and has memory for the parent to map. */
void calls_beside_a_process()
{
    enum { KERNELS = 40 };
    int up[2];
    if (pipe(up) != 0) {
        exit(1);
    }
    const pid_t child = fork();
    if (child == 0) {
        uint32_t *sink = NULL;
        cudaIpcMemHandle_t name;
        DO(cudaMalloc((void **)&sink, 4));
        DO(cudaIpcGetMemHandle(&name, sink));
        for (int i = 0; i < KERNELS; i++) {
            work<<<1, 1>>>(300000000ull, sink);
        }
        if (write(up[1], &name, sizeof name) != (ssize_t)sizeof name) {
            exit(1);
        }
        DO(cudaDeviceSynchronize());
        exit(0);
    }
    close(up[1]);
    beside.has_name = read(up[0], &beside.name, sizeof beside.name) == (ssize_t)sizeof beside.name;
    prepare_calls();
    ask_calls(0);
    int state = 0;
    if (waitpid(child, &state, 0) < 0) {
        exit(1);
    }
}

/* What another thread's call comes to while one copies pageable memory behind a kernel of the same stream: heddle takes
 * it that it waits, and lets a stream come up before it copies (hd_cuda_copy). */
static void *copy_behind(void *bytes)
{
    DO(cudaMemcpyAsync(beside.pageable, beside.large, *(size_t *)bytes, cudaMemcpyDeviceToHost, beside.stream));
    return NULL;
}

void calls_beside_a_copy()
{
    enum { SPIN_MS = 100 };
    static size_t bytes[] = {64, 64 << 10, 1 << 20};
    prepare_calls();
    work<<<1, 1, 0, beside.stream>>>(1000, beside.sink); /* loaded */
    DO(cudaDeviceSynchronize());
    printf("a call while another thread copies to pageable memory behind a kernel:");
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        pthread_t thread;
        work<<<1, 1, 0, beside.stream>>>(SPIN_MS * 1000000ull, beside.sink);
        if (pthread_create(&thread, NULL, copy_behind, &bytes[i]) != 0) {
            exit(1);
        }
        usleep(20000);
        const double start = now_ms();
        create_event();
        const double ms = now_ms() - start;
        pthread_join(thread, NULL);
        DO(cudaDeviceSynchronize());
        printf(" %zu bytes %s (%.1f ms)%s", bytes[i], ms > SPIN_MS / 4 ? "WAITS" : "returns", ms, i < 2 ? "," : "\n");
    }
}
