#include "attention_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One sample and head: rows of `stride` elements. */
typedef struct head_view {
    const double *q, *k, *v, *d_o;
    double *o, *lse, *dq, *dk, *dv;
    int64_t q_stride, k_stride;
} head_view;

static double dot(const double *a, const double *b, int64_t d)
{
    double sum = 0;
    for (int64_t c = 0; c < d; c++) {
        sum += a[c] * b[c];
    }
    return sum;
}

static int64_t seen_keys(const attention_extents *n, int64_t keys, int64_t i)
{
    return n->causal && i + 1 < keys ? i + 1 : keys;
}

/* Weights of one query into p; its logarithm of the sum. */
static double weigh(double *p, const head_view *h, const attention_extents *n, int64_t i, int64_t seen)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seen; j++) {
        p[j] = n->scale * dot(h->q + i * h->q_stride, h->k + j * h->k_stride, n->width);
        top = !(p[j] <= top) ? p[j] : top;
    }
    for (int64_t j = 0; j < seen; j++) {
        p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - top);
        sum += p[j];
    }
    for (int64_t j = 0; j < seen; j++) {
        p[j] /= sum;
    }
    return top + log(sum);
}

static void run_query(double *p, double *dp, const head_view *h, const attention_extents *n, int64_t i, int64_t seen)
{
    const double *d_o = h->d_o + i * h->q_stride;
    double *o = h->o + i * h->q_stride, *dq = h->dq + i * h->q_stride, mean = 0;
    h->lse[i] = weigh(p, h, n, i, seen);
    for (int64_t j = 0; j < seen; j++) {
        const double *v = h->v + j * h->k_stride;
        dp[j] = dot(d_o, v, n->width);
        mean += p[j] * dp[j];
        for (int64_t c = 0; c < n->width; c++) {
            o[c] += p[j] * v[c];
            h->dv[j * h->k_stride + c] += p[j] * d_o[c];
        }
    }
    for (int64_t j = 0; j < seen; j++) {
        double ds = n->scale * p[j] * (dp[j] - mean);
        for (int64_t c = 0; c < n->width; c++) {
            dq[c] += ds * h->k[j * h->k_stride + c];
            h->dk[j * h->k_stride + c] += ds * h->q[i * h->q_stride + c];
        }
    }
}

/* out[m][row] += sum_s a[m][s] x[s][row] or its transpose, for samples and heads alike. */
static void project(double *out, const double *a, const double *x, int64_t m, int64_t sequence, int64_t row,
                    int transpose)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t s = 0; s < sequence; s++) {
            double factor = a[i * sequence + s];
            double *to = out + (transpose ? s : i) * row;
            const double *from = x + (transpose ? i : s) * row;
            for (int64_t c = 0; c < row; c++) {
                to[c] += factor * from[c];
            }
        }
    }
}

static void project_gradient(double *da, const double *d_out, const double *x, int64_t m, int64_t sequence, int64_t row)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t s = 0; s < sequence; s++) {
            da[i * sequence + s] += dot(d_out + i * row, x + s * row, row);
        }
    }
}

static void clear(const attention_arrays *x, const attention_extents *n)
{
    size_t q = (size_t)(n->batch * n->sequence * n->heads * n->width);
    size_t k = (size_t)(n->batch * n->sequence * n->kv_heads * n->width);
    memset(x->o, 0, q * sizeof(double));
    memset(x->dq, 0, q * sizeof(double));
    memset(x->dk, 0, k * sizeof(double));
    memset(x->dv, 0, k * sizeof(double));
}

/* k, v and their gradients have `keys` rows here. */
static void attend(const attention_arrays *x, const attention_extents *n, int64_t keys, double *p)
{
    int64_t q_row = n->heads * n->width, k_row = n->kv_heads * n->width;
    for (int64_t b = 0; b < n->batch; b++) {
        int64_t length = n->key_lengths != NULL ? n->key_lengths[b] : keys;
        for (int64_t head = 0; head < n->heads; head++) {
            int64_t q_at = b * n->sequence * q_row + head * n->width;
            int64_t k_at = b * keys * k_row + head / (n->heads / n->kv_heads) * n->width;
            head_view h = {x->q + q_at,   x->k + k_at,  x->v + k_at,
                           x->d_o + q_at, x->o + q_at,  x->lse + (b * n->heads + head) * n->sequence,
                           x->dq + q_at,  x->dk + k_at, x->dv + k_at,
                           q_row,         k_row};
            for (int64_t i = 0; i < n->sequence; i++) {
                int64_t seen = seen_keys(n, length, i);
                h.lse[i] = -INFINITY;
                if (seen > 0) {
                    run_query(p, p + keys, &h, n, i, seen);
                }
            }
        }
    }
}

static heddle_status attend_projected(const attention_arrays *x, const attention_extents *n, double *p)
{
    int64_t m = n->projected, s = n->sequence, row = n->kv_heads * n->width;
    double *memory = calloc((size_t)(4 * n->batch * m * row) + 1, sizeof(double));
    if (memory == NULL) {
        return HEDDLE_ERR_NOMEM;
    }
    attention_arrays small = *x;
    int64_t elems = n->batch * m * row;
    small.k = memory;
    small.v = memory + elems;
    small.dk = memory + 2 * elems;
    small.dv = memory + 3 * elems;
    memset(x->de, 0, (size_t)(m * s) * sizeof(double));
    memset(x->df, 0, (size_t)(m * s) * sizeof(double));
    for (int64_t b = 0; b < n->batch; b++) {
        project(small.k + b * m * row, x->e, x->k + b * s * row, m, s, row, 0);
        project(small.v + b * m * row, x->f, x->v + b * s * row, m, s, row, 0);
    }
    attend(&small, n, m, p);
    for (int64_t b = 0; b < n->batch; b++) {
        project(x->dk + b * s * row, x->e, small.dk + b * m * row, m, s, row, 1);
        project(x->dv + b * s * row, x->f, small.dv + b * m * row, m, s, row, 1);
        project_gradient(x->de, small.dk + b * m * row, x->k + b * s * row, m, s, row);
        project_gradient(x->df, small.dv + b * m * row, x->v + b * s * row, m, s, row);
    }
    free(memory);
    return HEDDLE_OK;
}

heddle_status attention_reference(const attention_arrays *x, const attention_extents *n)
{
    heddle_status st = HEDDLE_OK;
    int64_t keys = n->projected > 0 ? n->projected : n->sequence;
    double *p = calloc((size_t)(2 * keys) + 1, sizeof(double));
    if (p == NULL) {
        return HEDDLE_ERR_NOMEM;
    }
    clear(x, n);
    if (n->projected > 0) {
        st = attend_projected(x, n, p);
    } else {
        attend(x, n, keys, p);
    }
    free(p);
    return st;
}
