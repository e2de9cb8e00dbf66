/* The recurrence of linear attention, row by row: the judge of everything else.
 *
 *   forwards    S_i = g S_(i-1) + k_i v_i^T         o_i = q_i S_i          dq_i = S_i do_i
 *   backwards   U_i = g U_(i+1) + q_i do_i^T        dk_i = U_i v_i         dv_i = U_i^T k_i
 *
 * Bidirectional adds the same from the other end, each row's own pair left out.
 */
#include "runtime/attention/linear_internal.h"

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

static heddle_status check_arrays(const heddle_linear_reference *p)
{
    heddle_status st = HEDDLE_OK;
    const struct {
        const char *name;
        const double *array;
        int of_gradient;
    } needed[] = {{"q", p->q, 0},   {"k", p->k, 0},           {"v", p->v, 0},          {"o", p->o, 0},
                  {"dq", p->dq, 1}, {"dk_out", p->dk_out, 1}, {"dv_out", p->dv_out, 1}};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0] && p->rows > 0; i++) {
        if (!needed[i].of_gradient || p->d_o != NULL) {
            HD_TRY(hd_need(needed[i].array, "heddle_linear_attention_reference", needed[i].name));
        }
    }
out:
    return st;
}

heddle_status heddle_linear_attention_reference(const heddle_linear_reference *problem)
{
    heddle_status st = HEDDLE_OK;
    const heddle_linear_reference *p = problem;
    double *state = NULL;
    HD_TRY(HD_NEED(problem));
    if (p->rows < 0 || p->dk < 1 || p->dv < 1) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_linear_attention_reference: a problem without rows or widths");
    }
    HD_TRY(check_arrays(p));
    HD_TRY(hd_alloc((void **)&state, (size_t)(p->dk * p->dv), sizeof *state, "the state of a reference"));
    int gradient = p->d_o != NULL;
    if (p->rows > 0) {
        memset(p->o, 0, (size_t)(p->rows * p->dv) * sizeof(double));
    }
    if (gradient && p->rows > 0) {
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
out:
    hd_free(state);
    return st;
}
