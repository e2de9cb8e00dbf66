/* A slow f64 model of the stages with their gradients, and a problem of a block to compare it with. */
#ifndef HD_TEST_BLOCK_BACK_MODEL_H
#define HD_TEST_BLOCK_BACK_MODEL_H

#include "block_problem.h"

#include <heddle/train/tape.h>

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

/* --- stages: y = stage(v) and, with dy, the gradients into g (added, but g->x includes dy once) ------------------- */

static inline void out_of(const model *m, const model_values *v, double *y, const double *o, const double *w,
                          const double *b, int64_t k, int64_t r, int gate)
{
    double *z = must_alloc(m->c, sizeof *z);
    line(z, o, w, b, k, m->c);
    for (int64_t i = 0; i < m->c; i++) {
        y[r * m->c + i] = v->x[r * m->c + i] + gate_of(m, v, r / m->sample_rows, gate, i) * z[i];
    }
    free(z);
}

static inline void out_back(const model *m, const model_values *v, model_values *g, const double *dy, double *d_o,
                            const double *o, int param, int64_t k, int64_t r, int gate)
{
    double *z = must_alloc(m->c, sizeof *z);
    int64_t sample = r / m->sample_rows;
    line(z, o, v->param[param], v->param[param + 1], k, m->c);
    for (int64_t i = 0; i < m->c; i++) {
        if (m->options.modulate && gate >= 0) {
            g->vector[(sample * 6 + gate) * m->c + i] += dy[r * m->c + i] * z[i];
        }
        z[i] = dy[r * m->c + i] * gate_of(m, v, sample, gate, i);
        g->x[r * m->c + i] += dy[r * m->c + i];
    }
    line_back(d_o, g->param[param], g->param[param + 1], z, o, v->param[param], k, m->c);
    free(z);
}

static inline void stage_self(const model *m, const model_values *v, double *y, const double *dy, model_values *g)
{
    int64_t c = m->c, d = m->d, wide = 3 * c;
    double *row = must_alloc(m->rows * c, sizeof *row), *raw = must_alloc(m->rows * wide, sizeof *raw);
    double *qkv = must_alloc(m->rows * wide, sizeof *qkv), *d_qkv = must_alloc(m->rows * wide, sizeof *d_qkv);
    double *o = must_alloc(c, sizeof *o), *d_o = must_alloc(c, sizeof *d_o), *d_raw = must_alloc(wide, sizeof *d_raw);
    for (int64_t r = 0; r < m->rows; r++) {
        modulated(row + r * c, m, v, v->x + r * c, r / m->sample_rows, 0);
        line(raw + r * wide, row + r * c, v->param[0], v->param[1], c, wide);
        memcpy(qkv + r * wide, raw + r * wide, (size_t)wide * sizeof *qkv);
        for (int64_t h = 0; h < 2 * m->options.heads; h++) {
            const double *weight = m->options.qk_norm ? v->param[h < m->options.heads ? 4 : 5] : NULL;
            head_of(qkv + r * wide + h * d, m, raw + r * wide + h * d, weight, r / m->inner % m->t);
        }
    }
    for (int64_t r = 0; r < m->rows; r++) {
        int64_t fibre = (r - r / m->inner % m->t * m->inner) * wide, stride = m->inner * wide;
        for (int64_t h = 0; h < m->options.heads; h++) {
            const double *k = qkv + fibre + c + h * d;
            query(o + h * d, NULL, qkv + r * wide + h * d, k, k + c, NULL, NULL, NULL, m->t, stride, d);
        }
        out_of(m, v, y, o, v->param[2], v->param[3], c, r, 2);
        if (dy == NULL) {
            continue;
        }
        memset(d_o, 0, (size_t)c * sizeof *d_o);
        out_back(m, v, g, dy, d_o, o, 2, c, r, 2);
        for (int64_t h = 0; h < m->options.heads; h++) {
            const double *k = qkv + fibre + c + h * d;
            double *dk = d_qkv + fibre + c + h * d;
            query(NULL, d_o + h * d, qkv + r * wide + h * d, k, k + c, d_qkv + r * wide + h * d, dk, dk + c, m->t,
                  stride, d);
        }
    }
    for (int64_t r = 0; r < m->rows && dy != NULL; r++) {
        memcpy(d_raw + 2 * c, d_qkv + r * wide + 2 * c, (size_t)c * sizeof *d_raw);
        memset(d_raw, 0, (size_t)(2 * c) * sizeof *d_raw);
        for (int64_t h = 0; h < 2 * m->options.heads; h++) {
            int p = h < m->options.heads ? 4 : 5;
            head_back(d_raw + h * d, g->param[p], d_qkv + r * wide + h * d, m, raw + r * wide + h * d,
                      m->options.qk_norm ? v->param[p] : NULL, r / m->inner % m->t);
        }
        memset(d_o, 0, (size_t)c * sizeof *d_o);
        line_back(d_o, g->param[0], g->param[1], d_raw, row + r * c, v->param[0], c, wide);
        modulated_back(g->x + r * c, g, d_o, m, v, v->x + r * c, r / m->sample_rows, 0);
    }
    free(row);
    free(raw);
    free(qkv);
    free(d_qkv);
    free(o);
    free(d_o);
    free(d_raw);
}

static inline void stage_cross(const model *m, const model_values *v, double *y, const double *dy, model_values *g)
{
    int64_t c = m->c, d = m->d, tokens = m->options.text_tokens;
    double *kv = must_alloc(m->samples * tokens * 2 * c, sizeof *kv);
    double *d_kv = must_alloc(m->samples * tokens * 2 * c, sizeof *d_kv);
    double *q = must_alloc(c, sizeof *q), *dq = must_alloc(c, sizeof *dq);
    double *o = must_alloc(c, sizeof *o), *d_o = must_alloc(c, sizeof *d_o);
    for (int64_t r = 0; r < m->samples * tokens; r++) {
        line(kv + r * 2 * c, v->text + r * c, v->param[4], v->param[5], c, 2 * c);
    }
    for (int64_t r = 0; r < m->rows; r++) {
        int64_t sample = r / m->sample_rows, length = m->lengths[sample], at = sample * tokens * 2 * c;
        if (length == 0) {
            for (int64_t i = r * c; i < (r + 1) * c; i++) {
                y[i] = v->x[i];
                if (dy != NULL) {
                    g->x[i] += dy[i];
                }
            }
            continue;
        }
        line(q, v->x + r * c, v->param[0], v->param[1], c, c);
        for (int64_t h = 0; h < m->options.heads; h++) {
            const double *k = kv + at + h * d;
            query(o + h * d, NULL, q + h * d, k, k + c, NULL, NULL, NULL, length, 2 * c, d);
        }
        out_of(m, v, y, o, v->param[2], v->param[3], c, r, -1);
        if (dy == NULL) {
            continue;
        }
        memset(d_o, 0, (size_t)c * sizeof *d_o);
        memset(dq, 0, (size_t)c * sizeof *dq);
        out_back(m, v, g, dy, d_o, o, 2, c, r, -1);
        for (int64_t h = 0; h < m->options.heads; h++) {
            const double *k = kv + at + h * d;
            double *dk = d_kv + at + h * d;
            query(NULL, d_o + h * d, q + h * d, k, k + c, dq + h * d, dk, dk + c, length, 2 * c, d);
        }
        line_back(g->x + r * c, g->param[0], g->param[1], dq, v->x + r * c, v->param[0], c, c);
    }
    for (int64_t r = 0; r < m->samples * tokens && dy != NULL; r++) {
        if (r % tokens < m->lengths[r / tokens]) {
            line_back(g->text + r * c, g->param[4], g->param[5], d_kv + r * 2 * c, v->text + r * c, v->param[4], c,
                      2 * c);
        }
    }
    free(kv);
    free(d_kv);
    free(q);
    free(dq);
    free(o);
    free(d_o);
}

static inline void stage_mlp(const model *m, const model_values *v, double *y, const double *dy, model_values *g)
{
    int64_t c = m->c, hidden = m->options.mlp_channels;
    double *row = must_alloc(c, sizeof *row), *d_row = must_alloc(c, sizeof *d_row);
    double *wide = must_alloc(hidden, sizeof *wide), *slope = must_alloc(hidden, sizeof *slope);
    double *d_wide = must_alloc(hidden, sizeof *d_wide);
    for (int64_t r = 0; r < m->rows; r++) {
        modulated(row, m, v, v->x + r * c, r / m->sample_rows, 3);
        line(wide, row, v->param[0], v->param[1], c, hidden);
        for (int64_t i = 0; i < hidden; i++) {
            wide[i] = gelu_of(wide[i], &slope[i]);
        }
        out_of(m, v, y, wide, v->param[2], v->param[3], hidden, r, 5);
        if (dy == NULL) {
            continue;
        }
        memset(d_wide, 0, (size_t)hidden * sizeof *d_wide);
        memset(d_row, 0, (size_t)c * sizeof *d_row);
        out_back(m, v, g, dy, d_wide, wide, 2, hidden, r, 5);
        for (int64_t i = 0; i < hidden; i++) {
            d_wide[i] *= slope[i];
        }
        line_back(d_row, g->param[0], g->param[1], d_wide, row, v->param[0], c, hidden);
        modulated_back(g->x + r * c, g, d_row, m, v, v->x + r * c, r / m->sample_rows, 3);
    }
    free(row);
    free(d_row);
    free(wide);
    free(slope);
    free(d_wide);
}

static inline void model_run(const model *m, const model_values *v, double *y, const double *dy, model_values *g)
{
    switch (m->options.kind) {
    case HEDDLE_STAGE_ATTENTION:
        stage_self(m, v, y, dy, g);
        break;
    case HEDDLE_STAGE_CROSS:
        stage_cross(m, v, y, dy, g);
        break;
    default:
        stage_mlp(m, v, y, dy, g);
        break;
    }
}

/* --- a model of a problem ----------------------------------------------------------------------------------------- */

static inline model model_of(const problem *p, model_values *values)
{
    const heddle_shape *shape = &p->options.shape;
    model m = {.options = p->options, .c = p->c, .inner = 1, .t = 1};
    m.d = p->c / p->options.heads;
    m.x_elems = p->elems;
    m.rows = p->elems / p->c;
    m.samples = shape->dim[0].extent;
    m.sample_rows = m.rows / m.samples;
    m.vector_elems = m.samples * 6 * p->c;
    m.text_elems = m.samples * p->options.text_tokens * p->c;
    m.lengths = p->conditioning.text_lengths;
    if (p->options.kind == HEDDLE_STAGE_ATTENTION) {
        m.t = shape->dim[p->options.mixed_dim].extent;
        for (int i = p->options.mixed_dim + 1; i < shape->ndim - 1; i++) {
            m.inner *= shape->dim[i].extent;
        }
    }
    m.nparams = heddle_block_nparams(p->block);
    heddle_param param[MODEL_PARAMS];
    for (int i = 0; i < m.nparams; i++) {
        param[i].struct_bytes = sizeof param[i];
        HD_OK(heddle_block_param(&param[i], p->block, i));
        m.param_elems[i] = param[i].extent[0] * (param[i].ndim == 2 ? param[i].extent[1] : 1);
    }
    *values = model_new(&m);
    for (int i = 0; i < m.nparams; i++) {
        for (int64_t j = 0; j < m.param_elems[i]; j++) {
            values->param[i][j] = (double)param[i].data[j];
        }
    }
    for (int64_t i = 0; i < m.x_elems; i++) {
        values->x[i] = (double)p->x[i];
    }
    for (int64_t i = 0; i < m.vector_elems; i++) {
        values->vector[i] = (double)p->conditioning.vector[i];
    }
    for (int64_t i = 0; i < m.text_elems; i++) {
        values->text[i] = (double)p->conditioning.text[i];
    }
    return m;
}

#endif
