/* Trials of kernels by turns with the library's, on a card: medians by events, a line each, results compared.
 *
 *     trials          arrays of four times the L2 cache and more
 *     trials --small  arrays of a few rows: are the forms right? Nothing is timed.
 *
 * Exit 0: all were right; 1: some form was not, or a call failed. */
#include "trials.h"

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

enum { MOST_FORMS = 12, ROUNDS = 20, BLOCK = 1000003 /* elements that arrays repeat */ };

int trial_multiprocessors;
static int is_small, failed;

/* What the launches below work on. */
static struct {
    hd_device_attention_back back;
    hd_device_heads heads;
    void *result, *source; /* source: what result is before a launch that is judged; NULL: anything */
    int64_t elems;
} now;

/* form -1: the library's. */
typedef int launch(int form, const char **name);

static int forward(int form, const char **name)
{
    return form < 0 ? hd_attention_forward(&now.back.of, NULL) : trial_forward(form, &now.back.of, name);
}

static int backward(int form, const char **name)
{
    return form < 0 ? hd_attention_back(&now.back, NULL) : trial_backward(form, &now.back, name);
}

static int heads(int form, const char **name)
{
    return form < 0 ? hd_heads_norm_rotate(&now.heads, now.result, now.result, NULL)
                    : trial_heads(form, &now.heads, now.result, name);
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

static float *float_array(int64_t elems, float around)
{
    float *block = malloc((size_t)elems * sizeof *block), *there = array(elems * 4);
    for (int64_t i = 0; i < elems; i++) {
        block[i] = around + 0.7f * cosf((float)i);
    }
    DO(cudaMemcpy(there, block, (size_t)elems * 4, cudaMemcpyHostToDevice));
    free(block);
    return there;
}

/* The result of a launch, on the host. */
static uint16_t *result_of(launch *run, int form, const char **name, int *code)
{
    uint16_t *here = malloc((size_t)now.elems * 2);
    if (now.source != NULL) {
        DO(cudaMemcpy(now.result, now.source, (size_t)now.elems * 2, cudaMemcpyDeviceToDevice));
    } else {
        DO(cudaMemset(now.result, 0xff, (size_t)now.elems * 2)); /* NaN */
    }
    *code = run(form, name);
    DO(*code < 0 ? 0 : *code);
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

/* Medians of `n` forms, each once in every round. */
static void time_all(launch *run, const int *form, int n, float *median)
{
    float ms[MOST_FORMS][ROUNDS];
    cudaEvent_t begin, end;
    const char *name;
    DO(cudaEventCreateWithFlags(&begin, 0));
    DO(cudaEventCreateWithFlags(&end, 0));
    for (int i = 0; i < ROUNDS * n; i++) {
        const int which = (i + i / n) % n; /* whoever is first changes */
        DO(cudaEventRecord(begin, NULL));
        DO(run(form[which], &name));
        DO(cudaEventRecord(end, NULL));
        DO(cudaEventSynchronize(end));
        DO(cudaEventElapsedTime(&ms[which][i / n], begin, end));
    }
    for (int i = 0; i < n; i++) {
        qsort(ms[i], ROUNDS, sizeof ms[i][0], by_size);
        median[i] = ms[i][ROUNDS / 2];
    }
}

static void try_all(const char *what, launch *run)
{
    int form[MOST_FORMS] = {-1}, n = 1, code;
    const char *name[MOST_FORMS] = {"the library's"};
    double apart[MOST_FORMS] = {0};
    float ms[MOST_FORMS];
    uint16_t *wanted = result_of(run, -1, name, &code);
    for (int i = 0; n < MOST_FORMS; i++) {
        uint16_t *got = result_of(run, i, &name[n], &code);
        apart[n] = distance(got, wanted);
        form[n] = i;
        free(got);
        if (code == TRIAL_NONE) {
            break;
        }
        n += code != TRIAL_OTHER;
    }
    free(wanted);
    for (int i = 0; i < n; i++) {
        const char *const bits = apart[i] == 0 ? "the same bits" : apart[i] < 0.02 ? "other bits" : "WRONG";
        failed |= !(apart[i] < 0.02); /* a few roundings to bf16 */
        printf("trials: %s: %s: %s", what, name[i], bits);
        if (is_small) {
            printf("\n");
            continue;
        }
        if (i == 0) {
            time_all(run, form, n, ms);
        }
        printf(", %.4f ms, %.3f times as fast\n", (double)ms[i], (double)(ms[0] / ms[i]));
    }
}

/* Of [outer][n][inner][3][heads][d], forward and, where there are trials of it, backward. */
static void attention(int64_t outer, int64_t inner, int64_t n, int64_t count, int64_t d, int64_t diagonal, int is_both)
{
    const int64_t c = count * d, rows = outer * n * inner;
    hd_device_attention *of = &now.back.of;
    char what[80], *qkv = half_array(rows * 3 * c), *dqkv = array(rows * 3 * c * 2), *o = array(rows * c * 2);
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
    now.result = o;
    now.elems = rows * c;
    snprintf(what, sizeof what, "forward, %lld tokens of %lld", (long long)n, (long long)d);
    try_all(what, forward);
    if (is_both) {
        int code;
        free(result_of(forward, -1, NULL, &code)); /* o and stats as they should be */
        now.result = dqkv;
        now.elems = rows * 3 * c;
        snprintf(what, sizeof what, "backward, %lld tokens of %lld", (long long)n, (long long)d);
        try_all(what, backward);
    }
    void *const made[] = {qkv, dqkv, o, of->stats, now.back.d_o.data, now.back.delta};
    for (int i = 0; i < 6; i++) {
        DO(cudaFree(made[i]));
    }
}

static void vectors(int has_weight, const char *what)
{
    const int64_t rows = is_small ? 37 : 57600, count = 16, d = 72, extent = 32, elems = rows * 3 * count * d;
    float *weight = float_array(2 * d, 1), *angles = float_array(extent * d, 0);
    memset(&now, 0, sizeof now);
    now.heads =
        (hd_device_heads){.dtype = HEDDLE_BF16, .rows = rows, .heads = count, .d = d, .row_stride = 3 * count * d};
    now.heads.weight = has_weight ? weight : NULL;
    now.heads.second_weight = has_weight ? weight + d : NULL;
    now.heads.cos_sin = angles;
    now.heads.inner = is_small ? 3 : 900;
    now.heads.extent = extent;
    now.heads.second_at = count * d;
    now.source = half_array(elems);
    now.result = array(elems * 2);
    now.elems = elems;
    try_all(what, heads);
    void *const made[] = {weight, angles, now.source, now.result};
    for (int i = 0; i < 4; i++) {
        DO(cudaFree(made[i]));
    }
}

int main(int argc, char **argv)
{
    is_small = argc > 1 && strcmp(argv[1], "--small") == 0;
    DO(cudaDeviceGetAttribute(&trial_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    DO(hd_attention_load() != 0 || hd_attention_back_load() != 0 || hd_heads_load() != 0);
    if (is_small) {
        trial_multiprocessors = 1; /* fewer than there are tiles: blocks that stay take several */
        attention(1, 5, 100, 1, 72, 100, 1);
        attention(1, 1, 128, 1, 72, 5, 1);
        attention(3, 1, 40, 1, 64, 40, 1);
        attention(1, 1, 150, 1, 72, 3, 0);
        attention(1, 1, 150, 1, 128, 150, 0);
    } else {
        attention(2, 225, 128, 16, 72, 128, 1);
        attention(2, 450, 64, 16, 72, 64, 1);
        attention(56, 1, 1024, 16, 72, 1024, 0);
        attention(28, 1, 1024, 16, 128, 1024, 0);
        attention(8, 1, 3600, 16, 128, 3600, 0);
    }
    vectors(0, "rotation of q and k");
    vectors(1, "norm and rotation of q and k");
    return failed;
}
