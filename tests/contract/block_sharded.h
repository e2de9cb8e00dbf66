/* A block whose mixed dim is sharded, beside one that holds everything: the part of every rank is that of the whole,
 * and what is sent is what was planned. */
#ifndef HD_TEST_BLOCK_SHARDED_H
#define HD_TEST_BLOCK_SHARDED_H

#include "block_calls.h"
#include "case.h"

#include "kernels/small_float.h"
#include "runtime/verify/random.h"

#include <heddle/heddle.h>
#include <heddle/train/tape.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    heddle_stage_kind kind;
    const char *shape, *mesh, *layout, *method;
    int mixed_dim, heads, flags; /* 1 rope, 2 qk_norm or causal, 4 no modulation; decay by flags % 3 */
} job;

/* --- one block, and everything about it, the same on every rank --------------------------------------------------- */

typedef struct world {
    heddle_block_options options;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_block *whole, *mine;
    heddle_conditioning conditioning;
    float *x, *vector; /* everything */
    int64_t elems, vector_elems;
    heddle_box all, box;
    random_source source;
} world;

static inline void *room(int64_t elems, size_t bytes)
{
    void *memory = calloc((size_t)elems + 1, bytes);
    assert_non_null(memory);
    return memory;
}

static inline heddle_status open_world(world *w, const job *j, heddle_comm *comm)
{
    memset(w, 0, sizeof *w);
    w->source.state = 11;
    heddle_block_options_init(&w->options);
    w->options.kind = j->kind;
    w->options.mixed_dim = j->mixed_dim;
    w->options.heads = j->heads;
    w->options.rope = j->flags & 1;
    w->options.qk_norm = j->kind == HEDDLE_STAGE_ATTENTION && (j->flags & 2) != 0;
    w->options.causal = j->kind == HEDDLE_STAGE_LINEAR && (j->flags & 2) != 0;
    w->options.modulate = (j->flags & 4) == 0;
    w->options.decay = (const double[]){0.9, 0, 1}[j->flags % 3];
    heddle_status st = heddle_shape_parse(&w->options.shape, j->shape);
    st = st != HEDDLE_OK ? st : heddle_mesh_parse(&w->mesh, j->mesh);
    st = st != HEDDLE_OK ? st : heddle_layout_parse(&w->layout, j->layout, &w->options.shape, &w->mesh);
    st = st != HEDDLE_OK ? st : heddle_block_create(&w->whole, &w->options);
    st = st != HEDDLE_OK ? st : heddle_block_seed(w->whole, 5);
    st = st != HEDDLE_OK ? st : heddle_block_create(&w->mine, &w->options);
    st = st != HEDDLE_OK ? st : heddle_block_seed(w->mine, 5);
    heddle_layout everywhere = heddle_layout_replicated();
    int rank = heddle_comm_rank(comm);
    st = st != HEDDLE_OK ? st : heddle_layout_box(&w->all, &w->options.shape, &w->mesh, &everywhere, rank);
    st = st != HEDDLE_OK ? st : heddle_layout_box(&w->box, &w->options.shape, &w->mesh, &w->layout, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    int last = w->options.shape.ndim - 1;
    w->elems = heddle_box_elems(&w->all);
    w->vector_elems = w->all.len[0] * 6 * w->all.len[last];
    w->x = room(w->elems, sizeof(float));
    w->vector = room(w->vector_elems, sizeof(float));
    for (int64_t i = 0; i < w->elems; i++) {
        w->x[i] = hd_f32_from_bf16(hd_bf16_from_f32(2 * (float)random_unit(&w->source)));
    }
    for (int64_t i = 0; i < w->vector_elems; i++) {
        w->vector[i] = (float)random_unit(&w->source);
    }
    w->conditioning.vector = w->vector;
    return heddle_block_shard_attention(w->mine, comm, &w->mesh, &w->layout, j->method);
}

static inline void close_world(world *w)
{
    heddle_block_destroy(w->mine);
    heddle_block_destroy(w->whole);
    free(w->x);
    free(w->vector);
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

static inline int64_t place(const world *w, int64_t i)
{
    int64_t at = 0, index[HEDDLE_MAX_DIMS];
    for (int d = w->box.ndim - 1; d >= 0; d--) {
        index[d] = w->box.lo[d] + i % w->box.len[d];
        i /= w->box.len[d];
    }
    for (int d = 0; d < w->box.ndim; d++) {
        at = at * w->all.len[d] + index[d];
    }
    return at;
}

static inline void *to_storage(const world *w, const float *from, int part)
{
    int64_t elems = part ? heddle_box_elems(&w->box) : w->elems;
    int bf16 = w->options.shape.dtype == HEDDLE_BF16;
    void *out = room(elems, sizeof(float));
    for (int64_t i = 0; i < elems; i++) {
        float value = from[part ? place(w, i) : i];
        if (bf16) {
            ((uint16_t *)out)[i] = hd_bf16_from_f32(value);
        } else {
            ((float *)out)[i] = value;
        }
    }
    return out;
}

static inline double value_at(const world *w, const void *x, int64_t i)
{
    return w->options.shape.dtype == HEDDLE_BF16 ? (double)hd_f32_from_bf16(((const uint16_t *)x)[i])
                                                 : (double)((const float *)x)[i];
}

/* --- tolerances --------------------------------------------------------------------------------------------------- */

enum { FORWARD, OF_X, OF_VECTOR, OF_PROJ_BIAS, OF_PROJ_WEIGHT, OF_OTHERS, RESULTS };

/* Relative to the largest of the array, three to five times the worst of the problems below and some 800 random ones:
 *                     forward  x       vector  proj.bias  proj.weight  others
 *   attention   f32   2.5e-7   4.6e-7  3.6e-7  6.8e-7     5.5e-7       2.9e-6
 *               bf16  2.1e-3   6.5e-3  2.0e-3  1.4e-7     1.0e-5       8.8e-3
 *   linear      f32   1.3e-6   6.4e-6  5.8e-6  6.8e-7     7.7e-7       7.5e-6
 *               bf16  1.0e-3   3.0e-2  1.4e-2  2.1e-7     9.7e-6       1.8e-2
 * Forward in bf16 has the same bits but beside a tie, where the order of sums decides: one unit in the last place.
 * Linear blows up its rounding by the norm of a head's result, which may be nearly nothing. */
static inline double tolerance_of(const world *w, int result)
{
    static const double allowed[2][2][RESULTS] = {
        {{1e-6, 2e-6, 2e-6, 2e-6, 2e-6, 1e-5}, {0x1p-7, 2e-2, 1e-2, 1e-6, 5e-5, 3e-2}},
        {{5e-6, 3e-5, 2e-5, 2e-6, 3e-6, 3e-5}, {0x1p-7, 1e-1, 5e-2, 1e-6, 5e-5, 6e-2}},
    };
    return allowed[w->options.kind == HEDDLE_STAGE_LINEAR][w->options.shape.dtype == HEDDLE_BF16][result];
}

static inline int result_of(const char *parameter)
{
    return strcmp(parameter, "proj.bias") == 0     ? OF_PROJ_BIAS
           : strcmp(parameter, "proj.weight") == 0 ? OF_PROJ_WEIGHT
                                                   : OF_OTHERS;
}

static inline heddle_status compare(const world *w, const char *what, const void *part, const void *whole, int result)
{
    double tolerance = tolerance_of(w, result);
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < w->elems; i++) {
        scale = fmax(scale, fabs(value_at(w, whole, i)));
    }
    for (int64_t i = 0; i < heddle_box_elems(&w->box); i++) {
        double off = fabs(value_at(w, part, i) - value_at(w, whole, place(w, i))) / scale;
        worst = off <= worst ? worst : off;
    }
    if (!(worst <= tolerance)) {
        fprintf(stderr, "%s: off by %g of the largest, %g allowed\n", what, worst, tolerance);
        return HEDDLE_ERR_MISMATCH;
    }
    return HEDDLE_OK;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static inline heddle_status expect_bytes(heddle_block *block, int forwards, int backwards)
{
    heddle_block_traffic traffic = HEDDLE_EMPTY(heddle_block_traffic);
    heddle_status st = heddle_block_get_traffic(&traffic, block);
    int64_t planned = forwards * traffic.planned_forward_bytes + backwards * traffic.planned_backward_bytes;
    if (st == HEDDLE_OK && traffic.measured_bytes != planned) {
        fprintf(stderr, "sent %lld bytes, planned %lld\n", (long long)traffic.measured_bytes, (long long)planned);
        st = HEDDLE_ERR_MISMATCH;
    }
    return st;
}

static inline heddle_status forward_case(heddle_comm *comm, void *arg)
{
    world w;
    heddle_status st = open_world(&w, arg, comm);
    if (st == HEDDLE_OK) {
        void *whole = to_storage(&w, w.x, 0), *part = to_storage(&w, w.x, 1);
        for (int twice = 0; twice < 2 && st == HEDDLE_OK; twice++) {
            st = forward_on(w.whole, whole, &w.all, &w.conditioning);
            st = st != HEDDLE_OK ? st : forward_on(w.mine, part, &w.box, &w.conditioning);
            st = st != HEDDLE_OK ? st : compare(&w, "forward", part, whole, FORWARD);
            st = st != HEDDLE_OK ? st : expect_bytes(w.mine, 1 + twice, 0);
        }
        free(whole);
        free(part);
    }
    close_world(&w);
    return st;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Ranks that hold the same part: their gradients are all the same, and the sum counts each. */
static inline int replicas(const world *w)
{
    int count = 1;
    for (int a = 0; a < w->mesh.naxes; a++) {
        count *= w->layout.dim_of_axis[a] == HEDDLE_REPLICATED ? w->mesh.axis[a].size : 1;
    }
    return count;
}

/* A gradient of one parameter, of both blocks. */
typedef struct pair {
    const char *name;
    float *part, *whole;
    int64_t elems;
} pair;

static inline heddle_status sum_and_compare(heddle_comm *comm, const pair *p, int times, double allowed)
{
    double worst = 0;
    float *sum = room(p->elems, sizeof *sum);
    memcpy(sum, p->part, (size_t)p->elems * sizeof *sum);
    heddle_status st = heddle_comm_allreduce_sum(comm, sum, p->elems, HEDDLE_F32);
    for (int64_t i = 0; i < p->elems; i++) {
        double off = fabs((double)sum[i] / times - (double)p->whole[i]);
        worst = off <= worst ? worst : off;
    }
    free(sum);
    if (st == HEDDLE_OK && !(worst <= allowed)) {
        fprintf(stderr, "gradient of %s: off by %g, %g allowed\n", p->name, worst, allowed);
        st = HEDDLE_ERR_MISMATCH;
    }
    return st;
}

static inline double largest(const pair *p)
{
    double value = 0;
    for (int64_t i = 0; i < p->elems; i++) {
        value = fmax(value, fabs((double)p->whole[i]));
    }
    return value;
}

/* With one token q and k have no gradient but rounding: the scale of every parameter is at least this part of the
 * largest gradient of all. */
static const double cancelled = 1e-2;

static inline heddle_status compare_gradients(heddle_comm *comm, world *w, float *vectors)
{
    heddle_status st = HEDDLE_OK;
    int n = heddle_block_nparams(w->mine);
    double most = 1e-9;
    pair p[16] = {[0] = {.name = "vector", .part = vectors, .whole = vectors + w->vector_elems}};
    p[0].elems = w->options.modulate ? w->vector_elems : 0;
    for (int i = 0; i < n && st == HEDDLE_OK; i++) {
        heddle_param part = HEDDLE_EMPTY(heddle_param), whole = HEDDLE_EMPTY(heddle_param);
        st = heddle_block_gradient(&part, w->mine, i);
        st = st != HEDDLE_OK ? st : heddle_block_gradient(&whole, w->whole, i);
        p[1 + i] = (pair){part.name, part.data, whole.data, part.extent[0] * (part.ndim == 2 ? part.extent[1] : 1)};
        most = fmax(most, largest(&p[1 + i]));
    }
    for (int i = 0; i <= n && st == HEDDLE_OK; i++) {
        double scale = fmax(largest(&p[i]), i == 0 ? 1e-9 : cancelled * most);
        int result = i == 0 ? OF_VECTOR : result_of(p[i].name);
        st = sum_and_compare(comm, &p[i], replicas(w), tolerance_of(w, result) * scale);
    }
    return st;
}

/* Two forwards in flight; the older one goes back last, the younger one twice or (recompute) once. */
static inline heddle_status both_ways(heddle_comm *comm, world *w, int recompute)
{
    heddle_tape *tape[4] = {NULL}; /* mine, whole, mine of the second, whole of the second */
    heddle_tape_options options;
    float *gradient = room(w->elems, sizeof *gradient), *vectors = room(2 * w->vector_elems, sizeof *vectors);
    heddle_conditioning_gradient into[2] = {{.vector = vectors}, {.vector = vectors + w->vector_elems}};
    for (int64_t i = 0; i < w->elems; i++) {
        gradient[i] = (float)random_unit(&w->source);
    }
    void *whole = to_storage(w, w->x, 0), *part = to_storage(w, w->x, 1);
    heddle_status st = HEDDLE_OK;
    heddle_tape_options_init(&options);
    options.recompute = recompute;
    for (int i = 0; i < 4 && st == HEDDLE_OK; i++) {
        st = heddle_tape_create(&tape[i], i & 1 ? w->whole : w->mine, &options);
    }
    for (int i = 0; i < 2 && st == HEDDLE_OK; i++) {
        st = forward_tape_on(w->mine, part, &w->box, &w->conditioning, tape[2 * i]);
        st = st != HEDDLE_OK ? st : forward_tape_on(w->whole, whole, &w->all, &w->conditioning, tape[2 * i + 1]);
        st = st != HEDDLE_OK ? st : compare(w, "forward with a tape", part, whole, FORWARD);
    }
    free(whole);
    free(part);
    static const int order[] = {1, 1, 0};
    for (int i = recompute; i < 3 && st == HEDDLE_OK; i++) {
        whole = to_storage(w, gradient, 0);
        part = to_storage(w, gradient, 1);
        st = backward_on(w->mine, part, &w->conditioning, &into[0], tape[2 * order[i]]);
        st = st != HEDDLE_OK ? st : backward_on(w->whole, whole, &w->conditioning, &into[1], tape[2 * order[i] + 1]);
        st = st != HEDDLE_OK ? st : compare(w, "gradient of x", part, whole, OF_X);
        free(whole);
        free(part);
    }
    st = st != HEDDLE_OK ? st : compare_gradients(comm, w, vectors);
    /* one forward more for the older tape, or one for each that recomputes */
    st = st != HEDDLE_OK ? st : expect_bytes(w->mine, recompute ? 4 : 3, recompute ? 2 : 3);
    for (int i = 0; i < 4; i++) {
        heddle_tape_destroy(tape[i]);
    }
    free(gradient);
    free(vectors);
    return st;
}

static inline heddle_status backward_case(heddle_comm *comm, void *arg)
{
    world w;
    heddle_status st = open_world(&w, arg, comm);
    st = st != HEDDLE_OK ? st : both_ways(comm, &w, ((const job *)arg)->flags >> 2 & 1);
    close_world(&w);
    return st;
}

/* --- problems ----------------------------------------------------------------------------------------------------- */

static inline void run(int ranks, const char *transport, heddle_rank_main fn, job j)
{
    heddle_status st = heddle_run_ranks(ranks, transport, fn, &j);
    if (st != HEDDLE_OK) {
        fail_msg("%s on %s: %s by %s, mixed dim %d, flags %d, %s: %s", j.shape, j.mesh, j.layout, j.method, j.mixed_dim,
                 j.flags, transport, heddle_last_error());
    }
}

static const char *const softmax_methods[] = {"ulysses", "ring", "rsa", "gather-kv"};
static const char *const linear_methods[] = {"lasp", "lasp2", "scan"};

#endif
