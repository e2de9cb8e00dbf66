#include "runtime/verify/attention_check.h"
#include "runtime/verify/device_array.h"

#include <heddle/heddle.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 2 };

/* What rounding terms to bf16, or f16, once adds, in roundings of f32. */
#define BF16_ROUNDING 0x1p16
#define F16_ROUNDING 0x1p13

/* Inputs, then results in the order in which they are judged. */
enum { ARRAY_Q, ARRAY_K, ARRAY_V, ARRAY_DO, ARRAY_E, ARRAY_F, RESULTS, ARRAYS = RESULTS + ATTENTION_BY_VALUES };

static const char *const array_name[ARRAYS] = {"q", "k", "v", "do", "e", "f", "o", "lse", "dq", "dk", "dv", "de", "df"};

typedef struct run {
    const attention_case *c;
    heddle_comm *comm;
    attention_extents n;
    attention_arrays reference, size;
    heddle_attention_rows rows;
    heddle_box box, kv_box;
    int counts; /* 1: of all replicas of this part, this one counts in sums over ranks */
    judge_array array[ARRAYS];
    judge_there there;
    attention_errors *errors;
    char *problem;
} run;

static double *whole(const attention_arrays *x, int which)
{
    double *const all[ARRAYS] = {x->q, x->k, x->v, x->d_o, x->e, x->f, x->o, x->lse, x->dq, x->dk, x->dv, x->de, x->df};
    return all[which];
}

/* Whether the problem has this array. */
static int is_there(const run *r, int which)
{
    int projection = which == ARRAY_E || which == ARRAY_F || which >= RESULTS + ATTENTION_DE;
    return projection ? r->n.projected > 0 : which != RESULTS + ATTENTION_LSE || r->c->options.log_sum_exp;
}

static void complain(run *r, const judge_error *error)
{
    judge_complain(r->problem, ATTENTION_PROBLEM_BYTES, error, heddle_comm_rank(r->comm));
}

/* --- tolerances --------------------------------------------------------------------------------------------------- */

/* Roundings allowed, about three times the worst of some 3,000 draws on 1 to 6 ranks:
 *       o    lse   dq   dk    dv   de     df    identities
 * f64   5.3  21    2.4  3.4   18   0.45   1.4   0.39  0.11
 * f32   3.3  11    2.7  3.2  6.7   0.51   0.91  0.17  0.22
 * bf16 is f32 inside, which shows only beside a tie: of o 0.8, of dv 0.7 roundings, of dq 0.4, of dk 0.1. */
static const double allowed[2][ATTENTION_JUDGED] = {
    {16, 60, 8, 10, 50, 3, 6, 1.2, 0.6},
    {12, 40, 8, 10, 20, 1.5, 4, 0.8, 0.8},
};

/* Whether queries of a key head are on several ranks of a Ulysses group: what each of them has summed of dk and dv goes
 * to the owner in the storage's dtype. */
static int splits_key_heads(const run *r)
{
    const heddle_attention_options *o = &r->c->options;
    int64_t ranks = 1;
    for (int a = 0; a < r->c->mesh.naxes; a++) {
        if (r->c->layout.dim_of_axis[a] == 1) { /* of usp the second axis alone */
            ranks = o->method == HEDDLE_ATTENTION_USP ? 1 : ranks;
            ranks *= r->c->mesh.axis[a].size;
        }
    }
    int has_group = o->method == HEDDLE_ATTENTION_ULYSSES || o->method == HEDDLE_ATTENTION_USP;
    return has_group && r->kv_box.len[2] < r->box.len[2] && r->kv_box.len[2] % ranks != 0;
}

/* On a device sums are f32 in another order, and weights and gradients of scores are rounded to the type before they
 * are multiplied. */
static double allowed_there(const run *r)
{
    const heddle_dtype dtype = r->c->shape.dtype;
    if (r->c->options.space != HEDDLE_SPACE_DEVICE) {
        return 0;
    }
    return dtype == HEDDLE_BF16 ? 4 * BF16_ROUNDING : dtype == HEDDLE_F16 ? 4 * F16_ROUNDING : 16;
}

static void clear_errors(run *r)
{
    const heddle_dtype dtype = r->c->shape.dtype;
    const double *row = allowed[dtype == HEDDLE_F64 ? 0 : 1];
    memset(r->errors, 0, sizeof *r->errors);
    for (int i = 0; i < ATTENTION_JUDGED; i++) {
        judge_error *error = &r->errors->of[i];
        int summed = i == ATTENTION_DK || i == ATTENTION_DV;
        error->name = i < ATTENTION_BY_VALUES    ? array_name[RESULTS + i]
                      : i == ATTENTION_BY_VALUES ? "<dv v> = <do o>"
                                                 : "<dk k> = <dq q>";
        error->allowed = row[i] + (summed && dtype == HEDDLE_BF16 && splits_key_heads(r) ? BF16_ROUNDING : 0);
        error->allowed += i < ATTENTION_BY_VALUES ? allowed_there(r) : 0;
    }
}

/* --- local arrays ------------------------------------------------------------------------------------------------- */

static judge_part part_of(const run *r, int which)
{
    int kv = which == ARRAY_K || which == ARRAY_V || which == RESULTS + ATTENTION_DK || which == RESULTS + ATTENTION_DV;
    const heddle_box *box = kv ? &r->kv_box : &r->box;
    int64_t heads = kv ? r->n.kv_heads : r->n.heads, s = r->n.sequence, d = r->n.width;
    judge_part part = {box->lo[0], box->len[0], box->lo[2], box->len[2], d, r->rows, {s * heads * d, heads * d, d}};
    if (which == RESULTS + ATTENTION_LSE) { /* [batch, heads, rows] */
        part = (judge_part){box->lo[0], box->len[0], box->lo[2], box->len[2], 1, r->rows, {heads * s, 1, s}};
    } else if (which == ARRAY_E || which == ARRAY_F || which >= RESULTS + ATTENTION_DE) { /* [projected, rows] */
        part = (judge_part){0, r->n.projected, 0, 1, 1, r->rows, {s, 1, 1}};
    }
    return part;
}

static heddle_status make_arrays(run *r)
{
    heddle_status st = HEDDLE_OK;
    heddle_dtype dtype = r->c->shape.dtype, real = dtype == HEDDLE_F64 ? HEDDLE_F64 : HEDDLE_F32;
    for (int i = 0; i < ARRAYS && st == HEDDLE_OK; i++) {
        judge_part part = part_of(r, i);
        int lse = i == RESULTS + ATTENTION_LSE, dense = i == ARRAY_E || i == ARRAY_F || i >= RESULTS + ATTENTION_DE;
        st = judge_array_make(&r->array[i], array_name[i], lse ? real : dtype, &part,
                              lse     ? JUDGE_BY_HEAD
                              : dense ? JUDGE_DENSE
                                      : r->c->storage);
    }
    return st;
}

static heddle_status make_run(run *r)
{
    heddle_shape kv_shape = r->c->shape;
    int rank = heddle_comm_rank(r->comm), coords[HEDDLE_MAX_AXES];
    heddle_status st =
        heddle_attention_local_rows(&r->rows, &r->c->shape, &r->c->mesh, &r->c->layout, r->c->options.placement, rank);
    st = st != HEDDLE_OK ? st : heddle_layout_box(&r->box, &r->c->shape, &r->c->mesh, &r->c->layout, rank);
    kv_shape.dim[2].extent = r->n.kv_heads;
    st = st != HEDDLE_OK ? st : heddle_layout_box(&r->kv_box, &kv_shape, &r->c->mesh, &r->c->layout, rank);
    st = st != HEDDLE_OK ? st : heddle_mesh_coords(coords, &r->c->mesh, rank);
    r->counts = st == HEDDLE_OK && judge_counts_once(&r->c->mesh, &r->c->layout, coords);
    st = st != HEDDLE_OK ? st : attention_alloc(&r->reference, &r->n);
    st = st != HEDDLE_OK ? st : attention_alloc(&r->size, &r->n);
    return st != HEDDLE_OK ? st : make_arrays(r);
}

static void free_run(run *r)
{
    for (int i = 0; i < ARRAYS; i++) {
        judge_array_free(&r->array[i]);
    }
    judge_there_free(&r->there, r->comm);
    attention_free(&r->reference);
    attention_free(&r->size);
}

/* Leaves in the first [projected][sequence] of x the sum over the samples and key heads of this rank, which is what its
 * gradient of a projection has to be. */
static heddle_status sum_own_heads(const run *r, double *x)
{
    int64_t elems = r->n.projected * r->n.sequence;
    double *sum = calloc((size_t)elems + 1, sizeof *sum);
    if (sum == NULL) {
        return judge_no_memory("a gradient of a projection", 8 * (double)elems);
    }
    for (int64_t i = 0; i < r->box.len[0] * r->kv_box.len[2]; i++) {
        int64_t b = r->box.lo[0] + i / r->kv_box.len[2], head = r->kv_box.lo[2] + i % r->kv_box.len[2];
        for (int64_t e = 0; e < elems; e++) {
            sum[e] += x[(b * r->n.kv_heads + head) * elems + e];
        }
    }
    memcpy(x, sum, (size_t)elems * sizeof *sum);
    free(sum);
    return HEDDLE_OK;
}

static heddle_status make_reference(run *r)
{
    attention_fill(&r->reference, &r->n, r->c);
    heddle_status st = attention_reference(&r->reference, &r->size, &r->n);
    double *const projection[] = {r->reference.de, r->reference.df, r->size.de, r->size.df};
    for (int i = 0; i < 4 && st == HEDDLE_OK && r->n.projected > 0; i++) {
        st = sum_own_heads(r, projection[i]);
    }
    for (int i = 0; i < RESULTS && st == HEDDLE_OK; i++) {
        judge_array_put(&r->array[i], whole(&r->reference, i));
    }
    return st;
}

/* --- judging ------------------------------------------------------------------------------------------------------ */

static void judge_results(run *r, int check_gaps)
{
    for (int i = RESULTS; i < ARRAYS; i++) {
        judge_error *error = &r->errors->of[i - RESULTS];
        if (!is_there(r, i)) {
            continue;
        }
        judge_array_compare(error, &r->array[i], whole(&r->reference, i), whole(&r->size, i));
        complain(r, error);
        if (check_gaps && !judge_array_gaps_kept(&r->array[i]) && r->problem[0] == 0) {
            snprintf(r->problem, ATTENTION_PROBLEM_BYTES, "rank %d: memory beside the elements of %s was written",
                     heddle_comm_rank(r->comm), array_name[i]);
        }
    }
}

static void judge_inputs(run *r)
{
    for (int i = 0; i < RESULTS; i++) {
        judge_error error = {.name = array_name[i]};
        if (is_there(r, i)) {
            judge_array_compare(&error, &r->array[i], whole(&r->reference, i), whole(&r->reference, i));
            complain(r, &error);
        }
    }
}

/* o is linear in v, so <do, o> = <dv, v>; scores are linear in q and in k, so <dq, q> = <dk, k>. */
static heddle_status judge_identities(run *r)
{
    const int pair[4][2] = {{ARRAY_DO, RESULTS + ATTENTION_O},
                            {ARRAY_V, RESULTS + ATTENTION_DV},
                            {ARRAY_Q, RESULTS + ATTENTION_DQ},
                            {ARRAY_K, RESULTS + ATTENTION_DK}};
    double sums[9] = {[8] = r->problem[0] != 0};
    for (int i = 0; i < 4 && r->counts; i++) {
        judge_array_product(&sums[i], &sums[4 + i], &r->array[pair[i][0]], &r->array[pair[i][1]],
                            whole(&r->size, pair[i][1]));
    }
    heddle_status st = heddle_comm_allreduce_sum(r->comm, sums, 9, HEDDLE_F64);
    for (int i = 0; i < 2 && st == HEDDLE_OK && r->c->nan_at == 0; i++) {
        judge_error *error = &r->errors->of[ATTENTION_BY_VALUES + i];
        judge_identity(error, r->c->shape.dtype, sums[2 * i + 1], sums[2 * i], sums[4 + 2 * i] + sums[5 + 2 * i]);
        if (sums[8] == 0) { /* else a rank can name an element, which says more */
            complain(r, error);
        }
    }
    return st;
}

static heddle_status judge_traffic(run *r, const heddle_attention *attention)
{
    heddle_attention_info info = HEDDLE_EMPTY(heddle_attention_info);
    heddle_attention_traffic planned = {0};
    int rank = heddle_comm_rank(r->comm);
    heddle_attention_options options = r->c->options;
    options.key_lengths = r->n.key_lengths;
    heddle_status st = heddle_attention_get_info(&info, attention);
    st = st != HEDDLE_OK
             ? st
             : heddle_attention_plan_traffic(&planned, &r->c->shape, &r->c->mesh, &r->c->layout, &options, rank);
    r->errors->planned = planned;
    if (st == HEDDLE_OK && r->problem[0] == 0) {
        judge_counts(r->problem, ATTENTION_PROBLEM_BYTES, rank, CALLS, &info.measured, &info.planned, &planned);
    }
    return st;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static heddle_status call(run *r, heddle_attention *attention)
{
    const heddle_attention_array q = judge_there_array(&r->there, ARRAY_Q), k = judge_there_array(&r->there, ARRAY_K),
                                 v = judge_there_array(&r->there, ARRAY_V),
                                 d_o = judge_there_array(&r->there, ARRAY_DO),
                                 o = judge_there_array(&r->there, RESULTS + ATTENTION_O),
                                 lse = judge_there_array(&r->there, RESULTS + ATTENTION_LSE),
                                 dq = judge_there_array(&r->there, RESULTS + ATTENTION_DQ),
                                 dk = judge_there_array(&r->there, RESULTS + ATTENTION_DK),
                                 dv = judge_there_array(&r->there, RESULTS + ATTENTION_DV);
    for (int i = RESULTS; i < ARRAYS; i++) {
        judge_array_poison(&r->array[i]);
    }
    heddle_status st = judge_there_bring(&r->there);
    st = st != HEDDLE_OK ? st
                         : heddle_attention_forward(attention, &q, &k, &v, &o,
                                                    r->c->options.log_sum_exp ? lse.data : NULL, r->there.stream);
    st = st != HEDDLE_OK ? st : heddle_attention_backward(attention, &d_o, &dq, &dk, &dv, r->there.stream);
    return st != HEDDLE_OK ? st : judge_there_fetch(&r->there, RESULTS);
}

static heddle_status execute(run *r)
{
    heddle_attention *attention = NULL;
    heddle_attention_options options = r->c->options;
    options.key_lengths = r->n.key_lengths;
    options.device = options.space == HEDDLE_SPACE_DEVICE ? heddle_comm_device(r->comm) : 0;
    heddle_status st = judge_there_make(&r->there, r->comm, r->array, ARRAYS, options.space == HEDDLE_SPACE_DEVICE);
    st = st != HEDDLE_OK
             ? st
             : heddle_attention_create(&attention, r->comm, &r->c->shape, &r->c->mesh, &r->c->layout, &options);
    if (st == HEDDLE_OK && r->n.projected > 0) {
        st = heddle_attention_set_projection(attention, r->array[ARRAY_E].array.data, r->array[ARRAY_F].array.data,
                                             r->array[RESULTS + ATTENTION_DE].array.data,
                                             r->array[RESULTS + ATTENTION_DF].array.data);
    }
    for (int i = 0; i < CALLS && st == HEDDLE_OK; i++) {
        st = call(r, attention);
        if (st == HEDDLE_OK) {
            judge_results(r, i + 1 < CALLS);
        }
    }
    if (st == HEDDLE_OK) {
        judge_inputs(r);
        st = judge_traffic(r, attention);
    }
    st = st != HEDDLE_OK ? st : judge_identities(r);
    heddle_attention_destroy(attention);
    return st;
}

/* Every rank gets the whole arrays. */
static heddle_status gather(const run *r, attention_arrays *out)
{
    const int64_t q = r->n.batch * r->n.sequence * r->n.heads * r->n.width, m = r->n.projected * r->n.sequence;
    const int64_t k = r->n.batch * r->n.sequence * r->n.kv_heads * r->n.width;
    const int64_t elems[ARRAYS] = {q, k, k, q, m, m, q, r->n.batch * r->n.heads * r->n.sequence, q, k, k, m, m};
    heddle_status st = attention_alloc(out, &r->n);
    for (int i = 0; i < ARRAYS && st == HEDDLE_OK; i++) {
        if (i < RESULTS) {
            memcpy(whole(out, i), whole(&r->reference, i), (size_t)elems[i] * sizeof(double));
        } else if (is_there(r, i) && elems[i] > 0) {
            if (r->counts) {
                judge_array_get(&r->array[i], whole(out, i));
            }
            st = heddle_comm_allreduce_sum(r->comm, whole(out, i), elems[i], HEDDLE_F64);
        }
    }
    return st;
}

heddle_status attention_check(heddle_comm *comm, const attention_case *c, char *problem, attention_errors *errors,
                              attention_arrays *global)
{
    attention_errors unused;
    run r = {.c = c, .comm = comm, .n = attention_extents_of(c), .problem = problem};
    r.errors = errors != NULL ? errors : &unused;
    problem[0] = 0;
    heddle_status st = make_run(&r);
    clear_errors(&r);
    st = st != HEDDLE_OK ? st : make_reference(&r);
    st = st != HEDDLE_OK ? st : execute(&r);
    st = st != HEDDLE_OK ? st : judge_share(r.errors->of, ATTENTION_JUDGED, comm);
    st = st != HEDDLE_OK || global == NULL ? st : gather(&r, global);
    free_run(&r);
    return st;
}

heddle_status attention_check_memory(const attention_case *c)
{
    const attention_extents n = attention_extents_of(c);
    char problem[256];
    snprintf(problem, sizeof problem, "the reference of %lld rows, %lld heads of %lld, projected length %lld",
             (long long)(n.batch * n.sequence), (long long)n.heads, (long long)n.width, (long long)n.projected);
    const int ranks = heddle_mesh_size(&c->mesh);
    return judge_check_memory(problem, ranks * 2 * attention_bytes(&n), ranks);
}
