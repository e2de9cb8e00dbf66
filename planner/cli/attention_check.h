/* One attention problem on real ranks against the reference: outputs, gradients, identities, byte counts. Used by
 * `heddle verify attention` and by the tests. */
#ifndef HD_CLI_ATTENTION_CHECK_H
#define HD_CLI_ATTENTION_CHECK_H

#include "attention_reference.h"
#include "random_line.h"

enum { ATTENTION_MAX_BATCH = 64, ATTENTION_PROBLEM_BYTES = 512 };

typedef struct attention_case {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention_options options; /* key_lengths: set by attention_check from the next two */
    int has_key_lengths;
    int64_t key_length[ATTENTION_MAX_BATCH];
    uint64_t seed;
    int64_t nan_at; /* n > 0: the last element of k and the one n before the last of v are NaN */
    int storage;    /* of the local arrays: 0 dense, 1 head by head, 2 padded, 3 width not contiguous */
} attention_case;

/* Largest differences relative to 1 + the largest value of the reference, over all ranks. */
typedef struct attention_errors {
    double o, lse, dq, dk, dv, projection, adjoint;
    double tolerance;
    heddle_attention_traffic planned; /* of this rank */
} attention_errors;

/* A case for `ranks` ranks; any method, mask, placement, storage, dtype (or always `dtype` unless it is
 * HEDDLE_DTYPE_COUNT). */
void attention_draw(attention_case *out, random_source *source, int ranks, heddle_dtype dtype);
/* "f32[...] on [sp=4]: s@sp, method ring, causal, ..." */
void attention_describe(char *out, size_t bytes, const attention_case *c);

/* Collective. problem[0] stays 0 when all is right on this rank; else it gets a sentence. global: NULL, or gets the
 * whole arrays (what the ranks computed, not the reference), to be freed with attention_free. */
heddle_status attention_check(heddle_comm *comm, const attention_case *c, char *problem, attention_errors *errors,
                              attention_arrays *global);
heddle_status attention_alloc(attention_arrays *out, const attention_extents *n);
void attention_free(attention_arrays *arrays);
attention_extents attention_extents_of(const attention_case *c);

/* q, k, v, d_o, e and f: values in -1..1 that the dtype holds exactly, from the case's seed. */
void attention_fill(attention_arrays *x, const attention_extents *n, const attention_case *c);
/* One element of the dtype f64, f32 or bf16. */
void attention_store(char *to, heddle_dtype dtype, double value);
double attention_load(const char *from, heddle_dtype dtype);

#endif
