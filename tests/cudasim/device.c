/* Devices, errors, and calls that fail on purpose. */
#include "sim.h"

#include <stdio.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int devices;
static _Atomic int processors = 132, is_unseen;
static _Atomic unsigned told_apart = ~0u;
static int64_t memory_bytes;
static int connections;
static int allocation_waits, nallocating; /* threads that do, with the lock */
static pid_t owner;
enum { FAILED = -1, SPARED = -2 };
static _Atomic int64_t calls, fail_at; /* 0: none will; FAILED: it has */
static _Atomic int fail_with, has_failed, spares_looks;

static _Thread_local cudaError_t last_error;

void hd_sim_fail_at(int64_t n, int error)
{
    atomic_store(&fail_with, error);
    atomic_store(&fail_at, n > 0 ? atomic_load(&calls) + n : 0);
}

int hd_sim_has_failed(void)
{
    return atomic_load(&has_failed);
}

void hd_sim_spare_looks(int are_spared)
{
    atomic_store(&spares_looks, are_spared);
}

static int is_spared(const char *name)
{
    return atomic_load_explicit(&spares_looks, memory_order_relaxed) &&
           (strcmp(name, "cudaEventQuery") == 0 || strcmp(name, "cudaThreadExchangeStreamCaptureMode") == 0);
}

void hd_sim_set_processors(int n)
{
    atomic_store(&processors, n);
}

void hd_sim_set_unseen(hd_sim_sight sight)
{
    atomic_store(&is_unseen, sight);
}

int hd_sim_is_unseen(void)
{
    const int how = atomic_load_explicit(&is_unseen, memory_order_relaxed);
    return how == HD_SIM_UNSEEN ||
           (how == HD_SIM_UNSEEN_BEHIND_FAILURE && atomic_load_explicit(&fail_at, memory_order_relaxed) == FAILED);
}

void hd_sim_tell_apart(unsigned most_threads)
{
    atomic_store(&told_apart, most_threads);
}

unsigned hd_sim_told_apart(void)
{
    return atomic_load_explicit(&told_apart, memory_order_relaxed);
}

int64_t hd_sim_calls(void)
{
    return atomic_load(&calls);
}

static int64_t number(const char *variable, int64_t missing)
{
    const char *text = getenv(variable);
    return text != NULL && text[0] != '\0' ? strtoll(text, NULL, 10) : missing;
}

static void begin(void)
{
    owner = getpid();
    devices = (int)number("HEDDLE_CUDASIM_DEVICES", 2);
    if (devices > HD_SIM_MAX_DEVICES) {
        hd_sim_die("HEDDLE_CUDASIM_DEVICES is %d, at most %d", devices, HD_SIM_MAX_DEVICES);
    }
    memory_bytes = number("HEDDLE_CUDASIM_MEMORY", 4096) << 20;
    int wanted = (int)number("CUDA_DEVICE_MAX_CONNECTIONS", 8);
    wanted = wanted < 1 || wanted > HD_SIM_MAX_CONNECTIONS ? 8 : wanted;
    connections = number("HEDDLE_CUDASIM_CONNECTIONS", 0) != 0 ? wanted : 0;
    allocation_waits = number("HEDDLE_CUDASIM_ALLOC_WAITS", 0) != 0;
    int64_t n = number("HEDDLE_CUDASIM_FAIL", 0);
    if (n > 0) {
        const char *colon = strchr(getenv("HEDDLE_CUDASIM_FAIL"), ':');
        hd_sim_fail_at(n, colon != NULL ? atoi(colon + 1) : cudaErrorUnknown);
    }
    hd_sim_memory_begin();
    if (number("HEDDLE_CUDASIM_LOSES", -1) >= 0) {
        hd_sim_set_link((int)number("HEDDLE_CUDASIM_LOSES", 0), HD_SIM_LINK_LOSES);
    }
}

/* The driver's lock, which a copy of pageable memory has while it waits for its stream: a real device was seen so. */
static int is_kept;
static _Thread_local int is_keeper;

void hd_sim_keep_driver(void)
{
    if (allocation_waits) {
        hd_sim_lock();
        while (is_kept) {
            hd_sim_wait();
        }
        is_kept = is_keeper = 1;
        hd_sim_unlock();
    }
}

void hd_sim_leave_driver(void)
{
    if (is_keeper) {
        hd_sim_lock();
        is_kept = is_keeper = 0;
        hd_sim_changed();
        hd_sim_unlock();
    }
}

static void want_driver(void)
{
    if (allocation_waits && !is_keeper) {
        hd_sim_lock();
        while (is_kept) {
            hd_sim_wait();
        }
        hd_sim_unlock();
    }
}

cudaError_t hd_sim_begin(const char *name)
{
    pthread_once(&once, begin);
    hd_sim_count_call(name);
    want_driver();
    const int64_t call = is_spared(name) ? SPARED : atomic_fetch_add(&calls, 1) + 1;
    if (getpid() != owner) { /* as the real one: a child cannot go on with its parent's */
        return hd_sim_result(cudaErrorInitializationError);
    }
    if (call == atomic_load(&fail_at)) {
        atomic_store(&fail_at, FAILED);
        atomic_store(&has_failed, 1);
        return hd_sim_result((cudaError_t)atomic_load(&fail_with));
    }
    if (devices < 0) {
        return hd_sim_result(cudaErrorInsufficientDriver);
    }
    return devices == 0 ? hd_sim_result(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t hd_sim_result(cudaError_t error)
{
    if (error != cudaSuccess) {
        last_error = error;
    }
    return error;
}

int hd_sim_connections(void)
{
    return connections;
}

/* All devices: those that may touch it have it mapped, too. */
void hd_sim_wait_to_allocate(void)
{
    nallocating++;
    for (int device = 0; device < devices && allocation_waits; device++) {
        hd_sim_finish_device(device);
    }
    nallocating--;
    hd_sim_changed();
}

void hd_sim_let_allocate(void)
{
    while (nallocating > 0) {
        hd_sim_wait();
    }
}

int64_t hd_sim_memory_bytes(void)
{
    return memory_bytes;
}

int hd_sim_is_device(int device)
{
    return device >= 0 && device < devices;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    HD_SIM_QUESTION();
    *count = devices;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    HD_SIM_QUESTION();
    if (!hd_sim_is_device(device)) {
        return hd_sim_result(cudaErrorInvalidDevice);
    }
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "emulated device");
    out->uuid.bytes[0] = (char)(device + 1);
    out->totalGlobalMem = (size_t)memory_bytes;
    out->major = 9;
    out->multiProcessorCount = atomic_load(&processors);
    out->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device)
{
    HD_SIM_QUESTION();
    if (!hd_sim_is_device(device)) {
        return hd_sim_result(cudaErrorInvalidDevice);
    }
    switch (what) {
    case cudaDevAttrMultiProcessorCount:
        *value = atomic_load(&processors);
        return cudaSuccess;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
        *value = 1;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = hd_sim_most_shared();
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = 1 << 20;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    }
    return hd_sim_result(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    HD_SIM_CALL();
    *total = (size_t)memory_bytes;
    hd_sim_lock();
    *available = (size_t)hd_sim_room(hd_sim_device());
    hd_sim_unlock();
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    hd_sim_lock();
    hd_sim_finish_device(hd_sim_device());
    hd_sim_unlock();
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    HD_SIM_CALL();
    if (!hd_sim_is_device(device) || !hd_sim_is_device(peer)) {
        return hd_sim_result(cudaErrorInvalidDevice);
    }
    *can = device != peer;
    return cudaSuccess;
}

/* It makes the peer's context, too. */
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    static _Atomic unsigned enabled[HD_SIM_MAX_DEVICES];
    HD_SIM_CALL();
    const int device = hd_sim_device();
    if (flags != 0 || !hd_sim_is_device(peer) || peer == device) {
        return hd_sim_result(flags != 0 ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    (void)hd_sim_primary(peer);
    unsigned before = atomic_fetch_or(&enabled[device], 1u << peer);
    return hd_sim_result((before >> peer & 1u) != 0 ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}

static cudaError_t version(int *out)
{
    HD_SIM_QUESTION();
    *out = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *out)
{
    return version(out);
}

cudaError_t cudaRuntimeGetVersion(int *out)
{
    return version(out);
}

cudaError_t cudaGetLastError(void)
{
    hd_sim_count_call(__func__);
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}
