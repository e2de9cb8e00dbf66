/* Attention of one head of one fibre, written once for any vector width; included after the vectors. A block of up to
 * VEC_COLUMNS vectors of queries is transposed, takes all keys by the kernel of flash.h, and is transposed back.
 *
 * Long fibres: keys and values are copied once per head to dense f32 rows. Short ones are read where they lie.
 */
#include "kernels/cpu/attention/flash.h"
#include "kernels/cpu/attention/internal.h"
#include "kernels/cpu/block/row.h"
#include "kernels/cpu/slots.h"

#include <float.h>

enum { SHORT_KEYS = 64, LINE_FLOATS = 16 };

typedef struct attention_scratch {
    flash f;
    float *bad;   /* [QUERY_BLOCK] 0, or NaN where an output is not finite */
    float *dense; /* [2][nk][d] keys and values */
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
    flash *f = &scratch.f;
    f->qt = memory;
    f->o = f->qt + d * QUERY_BLOCK;
    f->s = f->o + d * QUERY_BLOCK;
    f->top = f->s + KEY_BLOCK * QUERY_BLOCK;
    f->higher = f->top + QUERY_BLOCK;
    f->sum = f->higher + QUERY_BLOCK;
    f->shrink = f->sum + QUERY_BLOCK;
    scratch.bad = f->shrink + QUERY_BLOCK;
    scratch.dense = scratch.bad + QUERY_BLOCK;
    return scratch;
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
        vec inverse = vec_div(vec_set1(1), vec_load(scratch->f.sum + z * VEC));
        store_query_vector(head, bf16, scratch->f.o + z * VEC, first, (int)least(VEC, head->nq - first), inverse,
                           scratch->bad + z * VEC);
        bad = vec_add(bad, vec_load(scratch->bad + z * VEC));
    }
    for (int64_t q = 0; head->top != NULL && q < least(QUERY_BLOCK, head->nq - q0); q++) {
        head->top[q0 + q] = scratch->f.top[q];
        head->log_sum[q0 + q] = logf(scratch->f.sum[q]);
    }
    return vec_sum(bad) == 0;
}

/* All keys for nz vectors of queries that have been loaded. */
INLINE void attend(const hd_attention_head *head, const flash *f, const attention_source *source, int nz)
{
    for (int z = 0; z < nz; z++) {
        vec_store(f->higher + z * VEC, vec_set1(-INFINITY));
    }
    for (int64_t k0 = 0; k0 < head->nk; k0 += KEY_BLOCK) {
        int64_t keys = least(KEY_BLOCK, head->nk - k0);
        score_keys(f, source->k + k0 * source->stride, source->stride, keys, head->d, nz);
        weigh_keys(f, keys, k0 == 0, 1, nz);
        if (k0 == 0) {
            mix_values(f, source->v, source->stride, keys, head->d, NULL, nz);
        } else {
            mix_values(f, source->v + k0 * source->stride, source->stride, keys, head->d, f->shrink, nz);
        }
    }
}

#define ATTEND(nz)                                                                                                     \
    static void attend_##nz(const hd_attention_head *head, const flash *f, const attention_source *source)             \
    {                                                                                                                  \
        attend(head, f, source, nz);                                                                                   \
    }
FOR_COLUMNS(ATTEND)
#undef ATTEND

typedef void (*attend_fn)(const hd_attention_head *, const flash *, const attention_source *);

#define ATTEND(nz) attend_##nz,
static const attend_fn attend_columns[] = {FOR_COLUMNS(ATTEND)};
#undef ATTEND

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
    const float *q = scratch->f.qt + lane;
    float *o = scratch->f.o, inverse = 1 / scratch->f.sum[lane];
    memset(o, 0, (size_t)head->d * sizeof(float));
    for (int64_t j = 0; j < head->nk; j++) {
        const float *k = source->k + j * source->stride, *v = source->v + j * source->stride;
        float s = 0;
        for (int64_t i = 0; i < head->d; i++) {
            s = fmaf(k[i], q[i * QUERY_BLOCK], s);
        }
        float weight = expf(s - scratch->f.top[lane]) * HD_ROW_DOWN;
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
        if (scratch->bad[q] != 0 && scratch->f.sum[q] >= 1) { /* not NaN */
            mean_of_large_values(head, scratch, source, q);
            for (int64_t i = 0; i < head->d; i += VEC) {
                store_some(head->out, bf16, (q0 + q) * head->out_stride + i,
                           vec_load_part(scratch->f.o + i, head->d - i), head->d - i);
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
        load_queries(scratch.f.qt, head, bf16, q0, nz);
        attend_columns[nz - 1](head, &scratch.f, &source);
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
