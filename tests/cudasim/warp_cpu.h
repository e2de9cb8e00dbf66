/* The words of kernels/cuda/warp.h as the emulator understands them. A warp's matrices are read here, not in the
 * emulator, whose accesses the race detector does not see. */
#ifndef HD_CUDASIM_WARP_H
#define HD_CUDASIM_WARP_H

#include "kernels/small_float.h"

#include <lang_cpu.h>
#include <string.h>

#define HD_LAUNCH_SHARED(name, blocks, threads, bytes, stream, args)                                                   \
    hd_sim_launch_shared(#name, name, (unsigned)(blocks), (unsigned)(threads), (unsigned)(bytes),                      \
                         (cudaStream_t)(stream), (args), sizeof *(args))
#define HD_DYNAMIC_SHARED(type, name) type *const name = (type *)hd_sim_dynamic_shared()

/* Leaves `mine` for the other lanes of the warp, and goes on when all have come to this word. */
void hd_sim_meet(const char *word, const void *mine, unsigned bytes);
/* What a lane left at the last meeting; until the next one. */
const void *hd_sim_left_by(unsigned lane);
void hd_sim_meet_rows(const char *word, const void *row);
void hd_sim_sync_warp(void);
void hd_sim_mma(const char *word, float sum[4], const uint32_t a[4], const uint32_t b[2], int is_bf16);
void hd_sim_copy_later(void *to, const void *from, int is_there);
void hd_sim_commit(void);
void hd_sim_wait_for_copies(unsigned newest);

HD_DEV float hd_shuffle_xor(float value, unsigned mask)
{
    float other;
    hd_sim_meet("hd_shuffle_xor", &value, sizeof value);
    memcpy(&other, hd_sim_left_by(HD_THREAD % 32 ^ mask), sizeof other);
    return other;
}

HD_DEV int hd_any(int is)
{
    int any = 0;
    hd_sim_meet("hd_any", &is, sizeof is);
    for (unsigned lane = 0; lane < 32; lane++) {
        int of_lane;
        memcpy(&of_lane, hd_sim_left_by(lane), sizeof of_lane);
        any |= of_lane;
    }
    return any != 0;
}

HD_DEV void hd_sync_warp(void)
{
    hd_sim_sync_warp();
}

HD_DEV float hd_mul(float a, float b)
{
    return a * b;
}

HD_DEV float hd_fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

HD_DEV double hd_mul_64(double a, double b)
{
    return a * b;
}

HD_DEV double hd_add_64(double a, double b)
{
    return a + b;
}

HD_DEV double hd_div_64(double a, double b)
{
    return a / b;
}

HD_DEV double hd_sqrt_64(double x)
{
    return __builtin_sqrt(x);
}

HD_DEV float hd_exp2(float x)
{
    return __builtin_exp2f(x);
}

HD_DEV float hd_rsqrt(float x)
{
    return 1.0f / __builtin_sqrtf(x);
}

HD_DEV float hd_log2(float x)
{
    return __builtin_log2f(x);
}

HD_DEV uint16_t hd_to_bf16(float x)
{
    return hd_bf16_from_f32(x);
}

HD_DEV uint16_t hd_to_f16(float x)
{
    return hd_f16_from_f32(x);
}

HD_DEV uint32_t hd_pair_to_bf16(float x, float y)
{
    return hd_to_bf16(x) | (uint32_t)hd_to_bf16(y) << 16;
}

HD_DEV uint32_t hd_pair_to_f16(float x, float y)
{
    return hd_to_f16(x) | (uint32_t)hd_to_f16(y) << 16;
}

HD_DEV float hd_from_f16(uint16_t bits)
{
    return hd_f32_from_f16(bits);
}

HD_DEV hd_v16 hd_load_kept_16(const void *at)
{
    return hd_load_constant_16(at);
}

HD_DEV hd_v16 hd_load_near_16(const void *at)
{
    return hd_load_16(at);
}

HD_DEV void hd_mma_bf16(float sum[4], const uint32_t a[4], const uint32_t b[2])
{
    hd_sim_mma("hd_mma_bf16", sum, a, b, 1);
}

HD_DEV void hd_mma_f16(float sum[4], const uint32_t a[4], const uint32_t b[2])
{
    hd_sim_mma("hd_mma_f16", sum, a, b, 0);
}

/* Elements of matrix m that this lane gets, from the rows that the lanes named. */
HD_DEV uint32_t hd_sim_matrix_part(unsigned m, int is_turned)
{
    const unsigned lane = HD_THREAD % 32;
    uint16_t part[2];
    for (unsigned i = 0; i < 2; i++) {
        const unsigned row = is_turned ? lane % 4 * 2 + i : lane / 4, column = is_turned ? lane / 4 : lane % 4 * 2 + i;
        const uint16_t *at;
        memcpy(&at, hd_sim_left_by(8 * m + row), sizeof at);
        part[i] = at[column];
    }
    return part[0] | (uint32_t)part[1] << 16;
}

HD_DEV void hd_load_matrix_4(uint32_t out[4], const void *row)
{
    hd_sim_meet_rows("hd_load_matrix_4", row);
    for (unsigned m = 0; m < 4; m++) {
        out[m] = hd_sim_matrix_part(m, 0);
    }
}

HD_DEV void hd_load_matrix_4_turned(uint32_t out[4], const void *row)
{
    hd_sim_meet_rows("hd_load_matrix_4_turned", row);
    for (unsigned m = 0; m < 4; m++) {
        out[m] = hd_sim_matrix_part(m, 1);
    }
}

HD_DEV void hd_copy_async_16(void *to, const void *from, int is_there)
{
    hd_sim_copy_later(to, from, is_there);
}

HD_DEV void hd_copy_commit(void)
{
    hd_sim_commit();
}

HD_DEV void hd_copy_wait_0(void)
{
    hd_sim_wait_for_copies(0);
}

HD_DEV void hd_copy_wait_1(void)
{
    hd_sim_wait_for_copies(1);
}

#endif
