/* A slow f64 model of the stages with their gradients, and a problem of a block to compare it with. */
#ifndef HD_TEST_BLOCK_MODEL_H
#define HD_TEST_BLOCK_MODEL_H

#include "block_model_pieces.h"

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
    if (p->options.mixed_dim >= 0) {
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
