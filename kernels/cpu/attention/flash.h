/* The inner kernel of attention: one block of keys for up to VEC_COLUMNS vectors of queries, for any vector width;
 * included after the vectors. Blocks (head.h) and attention over a sharded dim (vector.h) are both made of it.
 *
 * Queries lie across the lanes: scores are computed transposed, s[key][query], and the output is summed up transposed,
 * o[d][query]. So softmax needs no sum across lanes, every query has the same sequence of operations in whatever lane
 * it sits, and head widths that are no multiple of the vector cost nothing: rows of a tile are keys, then channels.
 * Scores are in natural units.
 */
#include "kernels/cpu/vec_math.h"

#include <math.h>

enum { QUERY_BLOCK = VEC * VEC_COLUMNS, KEY_BLOCK = 96 };

/* Running softmax of a block of queries, and the scores of a block of keys. */
typedef struct flash {
    float *qt;     /* [d][QUERY_BLOCK], times scale */
    float *s;      /* [KEY_BLOCK][QUERY_BLOCK]: scores, then weights */
    float *o;      /* [d][QUERY_BLOCK] */
    float *top;    /* [QUERY_BLOCK] largest score so far */
    float *higher; /* [QUERY_BLOCK] the same after the present key block */
    float *sum;    /* [QUERY_BLOCK] sum of weights */
    float *shrink; /* [QUERY_BLOCK] exp(top - higher) */
} flash;

INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* sum[r][.] += sum_i x[r * row + i * step] y[i][.] */
INLINE void add_products(vec (*sum)[VEC_COLUMNS], const float *x, int64_t row, int64_t step, const float *y, int64_t n,
                         int rows, int nz)
{
    for (int64_t i = 0; i < n; i++) {
        vec right[VEC_COLUMNS];
#pragma GCC unroll 4
        for (int z = 0; z < nz; z++) {
            right[z] = vec_load(y + i * QUERY_BLOCK + z * VEC);
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            vec left = vec_set1(x[r * row + i * step]);
#pragma GCC unroll 4
            for (int z = 0; z < nz; z++) {
                sum[r][z] = vec_fma(left, right[z], sum[r][z]);
            }
        }
    }
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
    add_products(sum, k, stride, 1, qt, d, rows, nz);
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
    add_products(sum, v, 1, stride, s, keys, rows, nz);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int z = 0; z < nz; z++) {
            vec_store(o + r * QUERY_BLOCK + z * VEC, sum[r][z]);
        }
    }
}

/* X(1) .. X(VEC_COLUMNS) */
#if HD_VEC_COLUMNS > 2
#define FOR_COLUMNS(X) X(1) X(2) X(3) X(4)
#else
#define FOR_COLUMNS(X) X(1) X(2)
#endif

/* Rows of a full tile: as many accumulators as fit the registers; more rows where a row has fewer vectors. */
#define SCORE_ROWS(nz) ((nz) > 2 || VEC_COLUMNS == 2 ? 6 : 8)
#define MIX_ROWS(nz) ((nz) > 2 || (VEC_COLUMNS == 2 && (nz) == 2) ? 6 : 12)

INLINE void score_keys(const flash *f, const float *k, int64_t stride, int64_t keys, int64_t d, int nz)
{
    int64_t r = 0;
    for (; r + SCORE_ROWS(nz) <= keys; r += SCORE_ROWS(nz)) {
        score_tile(f->s + r * QUERY_BLOCK, f->higher, k + r * stride, stride, f->qt, d, SCORE_ROWS(nz), nz);
    }
    for (; r + 4 <= keys; r += 4) {
        score_tile(f->s + r * QUERY_BLOCK, f->higher, k + r * stride, stride, f->qt, d, 4, nz);
    }
    for (; r < keys; r++) {
        score_tile(f->s + r * QUERY_BLOCK, f->higher, k + r * stride, stride, f->qt, d, 1, nz);
    }
}

/* exp(s - higher), in place */
INLINE vec weigh(float *s, vec higher)
{
    vec weight = vec_exp2(vec_mul(vec_sub(vec_load(s), higher), vec_set1(HD_LOG2_E)));
    vec_store(s, weight);
    return weight;
}

/* Scores to weights, their sum, and by how much earlier sums shrink. first: there are none. sums: 1, or 2 for every
 * other key in a sum of its own. */
INLINE void weigh_keys(const flash *f, int64_t keys, int first, int sums, int nz)
{
    vec higher[VEC_COLUMNS], sum[2][VEC_COLUMNS];
#pragma GCC unroll 4
    for (int z = 0; z < nz; z++) {
        higher[z] = vec_load(f->higher + z * VEC);
        sum[0][z] = sum[1][z] = vec_set1(0);
        if (!first) {
            vec below = vec_sub(vec_load(f->top + z * VEC), higher[z]);
            vec shrink = vec_exp2(vec_mul(below, vec_set1(HD_LOG2_E)));
            vec_store(f->shrink + z * VEC, shrink);
            sum[0][z] = vec_mul(vec_load(f->sum + z * VEC), shrink);
        }
        vec_store(f->top + z * VEC, higher[z]);
    }
    int64_t j = 0;
    for (; j + sums <= keys; j += sums) {
#pragma GCC unroll 2
        for (int i = 0; i < sums; i++) {
#pragma GCC unroll 4
            for (int z = 0; z < nz; z++) {
                sum[i][z] = vec_add(sum[i][z], weigh(f->s + (j + i) * QUERY_BLOCK + z * VEC, higher[z]));
            }
        }
    }
#pragma GCC unroll 4
    for (int z = 0; z < nz; z++) {
        if (j < keys) {
            sum[0][z] = vec_add(sum[0][z], weigh(f->s + j * QUERY_BLOCK + z * VEC, higher[z]));
        }
        vec_store(f->sum + z * VEC, sums > 1 ? vec_add(sum[0][z], sum[1][z]) : sum[0][z]);
    }
}

/* o = o * shrink (NULL: 0) + v^T s */
INLINE void mix_values(const flash *f, const float *v, int64_t stride, int64_t keys, int64_t d, const float *shrink,
                       int nz)
{
    int64_t r = 0;
    for (; r + MIX_ROWS(nz) <= d; r += MIX_ROWS(nz)) {
        mix_tile(f->o + r * QUERY_BLOCK, shrink, v + r, stride, f->s, keys, MIX_ROWS(nz), nz);
    }
    for (; r + 4 <= d; r += 4) {
        mix_tile(f->o + r * QUERY_BLOCK, shrink, v + r, stride, f->s, keys, 4, nz);
    }
    for (; r < d; r++) {
        mix_tile(f->o + r * QUERY_BLOCK, shrink, v + r, stride, f->s, keys, 1, nz);
    }
}
