/* One linear attention problem on real ranks against the recurrence. */
#include "linear_check.h"

#include "attention_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { Q, K, V, DO, O, DQ, DK, DV, ARRAYS };

static const char *const array_name[ARRAYS] = {"q", "k", "v", "do", "o", "dq", "dk", "dv"};

typedef struct check {
    heddle_comm *comm;
    const linear_case *c;
    char *problem;
    int64_t b, s, h, width[ARRAYS];
    heddle_box box;
    double *whole[ARRAYS]; /* inputs and reference */
    double *state;         /* [b][h][dk][dv] behind the last row */
    char *local[ARRAYS];   /* this rank's, in its dtype */
    heddle_attention_array array[ARRAYS];
    size_t local_bytes[ARRAYS];
    double error[ARRAYS];
} check;

static void say(check *k, const char *format, const char *what, double a, double b)
{
    if (k->problem[0] == 0) {
        snprintf(k->problem, LINEAR_PROBLEM_BYTES, format, heddle_comm_rank(k->comm), what, a, b);
    }
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static double value_of(const linear_case *c, int which, int64_t index)
{
    random_source source = {c->seed * 1000003 + (uint64_t)which * 7919 + (uint64_t)index * 2654435761u};
    random_bits(&source);
    double value = (double)(int64_t)(random_bits(&source) >> 12) / (double)((int64_t)1 << 51) - 1;
    char stored[8];
    attention_store(stored, c->shape.dtype, value);
    return attention_load(stored, c->shape.dtype);
}

static int64_t elems_of(const check *k, int which)
{
    return k->b * k->s * k->h * k->width[which];
}

static int make_whole(check *k)
{
    for (int w = 0; w < ARRAYS; w++) {
        k->width[w] = w == V || w == DO || w == O || w == DV ? k->c->options.dv : k->c->shape.dim[3].extent;
        k->whole[w] = calloc((size_t)elems_of(k, w) + 1, sizeof(double));
        if (k->whole[w] == NULL) {
            return 0;
        }
        for (int64_t i = 0; i < elems_of(k, w) && w <= DO; i++) {
            k->whole[w][i] = value_of(k->c, w, i);
        }
    }
    if (k->c->nan_at > 0 && elems_of(k, K) > 0) {
        k->whole[K][k->c->nan_at * 3 % elems_of(k, K)] = NAN;
        k->whole[V][k->c->nan_at % elems_of(k, V)] = NAN;
    }
    k->state = calloc((size_t)(k->b * k->h * k->width[Q] * k->width[V]) + 1, sizeof(double));
    return k->state != NULL;
}

/* One sequence of one head between the whole array and a dense one. */
static void move_head(const check *k, int which, int64_t head, double *dense, int to_whole)
{
    int64_t b = head / k->h, h = head % k->h, d = k->width[which];
    for (int64_t s = 0; s < k->s; s++) {
        double *row = k->whole[which] + ((b * k->s + s) * k->h + h) * d;
        memcpy(to_whole ? row : dense + s * d, to_whole ? dense + s * d : row, (size_t)d * sizeof(double));
    }
}

static heddle_status make_reference(check *k)
{
    heddle_status st = HEDDLE_OK;
    double *dense[ARRAYS] = {NULL};
    for (int w = 0; w < ARRAYS && st == HEDDLE_OK; w++) {
        dense[w] = calloc((size_t)(k->s * k->width[w]) + 1, sizeof(double));
        st = dense[w] == NULL ? HEDDLE_ERR_NOMEM : HEDDLE_OK;
    }
    for (int64_t i = 0; i < k->b * k->h && st == HEDDLE_OK; i++) {
        for (int w = Q; w <= DO; w++) {
            move_head(k, w, i, dense[w], 0);
        }
        const heddle_linear_reference reference = {.rows = k->s,
                                                   .dk = k->width[Q],
                                                   .dv = k->width[V],
                                                   .decay = k->c->decay[i % k->h],
                                                   .bidirectional = k->c->options.bidirectional,
                                                   .q = dense[Q],
                                                   .k = dense[K],
                                                   .v = dense[V],
                                                   .d_o = dense[DO],
                                                   .o = dense[O],
                                                   .dq = dense[DQ],
                                                   .dk_out = dense[DK],
                                                   .dv_out = dense[DV],
                                                   .state = k->state + i * k->width[Q] * k->width[V]};
        st = heddle_linear_attention_reference(&reference);
        for (int w = O; w < ARRAYS; w++) {
            move_head(k, w, i, dense[w], 1);
        }
    }
    for (int w = 0; w < ARRAYS; w++) {
        free(dense[w]);
    }
    return st;
}

/* --- local arrays ---------------------------------------------------------------------------------------------------
 */

static int make_local(check *k, int which)
{
    int64_t b = k->box.len[0], s = k->box.len[1], h = k->box.len[2], d = k->width[which];
    int64_t strides[4][4] = {{s * h * d, h * d, d, 1},
                             {h * s * d, d, s * d, 1},
                             {s * (h * (d + 3) + 5), h * (d + 3) + 5, d + 3, 1},
                             {d * s * h, h, 1, s * h}};
    int64_t elems = b * s * (h * (d + 3) + 5) + 8;
    size_t elem_bytes = heddle_dtype_bytes(k->c->shape.dtype);
    k->local_bytes[which] = (size_t)elems * elem_bytes;
    k->local[which] = malloc(k->local_bytes[which]);
    if (k->local[which] == NULL) {
        return 0;
    }
    memset(k->local[which], 0x5a, k->local_bytes[which]);
    k->array[which].data = k->local[which];
    memcpy(k->array[which].stride_elems, strides[k->c->storage], sizeof strides[0]);
    return 1;
}

typedef void (*element_fn)(check *k, int which, char *local, double *whole);

static void each_element(check *k, int which, element_fn fn)
{
    const int64_t *at = k->array[which].stride_elems;
    int64_t elem_bytes = (int64_t)heddle_dtype_bytes(k->c->shape.dtype);
    for (int64_t b = 0; b < k->box.len[0]; b++) {
        for (int64_t s = 0; s < k->box.len[1]; s++) {
            for (int64_t h = 0; h < k->box.len[2]; h++) {
                int64_t row = ((k->box.lo[0] + b) * k->s + k->box.lo[1] + s) * k->h + k->box.lo[2] + h;
                for (int64_t d = 0; d < k->width[which]; d++) {
                    fn(k, which, k->local[which] + (b * at[0] + s * at[1] + h * at[2] + d * at[3]) * elem_bytes,
                       k->whole[which] + row * k->width[which] + d);
                }
            }
        }
    }
}

static void put_element(check *k, int which, char *local, double *whole)
{
    (void)which;
    attention_store(local, k->c->shape.dtype, *whole);
}

static void compare_element(check *k, int which, char *local, double *whole)
{
    double got = attention_load(local, k->c->shape.dtype);
    if (isnan(*whole) != isnan(got)) {
        say(k, "rank %d, %s: an element is %g, the recurrence says %g", array_name[which], got, *whole);
        return;
    }
    double difference = fabs(got - *whole);
    k->error[which] = difference > k->error[which] ? difference : k->error[which];
}

/* Outputs that take part in the identities: do o, q dq, k dk, v dv. */
typedef struct sums {
    double product[4], size[4];
} sums;

static void add_products(const check *k, sums *out)
{
    const int pair[4][2] = {{DO, O}, {Q, DQ}, {K, DK}, {V, DV}};
    int64_t elem_bytes = (int64_t)heddle_dtype_bytes(k->c->shape.dtype);
    for (int p = 0; p < 4; p++) {
        int x = pair[p][0], y = pair[p][1];
        const int64_t *at = k->array[x].stride_elems;
        for (int64_t i = 0; i < heddle_box_elems(&k->box) / (k->width[Q] > 0 ? k->width[Q] : 1); i++) {
            int64_t h = i % k->box.len[2], s = i / k->box.len[2] % k->box.len[1];
            int64_t b = i / (k->box.len[2] * k->box.len[1]);
            for (int64_t d = 0; d < k->width[x]; d++) {
                int64_t offset = (b * at[0] + s * at[1] + h * at[2] + d * at[3]) * elem_bytes;
                double product = attention_load(k->local[x] + offset, k->c->shape.dtype) *
                                 attention_load(k->local[y] + offset, k->c->shape.dtype);
                out->product[p] += product;
                out->size[p] += fabs(product);
            }
        }
    }
}

/* --- checks ---------------------------------------------------------------------------------------------------------
 */

static double tolerance_of(const linear_case *c)
{
    return c->shape.dtype == HEDDLE_F64 ? 1e-12 : c->shape.dtype == HEDDLE_F32 ? 2e-5 : 1e-2;
}

static double largest(const double *x, int64_t elems)
{
    double most = 0;
    for (int64_t i = 0; i < elems; i++) {
        most = fabs(x[i]) > most ? fabs(x[i]) : most;
    }
    return most;
}

static void check_values(check *k, double tolerance)
{
    for (int w = O; w < ARRAYS; w++) {
        each_element(k, w, compare_element);
        double most = largest(k->whole[w], elems_of(k, w));
        k->error[w] = most > 0 ? k->error[w] / most : k->error[w];
        if (!(k->error[w] <= tolerance)) {
            say(k, "rank %d, %s: off by %.3g of the largest value, allowed are %.3g", array_name[w], k->error[w],
                tolerance);
        }
    }
}

static heddle_status check_adjoint(check *k, double *error, double tolerance)
{
    sums s;
    memset(&s, 0, sizeof s);
    add_products(k, &s);
    heddle_status st = heddle_comm_allreduce_sum(k->comm, &s, sizeof s / sizeof(double), HEDDLE_F64);
    double most = s.size[0] + s.size[1] + s.size[2] + s.size[3];
    for (int p = 1; p < 4 && st == HEDDLE_OK && most > 0 && k->c->nan_at == 0; p++) {
        double e = fabs(s.product[p] - s.product[0]) / most;
        *error = e > *error ? e : *error;
        if (!(e <= tolerance)) {
            say(k, "rank %d, adjoint: <%s> is %.17g, <do, o> is %.17g",
                p == 1   ? "q, dq"
                : p == 2 ? "k, dk"
                         : "v, dv",
                s.product[p], s.product[0]);
        }
    }
    return st;
}

static void check_traffic(check *k, const heddle_linear_attention_info *info)
{
    const heddle_attention_traffic *m = &info->measured, *p = &info->planned;
    if (m->forward_bytes != LINEAR_CALLS * p->forward_bytes || m->backward_bytes != LINEAR_CALLS * p->backward_bytes) {
        say(k, "rank %d: %s: %.0f bytes sent, planned were %.0f", "bytes",
            (double)(m->forward_bytes + m->backward_bytes),
            (double)(LINEAR_CALLS * (p->forward_bytes + p->backward_bytes)));
    }
    if (m->forward_messages != LINEAR_CALLS * p->forward_messages ||
        m->backward_messages != LINEAR_CALLS * p->backward_messages) {
        say(k, "rank %d: %s: %.0f sent, planned were %.0f", "messages",
            (double)(m->forward_messages + m->backward_messages),
            (double)(LINEAR_CALLS * (p->forward_messages + p->backward_messages)));
    }
}

/* The state behind the last row, in both conventions. */
static heddle_status check_state(check *k, const heddle_linear_attention *attention, double *error, double tolerance)
{
    int64_t elems = k->width[Q] * k->width[V], heads = k->box.len[0] * k->box.len[2];
    double most = largest(k->state, k->b * k->h * elems);
    int wide = k->c->shape.dtype == HEDDLE_F64;
    void *got = calloc((size_t)(heads * elems) + 1, 8);
    heddle_status st = got == NULL ? HEDDLE_ERR_NOMEM : HEDDLE_OK;
    for (int convention = 0; convention < 2 && st == HEDDLE_OK; convention++) {
        st = heddle_linear_attention_state(got, attention, (heddle_linear_state)convention);
        for (int64_t i = 0; i < heads * elems && st == HEDDLE_OK; i++) {
            int64_t b = k->box.lo[0] + i / elems / k->box.len[2], h = k->box.lo[2] + i / elems % k->box.len[2];
            double wanted = k->state[(b * k->h + h) * elems + i % elems] * (convention == 1 ? k->c->decay[h] : 1);
            double value = wide ? ((double *)got)[i] : (double)((float *)got)[i];
            double e = isnan(wanted) && isnan(value) ? 0 : fabs(value - wanted) / (most > 0 ? most : 1);
            *error = e > *error ? e : *error;
            if (!(e <= tolerance)) {
                say(k, "rank %d, %s state: an element is %.17g, the recurrence says %.17g",
                    convention == 1 ? "decayed" : "plain", value, wanted);
            }
        }
    }
    free(got);
    return st;
}

static heddle_status run_calls(check *k, heddle_linear_attention *attention)
{
    heddle_status st = HEDDLE_OK;
    for (int call = 0; call < LINEAR_CALLS && st == HEDDLE_OK; call++) {
        for (int w = O; w < ARRAYS; w++) {
            memset(k->local[w], 0x5a, k->local_bytes[w]);
        }
        st = heddle_linear_attention_forward(attention, &k->array[Q], &k->array[K], &k->array[V], &k->array[O],
                                             HEDDLE_NO_STREAM);
        st = st != HEDDLE_OK
                 ? st
                 : heddle_linear_attention_backward(attention, &k->array[Q], &k->array[K], &k->array[V], &k->array[DO],
                                                    &k->array[DQ], &k->array[DK], &k->array[DV], HEDDLE_NO_STREAM);
    }
    return st;
}

/* What the ranks computed, whole on every rank: ranks whose replicated coordinates are 0 bring it. */
static heddle_status gather_results(check *k, linear_arrays *global)
{
    double **to[ARRAYS] = {&global->q, &global->k,  &global->v,  &global->d_o,
                           &global->o, &global->dq, &global->dk, &global->dv};
    int coords[HEDDLE_MAX_AXES], mine = 1;
    heddle_status st = heddle_mesh_coords(coords, &k->c->mesh, heddle_comm_rank(k->comm));
    for (int a = 0; a < k->c->mesh.naxes && st == HEDDLE_OK; a++) {
        mine &= k->c->layout.dim_of_axis[a] != HEDDLE_REPLICATED || coords[a] == 0;
    }
    for (int w = 0; w < ARRAYS && st == HEDDLE_OK; w++) {
        *to[w] = k->whole[w];
        k->whole[w] = NULL;
        if (w < O) {
            continue;
        }
        memset(*to[w], 0, (size_t)elems_of(k, w) * sizeof(double));
        const int64_t *at = k->array[w].stride_elems;
        int64_t elem_bytes = (int64_t)heddle_dtype_bytes(k->c->shape.dtype), d = k->width[w];
        for (int64_t i = 0; mine && i < k->box.len[0] * k->box.len[1] * k->box.len[2] * d; i++) {
            int64_t row = i / d, h = row % k->box.len[2], s = row / k->box.len[2] % k->box.len[1];
            int64_t b = row / k->box.len[2] / k->box.len[1];
            int64_t whole = ((k->box.lo[0] + b) * k->s + k->box.lo[1] + s) * k->h + k->box.lo[2] + h;
            (*to[w])[whole * d + i % d] = attention_load(
                k->local[w] + (b * at[0] + s * at[1] + h * at[2] + i % d * at[3]) * elem_bytes, k->c->shape.dtype);
        }
        st = heddle_comm_allreduce_sum(k->comm, *to[w], elems_of(k, w), HEDDLE_F64);
    }
    return st;
}

static heddle_status most_over_ranks(check *k, linear_errors *e)
{
    double own[6] = {k->error[O], k->error[DQ], k->error[DK], k->error[DV], e->state, e->adjoint};
    int n = heddle_comm_size(k->comm);
    double *all = calloc((size_t)n, sizeof own);
    heddle_status st = all == NULL ? HEDDLE_ERR_NOMEM : heddle_comm_allgather(k->comm, own, all, sizeof own);
    for (int i = 0; i < 6 * n && st == HEDDLE_OK; i++) {
        own[i % 6] = all[i] > own[i % 6] ? all[i] : own[i % 6];
    }
    e->o = own[0];
    e->dq = own[1];
    e->dk = own[2];
    e->dv = own[3];
    e->state = own[4];
    e->adjoint = own[5];
    free(all);
    return st;
}

static heddle_status check_all(check *k, heddle_linear_attention *attention, linear_errors *e)
{
    heddle_linear_attention_info info = {.struct_bytes = sizeof info};
    heddle_status st = run_calls(k, attention);
    st = st != HEDDLE_OK ? st : heddle_linear_attention_get_info(&info, attention);
    if (st != HEDDLE_OK) {
        return st;
    }
    e->planned = info.planned;
    e->state_bytes = info.state_bytes;
    e->serial_steps = info.serial_steps;
    e->tolerance = tolerance_of(k->c);
    check_values(k, e->tolerance);
    check_traffic(k, &info);
    double tight = k->c->shape.dtype == HEDDLE_BF16 ? 2e-5 : e->tolerance;
    int at_end = k->box.lo[1] + k->box.len[1] == k->s && k->box.len[1] > 0;
    if (at_end && !k->c->options.bidirectional) {
        st = check_state(k, attention, &e->state, tight);
    }
    st = st != HEDDLE_OK ? st : check_adjoint(k, &e->adjoint, e->tolerance);
    return st != HEDDLE_OK ? st : most_over_ranks(k, e);
}

heddle_status linear_check(heddle_comm *comm, const linear_case *c, char *problem, linear_errors *errors,
                           linear_arrays *global)
{
    linear_errors ignored;
    linear_case copy = *c;
    check k;
    memset(&k, 0, sizeof k);
    heddle_linear_attention *attention = NULL;
    linear_errors *e = errors != NULL ? errors : &ignored;
    memset(e, 0, sizeof *e);
    copy.options.decay = copy.decay;
    copy.options.dv = c->options.dv == 0 ? c->shape.dim[3].extent : c->options.dv;
    k.comm = comm;
    k.c = &copy;
    k.problem = problem;
    k.b = c->shape.dim[0].extent;
    k.s = c->shape.dim[1].extent;
    k.h = c->shape.dim[2].extent;
    heddle_status st =
        heddle_linear_attention_create(&attention, comm, &copy.shape, &copy.mesh, &copy.layout, &copy.options);
    st =
        st != HEDDLE_OK ? st : heddle_layout_box(&k.box, &copy.shape, &copy.mesh, &copy.layout, heddle_comm_rank(comm));
    if (st == HEDDLE_OK) {
        int enough = make_whole(&k);
        for (int w = 0; w < ARRAYS && enough; w++) {
            enough = make_local(&k, w);
        }
        st = enough ? make_reference(&k) : HEDDLE_ERR_NOMEM;
    }
    for (int w = Q; w <= DO && st == HEDDLE_OK; w++) {
        each_element(&k, w, put_element);
    }
    st = st != HEDDLE_OK ? st : check_all(&k, attention, e);
    st = st != HEDDLE_OK || global == NULL ? st : gather_results(&k, global);
    heddle_linear_attention_destroy(attention);
    for (int w = 0; w < ARRAYS; w++) {
        free(k.whole[w]);
        free(k.local[w]);
    }
    free(k.state);
    return st;
}

void linear_free(linear_arrays *arrays)
{
    double *all[ARRAYS] = {arrays->q, arrays->k, arrays->v, arrays->d_o, arrays->o, arrays->dq, arrays->dk, arrays->dv};
    for (int w = 0; w < ARRAYS; w++) {
        free(all[w]);
    }
    memset(arrays, 0, sizeof *arrays);
}
