/* One linear attention problem on real ranks against the recurrence in f64: outputs, gradients, identities, states,
 * byte counts. Used by `heddle verify linear-attention` and by the tests. */
#ifndef HD_VERIFY_LINEAR_CHECK_H
#define HD_VERIFY_LINEAR_CHECK_H

#include "runtime/verify/judge_array.h"
#include "runtime/verify/random_line.h"

#include <heddle/heddle.h>
#include <heddle/linear_attention.h>

enum { LINEAR_MAX_HEADS = 256, LINEAR_PROBLEM_BYTES = 512, LINEAR_CALLS = 2 };

typedef struct linear_case {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_linear_attention_options options; /* decay: set by linear_check from the next one */
    double decay[LINEAR_MAX_HEADS];
    uint64_t seed;
    int64_t nan_at; /* n > 0: element n of v and element 3n of k, modulo their number, are NaN */
    int storage;    /* of the local arrays, see judge_array.h */
} linear_case;

/* Whole arrays [b s h d], dense. */
typedef struct linear_arrays {
    double *q, *k, *v, *d_o, *o, *dq, *dk, *dv;
} linear_arrays;

/* What is judged: results, the state behind the last row in both conventions, and the identities <q, dq> = <k, dk> =
 * <v, dv> = <do, o>. */
enum {
    LINEAR_O,
    LINEAR_DQ,
    LINEAR_DK,
    LINEAR_DV,
    LINEAR_STATE,
    LINEAR_DECAYED_STATE,
    LINEAR_BY_Q,
    LINEAR_BY_K,
    LINEAR_BY_V,
    LINEAR_JUDGED
};

/* The worst of all ranks. */
typedef struct linear_errors {
    judge_error of[LINEAR_JUDGED];
    heddle_attention_traffic planned; /* of this rank */
    int64_t state_bytes, serial_steps;
} linear_errors;

/* A case for `ranks` ranks; dtype HEDDLE_DTYPE_COUNT: any. */
void linear_draw(linear_case *out, random_source *source, int ranks, heddle_dtype dtype);
void linear_describe(char *out, size_t bytes, const linear_case *c);

/* The most that one rank sends, and all ranks together, as planned. */
heddle_status linear_traffic(heddle_attention_traffic *most, heddle_attention_traffic *all, const linear_case *c);

/* As judge_check_memory. */
heddle_status linear_check_memory(const linear_case *c);

/* Collective. problem[0] stays 0 when all is right on this rank; else it gets a sentence. global: NULL, or gets the
 * inputs and what the ranks computed, to be freed with linear_free. */
heddle_status linear_check(heddle_comm *comm, const linear_case *c, char *problem, linear_errors *errors,
                           linear_arrays *global);
void linear_free(linear_arrays *arrays);

#endif
