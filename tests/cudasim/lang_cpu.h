/* The language of kernels/cuda as the emulator understands it: a CUDA thread is a fibre. See kernels/cuda/lang.h
 * for what the names mean. */
#ifndef HD_CUDASIM_LANG_H
#define HD_CUDASIM_LANG_H

#include <cuda_runtime_api.h>

#include <stdint.h>

typedef struct hd_sim_thread {
    unsigned thread, block, threads, blocks;
} hd_sim_thread;

typedef void (*hd_sim_body)(const void *args);

const hd_sim_thread *hd_sim_self(void);
/* Ends the program when the block has more. */
void hd_sim_have_threads(const char *name, unsigned most);
void hd_sim_sync(void);
void hd_sim_nap(void);
/* The block's memory of that place in the source. */
void *hd_sim_shared(const char *file, int line, uint64_t bytes);
/* The view of `bytes` at an address of a kernel; ends the program when the kernel may not touch them. */
void *hd_sim_at(const void *address, uint64_t bytes);
/* The same, for a store; NULL: it is lost (hd_sim_set_link). */
void *hd_sim_to(const void *address, uint64_t bytes);
void hd_sim_launch(const char *name, hd_sim_body body, unsigned blocks, unsigned threads, cudaStream_t stream,
                   const void *args, uint64_t bytes);
/* With so many bytes of memory for each block besides what its kernel names, which hd_sim_dynamic_shared gives. */
void hd_sim_launch_shared(const char *name, hd_sim_body body, unsigned blocks, unsigned threads, unsigned shared_bytes,
                          cudaStream_t stream, const void *args, uint64_t bytes);
void *hd_sim_dynamic_shared(void);
uint64_t hd_sim_time_ns(void);

#define HD_DEV static inline
#define HD_KERNEL(name, args_type, args)                                                                               \
    static void name##_of(args_type args);                                                                             \
    static void name(const void *args_)                                                                                \
    {                                                                                                                  \
        name##_of(*(const args_type *)args_);                                                                          \
    }                                                                                                                  \
    static void name##_of(const args_type args)
#define HD_KERNEL_BESIDE(name, args_type, args, threads, blocks)                                                       \
    static void name##_within(args_type args);                                                                         \
    HD_KERNEL(name, args_type, name##_args)                                                                            \
    {                                                                                                                  \
        hd_sim_have_threads(#name, threads);                                                                           \
        name##_within(name##_args);                                                                                    \
    }                                                                                                                  \
    static void name##_within(const args_type args)
#define HD_LAUNCH(name, blocks, threads, stream, args)                                                                 \
    hd_sim_launch(#name, name, (unsigned)(blocks), (unsigned)(threads), (cudaStream_t)(stream), (args), sizeof *(args))
#define HD_KERNEL_ADDRESS(name) ((const void *)(uintptr_t)(name))
#define HD_SHARED(type, name) type *const name = (type *)hd_sim_shared(__FILE__, __LINE__, sizeof(type))
#define HD_UNROLL
#define HD_UNROLL_2
#define HD_NOT_UNROLLED
#define HD_THREAD (hd_sim_self()->thread)
#define HD_BLOCK (hd_sim_self()->block)
#define HD_THREADS (hd_sim_self()->threads)
#define HD_BLOCKS (hd_sim_self()->blocks)

HD_DEV void hd_sync(void)
{
    hd_sim_sync();
}

HD_DEV void hd_nap(void)
{
    hd_sim_nap();
}

HD_DEV uint64_t hd_timer_ns(void)
{
    return hd_sim_time_ns();
}

HD_DEV uint32_t hd_high_product(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}

typedef struct __attribute__((aligned(16))) hd_v16 {
    uint64_t low, high;
} hd_v16;

HD_DEV hd_v16 hd_zero_16(void)
{
    return (hd_v16){0, 0};
}

/* 1: nothing was stored since the last fence, by fibres of one thread in turn. The race detector knows no fences. */
static _Thread_local int hd_sim_is_fenced;

HD_DEV void hd_sim_set_fenced(int is_fenced)
{
    __atomic_store_n(&hd_sim_is_fenced, is_fenced, __ATOMIC_RELAXED);
}

#define HD_SIM_ACCESS(bytes, type)                                                                                     \
    HD_DEV type hd_load_##bytes(const void *at)                                                                        \
    {                                                                                                                  \
        return *(const type *)hd_sim_at(at, bytes);                                                                    \
    }                                                                                                                  \
    HD_DEV type hd_load_constant_##bytes(const void *at)                                                               \
    {                                                                                                                  \
        return *(const type *)hd_sim_at(at, bytes);                                                                    \
    }                                                                                                                  \
    HD_DEV void hd_store_##bytes(void *at, type value)                                                                 \
    {                                                                                                                  \
        hd_sim_set_fenced(0);                                                                                          \
        type *to = (type *)hd_sim_to(at, bytes);                                                                       \
        if (to != NULL) {                                                                                              \
            *to = value;                                                                                               \
        }                                                                                                              \
    }

HD_SIM_ACCESS(16, hd_v16)
HD_SIM_ACCESS(8, uint64_t)
HD_SIM_ACCESS(4, uint32_t)
HD_SIM_ACCESS(2, uint16_t)
HD_SIM_ACCESS(1, uint8_t)

HD_DEV uint64_t hd_load_acquire_system(const uint64_t *at)
{
    return __atomic_load_n((const uint64_t *)hd_sim_at(at, 8), __ATOMIC_ACQUIRE);
}

HD_DEV uint64_t hd_load_relaxed_system(const uint64_t *at)
{
    return __atomic_load_n((const uint64_t *)hd_sim_at(at, 8), __ATOMIC_RELAXED);
}

HD_DEV void hd_fence_system(void)
{
    hd_sim_set_fenced(1);
}

HD_DEV void hd_store_release_system(uint64_t *at, uint64_t value)
{
    uint64_t *to = (uint64_t *)hd_sim_to(at, 8);
    if (to != NULL) {
        __atomic_store_n(to, value, __ATOMIC_RELEASE);
    }
}

HD_DEV void hd_store_relaxed_system(uint64_t *at, uint64_t value)
{
    uint64_t *to = (uint64_t *)hd_sim_to(at, 8);
    if (to != NULL && __atomic_load_n(&hd_sim_is_fenced, __ATOMIC_RELAXED)) {
        __atomic_store_n(to, value, __ATOMIC_RELEASE);
    } else if (to != NULL) {
        __atomic_store_n(to, value, __ATOMIC_RELAXED);
    }
}

HD_DEV uint32_t hd_add_system(uint32_t *at, uint32_t value)
{
    return __atomic_fetch_add((uint32_t *)hd_sim_at(at, 4), value, __ATOMIC_ACQ_REL);
}

HD_DEV uint32_t hd_count_device(uint32_t *at, uint32_t value)
{
    return __atomic_fetch_add((uint32_t *)hd_sim_at(at, 4), value, __ATOMIC_RELAXED);
}

HD_DEV uint32_t hd_add_device(uint32_t *at, uint32_t value)
{
    return __atomic_fetch_add((uint32_t *)hd_sim_at(at, 4), value, __ATOMIC_ACQ_REL);
}

#endif
