#include "runtime/verify/attention_reference.h"
#include "runtime/verify/judge.h"

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

/* The same sums of absolute values: h holds sizes, p the weights. */
static void size_query(const double *p, double *dp, const head_view *h, const attention_extents *n, int64_t i,
                       int64_t seen)
{
    const double *d_o = h->d_o + i * h->q_stride, *q = h->q + i * h->q_stride;
    double *o = h->o + i * h->q_stride, *dq = h->dq + i * h->q_stride, mean = 0, top = 0;
    for (int64_t j = 0; j < seen; j++) {
        double score = fabs(n->scale) * dot(q, h->k + j * h->k_stride, n->width);
        top = !(score <= top) ? score : top;
        dp[j] = dot(d_o, h->v + j * h->k_stride, n->width);
        mean += p[j] * dp[j];
    }
    h->lse[i] = 1 + top;
    for (int64_t j = 0; j < seen; j++) {
        double weight = (1 + top) * p[j], ds = fabs(n->scale) * weight * (dp[j] + mean);
        for (int64_t c = 0; c < n->width; c++) {
            int64_t at = j * h->k_stride + c;
            o[c] += weight * h->v[at];
            h->dv[at] += weight * d_o[c];
            dq[c] += ds * h->k[at];
            h->dk[at] += ds * q[c];
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

/* da[head][m][s] of one sample */
static void project_gradient(double *da, const double *d_out, const double *x, const attention_extents *n)
{
    int64_t row = n->kv_heads * n->width;
    for (int64_t head = 0; head < n->kv_heads; head++) {
        for (int64_t i = 0; i < n->projected; i++) {
            for (int64_t s = 0; s < n->sequence; s++) {
                da[(head * n->projected + i) * n->sequence + s] =
                    dot(d_out + i * row + head * n->width, x + s * row + head * n->width, n->width);
            }
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

static head_view view_of(const attention_arrays *x, const attention_extents *n, int64_t keys, int64_t b, int64_t head)
{
    int64_t q_row = n->heads * n->width, k_row = n->kv_heads * n->width;
    int64_t q_at = b * n->sequence * q_row + head * n->width;
    int64_t k_at = b * keys * k_row + head / (n->heads / n->kv_heads) * n->width;
    return (head_view){x->q + q_at,   x->k + k_at,  x->v + k_at,
                       x->d_o + q_at, x->o + q_at,  x->lse + (b * n->heads + head) * n->sequence,
                       x->dq + q_at,  x->dk + k_at, x->dv + k_at,
                       q_row,         k_row};
}

/* k, v and their gradients have `keys` rows here. */
static void attend(const attention_arrays *x, const attention_arrays *size, const attention_extents *n, int64_t keys,
                   double *p)
{
    for (int64_t b = 0; b < n->batch; b++) {
        int64_t length = n->key_lengths != NULL ? n->key_lengths[b] : keys;
        for (int64_t head = 0; head < n->heads; head++) {
            head_view h = view_of(x, n, keys, b, head), z = view_of(size, n, keys, b, head);
            for (int64_t i = 0; i < n->sequence; i++) {
                int64_t seen = seen_keys(n, length, i);
                h.lse[i] = -INFINITY;
                if (seen > 0) {
                    run_query(p, p + keys, &h, n, i, seen);
                    size_query(p, p + keys, &z, n, i, seen);
                }
            }
        }
    }
}

/* Keys and values of the projected length, before (0) and after (1) attention. */
static void project_all(const attention_arrays *x, const attention_arrays *small, const attention_extents *n, int after)
{
    int64_t m = n->projected, s = n->sequence, row = n->kv_heads * n->width;
    for (int64_t b = 0; b < n->batch && !after; b++) {
        project(small->k + b * m * row, x->e, x->k + b * s * row, m, s, row, 0);
        project(small->v + b * m * row, x->f, x->v + b * s * row, m, s, row, 0);
    }
    for (int64_t b = 0; b < n->batch && after; b++) {
        project(x->dk + b * s * row, x->e, small->dk + b * m * row, m, s, row, 1);
        project(x->dv + b * s * row, x->f, small->dv + b * m * row, m, s, row, 1);
        project_gradient(x->de + b * n->kv_heads * m * s, small->dk + b * m * row, x->k + b * s * row, n);
        project_gradient(x->df + b * n->kv_heads * m * s, small->dv + b * m * row, x->v + b * s * row, n);
    }
}

static heddle_status attend_projected(const attention_arrays *x, const attention_arrays *size,
                                      const attention_extents *n, double *p)
{
    int64_t elems = n->batch * n->projected * n->kv_heads * n->width;
    double *memory = calloc((size_t)(8 * elems) + 1, sizeof(double));
    if (memory == NULL) {
        return judge_no_memory("projected keys of the reference", 64 * (double)elems);
    }
    attention_arrays small[2] = {*x, *size};
    for (int i = 0; i < 2; i++) {
        double *own = memory + i * 4 * elems;
        small[i].k = own;
        small[i].v = own + elems;
        small[i].dk = own + 2 * elems;
        small[i].dv = own + 3 * elems;
        project_all(i == 0 ? x : size, &small[i], n, 0);
    }
    attend(&small[0], &small[1], n, n->projected, p);
    project_all(x, &small[0], n, 1);
    project_all(size, &small[1], n, 1);
    free(memory);
    return HEDDLE_OK;
}

static void absolute(double *out, const double *x, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        out[i] = fabs(x[i]);
    }
}

heddle_status attention_reference(const attention_arrays *x, const attention_arrays *size, const attention_extents *n)
{
    heddle_status st = HEDDLE_OK;
    int64_t keys = n->projected > 0 ? n->projected : n->sequence;
    int64_t q = n->batch * n->sequence * n->heads * n->width, k = n->batch * n->sequence * n->kv_heads * n->width;
    double *p = calloc((size_t)(2 * keys) + 1, sizeof(double));
    if (p == NULL) {
        return judge_no_memory("scores of the reference", 16 * (double)keys);
    }
    absolute(size->q, x->q, q);
    absolute(size->d_o, x->d_o, q);
    absolute(size->k, x->k, k);
    absolute(size->v, x->v, k);
    absolute(size->e, x->e, n->projected * n->sequence);
    absolute(size->f, x->f, n->projected * n->sequence);
    clear(x, n);
    clear(size, n);
    if (n->projected > 0) {
        st = attend_projected(x, size, n, p);
    } else {
        attend(x, size, n, keys, p);
    }
    free(p);
    return st;
}
