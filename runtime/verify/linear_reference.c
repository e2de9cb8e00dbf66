/* The recurrence of linear attention, row by row: the judge of everything else.
 *
 *   forwards    S_i = g S_(i-1) + k_i v_i^T         o_i = q_i S_i          dq_i = S_i do_i
 *   backwards   U_i = g U_(i+1) + q_i do_i^T        dk_i = U_i v_i         dv_i = U_i^T k_i
 *
 * Bidirectional adds the same from the other end, each row's own pair left out.
 */
#include "runtime/verify/linear_reference.h"
#include "runtime/verify/judge.h"

#include <stdlib.h>
#include <string.h>

typedef struct walk {
    int64_t rows, dx, dy;
    double decay;
    int backwards, own_last; /* own_last: a row's own pair comes after its results */
    const double *x, *y;     /* state: sum of x y^T */
} walk;

static void add_pair(double *state, const walk *w, int64_t i)
{
    for (int64_t a = 0; a < w->dx; a++) {
        for (int64_t b = 0; b < w->dy; b++) {
            state[a * w->dy + b] += w->x[i * w->dx + a] * w->y[i * w->dy + b];
        }
    }
}

/* by_rows[i][b] += sum over a of left[i][a] state[a][b]; by_columns[i][a] += sum over b of state[a][b] right[i][b] */
static void take_results(const double *state, const walk *w, int64_t i, const double *left, double *by_rows,
                         const double *right, double *by_columns)
{
    for (int64_t a = 0; a < w->dx; a++) {
        for (int64_t b = 0; b < w->dy; b++) {
            if (by_rows != NULL) {
                by_rows[i * w->dy + b] += left[i * w->dx + a] * state[a * w->dy + b];
            }
            if (by_columns != NULL) {
                by_columns[i * w->dx + a] += state[a * w->dy + b] * right[i * w->dy + b];
            }
        }
    }
}

static void run_walk(double *state, const walk *w, const double *left, double *by_rows, const double *right,
                     double *by_columns)
{
    memset(state, 0, (size_t)(w->dx * w->dy) * sizeof *state);
    for (int64_t n = 0; n < w->rows; n++) {
        int64_t i = w->backwards ? w->rows - 1 - n : n;
        for (int64_t e = 0; e < w->dx * w->dy; e++) {
            state[e] *= w->decay;
        }
        if (!w->own_last) {
            add_pair(state, w, i);
        }
        take_results(state, w, i, left, by_rows, right, by_columns);
        if (w->own_last) {
            add_pair(state, w, i);
        }
    }
}

heddle_status linear_reference(const linear_recurrence *p)
{
    const int gradient = p->d_o != NULL;
    double *state = calloc((size_t)(p->dk * p->dv), sizeof *state);
    if (state == NULL) {
        return judge_no_memory("the state of a recurrence", 8.0 * (double)(p->dk * p->dv));
    }
    memset(p->o, 0, (size_t)(p->rows * p->dv) * sizeof(double));
    if (gradient) {
        memset(p->dq, 0, (size_t)(p->rows * p->dk) * sizeof(double));
        memset(p->dk_out, 0, (size_t)(p->rows * p->dk) * sizeof(double));
        memset(p->dv_out, 0, (size_t)(p->rows * p->dv) * sizeof(double));
    }
    for (int side = 0; side <= (p->bidirectional != 0); side++) {
        walk forward = {p->rows, p->dk, p->dv, p->decay, side, side, p->k, p->v};
        walk back = {p->rows, p->dk, p->dv, p->decay, !side, side, p->q, p->d_o};
        run_walk(state, &forward, p->q, p->o, p->d_o, gradient ? p->dq : NULL);
        if (p->state != NULL && side == 0) {
            memcpy(p->state, state, (size_t)(p->dk * p->dv) * sizeof(double));
        }
        if (gradient) {
            run_walk(state, &back, p->k, p->dv_out, p->v, p->dk_out);
        }
    }
    free(state);
    return HEDDLE_OK;
}
