/* The words of kernels/cuda/warp.h do in the emulator what their documents say, and what is wrong with their use is
 * found there: a lane that does not come is named, a copy that nobody waits for is not there.
 *
 * Built with PLANT 1 or 2 it is not awaited, or not by all: the race detector has to say so. */
#include "case.h"
#include "cudasim.h"
#include "draw.h"
#include "kernels/cuda/warp.h"
#include "kernels/small_float.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PLANT
#define PLANT 0
#endif

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { LANES = 32, WARPS = 3, BLOCKS = 2 };

static void *device_new(const void *from, size_t bytes)
{
    void *memory = NULL;
    OK(cudaMalloc(&memory, bytes));
    OK(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    return memory;
}

static void host_copy(void *to, const void *from, size_t bytes)
{
    OK(cudaGetLastError());
    OK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

typedef struct float_args {
    const float *src;
    float *dst;
} float_args;

HD_DEV float load_float(const float *at)
{
    return hd_f32_from_bits(hd_load_4(at));
}

HD_DEV void store_float(float *at, float value)
{
    hd_store_4(at, hd_f32_bits(value));
}

/* The sum of the warp, of four lanes, and the largest of eight. */
HD_KERNEL(sums, float_args, a)
{
    const uint32_t at = HD_BLOCK * HD_THREADS + HD_THREAD;
    const float x = load_float(a.src + at);
    store_float(a.dst + 3 * at, hd_group_sum(x, 32));
    store_float(a.dst + 3 * at + 1, hd_group_sum(x, 4));
    store_float(a.dst + 3 * at + 2, hd_group_max(x, 8));
}

HD_CASE(lanes_of_groups_are_summed)
{
    enum { N = BLOCKS * WARPS * LANES };
    float in[N], out[3 * N];
    for (int i = 0; i < N; i++) {
        in[i] = (float)between(-1000, 1000);
    }
    float_args a = {device_new(in, sizeof in), device_new(out, sizeof out)};
    HD_LAUNCH(sums, BLOCKS, WARPS * LANES, NULL, &a);
    host_copy(out, a.dst, sizeof out);
    for (int i = 0; i < N; i++) {
        float all = 0, four = 0, most = -INFINITY;
        for (int j = 0; j < 32; j++) {
            all += in[i / 32 * 32 + j];
            four += j < 4 ? in[i / 4 * 4 + j] : 0;
            most = j < 8 ? fmaxf(most, in[i / 8 * 8 + j]) : most;
        }
        assert_true(out[3 * i] == all && out[3 * i + 1] == four && out[3 * i + 2] == most);
    }
}

typedef struct absent_args {
    int how, unused;
    float *dst;
} absent_args;

/* Lane 5 of the second warp does something else. */
HD_KERNEL(one_is_absent, absent_args, a)
{
    float x = 1;
    if (HD_WARP == 1 && HD_LANE == 5) {
        if (a.how == 1) {
            hd_sync();
        } else if (a.how == 2) {
            hd_sync_warp();
        }
        if (a.how < 3) {
            return;
        }
    }
    x = hd_group_sum(x, 32);
    store_float(a.dst + HD_THREAD, x);
}

/* What the emulator says when it ends the program. */
static void last_words(char *text, size_t bytes, int how, unsigned threads)
{
    int end[2];
    assert_int_equal(pipe(end), 0);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(end[1], 2);
        float nothing[LANES * WARPS] = {0};
        absent_args a = {how, 0, device_new(nothing, sizeof nothing)};
        HD_LAUNCH(one_is_absent, 1, threads, NULL, &a);
        OK(cudaDeviceSynchronize());
        _exit(0);
    }
    close(end[1]);
    size_t at = 0;
    for (ssize_t n = 1; n > 0 && at + 1 < bytes; at += (size_t)(n > 0 ? n : 0)) {
        n = read(end[0], text + at, bytes - 1 - at);
    }
    text[at] = 0;
    close(end[0]);
    int status = 0;
    waitpid(child, &status, 0);
    assert_int_equal(status == 0, how == 3 && threads % LANES == 0);
}

/* In children, before this process has used the device. */
HD_CASE(a_lane_that_does_not_come_is_named)
{
    static const char *const does[] = {"has ended", "waits at hd_sync", "hd_sync_warp"};
    char text[4096], said[256];
    for (int how = 0; how < 3; how++) {
        last_words(text, sizeof text, how, WARPS * LANES);
        (void)snprintf(
            said, sizeof said,
            "one_is_absent, block 0, warp 1: lane 5 does not come to hd_shuffle_xor, where lane 0 waits: it %s",
            does[how]);
        if (strstr(text, said) == NULL) {
            fail_msg("it said: %s", text);
        }
    }
    last_words(text, sizeof text, 3, WARPS * LANES);
    last_words(text, sizeof text, 3, WARPS * LANES - 8);
    assert_non_null(
        strstr(text, "warp 2: lane 24 does not come to hd_shuffle_xor, where lane 0 waits: it is not there"));
}

typedef struct product_args {
    const uint16_t *a, *b;
    float *sum;
    int is_bf16, unused;
} product_args;

HD_DEV uint32_t two(const uint16_t *low, const uint16_t *high)
{
    return hd_load_2(low) | (uint32_t)hd_load_2(high) << 16;
}

/* a [16][16], b [16][8], sum [16][8] by rows; the lanes' parts as the PTX manual has them (group = lane / 4). */
HD_KERNEL(product, product_args, p)
{
    const unsigned group = HD_LANE / 4, in_group = HD_LANE % 4;
    uint32_t a[4], b[2];
    float sum[4];
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = i % 2 == 0 ? group : group + 8, column = in_group * 2 + (i < 2 ? 0 : 8);
        a[i] = two(p.a + row * 16 + column, p.a + row * 16 + column + 1);
        sum[i] = load_float(p.sum + (i < 2 ? group : group + 8) * 8 + in_group * 2 + i % 2);
    }
    for (unsigned i = 0; i < 2; i++) {
        const unsigned row = in_group * 2 + 8 * i;
        b[i] = two(p.b + row * 8 + group, p.b + (row + 1) * 8 + group);
    }
    if (p.is_bf16) {
        hd_mma_bf16(sum, a, b);
    } else {
        hd_mma_f16(sum, a, b);
    }
    for (unsigned i = 0; i < 4; i++) {
        store_float(p.sum + (i < 2 ? group : group + 8) * 8 + in_group * 2 + i % 2, sum[i]);
    }
}

static uint16_t small_from(int is_bf16, float x)
{
    return is_bf16 ? hd_bf16_from_f32(x) : hd_f16_from_f32(x);
}

static float small_to(int is_bf16, uint16_t x)
{
    return is_bf16 ? hd_f32_from_bf16(x) : hd_f32_from_f16(x);
}

HD_CASE(products_of_small_matrices)
{
    for (int round = 0; round < 20; round++) {
        const int is_bf16 = round % 2;
        uint16_t a[16 * 16], b[16 * 8];
        float before[16 * 8], sum[16 * 8];
        for (int i = 0; i < 16 * 16; i++) {
            a[i] = small_from(is_bf16, symmetric());
        }
        for (int i = 0; i < 16 * 8; i++) {
            b[i] = small_from(is_bf16, symmetric());
            before[i] = symmetric();
        }
        product_args p = {device_new(a, sizeof a), device_new(b, sizeof b), device_new(before, sizeof before), is_bf16,
                          0};
        HD_LAUNCH(product, 1, LANES, NULL, &p);
        host_copy(sum, p.sum, sizeof sum);
        for (int row = 0; row < 16; row++) {
            for (int column = 0; column < 8; column++) {
                float wanted = before[row * 8 + column];
                for (int k = 0; k < 16; k++) {
                    wanted += small_to(is_bf16, a[row * 16 + k]) * small_to(is_bf16, b[k * 8 + column]);
                }
                assert_true(sum[row * 8 + column] == wanted);
            }
        }
    }
}

typedef struct matrix_args {
    const uint16_t *src;
    uint32_t *dst;
    int is_turned, unused;
} matrix_args;

enum { ROW = 24 /* elements from row to row in the block's memory */ };

/* Four matrices beside one another, [8][32]. */
HD_KERNEL(load_matrices, matrix_args, a)
{
    HD_DYNAMIC_SHARED(uint16_t, memory);
    for (unsigned i = HD_THREAD; i < 4 * 8 * 8; i += HD_THREADS) {
        memory[i / 8 * ROW + i % 8] = hd_load_2(a.src + i);
    }
    hd_sync();
    uint32_t out[4];
    const uint16_t *row = memory + HD_LANE * ROW;
    if (a.is_turned) {
        hd_load_matrix_4_turned(out, row);
    } else {
        hd_load_matrix_4(out, row);
    }
    for (unsigned m = 0; m < 4; m++) {
        hd_store_4(a.dst + HD_LANE * 4 + m, out[m]);
    }
}

HD_CASE(matrices_are_spread_over_the_lanes)
{
    uint16_t in[4][8][8];
    uint32_t out[LANES][4];
    for (int i = 0; i < 4 * 64; i++) {
        in[i / 64][i / 8 % 8][i % 8] = (uint16_t)(i * 257);
    }
    for (int is_turned = 0; is_turned < 2; is_turned++) {
        matrix_args a = {device_new(in, sizeof in), device_new(out, sizeof out), is_turned, 0};
        HD_LAUNCH_SHARED(load_matrices, 1, LANES, LANES * ROW * 2, NULL, &a);
        host_copy(out, a.dst, sizeof out);
        for (int lane = 0; lane < LANES; lane++) {
            for (int m = 0; m < 4; m++) {
                for (int i = 0; i < 2; i++) {
                    const int row = lane / 4, column = lane % 4 * 2 + i;
                    const uint16_t wanted = is_turned ? in[m][column][row] : in[m][row][column];
                    assert_int_equal(out[lane][m] >> (16 * i) & 0xffff, wanted);
                }
            }
        }
    }
}

typedef struct copy_args {
    const uint32_t *src;
    uint32_t *dst;
    int waits, unused;
} copy_args;

enum { PARTS = 5, PART = 16 * LANES /* bytes */ };

HD_DEV void ask_for(const copy_args *a, char *memory, unsigned part)
{
    hd_copy_async_16(memory + part % 2 * PART + 16 * HD_THREAD, (const char *)a->src + part * PART + 16 * HD_THREAD,
                     part != 3);
    hd_copy_commit();
}

/* Part by part through two places of the block's memory, the next one on its way; each thread reads what its neighbour
 * brought. Part 3 is not there: zeros. */
HD_KERNEL(copy_in_parts, copy_args, a)
{
    HD_DYNAMIC_SHARED(char, memory);
    ask_for(&a, memory, 0);
    for (unsigned part = 0; part < PARTS; part++) {
        if (part + 1 < PARTS) {
            ask_for(&a, memory, part + 1);
        }
        if (PLANT == 1 || !a.waits) {
        } else if (part + 1 < PARTS) {
            hd_copy_wait_1();
        } else {
            hd_copy_wait_0();
        }
        if (PLANT != 2) {
            hd_sync();
        }
        const unsigned other = (HD_THREAD + 1) % HD_THREADS;
        uint32_t word;
        memcpy(&word, memory + part % 2 * PART + 16 * other, sizeof word);
        hd_store_4(a.dst + part * HD_THREADS + HD_THREAD, word);
        hd_sync();
    }
}

HD_CASE(copies_are_there_when_they_are_awaited)
{
    uint32_t in[PARTS * PART / 4], out[PARTS * LANES];
    for (uint32_t i = 0; i < PARTS * PART / 4; i++) {
        in[i] = i + 1;
    }
    for (int waits = 1; waits >= !HD_SEES_PROCESSES; waits--) { /* not to wait is a race */
        copy_args a = {device_new(in, sizeof in), device_new(out, sizeof out), waits, 0};
        HD_LAUNCH_SHARED(copy_in_parts, 1, LANES, 2 * PART, NULL, &a);
        host_copy(out, a.dst, sizeof out);
        int right = 0;
        for (int i = 0; i < PARTS * LANES; i++) {
            const uint32_t wanted = i / LANES == 3 ? 0 : in[i / LANES * PART / 4 + (i + 1) % LANES * 4];
            right += out[i] == wanted;
        }
        assert_int_equal(right, waits ? PARTS * LANES : 0);
    }
}

HD_CASE(memory_of_blocks_is_limited)
{
    uint16_t in[256] = {0};
    uint32_t out[LANES * 4];
    const void *kernel = HD_KERNEL_ADDRESS(load_matrices);
    matrix_args a = {device_new(in, sizeof in), device_new(out, sizeof out), 0, 0};
    HD_LAUNCH_SHARED(load_matrices, 1, LANES, 48 << 10, NULL, &a);
    OK(cudaGetLastError());
    HD_LAUNCH_SHARED(load_matrices, 1, LANES, (48 << 10) + 16, NULL, &a);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(hd_allow_shared(kernel, (227 << 10) + 16), cudaErrorInvalidValue);
    OK(cudaGetLastError() == cudaErrorInvalidValue ? cudaSuccess : cudaErrorUnknown);
    OK(hd_allow_shared(kernel, 227 << 10));
    HD_LAUNCH_SHARED(load_matrices, 1, LANES, 227 << 10, NULL, &a);
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    assert_int_equal(hd_sim_kernels(), 2);
}

/* dst: bytes of each block's memory behind a multiple of 16. */
HD_KERNEL(where_memory_is, copy_args, a)
{
    HD_DYNAMIC_SHARED(char, memory);
    hd_store_4(a.dst + HD_BLOCK, (uint32_t)((uintptr_t)memory % 16));
}

HD_CASE(memory_of_every_block_is_aligned)
{
    uint32_t beyond[3] = {1, 1, 1};
    copy_args a = {.dst = device_new(beyond, sizeof beyond)};
    HD_LAUNCH_SHARED(where_memory_is, 3, 1, 100, NULL, &a);
    host_copy(beyond, a.dst, sizeof beyond);
    assert_int_equal(beyond[0] + beyond[1] + beyond[2], 0);
}

typedef struct turn_args {
    uint32_t *came, *turn;
} turn_args;

HD_KERNEL(who_came_when, turn_args, a)
{
    hd_store_4(a.turn + HD_BLOCK * HD_THREADS + HD_THREAD, hd_count_device(a.came, 1));
}

HD_CASE(blocks_run_in_another_order_on_request)
{
    for (int is_reversed = 0; is_reversed < 2; is_reversed++) {
        uint32_t came = 0, turn[15];
        hd_sim_set_reversed(is_reversed);
        turn_args a = {device_new(&came, sizeof came), device_new(turn, sizeof turn)};
        HD_LAUNCH(who_came_when, 5, 3, NULL, &a);
        host_copy(turn, a.turn, sizeof turn);
        for (uint32_t i = 0; i < 15; i++) {
            assert_int_equal(turn[i] / 3, is_reversed ? 4 - i / 3 : i / 3);
        }
    }
}
