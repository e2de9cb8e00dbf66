/* Attention and its gradients by one process in double precision, straight from the formulas: what every method is
 * compared with. */
#ifndef HD_VERIFY_ATTENTION_REFERENCE_H
#define HD_VERIFY_ATTENTION_REFERENCE_H

#include <heddle/attention.h>

/* All arrays dense row-major: q, o, d_o, dq [batch][sequence][heads][width], k, v, dk, dv with kv_heads heads, lse
 * [batch][heads][sequence]. With a projected length e and f are [projected_length][sequence], de and df
 * [batch][kv_heads][projected_length][sequence]: the gradients are their sums. */
typedef struct attention_arrays {
    double *q, *k, *v, *d_o;        /* in */
    double *o, *lse, *dq, *dk, *dv; /* out */
    double *e, *f;                  /* in */
    double *de, *df;                /* out: of each sample and key head */
} attention_arrays;

typedef struct attention_extents {
    int64_t batch, sequence, heads, kv_heads, width, projected;
    const int64_t *key_lengths; /* NULL: all */
    int causal;
    double scale;
} attention_extents;

/* size: of every element the sum of the absolute values of the terms that make it, times how much roundings of the
 * scores change a weight (1 + the largest score's terms); its inputs are filled in here.
 * HEDDLE_ERR_NOMEM when scratch cannot be had. */
heddle_status attention_reference(const attention_arrays *x, const attention_arrays *size, const attention_extents *n);
/* What attention_alloc takes. */
double attention_bytes(const attention_extents *n);
heddle_status attention_alloc(attention_arrays *out, const attention_extents *n);
void attention_free(attention_arrays *arrays);

#endif
