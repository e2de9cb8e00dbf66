/* What kernels are written in: the part of the language that nvcc and the emulator of the tests share. A .cu file is C
 * and CUDA C++ at once; instructions of the GPU are in this file only.
 *
 *   HD_KERNEL(name, type, args) { ... }     a kernel with one argument, a struct
 *   HD_KERNEL_BESIDE(name, type, args, threads, blocks) { ... }
 *                                           of at most so many threads, with registers for so many blocks of a
 *                                           multiprocessor at a time
 *   HD_LAUNCH(name, blocks, threads, stream, &args)
 *   HD_SHARED(type, name);                  name points to the block's own memory; not cleared
 *   HD_THREAD of HD_THREADS, HD_BLOCK of HD_BLOCKS
 *   hd_sync()                               all threads of the block
 *
 * Memory of devices, and host memory that devices see, is touched through hd_load_N and hd_store_N alone (N bytes, at a
 * multiple of N): 16, 8, 4, 2, 1. hd_load_constant_N is for what nobody writes while the kernel runs, which caches need
 * not agree about. The flags of other ranks are read by hd_load_acquire_system and written by hd_store_release_system,
 * or several by hd_store_relaxed_system behind one hd_fence_system. What the host may read at any time is written by
 * hd_store_relaxed_system; hd_load_relaxed_system looks whether it is worth while to acquire.
 * Counters that blocks of one kernel share grow by hd_add_device (acquire and release), which returns the old value,
 * by hd_add_system where what stands before is for other devices; hd_count_device counts only, and orders nothing.
 */
#ifndef HD_CUDA_LANG_H
#define HD_CUDA_LANG_H

#ifndef __CUDACC__
#include <lang_cpu.h> /* tests/cudasim */
#else

#include <cuda_runtime.h>
#include <stdint.h>

#define HD_DEV static __device__ __forceinline__
#define HD_KERNEL(name, args_type, args) static __global__ void name(const __grid_constant__ args_type args)
#define HD_KERNEL_BESIDE(name, args_type, args, threads, blocks)                                                       \
    static __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ args_type args)
#define HD_LAUNCH(name, blocks, threads, stream, args)                                                                 \
    name<<<(unsigned)(blocks), (unsigned)(threads), 0, (cudaStream_t)(stream)>>>(*(args))
#define HD_KERNEL_ADDRESS(name) ((const void *)(name))
#define HD_SHARED(type, name)                                                                                          \
    __shared__ type name##_memory;                                                                                     \
    type *const name = &name##_memory
#define HD_UNROLL _Pragma("unroll")
#define HD_UNROLL_2 _Pragma("unroll 2")
#define HD_NOT_UNROLLED _Pragma("unroll 1")
#define HD_THREAD threadIdx.x
#define HD_BLOCK blockIdx.x
#define HD_THREADS blockDim.x
#define HD_BLOCKS gridDim.x

typedef uint4 hd_v16;

HD_DEV void hd_sync(void)
{
    __syncthreads();
}

HD_DEV void hd_nap(void)
{
    __nanosleep(40);
}

HD_DEV uint64_t hd_timer_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

HD_DEV uint32_t hd_high_product(uint32_t a, uint32_t b)
{
    return __umulhi(a, b);
}

HD_DEV hd_v16 hd_zero_16(void)
{
    return make_uint4(0, 0, 0, 0);
}

HD_DEV hd_v16 hd_load_constant_16(const void *at)
{
    hd_v16 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

HD_DEV hd_v16 hd_load_16(const void *at)
{
    hd_v16 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

HD_DEV void hd_store_16(void *at, hd_v16 v)
{
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

#define HD_CUDA_ACCESS(bytes, type)                                                                                    \
    HD_DEV type hd_load_##bytes(const void *at)                                                                        \
    {                                                                                                                  \
        return *(const volatile type *)at;                                                                             \
    }                                                                                                                  \
    HD_DEV type hd_load_constant_##bytes(const void *at)                                                               \
    {                                                                                                                  \
        return __ldg((const type *)at);                                                                                \
    }                                                                                                                  \
    HD_DEV void hd_store_##bytes(void *at, type value)                                                                 \
    {                                                                                                                  \
        *(type *)at = value;                                                                                           \
    }

HD_CUDA_ACCESS(8, unsigned long long)
HD_CUDA_ACCESS(4, uint32_t)
HD_CUDA_ACCESS(2, uint16_t)
HD_CUDA_ACCESS(1, uint8_t)

HD_DEV uint64_t hd_load_acquire_system(const uint64_t *at)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

HD_DEV uint64_t hd_load_relaxed_system(const uint64_t *at)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

HD_DEV void hd_fence_system(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

HD_DEV void hd_store_release_system(uint64_t *at, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

HD_DEV void hd_store_relaxed_system(uint64_t *at, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

HD_DEV uint32_t hd_add_device(uint32_t *at, uint32_t value)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
    return before;
}

HD_DEV uint32_t hd_add_system(uint32_t *at, uint32_t value)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.sys.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
    return before;
}

HD_DEV uint32_t hd_count_device(uint32_t *at, uint32_t value)
{
    uint32_t before;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
    return before;
}

#endif
#endif
