#include "attention_check.h"

#include <heddle/heddle.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 2 };

/* --- local arrays ------------------------------------------------------------------------------------------------- */

typedef struct local {
    heddle_attention_array array;
    char *memory;
    int64_t heads, head_lo, global_heads;
} local;

enum { LOCAL_Q, LOCAL_K, LOCAL_V, LOCAL_O, LOCAL_DO, LOCAL_DQ, LOCAL_DK, LOCAL_DV, LOCALS };

typedef struct run {
    const attention_case *c;
    heddle_comm *comm;
    attention_extents n;
    attention_arrays reference, part; /* part: what this rank holds, elsewhere zero */
    heddle_attention_rows rows;
    heddle_box box;
    int64_t kv_heads, kv_lo;
    int counts; /* 1: of all replicas of this part, this one counts */
    local local[LOCALS];
    char *lse, *e, *f, *de, *df;
    heddle_dtype real;
    char *problem;
} run;

static heddle_status make_local(local *l, const run *r, int is_kv)
{
    int64_t width = r->n.width, batch = r->box.len[0], rows = r->rows.rows, *s = l->array.stride_elems;
    l->heads = is_kv ? r->kv_heads : r->box.len[2];
    l->head_lo = is_kv ? r->kv_lo : r->box.lo[2];
    l->global_heads = is_kv ? r->n.kv_heads : r->n.heads;
    int64_t step = r->c->storage == 3 ? 2 : 1, pad = r->c->storage == 2 ? 3 : 0, row = width * step + pad;
    if (r->c->storage == 1) {
        s[0] = l->heads * rows * row;
        s[1] = row;
        s[2] = rows * row;
    } else if (r->c->storage > 1) {
        s[2] = row;
        s[1] = l->heads * row + pad;
        s[0] = rows * s[1];
    }
    s[3] = r->c->storage == 0 ? 0 : step;
    size_t bytes = (size_t)(batch * (rows * (l->heads * row + pad) + pad) + 1) * heddle_dtype_bytes(r->c->shape.dtype);
    l->memory = calloc(bytes, 1);
    l->array.data = l->memory;
    return l->memory != NULL ? HEDDLE_OK : HEDDLE_ERR_NOMEM;
}

static char *element(const local *l, const run *r, int64_t b, int64_t s, int64_t h, int64_t d)
{
    int64_t stride[4];
    memcpy(stride, l->array.stride_elems, sizeof stride);
    if (r->c->storage == 0) {
        stride[3] = 1;
        stride[2] = r->n.width;
        stride[1] = l->heads * r->n.width;
        stride[0] = r->rows.rows * stride[1];
    }
    return l->memory + (b * stride[0] + s * stride[1] + h * stride[2] + d * stride[3]) *
                           (int64_t)heddle_dtype_bytes(r->c->shape.dtype);
}

static int64_t position(const heddle_attention_rows *rows, int64_t s)
{
    return s < rows->len[0] ? rows->lo[0] + s : rows->lo[1] + s - rows->len[0];
}

/* Copies a local array from (1) or to (0) the global one. */
static void move_local(const run *r, const local *l, double *global, int to_local)
{
    for (int64_t b = 0; b < r->box.len[0]; b++) {
        for (int64_t s = 0; s < r->rows.rows; s++) {
            int64_t row = (b + r->box.lo[0]) * r->n.sequence + position(&r->rows, s);
            for (int64_t h = 0; h < l->heads; h++) {
                double *at = global + (row * l->global_heads + h + l->head_lo) * r->n.width;
                for (int64_t d = 0; d < r->n.width; d++) {
                    char *here = element(l, r, b, s, h, d);
                    if (to_local) {
                        attention_store(here, r->c->shape.dtype, at[d]);
                    } else {
                        at[d] = attention_load(here, r->c->shape.dtype);
                    }
                }
            }
        }
    }
}

static void move_projection(const run *r, char *own, double *global, int to_local)
{
    size_t bytes = heddle_dtype_bytes(r->c->shape.dtype);
    for (int64_t m = 0; m < r->n.projected; m++) {
        for (int64_t s = 0; s < r->rows.rows; s++) {
            char *here = own + (size_t)(m * r->rows.rows + s) * bytes;
            double *at = global + m * r->n.sequence + position(&r->rows, s);
            if (to_local) {
                attention_store(here, r->c->shape.dtype, *at);
            } else {
                *at = attention_load(here, r->c->shape.dtype);
            }
        }
    }
}

static heddle_status make_run(run *r)
{
    heddle_shape kv_shape = r->c->shape;
    heddle_box kv_box;
    int rank = heddle_comm_rank(r->comm), coords[HEDDLE_MAX_AXES];
    const heddle_attention_options *o = &r->c->options;
    heddle_status st =
        heddle_attention_local_rows(&r->rows, &r->c->shape, &r->c->mesh, &r->c->layout, o->placement, rank);
    st = st != HEDDLE_OK ? st : heddle_layout_box(&r->box, &r->c->shape, &r->c->mesh, &r->c->layout, rank);
    kv_shape.dim[2].extent = r->n.kv_heads;
    st = st != HEDDLE_OK ? st : heddle_layout_box(&kv_box, &kv_shape, &r->c->mesh, &r->c->layout, rank);
    st = st != HEDDLE_OK ? st : heddle_mesh_coords(coords, &r->c->mesh, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    r->kv_heads = kv_box.len[2];
    r->kv_lo = kv_box.lo[2];
    r->counts = 1;
    for (int a = 0; a < r->c->mesh.naxes; a++) {
        r->counts &= r->c->layout.dim_of_axis[a] != HEDDLE_REPLICATED || coords[a] == 0;
    }
    for (int i = 0; i < LOCALS && st == HEDDLE_OK; i++) {
        st = make_local(&r->local[i], r, i == LOCAL_K || i == LOCAL_V || i == LOCAL_DK || i == LOCAL_DV);
    }
    size_t elems = (size_t)(r->rows.rows * r->n.projected) + 1;
    r->real = r->c->shape.dtype == HEDDLE_F64 ? HEDDLE_F64 : HEDDLE_F32;
    r->lse = calloc((size_t)(r->box.len[0] * r->box.len[2] * r->rows.rows) + 1, 8);
    char **projection[] = {&r->e, &r->f, &r->de, &r->df};
    for (int i = 0; i < 4; i++) {
        *projection[i] = calloc(elems, 8);
        st = *projection[i] == NULL ? HEDDLE_ERR_NOMEM : st;
    }
    return r->lse == NULL ? HEDDLE_ERR_NOMEM : st;
}

static void free_run(run *r)
{
    for (int i = 0; i < LOCALS; i++) {
        free(r->local[i].memory);
    }
    free(r->lse);
    free(r->e);
    free(r->f);
    free(r->de);
    free(r->df);
    attention_free(&r->reference);
    attention_free(&r->part);
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static void check_traffic(run *r, const heddle_attention *attention, attention_errors *errors)
{
    heddle_attention_info info = {.struct_bytes = sizeof info};
    heddle_attention_traffic planned = {0};
    int rank = heddle_comm_rank(r->comm);
    heddle_attention_options options = r->c->options;
    options.key_lengths = r->n.key_lengths;
    heddle_status st = heddle_attention_get_info(&info, attention);
    st = st != HEDDLE_OK
             ? st
             : heddle_attention_plan_traffic(&planned, &r->c->shape, &r->c->mesh, &r->c->layout, &options, rank);
    errors->planned = planned;
    const int64_t want[] = {planned.forward_bytes, planned.forward_messages, planned.backward_bytes,
                            planned.backward_messages};
    const int64_t told[] = {info.planned.forward_bytes, info.planned.forward_messages, info.planned.backward_bytes,
                            info.planned.backward_messages};
    const int64_t got[] = {info.measured.forward_bytes, info.measured.forward_messages, info.measured.backward_bytes,
                           info.measured.backward_messages};
    static const char *const what[] = {"bytes forward", "messages forward", "bytes backward", "messages backward"};
    for (int i = 0; i < 4 && r->problem[0] == 0; i++) {
        if (st != HEDDLE_OK || want[i] * CALLS != got[i] || want[i] != told[i]) {
            snprintf(r->problem, ATTENTION_PROBLEM_BYTES,
                     "rank %d sent %lld %s in %d calls, planned were %lld each (the object says %lld)", rank,
                     (long long)got[i], what[i], CALLS, (long long)want[i], (long long)told[i]);
        }
    }
}

static heddle_status call(run *r, heddle_attention *attention)
{
    heddle_status st = HEDDLE_OK;
    local *l = r->local;
    if (r->n.projected > 0) {
        st = heddle_attention_set_projection(attention, r->e, r->f, r->de, r->df);
    }
    for (int i = 0; i < CALLS && st == HEDDLE_OK; i++) {
        st = heddle_attention_forward(attention, &l[LOCAL_Q].array, &l[LOCAL_K].array, &l[LOCAL_V].array,
                                      &l[LOCAL_O].array, r->c->options.log_sum_exp ? r->lse : NULL, HEDDLE_NO_STREAM);
        st = st != HEDDLE_OK ? st
                             : heddle_attention_backward(attention, &l[LOCAL_DO].array, &l[LOCAL_DQ].array,
                                                         &l[LOCAL_DK].array, &l[LOCAL_DV].array, HEDDLE_NO_STREAM);
    }
    return st;
}

static heddle_status execute(run *r, attention_errors *errors)
{
    heddle_attention *attention = NULL;
    heddle_attention_options options = r->c->options;
    options.key_lengths = r->n.key_lengths;
    heddle_status st = heddle_attention_create(&attention, r->comm, &r->c->shape, &r->c->mesh, &r->c->layout, &options);
    st = st != HEDDLE_OK ? st : call(r, attention);
    if (st == HEDDLE_OK) {
        check_traffic(r, attention, errors);
        st = heddle_comm_barrier(r->comm);
    }
    heddle_attention_destroy(attention);
    return st;
}

static void collect(run *r)
{
    local *l = r->local;
    move_local(r, &l[LOCAL_O], r->part.o, 0);
    move_local(r, &l[LOCAL_DQ], r->part.dq, 0);
    move_local(r, &l[LOCAL_DK], r->part.dk, 0);
    move_local(r, &l[LOCAL_DV], r->part.dv, 0);
    if (r->n.projected > 0) {
        move_projection(r, r->de, r->part.de, 0);
        move_projection(r, r->df, r->part.df, 0);
    }
    size_t bytes = heddle_dtype_bytes(r->real);
    for (int64_t b = 0; b < r->box.len[0] && r->c->options.log_sum_exp; b++) {
        for (int64_t h = 0; h < r->box.len[2]; h++) {
            for (int64_t s = 0; s < r->rows.rows; s++) {
                int64_t at = ((b + r->box.lo[0]) * r->n.heads + h + r->box.lo[2]) * r->n.sequence;
                const char *here = r->lse + (size_t)((b * r->box.len[2] + h) * r->rows.rows + s) * bytes;
                r->part.lse[at + position(&r->rows, s)] = attention_load(here, r->real);
            }
        }
    }
}

/* --- comparing ---------------------------------------------------------------------------------------------------- */

/* Largest difference; NaN must meet NaN, infinity itself. */
static double compare(const double *got, const double *want, int64_t elems)
{
    double most = 0, worst = 0;
    for (int64_t i = 0; i < elems; i++) {
        if (isfinite(want[i]) && fabs(want[i]) > most) {
            most = fabs(want[i]);
        }
        double difference = isfinite(want[i]) && isfinite(got[i])                    ? fabs(got[i] - want[i])
                            : (isnan(want[i]) && isnan(got[i])) || got[i] == want[i] ? 0
                                                                                     : INFINITY;
        worst = difference > worst ? difference : worst;
    }
    return worst / (1 + most);
}

static double inner(const double *a, const double *b, int64_t elems)
{
    double sum = 0;
    for (int64_t i = 0; i < elems; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* o is linear in v, so <d_o, o> = <dv, v>; scores are linear in q and in k, so <dq, q> = <dk, k>. */
static double adjoint_error(const run *r)
{
    int64_t q = r->n.batch * r->n.sequence * r->n.heads * r->n.width;
    int64_t k = r->n.batch * r->n.sequence * r->n.kv_heads * r->n.width;
    const attention_arrays *in = &r->reference, *out = &r->part;
    double by_o = inner(in->d_o, out->o, q), by_v = inner(out->dv, in->v, k);
    double by_q = inner(out->dq, in->q, q), by_k = inner(out->dk, in->k, k);
    double size = 1 + sqrt(inner(in->d_o, in->d_o, q) * (1 + inner(out->o, out->o, q)));
    double first = fabs(by_o - by_v) / size, second = fabs(by_q - by_k) / size;
    return first > second ? first : second;
}

static void judge(run *r, attention_errors *e)
{
    const attention_arrays *got = &r->part, *want = &r->reference;
    int64_t q = r->n.batch * r->n.sequence * r->n.heads * r->n.width, m = r->n.projected * r->n.sequence;
    int64_t k = r->n.batch * r->n.sequence * r->n.kv_heads * r->n.width;
    e->o = compare(got->o, want->o, q);
    e->lse = r->c->options.log_sum_exp ? compare(got->lse, want->lse, r->n.batch * r->n.heads * r->n.sequence) : 0;
    e->dq = compare(got->dq, want->dq, q);
    e->dk = compare(got->dk, want->dk, k);
    e->dv = compare(got->dv, want->dv, k);
    e->projection = fmax(compare(got->de, want->de, m), compare(got->df, want->df, m));
    e->adjoint = r->c->nan_at > 0 ? 0 : adjoint_error(r);
    e->tolerance = r->c->shape.dtype == HEDDLE_F64 ? 1e-12 : r->c->shape.dtype == HEDDLE_F32 ? 2e-5 : 1.2e-2;
    const double all[] = {e->o, e->lse, e->dq, e->dk, e->dv, e->projection, e->adjoint};
    static const char *const name[] = {"o", "lse", "dq", "dk", "dv", "de or df", "the adjoint test"};
    for (int i = 0; i < 7 && r->problem[0] == 0; i++) {
        if (!(all[i] <= e->tolerance)) {
            snprintf(r->problem, ATTENTION_PROBLEM_BYTES, "%s differs from the reference by %.3g, allowed is %.3g",
                     name[i], all[i], e->tolerance);
        }
    }
}

/* Every rank gets the whole arrays. */
static heddle_status share(run *r)
{
    int64_t q = r->n.batch * r->n.sequence * r->n.heads * r->n.width, m = r->n.projected * r->n.sequence;
    int64_t k = r->n.batch * r->n.sequence * r->n.kv_heads * r->n.width;
    double *all[] = {r->part.o, r->part.dq, r->part.dk, r->part.dv, r->part.lse, r->part.de, r->part.df};
    const int64_t elems[] = {q, q, k, k, r->n.batch * r->n.heads * r->n.sequence, m, m};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 7 && st == HEDDLE_OK; i++) {
        if (!r->counts) {
            memset(all[i], 0, (size_t)elems[i] * sizeof(double));
        }
        st = elems[i] > 0 ? heddle_comm_allreduce_sum(r->comm, all[i], elems[i], HEDDLE_F64) : HEDDLE_OK;
    }
    return st;
}

static void load_inputs(run *r)
{
    local *l = r->local;
    move_local(r, &l[LOCAL_Q], r->reference.q, 1);
    move_local(r, &l[LOCAL_K], r->reference.k, 1);
    move_local(r, &l[LOCAL_V], r->reference.v, 1);
    move_local(r, &l[LOCAL_DO], r->reference.d_o, 1);
    if (r->n.projected > 0) {
        move_projection(r, r->e, r->reference.e, 1);
        move_projection(r, r->f, r->reference.f, 1);
    }
}

heddle_status attention_check(heddle_comm *comm, const attention_case *c, char *problem, attention_errors *errors,
                              attention_arrays *global)
{
    run r = {.c = c, .comm = comm, .n = attention_extents_of(c), .problem = problem};
    attention_errors unused;
    errors = errors != NULL ? errors : &unused;
    memset(errors, 0, sizeof *errors);
    problem[0] = 0;
    heddle_status st = attention_alloc(&r.reference, &r.n);
    st = st != HEDDLE_OK ? st : attention_alloc(&r.part, &r.n);
    st = st != HEDDLE_OK ? st : make_run(&r);
    if (st == HEDDLE_OK) {
        attention_fill(&r.reference, &r.n, c);
        st = attention_reference(&r.reference, &r.n);
    }
    if (st == HEDDLE_OK) {
        load_inputs(&r);
        st = execute(&r, errors);
    }
    if (st == HEDDLE_OK) {
        collect(&r);
        st = share(&r);
    }
    if (st == HEDDLE_OK) {
        judge(&r, errors);
    }
    if (st == HEDDLE_OK && global != NULL) {
        *global = r.part;
        memcpy(global->q, r.reference.q, (size_t)(r.n.batch * r.n.sequence * r.n.heads * r.n.width) * sizeof(double));
        memcpy(global->d_o, r.reference.d_o,
               (size_t)(r.n.batch * r.n.sequence * r.n.heads * r.n.width) * sizeof(double));
        memcpy(global->k, r.reference.k,
               (size_t)(r.n.batch * r.n.sequence * r.n.kv_heads * r.n.width) * sizeof(double));
        memcpy(global->v, r.reference.v,
               (size_t)(r.n.batch * r.n.sequence * r.n.kv_heads * r.n.width) * sizeof(double));
        memset(&r.part, 0, sizeof r.part);
    }
    free_run(&r);
    return st;
}
