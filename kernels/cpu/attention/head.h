/* Attention of one head of one fibre, written once for any vector width; included after the vectors.
 *
 * Queries lie across the lanes: a block of up to VEC_COLUMNS vectors of them is transposed to qt[d][queries], scores
 * are computed transposed, s[key][query], and the output is summed up transposed, o[d][query]. So softmax needs no sum
 * across lanes, every query has the same sequence of operations in whatever lane it sits, and head widths that are no
 * multiple of the vector cost nothing: rows of a tile are keys, then channels. Keys come in blocks of KEY_BLOCK, with a
 * running maximum and sum (online softmax).
 *
 * Scores are in natural units, and computed as in vector.h, whose backward computes them again.
 *
 * Long fibres: keys and values are copied once per head to dense f32 rows. Short ones are read where they lie.
 */
#include "kernels/cpu/attention/internal.h"
#include "kernels/cpu/block/row.h"
#include "kernels/cpu/fill.h"

#include <float.h>

enum { QUERY_BLOCK = VEC * VEC_COLUMNS, KEY_BLOCK = 96, SHORT_KEYS = 64, LINE_FLOATS = 16 };

typedef struct attention_scratch {
    float *qt;     /* [d][QUERY_BLOCK], times scale */
    float *s;      /* [KEY_BLOCK][QUERY_BLOCK]: scores, then weights */
    float *o;      /* [d][QUERY_BLOCK] */
    float *top;    /* [QUERY_BLOCK] largest score so far */
    float *higher; /* [QUERY_BLOCK] the same after the present key block */
    float *sum;    /* [QUERY_BLOCK] sum of weights */
    float *shrink; /* [QUERY_BLOCK] exp(top - higher) */
    float *bad;    /* [QUERY_BLOCK] 0, or NaN where an output is not finite */
    float *dense;  /* [2][nk][d] keys and values */
} attention_scratch;

/* Keys and values as f32 rows. */
typedef struct attention_source {
    const float *k;
    const float *v;
    int64_t stride;
} attention_source;

static int64_t padded(int64_t floats)
{
    return (floats + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

static size_t attention_scratch_bytes(int64_t nk, int64_t d)
{
    return (size_t)((2 * d + KEY_BLOCK + 5) * QUERY_BLOCK + 2 * padded(nk * d)) * sizeof(float);
}

static attention_scratch divide_scratch(float *memory, int64_t d)
{
    attention_scratch scratch;
    scratch.qt = memory;
    scratch.o = scratch.qt + d * QUERY_BLOCK;
    scratch.s = scratch.o + d * QUERY_BLOCK;
    scratch.top = scratch.s + KEY_BLOCK * QUERY_BLOCK;
    scratch.higher = scratch.top + QUERY_BLOCK;
    scratch.sum = scratch.higher + QUERY_BLOCK;
    scratch.shrink = scratch.sum + QUERY_BLOCK;
    scratch.bad = scratch.shrink + QUERY_BLOCK;
    scratch.dense = scratch.bad + QUERY_BLOCK;
    return scratch;
}

INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* qt[i][q] = q[q][i] * factor for one vector of queries, of which `count` exist (the others are zero). */
INLINE void load_query_vector(float *qt, const hd_attention_head *head, int bf16, int64_t first, int count, vec factor)
{
    for (int64_t i = 0; i < head->d; i += VEC) {
        vec t[VEC];
#pragma GCC unroll 16
        for (int r = 0; r < VEC; r++) {
            t[r] = r < count ? load_some(head->q, bf16, (first + r) * head->q_stride + i, head->d - i) : vec_set1(0);
        }
        vec_transpose(t);
        if (i + VEC <= head->d) {
#pragma GCC unroll 16
            for (int r = 0; r < VEC; r++) {
                vec_store(qt + (i + r) * QUERY_BLOCK, vec_mul(t[r], factor));
            }
        } else {
            for (int r = 0; r < head->d - i; r++) {
                vec_store(qt + (i + r) * QUERY_BLOCK, vec_mul(t[r], factor));
            }
        }
    }
}

/* out[q][i] = o[i][q] * inverse[q] for one vector of queries, of which `count` exist; bad[q] as in the scratch. */
INLINE void store_query_vector(const hd_attention_head *head, int bf16, const float *o, int64_t first, int count,
                               vec inverse, float *bad)
{
    vec not_finite[4] = {vec_set1(0), vec_set1(0), vec_set1(0), vec_set1(0)};
    for (int64_t i = 0; i < head->d; i += VEC) {
        vec t[VEC];
#pragma GCC unroll 16
        for (int r = 0; r < VEC; r++) {
            t[r] = i + r < head->d ? vec_mul(vec_load(o + (i + r) * QUERY_BLOCK), inverse) : vec_set1(0);
            not_finite[r % 4] = vec_fma(t[r], vec_set1(0), not_finite[r % 4]);
        }
        vec_transpose(t);
        if (count >= VEC && i + VEC <= head->d) {
#pragma GCC unroll 16
            for (int r = 0; r < VEC; r++) {
                store_some(head->out, bf16, (first + r) * head->out_stride + i, t[r], VEC);
            }
        } else {
            for (int r = 0; r < VEC && r < count; r++) {
                store_some(head->out, bf16, (first + r) * head->out_stride + i, t[r], head->d - i);
            }
        }
    }
    vec_store(bad, vec_add(vec_add(not_finite[0], not_finite[1]), vec_add(not_finite[2], not_finite[3])));
}

INLINE void load_queries(float *qt, const hd_attention_head *head, int bf16, int64_t q0, int nz)
{
    vec factor = vec_set1(head->scale);
    for (int z = 0; z < nz; z++) {
        int64_t first = q0 + z * VEC;
        if (first + VEC <= head->nq) {
            load_query_vector(qt + z * VEC, head, bf16, first, VEC, factor);
        } else {
            load_query_vector(qt + z * VEC, head, bf16, first, (int)(head->nq - first), factor);
        }
    }
}

/* 0: some output is not finite. */
INLINE int store_outputs(const hd_attention_head *head, int bf16, const attention_scratch *scratch, int64_t q0, int nz)
{
    vec bad = vec_set1(0);
    for (int z = 0; z < nz; z++) {
        int64_t first = q0 + z * VEC;
        vec inverse = vec_div(vec_set1(1), vec_load(scratch->sum + z * VEC));
        store_query_vector(head, bf16, scratch->o + z * VEC, first, (int)least(VEC, head->nq - first), inverse,
                           scratch->bad + z * VEC);
        bad = vec_add(bad, vec_load(scratch->bad + z * VEC));
    }
    for (int64_t q = 0; head->top != NULL && q < least(QUERY_BLOCK, head->nq - q0); q++) {
        head->top[q0 + q] = scratch->top[q];
        head->log_sum[q0 + q] = logf(scratch->sum[q]);
    }
    return vec_sum(bad) == 0;
}

/* s[r][.] = sum_i k[r][i] qt[i][.] for `rows` keys; top = max(top, s). */
INLINE void score_tile(float *s, float *top, const float *k, int64_t stride, const float *qt, int64_t d, int rows,
                       int nz)
{
    vec sum[8][VEC_COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int z = 0; z < nz; z++) {
            sum[r][z] = vec_set1(0);
        }
    }
    for (int64_t i = 0; i < d; i++) {
        vec q[VEC_COLUMNS];
#pragma GCC unroll 4
        for (int z = 0; z < nz; z++) {
            q[z] = vec_load(qt + i * QUERY_BLOCK + z * VEC);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vec key = vec_set1(k[r * stride + i]);
#pragma GCC unroll 4
            for (int z = 0; z < nz; z++) {
                sum[r][z] = vec_fma(key, q[z], sum[r][z]);
            }
        }
    }
#pragma GCC unroll 4
    for (int z = 0; z < nz; z++) {
        vec higher = vec_load(top + z * VEC);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vec_store(s + r * QUERY_BLOCK + z * VEC, sum[r][z]);
            higher = vec_max(higher, sum[r][z]);
        }
        vec_store(top + z * VEC, higher);
    }
}

/* o[r][.] = o[r][.] * shrink + sum_j v[j][r] s[j][.] for `rows` channels. */
INLINE void mix_tile(float *o, const float *shrink, const float *v, int64_t stride, const float *s, int64_t keys,
                     int rows, int nz)
{
    vec sum[12][VEC_COLUMNS];
#pragma GCC unroll 4
    for (int z = 0; z < nz; z++) {
        vec factor = shrink != NULL ? vec_load(shrink + z * VEC) : vec_set1(0);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            sum[r][z] = shrink != NULL ? vec_mul(vec_load(o + r * QUERY_BLOCK + z * VEC), factor) : factor;
        }
    }
    for (int64_t j = 0; j < keys; j++) {
        vec weight[VEC_COLUMNS];
#pragma GCC unroll 4
        for (int z = 0; z < nz; z++) {
            weight[z] = vec_load(s + j * QUERY_BLOCK + z * VEC);
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            vec value = vec_set1(v[j * stride + r]);
#pragma GCC unroll 4
            for (int z = 0; z < nz; z++) {
                sum[r][z] = vec_fma(value, weight[z], sum[r][z]);
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int z = 0; z < nz; z++) {
            vec_store(o + r * QUERY_BLOCK + z * VEC, sum[r][z]);
        }
    }
}

/* Rows of a full tile: as many accumulators as fit the registers; more rows where a row has fewer vectors. */
#define SCORE_ROWS(nz) ((nz) > 2 || VEC_COLUMNS == 2 ? 6 : 8)
#define MIX_ROWS(nz) ((nz) > 2 || (VEC_COLUMNS == 2 && (nz) == 2) ? 6 : 12)

INLINE void score_keys(const attention_scratch *scratch, const attention_source *source, int64_t k0, int64_t keys,
                       int64_t d, int nz)
{
    const float *k = source->k + k0 * source->stride;
    int64_t r = 0;
    for (; r + SCORE_ROWS(nz) <= keys; r += SCORE_ROWS(nz)) {
        score_tile(scratch->s + r * QUERY_BLOCK, scratch->higher, k + r * source->stride, source->stride, scratch->qt,
                   d, SCORE_ROWS(nz), nz);
    }
    for (; r + 4 <= keys; r += 4) {
        score_tile(scratch->s + r * QUERY_BLOCK, scratch->higher, k + r * source->stride, source->stride, scratch->qt,
                   d, 4, nz);
    }
    for (; r < keys; r++) {
        score_tile(scratch->s + r * QUERY_BLOCK, scratch->higher, k + r * source->stride, source->stride, scratch->qt,
                   d, 1, nz);
    }
}

/* Scores to weights exp(s - higher), their sum, and by how much earlier sums shrink. */
INLINE void weigh_keys(const attention_scratch *scratch, int64_t keys, int first, int nz)
{
    const vec log2_e = vec_set1(HD_LOG2_E);
    vec higher[VEC_COLUMNS];
    vec sum[VEC_COLUMNS];
#pragma GCC unroll 4
    for (int z = 0; z < nz; z++) {
        higher[z] = vec_load(scratch->higher + z * VEC);
        sum[z] = vec_set1(0);
        if (!first) {
            vec shrink = vec_exp2(vec_mul(vec_sub(vec_load(scratch->top + z * VEC), higher[z]), log2_e));
            vec_store(scratch->shrink + z * VEC, shrink);
            sum[z] = vec_mul(vec_load(scratch->sum + z * VEC), shrink);
        }
        vec_store(scratch->top + z * VEC, higher[z]);
    }
    for (int64_t j = 0; j < keys; j++) {
#pragma GCC unroll 4
        for (int z = 0; z < nz; z++) {
            float *s = scratch->s + j * QUERY_BLOCK + z * VEC;
            vec weight = vec_exp2(vec_mul(vec_sub(vec_load(s), higher[z]), log2_e));
            vec_store(s, weight);
            sum[z] = vec_add(sum[z], weight);
        }
    }
#pragma GCC unroll 4
    for (int z = 0; z < nz; z++) {
        vec_store(scratch->sum + z * VEC, sum[z]);
    }
}

INLINE void mix_values(const attention_scratch *scratch, const attention_source *source, int64_t k0, int64_t keys,
                       int64_t d, const float *shrink, int nz)
{
    const float *v = source->v + k0 * source->stride;
    int64_t r = 0;
    for (; r + MIX_ROWS(nz) <= d; r += MIX_ROWS(nz)) {
        mix_tile(scratch->o + r * QUERY_BLOCK, shrink, v + r, source->stride, scratch->s, keys, MIX_ROWS(nz), nz);
    }
    for (; r + 4 <= d; r += 4) {
        mix_tile(scratch->o + r * QUERY_BLOCK, shrink, v + r, source->stride, scratch->s, keys, 4, nz);
    }
    for (; r < d; r++) {
        mix_tile(scratch->o + r * QUERY_BLOCK, shrink, v + r, source->stride, scratch->s, keys, 1, nz);
    }
}

/* All keys for nz vectors of queries that have been loaded. */
INLINE void attend(const hd_attention_head *head, const attention_scratch *scratch, const attention_source *source,
                   int nz)
{
    for (int z = 0; z < nz; z++) {
        vec_store(scratch->higher + z * VEC, vec_set1(-INFINITY));
    }
    for (int64_t k0 = 0; k0 < head->nk; k0 += KEY_BLOCK) {
        int64_t keys = least(KEY_BLOCK, head->nk - k0);
        score_keys(scratch, source, k0, keys, head->d, nz);
        weigh_keys(scratch, keys, k0 == 0, nz);
        if (k0 == 0) {
            mix_values(scratch, source, k0, keys, head->d, NULL, nz);
        } else {
            mix_values(scratch, source, k0, keys, head->d, scratch->shrink, nz);
        }
    }
}

#define ATTEND(nz)                                                                                                     \
    static void attend_##nz(const hd_attention_head *head, const attention_scratch *scratch,                           \
                            const attention_source *source)                                                            \
    {                                                                                                                  \
        attend(head, scratch, source, nz);                                                                             \
    }
ATTEND(1)
ATTEND(2)
#if HD_VEC_COLUMNS > 2
ATTEND(3)
ATTEND(4)
#endif
#undef ATTEND

typedef void (*attend_fn)(const hd_attention_head *, const attention_scratch *, const attention_source *);

static const attend_fn attend_columns[] = {
    attend_1,
    attend_2,
#if HD_VEC_COLUMNS > 2
    attend_3,
    attend_4,
#endif
};

INLINE void copy_rows(float *dst, const void *src, int bf16, int64_t rows, int64_t d, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < d; i += VEC) {
            store_some(dst, 0, r * d + i, load_some(src, bf16, r * stride + i, d - i), d - i);
        }
    }
}

static int are_finite(const float *rows, int64_t nrows, int64_t stride, int64_t d)
{
    float sum = 0;
    for (int64_t i = 0; i < nrows * d; i++) {
        sum += rows[i / d * stride + i % d] * 0;
    }
    return sum == 0;
}

/* A query whose sum of weighted values has left the range, though the mean of finite values is within: the same sum
 * with weights 2^-32 times as large, into the scratch's o. */
static void mean_of_large_values(const hd_attention_head *head, const attention_scratch *scratch,
                                 const attention_source *source, int64_t lane)
{
    const float *q = scratch->qt + lane;
    float *o = scratch->o, inverse = 1 / scratch->sum[lane];
    memset(o, 0, (size_t)head->d * sizeof(float));
    for (int64_t j = 0; j < head->nk; j++) {
        const float *k = source->k + j * source->stride, *v = source->v + j * source->stride;
        float s = 0;
        for (int64_t i = 0; i < head->d; i++) {
            s = fmaf(k[i], q[i * QUERY_BLOCK], s);
        }
        float weight = expf(s - scratch->top[lane]) * HD_ROW_DOWN;
        for (int64_t i = 0; i < head->d; i++) {
            o[i] += weight * v[i];
        }
    }
    for (int64_t i = 0; i < head->d; i++) {
        o[i] = fminf(fmaxf(o[i] * inverse, -FLT_MAX * HD_ROW_DOWN), FLT_MAX * HD_ROW_DOWN) / HD_ROW_DOWN;
    }
}

INLINE void redo_bad_queries(const hd_attention_head *head, int bf16, const attention_scratch *scratch,
                             const attention_source *source, int64_t q0)
{
    int finite = are_finite(source->k, head->nk, source->stride, head->d) &&
                 are_finite(source->v, head->nk, source->stride, head->d);
    for (int64_t q = 0; finite && q < least(QUERY_BLOCK, head->nq - q0); q++) {
        if (scratch->bad[q] != 0 && scratch->sum[q] >= 1) { /* not NaN */
            mean_of_large_values(head, scratch, source, q);
            for (int64_t i = 0; i < head->d; i += VEC) {
                store_some(head->out, bf16, (q0 + q) * head->out_stride + i, vec_load_part(scratch->o + i, head->d - i),
                           head->d - i);
            }
        }
    }
}

INLINE void attend_head(const hd_attention_head *head, int bf16, float *memory)
{
    attention_scratch scratch = divide_scratch(memory, head->d);
    attention_source source = {head->k, head->v, head->kv_stride};
    if (bf16 || head->nk > SHORT_KEYS) {
        float *dense_v = scratch.dense + padded(head->nk * head->d);
        copy_rows(scratch.dense, head->k, bf16, head->nk, head->d, head->kv_stride);
        copy_rows(dense_v, head->v, bf16, head->nk, head->d, head->kv_stride);
        source = (attention_source){scratch.dense, dense_v, head->d};
    }
    for (int64_t q0 = 0; q0 < head->nq; q0 += QUERY_BLOCK) {
        int nz = (int)((least(QUERY_BLOCK, head->nq - q0) + VEC - 1) / VEC);
        load_queries(scratch.qt, head, bf16, q0, nz);
        attend_columns[nz - 1](head, &scratch, &source);
        if (!store_outputs(head, bf16, &scratch, q0, nz)) {
            redo_bad_queries(head, bf16, &scratch, &source, q0);
        }
    }
}

static void attention(const hd_attention_head *head, void *scratch)
{
    if (head->dtype == HEDDLE_BF16) {
        attend_head(head, 1, scratch);
    } else {
        attend_head(head, 0, scratch);
    }
}
