/* Linear attention of one sequence of one head by its recurrence, row by row in double precision: what every method and
 * kernel of it is compared with. */
#ifndef HD_VERIFY_LINEAR_REFERENCE_H
#define HD_VERIFY_LINEAR_REFERENCE_H

#include <heddle/status.h>
#include <stdint.h>

/* Dense [rows][dk] and [rows][dv]; arrays of no rows are no NULL. */
typedef struct linear_recurrence {
    int64_t rows, dk, dv;
    double decay;
    int bidirectional;
    const double *q, *k, *v;
    const double *d_o; /* NULL: dq, dk_out and dv_out are not touched */
    double *o, *dq, *dk_out, *dv_out;
    double *state; /* [dk][dv] behind the last row, of the causal form; NULL: not wanted */
} linear_recurrence;

/* HEDDLE_ERR_NOMEM when scratch cannot be had. */
heddle_status linear_reference(const linear_recurrence *arrays);

#endif
