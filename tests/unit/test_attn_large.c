/* Attention kernels of every variant where numbers are large: scores that f32 resolves only coarsely, values whose sum
 * is out of range though their mean is not. */
#include "case.h"
#include "draw.h"

#include "kernels/small_float.h"
#include "kernels/table.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { QUERIES = 70, KEYS = 200, WIDTH = 40 };

static const char *const variants[] = {"generic", "avx2", "avx512"};

static void fill(float *x, int64_t elems, float size)
{
    for (int64_t i = 0; i < elems; i++) {
        x[i] = hd_f32_from_bf16(hd_bf16_from_f32(size * symmetric())); /* the same numbers in either type */
    }
}

static void *scratch_of(size_t bytes)
{
    return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
}

typedef struct inputs {
    float q[QUERIES * WIDTH], k[KEYS * WIDTH], v[KEYS * WIDTH];
    uint16_t half[3][KEYS * WIDTH];
} inputs;

/* Values in the first or second half of the keys, or in both, are near the largest number; channel 3 is not. */
static void fill_all(inputs *x, float scores, int large)
{
    float size = sqrtf(scores / 2);
    fill(x->q, QUERIES * WIDTH, size);
    fill(x->k, KEYS * WIDTH, size);
    for (int64_t i = 0; i < KEYS * WIDTH; i++) {
        int of_half = i / WIDTH < KEYS / 2 ? 1 : 2;
        float sign = i % WIDTH % 2 == 0 ? 1 : -1;
        x->v[i] =
            (large & of_half) != 0 && i % WIDTH != 3 ? sign * (0.9f + 0.05f * symmetric()) * FLT_MAX : symmetric();
        x->v[i] = hd_f32_from_bf16(hd_bf16_from_f32(x->v[i]));
    }
    const float *from[] = {x->q, x->k, x->v};
    for (int a = 0; a < 3; a++) {
        for (int64_t i = 0; i < (a == 0 ? QUERIES : KEYS) * WIDTH; i++) {
            x->half[a][i] = hd_bf16_from_f32(from[a][i]);
        }
    }
}

/* --- block kernels ------------------------------------------------------------------------------------------------ */

typedef struct head_out {
    float o[QUERIES * WIDTH], top[QUERIES], log_sum[QUERIES];
} head_out;

static void run_head(head_out *out, const hd_kernels *kernels, heddle_dtype dtype, const inputs *x, int64_t first,
                     int64_t nq, int64_t nk)
{
    int bf16 = dtype == HEDDLE_BF16;
    uint16_t narrow[QUERIES * WIDTH];
    hd_attention_head head = {.dtype = dtype,
                              .q = bf16 ? (const void *)(x->half[0] + first * WIDTH) : x->q + first * WIDTH,
                              .k = bf16 ? (const void *)x->half[1] : x->k,
                              .v = bf16 ? (const void *)x->half[2] : x->v,
                              .out = bf16 ? (void *)narrow : out->o,
                              .nq = nq,
                              .nk = nk,
                              .d = WIDTH,
                              .q_stride = WIDTH,
                              .kv_stride = WIDTH,
                              .out_stride = WIDTH,
                              .scale = 0.25f,
                              .top = out->top,
                              .log_sum = out->log_sum};
    void *scratch = scratch_of(kernels->attention_scratch_bytes(nk, WIDTH));
    kernels->attention(&head, scratch);
    free(scratch);
    for (int64_t i = 0; bf16 && i < nq * WIDTH; i++) {
        out->o[i] = hd_f32_from_bf16(narrow[i]);
    }
}

/* Means of values by f64 loops over the weights that top and log_sum give. */
static void check_means(const head_out *out, const inputs *x, heddle_dtype dtype, int64_t nk)
{
    double tolerance = dtype == HEDDLE_BF16 ? 0x1p-8 : 3e-6;
    for (int64_t i = 0; i < QUERIES; i++) {
        double mean[WIDTH] = {0}, size[WIDTH] = {0};
        for (int64_t j = 0; j < nk; j++) {
            double score = 0;
            for (int64_t c = 0; c < WIDTH; c++) {
                score += 0.25 * (double)x->q[i * WIDTH + c] * (double)x->k[j * WIDTH + c];
            }
            double p = exp(score - (double)out->top[i] - (double)out->log_sum[i]);
            for (int64_t c = 0; c < WIDTH; c++) {
                mean[c] += p * (double)x->v[j * WIDTH + c];
                size[c] += p * fabs((double)x->v[j * WIDTH + c]);
            }
        }
        for (int64_t c = 0; c < WIDTH; c++) {
            double got = (double)out->o[i * WIDTH + c];
            if (!(fabs(got - mean[c]) <= tolerance * size[c])) {
                fail_msg("query %d, channel %d: %.9g, not %.9g", (int)i, (int)c, got, mean[c]);
            }
        }
    }
}

HD_CASE(block_means_of_large_values)
{
    inputs *x = malloc(sizeof *x);
    head_out *all = malloc(sizeof *all), *one = malloc(sizeof *one);
    for (int i = 0; i < 3 * 2 * 4 * 2; i++) {
        const hd_kernels *kernels = hd_kernels_named(variants[i % 3]);
        heddle_dtype dtype = i / 3 % 2 ? HEDDLE_BF16 : HEDDLE_F32;
        int64_t nk = i / 24 ? KEYS : 60; /* copied, or read where they lie */
        if (kernels == NULL) {
            continue;
        }
        fill_all(x, 4, i / 6 % 4);
        run_head(all, kernels, dtype, x, 0, QUERIES, nk);
        check_means(all, x, dtype, nk);
        for (int64_t q = 0; q < QUERIES; q += 23) { /* among others as alone */
            run_head(one, kernels, dtype, x, q, 1, nk);
            assert_memory_equal(one->o, all->o + q * WIDTH, WIDTH * sizeof(float));
        }
    }
    free(x);
    free(all);
    free(one);
}

/* What a block's attention leaves is what the attention kernels' backward makes weights from: their sum is 1, whatever
 * the scores and however coarse f32 is there. */
static void check_weights(const hd_attn_kernels *kernels, const inputs *x, const float *top, const float *log_sum,
                          int64_t nk)
{
    float *dk = calloc(2 * KEYS * WIDTH, sizeof *dk), *dv = dk + KEYS * WIDTH;
    void *scratch = scratch_of(kernels->scratch_bytes(WIDTH));
    for (int64_t i = 0; i < QUERIES; i++) {
        const float d_o[WIDTH] = {1}, delta = 0;
        float dq[WIDTH];
        double sum = 0;
        hd_attn_block block = {x->q + i * WIDTH, x->k, x->v, 1, nk, WIDTH, INT64_MAX, 0.25};
        hd_attn_grad grad = {d_o, top + i, log_sum + i, &delta, dq, dk, dv};
        memset(dv, 0, KEYS * WIDTH * sizeof *dv);
        kernels->backward(&block, &grad, scratch);
        for (int64_t j = 0; j < nk; j++) {
            sum += (double)dv[j * WIDTH];
        }
        if (!(fabs(sum - 1) <= 4e-6)) {
            fail_msg("%s: the weights of query %d sum up to %.9g", kernels->name, (int)i, sum);
        }
    }
    free(scratch);
    free(dk);
}

HD_CASE(block_weights_of_large_scores)
{
    inputs *x = malloc(sizeof *x);
    head_out *out = malloc(sizeof *out);
    for (float scores = 1; scores < 1e10f; scores *= 100) {
        for (int i = 0; i < 3 * 2 * 2; i++) {
            const hd_kernels *kernels = hd_kernels_named(variants[i % 3]);
            int64_t nk = i / 6 ? KEYS : 60;
            if (kernels != NULL) {
                fill_all(x, scores, 0);
                run_head(out, kernels, i / 3 % 2 ? HEDDLE_BF16 : HEDDLE_F32, x, 0, QUERIES, nk);
                check_weights(&kernels->attn_f32, x, out->top, out->log_sum, nk);
            }
        }
    }
    free(x);
    free(out);
}

/* --- attention kernels -------------------------------------------------------------------------------------------- */

/* Two pieces of the keys, the second masked where `causal`; queries first..first+nq. */
static void run_pieces(head_out *out, float *lse, const hd_attn_kernels *kernels, const inputs *x, int64_t first,
                       int64_t nq, int causal)
{
    float sum[QUERIES] = {0};
    void *scratch = scratch_of(kernels->scratch_bytes(WIDTH));
    hd_attn_carry carry = {out->o, out->top, out->log_sum};
    memset(out->o, 0, sizeof out->o);
    memcpy(out->log_sum, sum, sizeof sum);
    for (int64_t i = 0; i < nq; i++) {
        out->top[i] = -INFINITY;
    }
    for (int half = 0; half < 2; half++) {
        int64_t at = half * (KEYS / 2);
        hd_attn_block block = {x->q + first * WIDTH,
                               x->k + at * WIDTH,
                               x->v + at * WIDTH,
                               nq,
                               KEYS / 2,
                               WIDTH,
                               causal ? KEYS / 2 + first + 5 - at : INT64_MAX,
                               0.25};
        kernels->forward(&block, &carry, scratch);
    }
    kernels->finish(&carry, lse, 1, nq, WIDTH);
    free(scratch);
}

static void check_pieces(const head_out *out, const float *lse, const inputs *x, int causal)
{
    for (int64_t i = 0; i < QUERIES; i++) {
        int64_t seen = causal ? KEYS / 2 + 6 + i : KEYS;
        double mean[WIDTH] = {0}, size[WIDTH] = {0}, p[KEYS], top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < seen; j++) {
            p[j] = 0;
            for (int64_t c = 0; c < WIDTH; c++) {
                p[j] += 0.25 * (double)x->q[i * WIDTH + c] * (double)x->k[j * WIDTH + c];
            }
            top = fmax(top, p[j]);
        }
        for (int64_t j = 0; j < seen; j++) {
            sum += exp(p[j] - top);
        }
        for (int64_t j = 0; j < seen; j++) {
            for (int64_t c = 0; c < WIDTH; c++) {
                double part = exp(p[j] - top) / sum * (double)x->v[j * WIDTH + c];
                mean[c] += part;
                size[c] += fabs(part);
            }
        }
        double wanted = top + log(sum);
        if (!(fabs((double)lse[i] - wanted) <= 4e-7 * (1 + fabs(wanted)))) {
            fail_msg("query %d: lse is %.9g, not %.9g", (int)i, (double)lse[i], wanted);
        }
        for (int64_t c = 0; c < WIDTH; c++) {
            double got = (double)out->o[i * WIDTH + c];
            if (!(fabs(got - mean[c]) <= 3e-6 * size[c])) {
                fail_msg("query %d, channel %d: %.9g, not %.9g", (int)i, (int)c, got, mean[c]);
            }
        }
    }
}

HD_CASE(means_of_large_values)
{
    inputs *x = malloc(sizeof *x);
    head_out *all = malloc(sizeof *all), *one = malloc(sizeof *one);
    float lse[QUERIES];
    for (int i = 0; i < 3 * 4 * 2; i++) {
        const hd_kernels *table = hd_kernels_named(variants[i % 3]);
        const hd_attn_kernels *kernels = table != NULL ? &table->attn_f32 : NULL;
        if (kernels == NULL) {
            continue;
        }
        fill_all(x, 4, i / 3 % 4);
        run_pieces(all, lse, kernels, x, 0, QUERIES, i / 12);
        check_pieces(all, lse, x, i / 12);
        for (int64_t q = 0; q < QUERIES && i < 12; q += 23) { /* a mask's edge cuts sums by blocks of queries */
            run_pieces(one, lse, kernels, x, q, 1, i / 12);
            assert_memory_equal(one->o, all->o + q * WIDTH, WIDTH * sizeof(float));
        }
    }
    free(x);
    free(all);
    free(one);
}

/* The sum of weights of a query whose values were kept smaller is as much 1 as any. */
HD_CASE(weights_of_large_values)
{
    inputs *x = malloc(sizeof *x);
    head_out *out = malloc(sizeof *out);
    for (int i = 0; i < 3 * 4; i++) {
        const hd_kernels *table = hd_kernels_named(variants[i % 3]);
        const hd_attn_kernels *kernels = table != NULL ? &table->attn_f32 : NULL;
        if (kernels != NULL) {
            fill_all(x, 4, i / 3);
            run_pieces(out, NULL, kernels, x, 0, QUERIES, 0);
            memset(x->v, 0, sizeof x->v); /* gradients of scores would be out of range */
            check_weights(kernels, x, out->top, out->log_sum, KEYS);
        }
    }
    free(x);
    free(out);
}

/* bf16 is a way to store: the arithmetic is f32's. */
HD_CASE(block_bf16_is_f32_rounded_once)
{
    inputs *x = malloc(sizeof *x);
    head_out *wide = malloc(sizeof *wide), *narrow = malloc(sizeof *narrow);
    for (int i = 0; i < 3 * 2; i++) {
        const hd_kernels *kernels = hd_kernels_named(variants[i % 3]);
        if (kernels == NULL) {
            continue;
        }
        fill_all(x, 4, 0);
        run_head(wide, kernels, HEDDLE_F32, x, 0, QUERIES, i / 3 ? KEYS : 60);
        run_head(narrow, kernels, HEDDLE_BF16, x, 0, QUERIES, i / 3 ? KEYS : 60);
        for (int64_t e = 0; e < QUERIES * WIDTH; e++) {
            assert_true(narrow->o[e] == hd_f32_from_bf16(hd_bf16_from_f32(wide->o[e])));
        }
        assert_memory_equal(narrow->top, wide->top, sizeof wide->top);
        assert_memory_equal(narrow->log_sum, wide->log_sum, sizeof wide->log_sum);
    }
    free(x);
    free(wide);
    free(narrow);
}
