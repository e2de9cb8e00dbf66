/* Forms of attention's kernels for few tokens by turns with those for many, on a card: medians by events, a line each,
 * results compared.
 *
 *     trials          arrays of four times the L2 cache and more
 *     trials --small  arrays of a few rows: are the forms right? Nothing is timed.
 *
 * Exit 0: all were right; 1: some form was not, or a call failed. */
#include "kernels/cuda/kernels.h"
#include "kernels/small_float.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(call)                                                                                                       \
    do {                                                                                                               \
        const int error_ = (int)(call);                                                                                \
        if (error_ != 0) {                                                                                             \
            printf("%s: error %d\n", #call, error_);                                                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { FORMS = 2, ROUNDS = 20, BLOCK = 1000003 /* elements that arrays repeat */ };

static int is_small, failed;

/* What the launches below work on. */
static struct {
    hd_device_attention_back back;
    int32_t *lengths; /* of each fibre: all its keys */
    void *result;
    int64_t elems;
} now;

/* Form 0 is the library's. */
typedef int launch(int form);

/* Of keys that might be too many for one pass turns are taken. */
static int forward(int form)
{
    hd_device_attention of = now.back.of;
    if (form == 1) {
        of.lengths = now.lengths;
        of.fibres_of_length = 1;
        of.diagonal = of.diagonal >= of.nk ? 129 : of.diagonal;
        of.nk = 129;
    }
    return hd_attention_forward(&of, NULL);
}

static int backward(int form)
{
    return form == 0 ? hd_attention_back(&now.back, NULL) : hd_attention_walk_back(&now.back, NULL);
}

static void *array(int64_t bytes)
{
    void *there = NULL;
    DO(cudaMalloc(&there, (size_t)bytes));
    return there;
}

static void *half_array(int64_t elems)
{
    char *there = array(elems * 2);
    uint16_t *block = malloc(BLOCK * sizeof *block);
    for (int i = 0; i < BLOCK; i++) {
        block[i] = hd_bf16_from_f32(1.5f * sinf((float)i * ((float)(i % 1013) + 0.37f)));
    }
    for (int64_t at = 0; at < elems; at += BLOCK) {
        const int64_t n = elems - at < BLOCK ? elems - at : BLOCK;
        DO(cudaMemcpy(there + at * 2, block, (size_t)n * 2, cudaMemcpyHostToDevice));
    }
    free(block);
    return there;
}

/* The result of a launch, on the host. */
static uint16_t *result_of(launch *run, int form)
{
    uint16_t *here = malloc((size_t)now.elems * 2);
    DO(cudaMemset(now.result, 0xff, (size_t)now.elems * 2)); /* NaN */
    DO(run(form));
    DO(cudaMemcpy(here, now.result, (size_t)now.elems * 2, cudaMemcpyDeviceToHost));
    return here;
}

/* How far apart they are, as a part of what is largest, of many by some of them; 0: the same bits. */
static double distance(const uint16_t *got, const uint16_t *wanted)
{
    const int64_t step = now.elems < 1 << 20 ? 1 : 61;
    double most = 0, largest = 1e-30;
    for (int64_t i = 0; i < now.elems; i += step) {
        const double x = (double)hd_f32_from_bf16(got[i]), y = (double)hd_f32_from_bf16(wanted[i]);
        const double apart = got[i] == wanted[i] ? 0 : isfinite(x - y) ? fabs(x - y) : INFINITY;
        most = fmax(most, apart);
        largest = fmax(largest, fabs(y));
    }
    return memcmp(got, wanted, (size_t)now.elems * 2) == 0 ? 0 : most / largest + 1e-12;
}

static int by_size(const void *x, const void *y)
{
    return *(const float *)x < *(const float *)y ? -1 : *(const float *)x > *(const float *)y;
}

/* Medians of the forms, each once in every round. */
static void time_all(launch *run, float *median)
{
    float ms[FORMS][ROUNDS];
    cudaEvent_t begin, end;
    DO(cudaEventCreateWithFlags(&begin, 0));
    DO(cudaEventCreateWithFlags(&end, 0));
    for (int i = 0; i < ROUNDS * FORMS; i++) {
        const int which = (i + i / FORMS) % FORMS; /* whoever is first changes */
        DO(cudaEventRecord(begin, NULL));
        DO(run(which));
        DO(cudaEventRecord(end, NULL));
        DO(cudaEventSynchronize(end));
        DO(cudaEventElapsedTime(&ms[which][i / FORMS], begin, end));
    }
    for (int i = 0; i < FORMS; i++) {
        qsort(ms[i], ROUNDS, sizeof ms[i][0], by_size);
        median[i] = ms[i][ROUNDS / 2];
    }
}

static void try_both(const char *what, launch *run, int64_t n, const char *other)
{
    uint16_t *wanted = result_of(run, 0), *got = result_of(run, 1);
    const double apart = distance(got, wanted);
    float ms[FORMS];
    failed |= !(apart < 0.02); /* a few roundings to bf16 */
    printf("trials: %s, %lld tokens of 72: %s: %s", what, (long long)n, other,
           apart == 0     ? "the same bits"
           : apart < 0.02 ? "other bits"
                          : "WRONG");
    if (!is_small) {
        time_all(run, ms);
        printf(", %.4f ms, the library's %.4f: %.3f times as fast", (double)ms[1], (double)ms[0],
               (double)(ms[1] / ms[0]));
    }
    printf("\n");
    free(wanted);
    free(got);
}

/* Of [outer][n][inner][3][heads][72]. */
static void attention(int64_t outer, int64_t inner, int64_t n, int64_t count, int64_t diagonal)
{
    const int64_t d = 72, c = count * d, rows = outer * n * inner;
    hd_device_attention *of = &now.back.of;
    char *qkv = half_array(rows * 3 * c), *dqkv = array(rows * 3 * c * 2), *o = array(rows * c * 2);
    int32_t lengths[8];
    memset(&now, 0, sizeof now);
    *of = (hd_device_attention){HEDDLE_BF16, outer, inner, count, count, 0, 0, n, n, d, 1 / sqrtf((float)d), diagonal};
    of->q = (hd_device_tokens){qkv, n * inner * 3 * c, 3 * c, inner * 3 * c, d};
    of->o = (hd_device_tokens){o, n * inner * c, c, inner * c, d};
    of->k = of->v = now.back.dq = now.back.dk = now.back.dv = of->q;
    of->k.data = qkv + c * 2;
    of->v.data = qkv + 2 * c * 2;
    of->stats = array(rows * count * 2 * 4);
    now.back.d_o = of->o;
    now.back.d_o.data = half_array(rows * c);
    now.back.dq.data = dqkv;
    now.back.dk.data = dqkv + c * 2;
    now.back.dv.data = dqkv + 2 * c * 2;
    now.back.delta = array(rows * count * 4);
    now.lengths = array(sizeof lengths);
    for (int i = 0; i < 8; i++) {
        lengths[i] = (int32_t)n;
    }
    DO(cudaMemcpy(now.lengths, lengths, sizeof lengths, cudaMemcpyHostToDevice));
    now.result = o;
    now.elems = rows * c;
    try_both("forward", forward, n, "turns of 64 keys");
    free(result_of(forward, 0)); /* o and stats as they should be */
    now.result = dqkv;
    now.elems = rows * 3 * c;
    try_both("backward", backward, n, "walks over keys and over queries");
    void *const made[] = {qkv, dqkv, o, of->stats, now.back.d_o.data, now.back.delta, now.lengths};
    for (int i = 0; i < 7; i++) {
        DO(cudaFree(made[i]));
    }
}

int main(int argc, char **argv)
{
    is_small = argc > 1 && strcmp(argv[1], "--small") == 0;
    DO(hd_attention_load() != 0 || hd_attention_back_load() != 0);
    if (is_small) {
        attention(1, 5, 100, 1, 100);
        attention(1, 1, 128, 1, 5);
        attention(3, 1, 40, 1, 40);
        attention(2, 3, 16, 2, 16);
    } else {
        attention(2, 1800, 16, 16, 16);
        attention(2, 900, 32, 16, 32);
        attention(2, 450, 64, 16, 64);
        attention(2, 225, 128, 16, 128);
    }
    return failed;
}
