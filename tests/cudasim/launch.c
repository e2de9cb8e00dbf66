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

void hd_sim_launch(const char *name, hd_sim_body body, unsigned blocks, unsigned threads, cudaStream_t stream,
                   const void *args, uint64_t bytes)
{
    if (hd_sim_begin_in_context() != cudaSuccess) {
        return;
    }
    if (blocks == 0 || threads == 0 || threads > 1024) {
        hd_sim_result(cudaErrorInvalidConfiguration);
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
    hd_sim_op op = {.run = hd_sim_run_kernel, .drop = drop_kernel, .u.kernel = {name, body, blocks, threads, copy}};
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
