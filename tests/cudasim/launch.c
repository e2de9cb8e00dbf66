/* Launches of kernels, and what is known of those. */
#include "sim.h"

static void drop_kernel(hd_sim_op *op)
{
    free(op->u.kernel.args);
}

static _Atomic int most_blocks;

int hd_sim_most_blocks(void)
{
    return atomic_exchange(&most_blocks, 0);
}

static void note_blocks(int blocks)
{
    int most = atomic_load(&most_blocks);
    while (most < blocks && !atomic_compare_exchange_weak(&most_blocks, &most, blocks)) {
    }
}

/* Kernels whose attributes somebody has asked for, as is done to have them loaded. */
static hd_sim_body loaded[HD_SIM_MAX_KERNELS];
static int nloaded;
static _Atomic int unloaded;

int hd_sim_unloaded(void)
{
    return atomic_load(&unloaded);
}

/* With the lock. */
static int is_loaded(hd_sim_body body)
{
    int at = 0;
    while (at < nloaded && loaded[at] != body) {
        at++;
    }
    return at < nloaded;
}

static void load(hd_sim_body body)
{
    hd_sim_lock();
    if (!is_loaded(body) && nloaded < HD_SIM_MAX_KERNELS) {
        loaded[nloaded++] = body;
    }
    hd_sim_unlock();
}

/* From now on it is. */
static void note_unloaded(hd_sim_body body)
{
    hd_sim_lock();
    atomic_fetch_add(&unloaded, !is_loaded(body));
    hd_sim_unlock();
    load(body);
}

/* Those that may have more memory for a block than every kernel may. */
static struct {
    hd_sim_body body;
    int bytes;
} allowed[HD_SIM_MAX_KERNELS];
static int nallowed;

enum { EVERY_KERNEL_MAY = 48 << 10 };
static _Atomic int most_shared = 227 << 10; /* as on an H100 */

void hd_sim_set_shared(int bytes)
{
    atomic_store(&most_shared, bytes);
}

int hd_sim_most_shared(void)
{
    return atomic_load(&most_shared);
}

/* With the lock; of dynamic memory. */
static int *allowed_to(hd_sim_body body)
{
    int at = 0;
    while (at < nallowed && allowed[at].body != body) {
        at++;
    }
    if (at == nallowed && at < HD_SIM_MAX_KERNELS) {
        allowed[nallowed].body = body;
        allowed[nallowed++].bytes = EVERY_KERNEL_MAY;
    }
    return at < HD_SIM_MAX_KERNELS ? &allowed[at].bytes : NULL;
}

static int may_have(hd_sim_body body, unsigned shared_bytes)
{
    hd_sim_lock();
    const int *most = allowed_to(body);
    int may = most != NULL && shared_bytes <= (unsigned)*most && shared_bytes <= (unsigned)atomic_load(&most_shared);
    hd_sim_unlock();
    return may;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute what, int value)
{
    HD_SIM_CALL();
    cudaError_t error = cudaErrorInvalidValue;
    if (function != NULL && what == cudaFuncAttributeMaxDynamicSharedMemorySize && value >= 0 &&
        value <= atomic_load(&most_shared)) {
        hd_sim_lock();
        int *most = allowed_to((hd_sim_body)(uintptr_t)function);
        if (most != NULL) {
            *most = value > EVERY_KERNEL_MAY ? value : EVERY_KERNEL_MAY;
            error = cudaSuccess;
        }
        hd_sim_unlock();
    }
    return hd_sim_result(error);
}

void hd_sim_have_threads(const char *name, unsigned most)
{
    if (hd_sim_self()->threads > most) {
        hd_sim_die("%s has %u threads a block, of %u at most", name, hd_sim_self()->threads, most);
    }
}

void hd_sim_launch(const char *name, hd_sim_body body, unsigned blocks, unsigned threads, cudaStream_t stream,
                   const void *args, uint64_t bytes)
{
    hd_sim_launch_shared(name, body, blocks, threads, 0, stream, args, bytes);
}

void hd_sim_launch_shared(const char *name, hd_sim_body body, unsigned blocks, unsigned threads, unsigned shared_bytes,
                          cudaStream_t stream, const void *args, uint64_t bytes)
{
    if (hd_sim_begin_in_context("cudaLaunchKernel") != cudaSuccess) {
        return;
    }
    if (blocks == 0 || threads == 0 || threads > 1024) {
        hd_sim_result(cudaErrorInvalidConfiguration);
        return;
    }
    if (!may_have(body, shared_bytes)) {
        hd_sim_result(cudaErrorInvalidValue);
        return;
    }
    void *copy = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (copy == NULL) {
        hd_sim_result(cudaErrorMemoryAllocation);
        return;
    }
    memcpy(copy, args, bytes);
    note_blocks((int)blocks);
    note_unloaded(body);
    hd_sim_op op = {
        .run = hd_sim_run_kernel, .drop = drop_kernel, .u.kernel = {name, body, blocks, threads, shared_bytes, copy}};
    hd_sim_result(hd_sim_enqueue(stream, &op));
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function)
{
    HD_SIM_CALL();
    load((hd_sim_body)(uintptr_t)function);
    *out = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .numRegs = 32};
    return hd_sim_result(function != NULL ? cudaSuccess : cudaErrorInvalidValue);
}

/* As heddle's kernels have on an H100: 256 threads with 128 registers. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                          size_t shared_bytes)
{
    HD_SIM_CALL();
    *blocks = 2;
    return hd_sim_result(function != NULL && threads > 0 && shared_bytes == 0 ? cudaSuccess : cudaErrorInvalidValue);
}

static _Atomic int serial, is_running;

void hd_sim_set_serial(int is_serial)
{
    atomic_store(&serial, is_serial);
}

/* Atomics here are no order for the race detector. */
int hd_sim_take_turn(void)
{
    int is_taken = atomic_load(&serial) || hd_sim_is_counted();
    unsigned turns = 0;
    for (int idle = 0; is_taken && !atomic_compare_exchange_weak(&is_running, &idle, 1); idle = 0) {
        hd_sim_rest(turns++);
    }
    if (hd_sim_is_counted()) {
        hd_sim_count_begin();
    }
    return is_taken;
}

void hd_sim_give_turn(int is_taken, const char *kernel)
{
    if (hd_sim_is_counted()) {
        hd_sim_count_end(kernel);
    }
    if (is_taken) {
        atomic_store(&is_running, 0);
    }
}

static _Atomic int reversed;

void hd_sim_set_reversed(int is_reversed)
{
    atomic_store(&reversed, is_reversed);
}

int hd_sim_is_reversed(void)
{
    return atomic_load(&reversed);
}
