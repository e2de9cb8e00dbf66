/* A block whose mixed dim is sharded, beside one that holds everything: the part of every rank is that of the whole,
 * and what is sent is what was planned. */
#ifndef HD_TEST_BLOCK_SHARDED_H
#define HD_TEST_BLOCK_SHARDED_H

#include "block_model_linear.h"

#include <heddle/heddle.h>
#include <heddle/train/tape.h>

typedef struct job {
    heddle_stage_kind kind;
    const char *shape, *mesh, *layout, *method;
    int mixed_dim, heads, flags; /* 1 rope, 2 qk_norm or causal, 4 no modulation; decay by flags % 3 */
    const linear_judge *judge;   /* LINEAR: of both inputs; filled in by run */
} job;

/* --- one block, and everything about it, the same on every rank --------------------------------------------------- */

typedef struct world {
    heddle_block_options options;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_block *whole, *mine;
    heddle_conditioning conditioning;
    float *x[2], *dy, *vector; /* everything; x of two forwards */
    int64_t elems, vector_elems;
    heddle_box all, box;
    const linear_judge *judge;
} world;

/* All but what is of one rank. */
static inline heddle_status open_whole(world *w, const job *j)
{
    memset(w, 0, sizeof *w);
    random_source source = {11};
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
    if (st != HEDDLE_OK) {
        return st;
    }
    w->judge = j->judge;
    w->all = whole_box(&w->options.shape);
    int last = w->options.shape.ndim - 1;
    w->elems = heddle_box_elems(&w->all);
    w->vector_elems = w->all.len[0] * 6 * w->all.len[last];
    float **array[] = {&w->x[0], &w->x[1], &w->dy, &w->vector};
    for (int a = 0; a < 4; a++) {
        int64_t elems = a == 3 ? w->vector_elems : w->elems;
        *array[a] = must_alloc(elems, sizeof(float));
        for (int64_t i = 0; i < elems; i++) {
            (*array[a])[i] = (a < 2 ? 2 : 1) * (float)random_unit(&source);
        }
        rounded(*array[a], a == 3 ? 0 : elems, HEDDLE_BF16);
    }
    w->conditioning.vector = w->vector;
    return HEDDLE_OK;
}

static inline heddle_status open_world(world *w, const job *j, heddle_comm *comm)
{
    heddle_status st = open_whole(w, j);
    st = st != HEDDLE_OK ? st : heddle_block_create(&w->mine, &w->options);
    st = st != HEDDLE_OK ? st : heddle_block_seed(w->mine, 5);
    st = st != HEDDLE_OK ? st
                         : heddle_layout_box(&w->box, &w->options.shape, &w->mesh, &w->layout, heddle_comm_rank(comm));
    return st != HEDDLE_OK ? st : heddle_block_shard_attention(w->mine, comm, &w->mesh, &w->layout, j->method);
}

static inline void close_world(world *w)
{
    heddle_block_destroy(w->mine);
    heddle_block_destroy(w->whole);
    free(w->x[0]);
    free(w->x[1]);
    free(w->dy);
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
    void *out = must_alloc(elems, sizeof(float));
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

/* --- tolerances --------------------------------------------------------------------------------------------------- */

enum { FORWARD, OF_X, OF_VECTOR, OF_PROJ_BIAS, OF_PROJ_WEIGHT, OF_OTHERS, RESULTS };

/* Of softmax attention, relative to the largest of the array. A method adds up in another order, so f32 results differ
 * by some roundings of f32; bf16 ones where a value lies beside a tie, which that order decides: by one unit in the
 * last place, 2^-7, of what a product reads (the results of attention: proj.weight) or is written (forward).
 * The gradients
 * behind attention are rounded on their way through a method: two roundings more than one rank has, each up to 2^-8 of
 * its value, in terms that partly cancel. Worst of 4000 random problems on CPUs with and without products of bf16:
 *          forward  x       vector  proj.bias  proj.weight  others
 *   f32    2.5e-7   4.6e-7  4.2e-7  6.8e-7     5.5e-7       2.9e-6
 *   bf16   4.2e-3   1.0e-2  6.4e-3  2.5e-7     5.0e-4       1.1e-2
 * `others` of f32 are six roundings of the largest gradient of all where their own scale is `cancelled` of it.
 * LINEAR has limits of its own for every element (block_model_linear.h). */
static inline double tolerance_of(const world *w, int result)
{
    static const double allowed[2][RESULTS] = {{1e-6, 2e-6, 2e-6, 2e-6, 2e-6, 4e-5},
                                               {0x1p-7, 0x1p-5, 0x1p-6, 1e-6, 0x1p-7, 0x1p-5}};
    return allowed[w->options.shape.dtype == HEDDLE_BF16][result];
}

/* Elements of an array of the judge's for the input `which`; NULL: not LINEAR. */
static inline const double *limits_of(const world *w, int which, int array)
{
    return w->judge != NULL ? w->judge[which].limit[array] : NULL;
}

static inline int result_of(const char *parameter)
{
    return strcmp(parameter, "proj.bias") == 0     ? OF_PROJ_BIAS
           : strcmp(parameter, "proj.weight") == 0 ? OF_PROJ_WEIGHT
                                                   : OF_OTHERS;
}

/* limits: of the elements of the whole; NULL: softmax attention */
static inline heddle_status compare(const world *w, const char *what, const void *part, const void *whole, int result,
                                    const double *limits)
{
    heddle_dtype dtype = w->options.shape.dtype;
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < w->elems; i++) {
        scale = fmax(scale, fabs(value_at(whole, dtype, i)));
    }
    for (int64_t i = 0; i < heddle_box_elems(&w->box); i++) {
        int64_t at = place(w, i);
        double off = fabs(value_at(part, dtype, i) - value_at(whole, dtype, at));
        off /= limits != NULL ? limits[at] : tolerance_of(w, result) * scale;
        worst = off <= worst ? worst : off;
    }
    if (!(worst <= 1)) {
        fprintf(stderr, "%s: off by %g times what is allowed\n", what, worst);
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
        for (int twice = 0; twice < 2 && st == HEDDLE_OK; twice++) {
            void *whole = to_storage(&w, w.x[twice], 0), *part = to_storage(&w, w.x[twice], 1);
            st = forward_on(w.whole, whole, &w.all, &w.conditioning);
            st = st != HEDDLE_OK ? st : forward_on(w.mine, part, &w.box, &w.conditioning);
            st = st != HEDDLE_OK ? st : compare(&w, "forward", part, whole, FORWARD, limits_of(&w, twice, 0));
            st = st != HEDDLE_OK ? st : expect_bytes(w.mine, 1 + twice, 0);
            free(whole);
            free(part);
        }
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

/* allowed: of all elements, or of each, where limits are; the array went `often` times into the gradient, for inputs
 * 0 and 1. */
static inline heddle_status sum_and_compare(heddle_comm *comm, const pair *p, int times, double allowed,
                                            const double *const limits[2], const int often[2])
{
    double worst = 0;
    float *sum = must_alloc(p->elems, sizeof *sum);
    memcpy(sum, p->part, (size_t)p->elems * sizeof *sum);
    heddle_status st = heddle_comm_allreduce_sum(comm, sum, p->elems, HEDDLE_F32);
    for (int64_t i = 0; i < p->elems; i++) {
        double off = fabs((double)sum[i] / times - (double)p->whole[i]);
        off /= limits[0] != NULL ? often[0] * limits[0][i] + often[1] * limits[1][i] : allowed;
        worst = off <= worst ? worst : off;
    }
    free(sum);
    if (st == HEDDLE_OK && !(worst <= 1)) {
        fprintf(stderr, "gradient of %s: off by %g times what is allowed\n", p->name, worst);
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

static inline heddle_status compare_gradients(heddle_comm *comm, world *w, float *vectors, const int often[2])
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
        int array = i == 0 ? n + 2 : i; /* the judge's */
        const double *const limits[] = {limits_of(w, 0, array), limits_of(w, 1, array)};
        st = sum_and_compare(comm, &p[i], replicas(w), tolerance_of(w, result) * scale, limits, often);
    }
    return st;
}

/* Two forwards in flight; the older one goes back last, the younger one twice or (recompute) once. */
static inline heddle_status both_ways(heddle_comm *comm, world *w, int recompute)
{
    heddle_tape *tape[4] = {NULL}; /* mine, whole, mine of the second, whole of the second */
    heddle_tape_options options;
    float *vectors = must_alloc(2 * w->vector_elems, sizeof *vectors);
    heddle_conditioning_gradient into[2] = {{.vector = vectors}, {.vector = vectors + w->vector_elems}};
    void *whole, *part;
    heddle_status st = HEDDLE_OK;
    heddle_tape_options_init(&options);
    options.recompute = recompute;
    for (int i = 0; i < 4 && st == HEDDLE_OK; i++) {
        st = heddle_tape_create(&tape[i], i & 1 ? w->whole : w->mine, &options);
    }
    for (int i = 0; i < 2 && st == HEDDLE_OK; i++) {
        whole = to_storage(w, w->x[i], 0);
        part = to_storage(w, w->x[i], 1);
        st = forward_tape_on(w->mine, part, &w->box, &w->conditioning, tape[2 * i]);
        st = st != HEDDLE_OK ? st : forward_tape_on(w->whole, whole, &w->all, &w->conditioning, tape[2 * i + 1]);
        st = st != HEDDLE_OK ? st : compare(w, "forward with a tape", part, whole, FORWARD, limits_of(w, i, 0));
        free(whole);
        free(part);
    }
    static const int order[] = {1, 1, 0};
    for (int i = recompute; i < 3 && st == HEDDLE_OK; i++) {
        whole = to_storage(w, w->dy, 0);
        part = to_storage(w, w->dy, 1);
        st = backward_on(w->mine, part, &w->conditioning, &into[0], tape[2 * order[i]]);
        st = st != HEDDLE_OK ? st : backward_on(w->whole, whole, &w->conditioning, &into[1], tape[2 * order[i] + 1]);
        st = st != HEDDLE_OK ? st
                             : compare(w, "gradient of x", part, whole, OF_X,
                                       limits_of(w, order[i], heddle_block_nparams(w->mine) + 1));
        free(whole);
        free(part);
    }
    st = st != HEDDLE_OK ? st : compare_gradients(comm, w, vectors, (const int[]){1, recompute ? 1 : 2});
    /* one forward more for the older tape, or one for each that recomputes */
    st = st != HEDDLE_OK ? st : expect_bytes(w->mine, recompute ? 4 : 3, recompute ? 2 : 3);
    for (int i = 0; i < 4; i++) {
        heddle_tape_destroy(tape[i]);
    }
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

static inline void open_judges(linear_judge *judges, const job *j, int backward)
{
    world w;
    HD_OK(open_whole(&w, j));
    double *dy = must_alloc(w.elems, sizeof *dy);
    for (int64_t i = 0; i < w.elems; i++) {
        dy[i] = (double)w.dy[i];
    }
    for (int i = 0; i < 2; i++) {
        const problem p = {w.options, w.whole, w.conditioning, w.elems, w.all.len[w.all.ndim - 1], w.x[i]};
        judges[i] = judge_open(&p, backward ? dy : NULL);
    }
    free(dy);
    close_world(&w);
}

static inline void run(int ranks, const char *transport, heddle_rank_main fn, job j)
{
    linear_judge judges[2] = {{.arrays = 0}};
    if (j.kind == HEDDLE_STAGE_LINEAR) {
        open_judges(judges, &j, fn == backward_case);
        j.judge = judges;
    }
    heddle_status st = heddle_run_ranks(ranks, transport, fn, &j);
    judge_close(&judges[0]);
    judge_close(&judges[1]);
    if (st != HEDDLE_OK) {
        fail_msg("%s on %s: %s by %s, mixed dim %d, flags %d, %s: %s", j.shape, j.mesh, j.layout, j.method, j.mixed_dim,
                 j.flags, transport, heddle_last_error());
    }
}

static const char *const softmax_methods[] = {"ulysses", "ring", "rsa", "gather-kv"};
static const char *const linear_methods[] = {"lasp", "lasp2", "scan"};

#endif
