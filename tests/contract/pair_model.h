/* Dense pairs in f64 on one rank: a problem, its whole tensors, outputs and gradients. */
#ifndef PAIR_MODEL_H
#define PAIR_MODEL_H

#include "kernels/small_float.h"
#include "runtime/base/base.h"
#include "runtime/verify/random.h"

#include <heddle/train/dense_pair.h>
#include <math.h>
#include <string.h>

enum { MAX_HIDDEN = 24, MAX_C = 16, MAX_ROWS = 700 };

typedef struct problem {
    const char *shape, *mesh, *layout;
    int axis, aligned; /* aligned: gathered rows are those of the axis's ranks, in equal parts */
    int64_t hidden;
} problem;

static inline double noise(int what, int64_t i)
{
    return random_unit_of(random_at(0, (uint64_t)what, (uint64_t)i));
}

enum { W1, B1, W2, B2, X, DY };

/* Everything of one rank, in f64: the whole tensor. */
typedef struct whole {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout, gathered;
    int64_t rows, c, hidden;
    int gelu, bf16;
    double x[MAX_ROWS * MAX_C], dy[MAX_ROWS * MAX_C], y[MAX_ROWS * MAX_C], dx[MAX_ROWS * MAX_C];
    double u[MAX_ROWS * MAX_HIDDEN], a[MAX_ROWS * MAX_HIDDEN], du[MAX_ROWS * MAX_HIDDEN];
} whole;

static inline double held(const whole *w, double value)
{
    return w->bf16 ? (double)hd_f32_from_bf16(hd_bf16_from_f32((float)value)) : (double)(float)value;
}

static inline double gelu(double x, double *slope)
{
    double inner = 0.7978845608028654 * (x + 0.044715 * x * x * x), t = tanh(inner);
    *slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
    return 0.5 * x * (1 + t);
}

static inline double weight(int what, int64_t i)
{
    return (double)(float)(0.4 * noise(what, i));
}

static inline void compute_row(whole *w, int64_t r)
{
    int64_t c = w->c, h = w->hidden;
    for (int64_t j = 0; j < h; j++) {
        double slope = 1, sum = weight(B1, j), back = 0;
        for (int64_t i = 0; i < c; i++) {
            sum += weight(W1, j * c + i) * w->x[r * c + i];
            back += weight(W2, i * h + j) * w->dy[r * c + i];
        }
        w->u[r * h + j] = sum;
        w->a[r * h + j] = w->gelu ? gelu(sum, &slope) : sum;
        w->du[r * h + j] = back * slope;
    }
    for (int64_t i = 0; i < c; i++) {
        double sum = weight(B2, i), back = 0;
        for (int64_t j = 0; j < h; j++) {
            sum += weight(W2, i * h + j) * w->a[r * h + j];
            back += weight(W1, j * c + i) * w->du[r * h + j];
        }
        w->y[r * c + i] = sum;
        w->dx[r * c + i] = back;
    }
}

static inline heddle_status whole_make(whole *w, const problem *p, int gelu_on, int bf16)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_shape_parse(&w->shape, p->shape));
    HD_TRY(heddle_mesh_parse(&w->mesh, p->mesh));
    HD_TRY(heddle_layout_parse(&w->layout, p->layout, &w->shape, &w->mesh));
    w->shape.dtype = bf16 ? HEDDLE_BF16 : HEDDLE_F32;
    w->gelu = gelu_on;
    w->bf16 = bf16;
    w->hidden = p->hidden;
    w->c = w->shape.dim[w->shape.ndim - 1].extent;
    w->rows = 1;
    for (int d = 0; d < w->shape.ndim - 1; d++) {
        w->rows *= w->shape.dim[d].extent;
    }
    w->gathered = w->layout;
    w->gathered.dim_of_axis[p->axis] = HEDDLE_REPLICATED;
    memset(w->gathered.nshards, 0, sizeof w->gathered.nshards); /* explicit lengths are on that axis only here */
    CHECK(w->rows <= MAX_ROWS && w->c <= MAX_C && w->hidden <= MAX_HIDDEN);
    for (int64_t i = 0; i < w->rows * w->c; i++) {
        w->x[i] = held(w, noise(X, i));
        w->dy[i] = held(w, noise(DY, i));
    }
    for (int64_t r = 0; r < w->rows; r++) {
        compute_row(w, r);
    }
out:
    return st;
}

#endif
