/* What heddle wants to know of a GPU and its driver before anything is decided on it: one question a process, one line
 * an answer. The numbers are those of tests/device/run.sh. Exit 77: no device; 1: a call failed; 0: answered. */
#include "questions.h"

#include <cuda.h>
#include <string.h>
#include <sys/mman.h>

#define LIMIT_NS 2000000000ull /* of everything that waits on the device */

/* *seen: 1 the flag came, 2 it did not in time. */
static __global__ void await(volatile uint32_t *flag, uint32_t *seen)
{
    const uint64_t end = now_ns() + LIMIT_NS;
    while (*flag == 0 && now_ns() < end) {
    }
    *seen = *flag != 0 ? 1 : 2;
}

static __global__ void raise(volatile uint32_t *flag)
{
    *flag = 1;
}

/* Waits until `all` of them run at the same time. */
static __global__ void meet(uint32_t *count, uint32_t all, uint32_t *seen)
{
    const uint64_t end = now_ns() + LIMIT_NS;
    atomicAdd(count, 1);
    while (*(volatile uint32_t *)count < all && now_ns() < end) {
    }
    *seen = *(volatile uint32_t *)count >= all ? 1 : 2;
}

/* Memory that the host and the device see at the same address. */
static uint32_t *shared_words(int n)
{
    uint32_t *words = NULL;
    DO(cudaHostAlloc((void **)&words, (size_t)n * sizeof *words, cudaHostAllocMapped));
    memset(words, 0, (size_t)n * sizeof *words);
    return words;
}

static void the_device()
{
    enum { COPIES = 21 };
    const size_t bytes = (size_t)512 << 20;
    cudaDeviceProp p;
    int driver = 0, runtime = 0;
    char *a = NULL, *b = NULL;
    cudaEvent_t begin, end;
    float best_ms = 1e9f, ms = 0;
    DO(cudaGetDeviceProperties(&p, 0));
    DO(cudaDriverGetVersion(&driver));
    DO(cudaRuntimeGetVersion(&runtime));
    DO(cudaMalloc((void **)&a, bytes));
    DO(cudaMalloc((void **)&b, bytes));
    DO(cudaEventCreate(&begin));
    DO(cudaEventCreate(&end));
    for (int i = 0; i < COPIES; i++) {
        DO(cudaEventRecord(begin, 0));
        DO(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, 0));
        DO(cudaEventRecord(end, 0));
        DO(cudaEventSynchronize(end));
        DO(cudaEventElapsedTime(&ms, begin, end));
        best_ms = ms < best_ms ? ms : best_ms;
    }
    printf("%s, sm_%d%d, %d SMs, L2 %d MiB, driver %d, runtime %d; device-to-device copy %.0f GB/s read and written\n",
           p.name, p.major, p.minor, p.multiProcessorCount, p.l2CacheSize >> 20, driver, runtime,
           2.0 * (double)bytes / (double)best_ms * 1e-6);
}

/* The child owns memory, the parent writes there by its name. */
static void names_between_processes()
{
    enum { WORDS = 1024 };
    int down[2], up[2];
    cudaIpcMemHandle_t name;
    uint32_t words[WORDS], *memory = NULL;
    char done = 0;
    if (pipe(down) != 0 || pipe(up) != 0) {
        exit(1);
    }
    if (fork() == 0) {
        int wrong = 0;
        DO(cudaMalloc((void **)&memory, sizeof words));
        DO(cudaIpcGetMemHandle(&name, memory));
        if (write(up[1], &name, sizeof name) != (ssize_t)sizeof name || read(down[0], &done, 1) != 1) {
            exit(1);
        }
        DO(cudaMemcpy(words, memory, sizeof words, cudaMemcpyDeviceToHost));
        for (int i = 0; i < WORDS; i++) {
            wrong += words[i] != 7u * (uint32_t)i;
        }
        exit(wrong != 0);
    }
    close(up[1]);
    if (read(up[0], &name, sizeof name) != (ssize_t)sizeof name) {
        exit(1);
    }
    for (int i = 0; i < WORDS; i++) {
        words[i] = 7u * (uint32_t)i;
    }
    DO(cudaIpcOpenMemHandle((void **)&memory, name, cudaIpcMemLazyEnablePeerAccess));
    DO(cudaMemcpy(memory, words, sizeof words, cudaMemcpyHostToDevice));
    DO(cudaDeviceSynchronize());
    int state = 1;
    if (write(down[1], &done, 1) != 1 || wait(&state) < 0) {
        exit(1);
    }
    printf("memory of another process on the same device: %s\n", state == 0 ? "written and read" : "wrong");
}

/* A kernel polls a word of registered memory that the CPU writes. */
static void poll_registered(const char *what, void *page, size_t bytes)
{
    uint32_t *seen = shared_words(1), *on_device = NULL;
    const cudaError_t error = cudaHostRegister(page, bytes, cudaHostRegisterMapped);
    if (error != cudaSuccess) {
        printf("%s: %s; ", what, cudaGetErrorString(error));
        (void)cudaGetLastError();
        return;
    }
    memset(page, 0, bytes);
    DO(cudaHostGetDevicePointer((void **)&on_device, page, 0));
    await<<<1, 1>>>(on_device, seen);
    usleep(50000);
    const double start = now_ms();
    *(volatile uint32_t *)page = 1;
    DO(cudaDeviceSynchronize());
    printf("%s: %s after %.0f us; ", what, *seen == 1 ? "seen" : "not seen", (now_ms() - start) * 1e3);
}

static void registered_memory()
{
    const size_t bytes = 4096;
    const int fd = memfd_create("page", 0);
    void *heap = aligned_alloc(bytes, bytes);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        exit(1);
    }
    poll_registered("a page of memfd", mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), bytes);
    poll_registered("a page of the heap", heap, bytes);
    printf("\n");
}

static void streams_together()
{
    enum { MOST = 32 };
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    uint32_t *words = shared_words(MOST), *count = NULL;
    DO(cudaMalloc((void **)&count, sizeof *count));
    printf("kernels of other streams that run at the same time (CUDA_DEVICE_MAX_CONNECTIONS %s):",
           connections != NULL ? connections : "unset");
    for (int n = 2; n <= MOST; n *= 2) {
        int met = 0;
        DO(cudaMemset(count, 0, sizeof *count));
        for (int i = 0; i < n; i++) {
            cudaStream_t stream;
            DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            meet<<<1, 32, 0, stream>>>(count, (uint32_t)n * 32, &words[i]);
        }
        DO(cudaDeviceSynchronize());
        for (int i = 0; i < n; i++) {
            met += words[i] == 1;
        }
        printf(" %d of %d", met, n);
    }
    printf("\n");
}

static void load_while_another_spins()
{
    uint32_t *words = shared_words(2);
    cudaStream_t one, other;
    DO(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    DO(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    await<<<1, 1, 0, one>>>(&words[0], &words[1]);
    usleep(50000);
    const double start = now_ms();
    raise<<<1, 1, 0, other>>>(&words[0]); /* its first launch */
    const double launched_ms = now_ms() - start;
    DO(cudaDeviceSynchronize());
    printf("a kernel that was not loaded, launched while another waits for it: %s (the launch took %.1f ms)\n",
           words[1] == 1 ? "it came" : "it came only after the other's deadline", launched_ms);
}

static void *driver_call(const char *name)
{
    void *call = NULL;
    cudaDriverEntryPointQueryResult found;
    return cudaGetDriverEntryPointByVersion(name, &call, 12040, cudaEnableDefault, &found) == cudaSuccess ? call : NULL;
}

static void memory_operations()
{
    printf("cuStreamBatchMemOp is %s, cuStreamWriteValue64 %s\n",
           driver_call("cuStreamBatchMemOp") ? "there" : "missing",
           driver_call("cuStreamWriteValue64") ? "there" : "missing");
}

static void multicast()
{
    typedef CUresult (*attribute_fn)(int *, CUdevice_attribute, CUdevice);
    attribute_fn attribute = (attribute_fn)driver_call("cuDeviceGetAttribute");
    int supported = -1;
    if (attribute != NULL) {
        (void)attribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0);
    }
    printf("multicast: %s\n", supported == 1 ? "supported" : supported == 0 ? "not supported" : "unknown");
}

static double copy_beside(int works, int copies)
{
    enum { ROWS = 4096, ROW_BYTES = 65536 };
    static char *a, *b;
    static uint32_t *sink;
    static cudaStream_t one, other;
    if (a == NULL) {
        DO(cudaMalloc((void **)&a, (size_t)ROWS * ROW_BYTES));
        DO(cudaMalloc((void **)&b, (size_t)ROWS * ROW_BYTES));
        DO(cudaMalloc((void **)&sink, sizeof *sink));
        DO(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
        DO(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    }
    const double start = now_ms();
    if (works) {
        work<<<1024, 1024, 0, one>>>(5000000, sink);
    }
    for (int i = 0; i < 20 && copies; i++) {
        DO(cudaMemcpy2DAsync(b, ROW_BYTES, a, ROW_BYTES, ROW_BYTES / 2, ROWS, cudaMemcpyDeviceToDevice, other));
    }
    DO(cudaDeviceSynchronize());
    return now_ms() - start;
}

static void copy_engines()
{
    cudaDeviceProp p;
    DO(cudaGetDeviceProperties(&p, 0));
    (void)copy_beside(1, 1);
    const double work_ms = copy_beside(1, 0), copy_ms = copy_beside(0, 1), both_ms = copy_beside(1, 1);
    printf("%d copy engines; work %.2f ms, strided copies within the device %.2f ms, both at once %.2f ms: %s\n",
           p.asyncEngineCount, work_ms, copy_ms, both_ms,
           both_ms < work_ms + 0.5 * copy_ms ? "beside one another" : "one after the other");
}

/* Until it is ended: without a process that has it, every start of CUDA initialises the device anew. */
static void hold_open()
{
    DO(cudaFree(NULL));
    sleep(600);
}

int main(int argc, char **argv)
{
    static const struct {
        int number;
        void (*ask)();
    } questions[] = {{1, the_device},
                     {2, names_between_processes},
                     {3, registered_memory},
                     {4, streams_together},
                     {5, load_while_another_spins},
                     {9, memory_operations},
                     {12, multicast},
                     {13, copy_engines},
                     {14, calls_beside_a_kernel},
                     {15, calls_beside_a_process},
                     {16, hold_open},
                     {17, calls_beside_a_copy}};
    const int number = argc > 1 ? atoi(argv[1]) : 0;
    int devices = 0;
    if (number != 2 && number != 15) { /* those fork first */
        const cudaError_t error = cudaGetDeviceCount(&devices);
        if (error != cudaSuccess || devices == 0) {
            printf("no device: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "there is none");
            return 77;
        }
    }
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
        if (questions[i].number == number) {
            questions[i].ask();
            return 0;
        }
    }
    printf("there is no question %d\n", number);
    return 1;
}
