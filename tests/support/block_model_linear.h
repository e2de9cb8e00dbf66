/* The LINEAR stage in f64 with its gradients, and how far roundings may take a result from it.
 *
 * The norm behind linear attention divides by a result that may be nearly nothing, so no one number is a limit for all
 * problems. The judge therefore asks its own model: it is run a few times with a random relative error at every place
 * where the library rounds, of at most the size that the rounding there may have, and the root mean square of what that
 * does to an element (and to its row) is the unit of the limit. A rounding more, or a larger one, is seen; a problem
 * whose rows cancel has its own limit.
 */
#ifndef HD_TEST_BLOCK_MODEL_LINEAR_H
#define HD_TEST_BLOCK_MODEL_LINEAR_H

#include "block_model.h"

#include <heddle/linear_attention.h>

/* Largest relative errors; all 0: the exact model. */
typedef struct roundings {
    double stored;   /* where values of the storage type are written */
    double weights;  /* of weights that a product of bf16 reads, and of the gradients it reads */
    double computed; /* f32: at every step between */
    double mixed;    /* of what linear attention multiplies, and of its and its norm's gradients */
    random_source dice;
} roundings;

enum { ROUGH_RUNS = 5 };
/* Times the root mean square. Errors that add up from many places are within 5 of it, one that is a single rounding's
 * within the square root of 3; the estimate itself is of few runs. */
static const double rough_limit = 8;

/* What the library may do. F32_STEPS: a step is a sum or a norm of some operations. */
static inline roundings roundings_of(const problem *p)
{
    const heddle_dtype dtype = p->options.shape.dtype;
    const double f32_steps = 0x1p-22, type = dtype == HEDDLE_BF16 ? 0x1p-8 : dtype == HEDDLE_F16 ? 0x1p-11 : f32_steps;
    const int is_narrow = p->block->on != NULL || hd_gemm_narrow(p->block->layer[HD_LAYER_QKV]);
    return (roundings){.stored = type,
                       .weights = is_narrow ? type : f32_steps,
                       .computed = f32_steps,
                       .mixed = p->block->on != NULL ? type : f32_steps};
}

static inline double rough(roundings *r, double value, double size)
{
    return size > 0 ? value * (1 + size * random_unit(&r->dice)) : value;
}

static inline void rough_all(roundings *r, double *to, const double *from, int64_t elems, double size)
{
    for (int64_t i = 0; i < elems; i++) {
        to[i] = rough(r, from[i], size);
    }
}

static inline double decay_of(const model *m, int64_t head)
{
    double slopes[64];
    if (m->options.decay > 0) {
        return m->options.decay;
    }
    HD_OK(heddle_linear_attention_slopes(slopes, m->options.heads));
    return slopes[head];
}

/* One head's result of query i of a fibre, whose rows are `stride` apart, before its norm; q is scaled here. With d_raw
 * also the gradients of all rows of the fibre. */
static inline void linear_row(double *out, const double *d_raw, double *d_fibre, const model *m, const double *fibre,
                              int64_t i, int64_t stride, int64_t h, roundings *r)
{
    int64_t d = m->d, last = m->options.causal ? i + 1 : m->t;
    double decay = decay_of(m, h);
    const double *q = fibre + i * stride;
    memset(out, 0, (size_t)d * sizeof *out);
    for (int64_t j = 0; j < last; j++) {
        const double *k = fibre + j * stride + m->c, *v = k + m->c;
        double far = pow(decay, (double)(i > j ? i - j : j - i)) / sqrt((double)d), score = 0, d_score = 0;
        for (int64_t e = 0; e < d; e++) {
            score += far * q[e] * k[e];
            d_score += d_raw != NULL ? far * d_raw[e] * v[e] : 0;
        }
        score = rough(r, score, r->mixed);
        d_score = rough(r, d_score, r->mixed);
        for (int64_t e = 0; e < d; e++) {
            out[e] += score * v[e];
            if (d_raw != NULL) {
                d_fibre[i * stride + e] += d_score * k[e];
                d_fibre[j * stride + m->c + e] += d_score * q[e];
                d_fibre[j * stride + 2 * m->c + e] += score * d_raw[e];
            }
        }
    }
}

/* Rows of qkv, q and k rotated; n: what the layer is given. */
static inline void linear_in(const model *m, const model_values *v, double *n, double *qkv, roundings *rounded)
{
    int64_t c = m->c, wide = 3 * c;
    double *raw = must_alloc(wide, sizeof *raw);
    for (int64_t r = 0; r < m->rows; r++) {
        modulated(n + r * c, m, v, v->x + r * c, r / m->sample_rows, 0);
        rough_all(rounded, n + r * c, n + r * c, c, rounded->stored);
        line(raw, n + r * c, v->param[0], v->param[1], c, wide);
        rough_all(rounded, qkv + r * wide, raw, wide, rounded->mixed);
        for (int64_t h = 0; h < 2 * m->options.heads; h++) {
            head_of(qkv + r * wide + h * m->d, m, qkv + r * wide + h * m->d, NULL, r / m->inner % m->t);
        }
        rough_all(rounded, qkv + r * wide, qkv + r * wide, 2 * c, m->options.rope ? rounded->mixed : 0);
    }
    free(raw);
}

/* Backward of that: d_qkv of the rotated rows. */
static inline void linear_in_back(const model *m, const model_values *v, const double *n, double *d_qkv,
                                  model_values *g, roundings *rounded)
{
    int64_t c = m->c, wide = 3 * c;
    double *dn = must_alloc(c, sizeof *dn), *weight = must_alloc(wide * c, sizeof *weight);
    rough_all(rounded, weight, v->param[0], wide * c, rounded->weights);
    for (int64_t r = 0; r < m->rows; r++) {
        double *row = d_qkv + r * wide;
        rough_all(rounded, row, row, wide, rounded->mixed);
        for (int64_t h = 0; h < 2 * m->options.heads && m->options.rope; h++) {
            turn(row + h * m->d, m->d, -(double)(r / m->inner % m->t));
        }
        rough_all(rounded, row, row, wide, rounded->weights);
        memset(dn, 0, (size_t)c * sizeof *dn);
        line_back(dn, g->param[0], g->param[1], row, n + r * c, weight, c, wide);
        modulated_back(g->x + r * c, g, dn, m, v, v->x + r * c, r / m->sample_rows, 0);
    }
    free(dn);
    free(weight);
}

/* y = stage(v) and, with dy, the gradients into g (added, but g->x includes dy once). */
static inline void stage_linear(const model *m, const model_values *v, double *y, const double *dy, model_values *g,
                                roundings rounded)
{
    int64_t c = m->c, wide = 3 * c, d = m->d, heads = m->options.heads;
    double *n = must_alloc(m->rows * c, sizeof *n), *qkv = must_alloc(m->rows * wide, sizeof *qkv);
    double *d_qkv = must_alloc(m->rows * wide, sizeof *d_qkv), *o = must_alloc(c, sizeof *o);
    double *d_o = must_alloc(c, sizeof *d_o), *raw = must_alloc(c, sizeof *raw);
    double *dz = must_alloc(m->x_elems, sizeof *dz);
    model_values w = *v;
    if (dy != NULL) {
        rough_all(&rounded, dz, dy, m->x_elems, rounded.weights);
    }
    w.param[2] = must_alloc(c * c, sizeof(double));
    rough_all(&rounded, w.param[2], v->param[2], c * c, rounded.weights);
    linear_in(m, v, n, qkv, &rounded);
    for (int64_t r = 0; r < m->rows; r++) {
        int64_t i = r / m->inner % m->t, first = (r - i * m->inner) * wide;
        for (int64_t h = 0; h < heads; h++) {
            linear_row(raw + h * d, NULL, NULL, m, qkv + first + h * d, i, m->inner * wide, h, &rounded);
            double inverse = rms_of(raw + h * d, d);
            for (int64_t e = h * d; e < (h + 1) * d; e++) {
                o[e] = rough(&rounded, raw[e] * inverse, rounded.stored);
            }
        }
        out_of(m, &w, y, o, w.param[2], v->param[3], c, r, 2);
        rough_all(&rounded, y + r * c, y + r * c, c, rounded.stored);
        if (dy == NULL) {
            continue;
        }
        memset(d_o, 0, (size_t)c * sizeof *d_o);
        out_back(m, &w, g, dz, d_o, o, 2, c, r, 2);
        for (int64_t h = 0; h < heads; h++) {
            double inverse = rms_of(raw + h * d, d), along = 0;
            rough_all(&rounded, d_o + h * d, d_o + h * d, d, rounded.mixed);
            for (int64_t e = h * d; e < (h + 1) * d; e++) {
                along += d_o[e] * o[e] / (double)d;
            }
            for (int64_t e = h * d; e < (h + 1) * d; e++) {
                d_o[e] = rough(&rounded, inverse * (d_o[e] - o[e] * along), rounded.mixed);
            }
            linear_row(raw + h * d, d_o + h * d, d_qkv + first + h * d, m, qkv + first + h * d, i, m->inner * wide, h,
                       &rounded);
        }
    }
    if (dy != NULL) {
        linear_in_back(m, v, n, d_qkv, g, &rounded);
        rough_all(&rounded, g->x, g->x, m->x_elems, rounded.stored);
    }
    free(w.param[2]);
    free(dz);
    free(n);
    free(qkv);
    free(d_qkv);
    free(o);
    free(d_o);
    free(raw);
}

/* --- the judge ---------------------------------------------------------------------------------------------------- */

/* Arrays: 0 is y, 1 + i the i-th of model_array, all gradients. */
enum { LINEAR_ARRAYS = 1 + MODEL_PARAMS + 3 };

typedef struct linear_judge {
    int arrays;
    int64_t elems[LINEAR_ARRAYS];
    double *exact[LINEAR_ARRAYS], *limit[LINEAR_ARRAYS];
} linear_judge;

static inline void judge_close(linear_judge *judge)
{
    for (int a = 0; a < judge->arrays; a++) {
        free(judge->exact[a]);
        free(judge->limit[a]);
    }
}

/* From mean squares to limits; elements of a row, or of one parameter, have in common what makes it unsafe. Sums over
 * rows, of a bias say, round even where no term does. */
static inline void set_limits(double *squares, const double *exact, int64_t elems, int64_t width)
{
    for (int64_t first = 0; first < elems; first += width) {
        double row = 0, largest = 0;
        for (int64_t i = first; i < first + width; i++) {
            row += squares[i] / (double)width;
            largest = fmax(largest, fabs(exact[i]));
        }
        for (int64_t i = first; i < first + width; i++) {
            squares[i] = rough_limit * (sqrt(row) + sqrt(squares[i])) + 0x1p-20 * largest + 1e-30;
        }
    }
}

/* Of the problem's x, and of dy (NULL: forward alone). */
static inline linear_judge judge_open(const problem *p, const double *dy)
{
    linear_judge judge = {.arrays = 0};
    model_values v, g;
    model m = model_of(p, &v);
    double *y = must_alloc(m.x_elems, sizeof *y);
    for (int run = 0; run <= ROUGH_RUNS; run++) {
        roundings rounded = roundings_of(p);
        rounded.dice.state = (uint64_t)run;
        g = model_new(&m);
        stage_linear(&m, &v, y, dy, &g, run == 0 ? (roundings){.stored = 0} : rounded);
        judge.arrays = dy != NULL ? 1 + model_arrays(&m) : 1;
        for (int a = 0; a < judge.arrays; a++) {
            int64_t elems = m.x_elems;
            const double *values = a == 0 ? y : model_array(&m, &g, a - 1, &elems);
            if (run == 0) {
                judge.elems[a] = elems;
                judge.exact[a] = must_alloc(elems, sizeof(double));
                judge.limit[a] = must_alloc(elems, sizeof(double));
                memcpy(judge.exact[a], values, (size_t)elems * sizeof *values);
            }
            for (int64_t i = 0; i < elems; i++) {
                double off = values[i] - judge.exact[a][i];
                judge.limit[a][i] += off * off / ROUGH_RUNS;
            }
        }
        model_free(&m, &g);
    }
    for (int a = 0; a < judge.arrays; a++) {
        set_limits(judge.limit[a], judge.exact[a], judge.elems[a], a > 0 && a - 1 < m.nparams ? judge.elems[a] : m.c);
    }
    model_free(&m, &v);
    free(y);
    return judge;
}

/* How much of its limit the worst element of `got` takes; of f32 where that is what the array holds, else of dtype. */
static inline double judge_worst(const linear_judge *judge, int array, const void *got, heddle_dtype dtype)
{
    double worst = 0;
    for (int64_t i = 0; i < judge->elems[array]; i++) {
        double part = fabs(value_at(got, dtype, i) - judge->exact[array][i]) / judge->limit[array][i];
        worst = part > worst || isnan(part) ? part : worst;
    }
    return worst;
}

#endif
