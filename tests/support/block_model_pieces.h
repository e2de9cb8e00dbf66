/* What stages are made of, slowly and in f64, each piece with its gradient. */
#ifndef HD_TEST_BLOCK_MODEL_PIECES_H
#define HD_TEST_BLOCK_MODEL_PIECES_H

#include "block_problem.h"

enum { MODEL_PARAMS = 6 };

/* Everything a stage depends on, or the gradient of all that. */
typedef struct model_values {
    double *x; /* the activation */
    double *param[MODEL_PARAMS];
    double *vector;
    double *text;
} model_values;

typedef struct model {
    heddle_block_options options;
    int nparams;
    int64_t param_elems[MODEL_PARAMS];
    int64_t c, d, rows, samples, sample_rows, t, inner, x_elems, vector_elems, text_elems;
    const int64_t *lengths;
} model;

static inline model_values model_new(const model *m)
{
    model_values v = {.x = must_alloc(m->x_elems, sizeof(double)),
                      .vector = must_alloc(m->vector_elems, sizeof(double)),
                      .text = must_alloc(m->text_elems, sizeof(double))};
    for (int i = 0; i < m->nparams; i++) {
        v.param[i] = must_alloc(m->param_elems[i], sizeof(double));
    }
    return v;
}

static inline void model_free(const model *m, model_values *v)
{
    free(v->x);
    free(v->vector);
    free(v->text);
    for (int i = 0; i < m->nparams; i++) {
        free(v->param[i]);
    }
}

/* The arrays of the values one after the other. */
static inline double *model_array(const model *m, const model_values *v, int index, int64_t *elems)
{
    if (index < m->nparams) {
        *elems = m->param_elems[index];
        return v->param[index];
    }
    *elems = index == m->nparams ? m->x_elems : index == m->nparams + 1 ? m->vector_elems : m->text_elems;
    return index == m->nparams ? v->x : index == m->nparams + 1 ? v->vector : v->text;
}

static inline int model_arrays(const model *m)
{
    return m->nparams + 3;
}

/* --- pieces, each with its gradient ------------------------------------------------------------------------------- */

static inline void line(double *out, const double *x, const double *w, const double *b, int64_t k, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        out[j] = b[j];
        for (int64_t i = 0; i < k; i++) {
            out[j] += w[j * k + i] * x[i];
        }
    }
}

/* dx, dw, db are added to; dx may be NULL */
static inline void line_back(double *dx, double *dw, double *db, const double *dy, const double *x, const double *w,
                             int64_t k, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        db[j] += dy[j];
        for (int64_t i = 0; i < k; i++) {
            dw[j * k + i] += dy[j] * x[i];
            if (dx != NULL) {
                dx[i] += dy[j] * w[j * k + i];
            }
        }
    }
}

static inline double spread(const double *x, int64_t n, double *mean)
{
    double variance = 0;
    *mean = 0;
    for (int64_t i = 0; i < n; i++) {
        *mean += x[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        variance += (x[i] - *mean) * (x[i] - *mean) / (double)n;
    }
    return 1 / sqrt(variance + 1e-6);
}

static inline void modulated(double *out, const model *m, const model_values *v, const double *x, int64_t sample,
                             int base)
{
    double mean, inverse = spread(x, m->c, &mean);
    const double *shift = v->vector + (sample * 6 + base) * m->c, *scale = shift + m->c;
    for (int64_t i = 0; i < m->c; i++) {
        double n = (x[i] - mean) * inverse;
        out[i] = m->options.modulate ? n * (1 + scale[i]) + shift[i] : n;
    }
}

static inline void modulated_back(double *dx, model_values *g, const double *dy, const model *m, const model_values *v,
                                  const double *x, int64_t sample, int base)
{
    double mean, inverse = spread(x, m->c, &mean), plain = 0, along = 0;
    int64_t at = (sample * 6 + base) * m->c;
    double *dn = must_alloc(m->c, sizeof *dn);
    for (int64_t i = 0; i < m->c; i++) {
        double n = (x[i] - mean) * inverse;
        dn[i] = dy[i];
        if (m->options.modulate) {
            g->vector[at + i] += dy[i];
            g->vector[at + m->c + i] += dy[i] * n;
            dn[i] *= 1 + v->vector[at + m->c + i];
        }
        plain += dn[i] / (double)m->c;
        along += dn[i] * n / (double)m->c;
    }
    for (int64_t i = 0; i < m->c; i++) {
        dx[i] += inverse * (dn[i] - plain - (x[i] - mean) * inverse * along);
    }
    free(dn);
}

static inline double rms_of(const double *x, int64_t d)
{
    double squares = 0;
    for (int64_t i = 0; i < d; i++) {
        squares += x[i] * x[i];
    }
    return 1 / sqrt(squares / (double)d + 1e-6);
}

static inline void turn(double *x, int64_t d, double position)
{
    for (int64_t i = 0; i + 1 < d; i += 2) {
        double angle = position / pow(10000, (double)i / (double)d), a = x[i], b = x[i + 1];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + 1] = b * cos(angle) + a * sin(angle);
    }
}

static inline void head_of(double *out, const model *m, const double *x, const double *weight, int64_t position)
{
    double inverse = rms_of(x, m->d);
    for (int64_t i = 0; i < m->d; i++) {
        out[i] = weight != NULL ? x[i] * inverse * weight[i] : x[i];
    }
    if (m->options.rope) {
        turn(out, m->d, (double)position);
    }
}

/* dy is changed; dx is added to */
static inline void head_back(double *dx, double *dweight, double *dy, const model *m, const double *x,
                             const double *weight, int64_t position)
{
    double inverse = rms_of(x, m->d), along = 0;
    if (m->options.rope) {
        turn(dy, m->d, -(double)position);
    }
    for (int64_t i = 0; i < m->d; i++) {
        along += weight != NULL ? dy[i] * weight[i] * x[i] * inverse / (double)m->d : 0;
    }
    for (int64_t i = 0; i < m->d; i++) {
        if (weight == NULL) {
            dx[i] += dy[i];
            continue;
        }
        dweight[i] += dy[i] * x[i] * inverse;
        dx[i] += inverse * (dy[i] * weight[i] - x[i] * inverse * along);
    }
}

/* One query; keys and values `stride` apart. d_o NULL: only out. */
static inline void query(double *out, const double *d_o, const double *q, const double *k, const double *v, double *dq,
                         double *dk, double *dv, int64_t nk, int64_t stride, int64_t d)
{
    double *p = must_alloc(nk, sizeof *p), top = -INFINITY, sum = 0, delta = 0, scale = 1 / sqrt((double)d);
    for (int64_t j = 0; j < nk; j++) {
        for (int64_t i = 0; i < d; i++) {
            p[j] += scale * q[i] * k[j * stride + i];
        }
        top = p[j] > top ? p[j] : top;
    }
    for (int64_t j = 0; j < nk; j++) {
        p[j] = exp(p[j] - top);
        sum += p[j];
    }
    for (int64_t i = 0; i < d; i++) {
        double o = 0;
        for (int64_t j = 0; j < nk; j++) {
            o += p[j] / sum * v[j * stride + i];
        }
        if (out != NULL) {
            out[i] = o;
        }
        delta += d_o != NULL ? o * d_o[i] : 0;
    }
    for (int64_t j = 0; j < nk && d_o != NULL; j++) {
        double dp = 0, weight = p[j] / sum;
        for (int64_t i = 0; i < d; i++) {
            dp += d_o[i] * v[j * stride + i];
        }
        for (int64_t i = 0; i < d; i++) {
            dv[j * stride + i] += weight * d_o[i];
            dq[i] += scale * weight * (dp - delta) * k[j * stride + i];
            dk[j * stride + i] += scale * weight * (dp - delta) * q[i];
        }
    }
    free(p);
}

static inline double gelu_of(double x, double *slope)
{
    double r = 0.79788456080286535588, u = tanh(r * (x + 0.044715 * x * x * x));
    *slope = 0.5 * (1 + u) + 0.5 * x * (1 - u * u) * r * (1 + 3 * 0.044715 * x * x);
    return 0.5 * x * (1 + u);
}

static inline double gate_of(const model *m, const model_values *v, int64_t sample, int which, int64_t i)
{
    return m->options.modulate && which >= 0 ? v->vector[(sample * 6 + which) * m->c + i] : 1;
}

#endif
