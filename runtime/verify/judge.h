/* Results of ranks against a reference in double precision, element by element: what attention_check and linear_check
 * have in common.
 *
 * An error is counted in roundings of the arithmetic: f64 for f64, f32 for f32 and bf16. One rounding is the relative
 * error of one operation (2^-53, 2^-24) times the element's size, which is the sum of the absolute values of the terms
 * that make it. So an element that is small beside its neighbours is held as tightly as a large one, and a gradient
 * whose terms cancel is measured against the terms. What bf16 storage may add, half a unit in the last place, is taken
 * off first: results are right to their last bit but for the roundings before it. */
#ifndef HD_VERIFY_JUDGE_H
#define HD_VERIFY_JUDGE_H

#include <heddle/attention.h>

enum { JUDGE_DIMS = 4 };

/* Every element of one result on this rank, and the worst of them. */
typedef struct judge_error {
    const char *name;
    double allowed, worst; /* roundings; worst is infinite where a number stands for none */
    double got, want, limit;
    int64_t index[JUDGE_DIMS]; /* of the whole array */
} judge_error;

/* 0: the same, NaN where NaN is wanted, or what rounding to the dtype explains. */
double judge_roundings(heddle_dtype dtype, double got, double want, double size);
void judge_element(judge_error *error, heddle_dtype dtype, double got, double want, double size,
                   const int64_t index[JUDGE_DIMS]);
/* Two sums over all ranks that have to be equal; size: of absolute terms. Results were rounded to the dtype. */
void judge_identity(judge_error *error, heddle_dtype dtype, double sum, double other, double size);
/* out gets a sentence where the error is more than what is allowed, and the first of several stays:
 * "rank 3: dq[1 36 5 15] is 0.25, the reference says 0.5: off by 0.25, allowed are 2e-07 (...)" */
void judge_complain(char *out, size_t bytes, const judge_error *error, int rank);

/* out gets a sentence unless `calls` calls moved what was planned for each, as the object says and without one. */
void judge_counts(char *out, size_t bytes, int rank, int calls, const heddle_attention_traffic *measured,
                  const heddle_attention_traffic *told, const heddle_attention_traffic *planned);

/* Keeps of each the one that comes nearest to what is allowed. */
void judge_gather(judge_error *worst, const judge_error *error, int count);
/* Of all ranks that have the same part of an array, is this one, at these coordinates of the mesh, the one that counts
 * in sums over ranks? */
int judge_counts_once(const heddle_mesh *mesh, const heddle_layout *layout, const int *coords);
int64_t judge_elems(const heddle_shape *shape);
/* "" or "s" behind a counted word. */
const char *judge_s(long long count);
/* Collective: `own` is 1 on a rank that has found a problem. *failed = any has; *speaks = this rank is the lowest of
 * them. */
heddle_status judge_first_problem(int *failed, int *speaks, heddle_comm *comm, int own);
/* Collective: every rank gets the worst of all ranks. */
heddle_status judge_share(judge_error *error, int count, heddle_comm *comm);
/* "o 2.3 of 20, lse 1.1 of 8" */
void judge_list(char *out, size_t bytes, const judge_error *error, int count);
/* HEDDLE_ERR_ARG, with both numbers, where what all ranks together take is more than this machine, or a control group
 * of this process, has left: the kernel would hand it out, and end somebody later. */
heddle_status judge_check_memory(const char *what, double bytes, int ranks);
/* HEDDLE_ERR_NOMEM in a sentence: so many bytes for what. */
heddle_status judge_no_memory(const char *what, double bytes);

#endif
