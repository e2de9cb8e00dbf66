/* Words for the 32 threads of a warp, besides those of lang.h: sums, products of small matrices, copies that go on
 * while their thread does something else, and a block's memory whose size the launch says.
 *
 *   HD_LANE, HD_WARP, HD_WARPS              thread of the warp, warp of the block, warps of a block
 *   hd_shuffle_xor(value, mask)             the value of lane HD_LANE ^ mask
 *   hd_group_sum(value, n), hd_group_max    of the n lanes beside one another, a power of two: the same bits in each
 *   hd_any(is)                              1 where it is not 0 in some lane of the warp
 *   hd_sync_warp()                          all lanes; what they stored is seen
 *   hd_mma_bf16(sum, a, b), hd_mma_f16      sum[16][8] += a[16][16] b[16][8], each spread over the lanes: in PTX's
 *                                           words mma.m16n8k16.row.col, sums f32
 *   hd_load_matrix_4(out, row)              four matrices of 8 x 8 elements of 16 bits from the block's memory: lane i
 *                                           names row i % 8 of matrix i / 8, lane l gets elements 2 (l % 4) and + 1 of
 *                                           row l / 4 of each; _turned: of the transposed ones
 *   hd_copy_async_16(to, from, is_there)    16 bytes into the block's memory, or zeros; done behind hd_copy_wait for
 *                                           the thread itself, for others behind a hd_sync after that
 *   hd_copy_commit(), hd_copy_wait_N()      ends a group of copies; all groups of this thread but the N newest are done
 *   HD_DYNAMIC_SHARED(type, name)           as HD_SHARED, of the bytes that HD_LAUNCH_SHARED says; more than 48 KiB
 *                                           are allowed by hd_allow_shared
 *   hd_mul, hd_fma                          one rounding each: never merged with what stands beside them
 *   hd_mul_64, hd_add_64, hd_div_64, hd_sqrt_64   the same of f64
 *   hd_to_bf16, hd_to_f16, hd_from_f16      rounded to nearest even; a NaN stays one
 *   hd_pair_to_bf16, hd_pair_to_f16         two at a time, the first one in the lower half
 *   hd_exp2, hd_log2, hd_rsqrt              to a few units of the last place; hd_exp2: less than 2^-126 may be 0
 *   hd_load_kept_16                         as hd_load_constant_16, for what neighbours read again
 *   hd_load_near_16                         as hd_load_16, for what neighbours read the rest of
 *
 * All lanes of a warp come to a word of several lanes together.
 */
#ifndef HD_CUDA_WARP_H
#define HD_CUDA_WARP_H

#include "kernels/cuda/lang.h"

#include <math.h>

#define HD_LANE (HD_THREAD % 32)
#define HD_WARP (HD_THREAD / 32)
#define HD_WARPS (HD_THREADS / 32)

#ifndef __CUDACC__
#include <warp_cpu.h> /* tests/cudasim */
#else

#define HD_LAUNCH_SHARED(name, blocks, threads, bytes, stream, args)                                                   \
    name<<<(unsigned)(blocks), (unsigned)(threads), (size_t)(bytes), (cudaStream_t)(stream)>>>(*(args))
#define HD_DYNAMIC_SHARED(type, name)                                                                                  \
    extern __shared__ uint4 hd_dynamic_memory[];                                                                       \
    type *const name = (type *)hd_dynamic_memory

HD_DEV float hd_shuffle_xor(float value, unsigned mask)
{
    return __shfl_xor_sync(0xffffffffu, value, (int)mask);
}

HD_DEV int hd_any(int is)
{
    return __any_sync(0xffffffffu, is);
}

HD_DEV void hd_sync_warp(void)
{
    __syncwarp();
}

HD_DEV float hd_mul(float a, float b)
{
    return __fmul_rn(a, b);
}

HD_DEV float hd_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

HD_DEV double hd_mul_64(double a, double b)
{
    return __dmul_rn(a, b);
}

HD_DEV double hd_add_64(double a, double b)
{
    return __dadd_rn(a, b);
}

HD_DEV double hd_div_64(double a, double b)
{
    return __ddiv_rn(a, b);
}

HD_DEV double hd_sqrt_64(double x)
{
    return __dsqrt_rn(x);
}

HD_DEV float hd_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

HD_DEV float hd_rsqrt(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

HD_DEV float hd_log2(float x)
{
    return log2f(x);
}

HD_DEV uint16_t hd_to_bf16(float x)
{
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

/* Two beside one another, the first one lower. */
HD_DEV uint32_t hd_pair_to_bf16(float x, float y)
{
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
    return bits;
}

HD_DEV uint32_t hd_pair_to_f16(float x, float y)
{
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
    return bits;
}

HD_DEV uint16_t hd_to_f16(float x)
{
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

HD_DEV float hd_from_f16(uint16_t bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

HD_DEV hd_v16 hd_load_kept_16(const void *at)
{
    return __ldg((const uint4 *)at);
}

HD_DEV hd_v16 hd_load_near_16(const void *at)
{
    hd_v16 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

#define HD_CUDA_MMA(name, type)                                                                                        \
    HD_DEV void name(float sum[4], const uint32_t a[4], const uint32_t b[2])                                           \
    {                                                                                                                  \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                                             \
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                                    \
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                   \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                       \
    }

HD_CUDA_MMA(hd_mma_bf16, "bf16")
HD_CUDA_MMA(hd_mma_f16, "f16")

#define HD_CUDA_LOAD_MATRIX(name, turned)                                                                              \
    HD_DEV void name(uint32_t out[4], const void *row)                                                                 \
    {                                                                                                                  \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" turned ".shared.b16 {%0,%1,%2,%3}, [%4];"                         \
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])                                          \
                     : "r"((uint32_t)__cvta_generic_to_shared(row))                                                    \
                     : "memory");                                                                                      \
    }

HD_CUDA_LOAD_MATRIX(hd_load_matrix_4, "")
HD_CUDA_LOAD_MATRIX(hd_load_matrix_4_turned, ".trans")

HD_DEV void hd_copy_async_16(void *to, const void *from, int is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}

HD_DEV void hd_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

#define HD_CUDA_COPY_WAIT(n)                                                                                           \
    HD_DEV void hd_copy_wait_##n(void)                                                                                 \
    {                                                                                                                  \
        asm volatile("cp.async.wait_group " #n ";" ::: "memory");                                                      \
    }

HD_CUDA_COPY_WAIT(0)
HD_CUDA_COPY_WAIT(1)

#endif

HD_DEV float hd_group_sum(float value, unsigned lanes)
{
    HD_UNROLL
    for (unsigned mask = lanes / 2; mask > 0; mask /= 2) {
        value = value + hd_shuffle_xor(value, mask);
    }
    return value;
}

HD_DEV float hd_group_max(float value, unsigned lanes)
{
    HD_UNROLL
    for (unsigned mask = lanes / 2; mask > 0; mask /= 2) {
        value = fmaxf(value, hd_shuffle_xor(value, mask));
    }
    return value;
}

/* Memory that every device of compute capability 8.0 or later has for a block. */
enum { HD_EVERY_SHARED = 99 << 10 };

/* What the device of the calling thread has for a block; the runtime's code. */
static inline int hd_most_shared(int *bytes)
{
    int device = 0;
    const int error = (int)cudaGetDevice(&device);
    return error != 0 ? error : (int)cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

/* Of a kernel's address. */
static inline int hd_allow_shared(const void *kernel, int bytes)
{
    return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

/* Before its first launch, which would wait for the device; with the memory that a block may have by its launch. Where
 * the device has less, launches that want more fail, and the device's other kernels work. */
static inline int hd_load_kernel(const void *kernel, int shared_bytes)
{
    struct cudaFuncAttributes attributes;
    int error = (int)cudaFuncGetAttributes(&attributes, kernel), most = HD_EVERY_SHARED;
    if (error == 0 && shared_bytes > most) {
        error = hd_most_shared(&most);
    }
    return error != 0 || shared_bytes == 0 ? error : hd_allow_shared(kernel, shared_bytes < most ? shared_bytes : most);
}

/* Several without such memory. */
static inline int hd_load_kernels(const void *const *kernel, int n)
{
    int error = 0;
    for (int i = 0; i < n && error == 0; i++) {
        error = hd_load_kernel(kernel[i], 0);
    }
    return error;
}

#endif
