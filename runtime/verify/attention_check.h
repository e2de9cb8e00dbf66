/* One attention problem on real ranks against the reference: outputs, gradients, identities, byte counts. Used by
 * `heddle verify attention` and by the tests. */
#ifndef HD_VERIFY_ATTENTION_CHECK_H
#define HD_VERIFY_ATTENTION_CHECK_H

#include "runtime/verify/attention_reference.h"
#include "runtime/verify/judge_array.h"
#include "runtime/verify/random_line.h"

enum { ATTENTION_MAX_BATCH = 64, ATTENTION_PROBLEM_BYTES = 512 };

typedef struct attention_case {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention_options options; /* key_lengths: set by attention_check from the next two */
    int has_key_lengths;
    int64_t key_length[ATTENTION_MAX_BATCH];
    uint64_t seed;
    int64_t nan_at; /* n > 0: element n of v and element 3n of k, modulo their number, are NaN */
    int storage;    /* of the local arrays, see judge_array.h */
} attention_case;

/* What is judged: results, and two identities, <do, o> = <dv, v> and <dq, q> = <dk, k>. */
enum {
    ATTENTION_O,
    ATTENTION_LSE,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_DE,
    ATTENTION_DF,
    ATTENTION_BY_VALUES,
    ATTENTION_BY_SCORES,
    ATTENTION_JUDGED
};

/* The worst of all ranks. */
typedef struct attention_errors {
    judge_error of[ATTENTION_JUDGED];
    heddle_attention_traffic planned; /* of this rank */
} attention_errors;

/* A case for `ranks` ranks; any method, mask, placement, storage, dtype (or always `dtype` unless it is
 * HEDDLE_DTYPE_COUNT). */
void attention_draw(attention_case *out, random_source *source, int ranks, heddle_dtype dtype);
/* "f32[...] on [sp=4]: s@sp, method ring, causal, ..." */
void attention_describe(char *out, size_t bytes, const attention_case *c);

/* Collective. problem[0] stays 0 when all is right on this rank; else it gets a sentence. global: NULL, or gets the
 * whole arrays (what the ranks computed, not the reference; de and df summed), to be freed with attention_free. */
heddle_status attention_check(heddle_comm *comm, const attention_case *c, char *problem, attention_errors *errors,
                              attention_arrays *global);
attention_extents attention_extents_of(const attention_case *c);
/* As judge_check_memory. */
heddle_status attention_check_memory(const attention_case *c);

/* q, k, v, d_o, e and f: values in -1..1 that the dtype holds exactly, from the case's seed. */
void attention_fill(attention_arrays *x, const attention_extents *n, const attention_case *c);

#endif
