/* One linear attention problem on real ranks against the recurrence. */
#include "runtime/verify/linear_check.h"
#include "runtime/verify/device_array.h"
#include "runtime/verify/linear_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Inputs, then results in the order in which they are judged. */
enum { Q, K, V, DO, RESULTS, ARRAYS = RESULTS + LINEAR_STATE };

static const char *const array_name[ARRAYS] = {"q", "k", "v", "do", "o", "dq", "dk", "dv"};

typedef struct check {
    heddle_comm *comm;
    const linear_case *c;
    char *problem;
    linear_errors *errors;
    int64_t b, s, h, width[ARRAYS];
    heddle_box box;
    int counts;                 /* 1: of all replicas of this part, this one counts in sums over ranks */
    double *whole[ARRAYS];      /* inputs and reference */
    double *size[ARRAYS];       /* the same of absolute values: what roundings are measured against */
    double *state, *state_size; /* [b][h][dk][dv] behind the last row */
    judge_array array[ARRAYS];
    judge_there there;
} check;

static void complain(check *k, const judge_error *error)
{
    judge_complain(k->problem, LINEAR_PROBLEM_BYTES, error, heddle_comm_rank(k->comm));
}

/* --- tolerances --------------------------------------------------------------------------------------------------- */

/* Roundings allowed, about three times the worst of some 3,000 draws on 1 to 6 ranks:
 *       o    dq   dk   dv   states    identities
 * f64   7.4  6.1  8.5  9.1  6.4  6.4  0.53  0.53  0.76
 * f32   4.9  4.8  5.1  6.1  5.5  5.5  0.26  0.26  0.18
 * bf16 is f32 inside, which shows only beside a tie: at most 0.9 roundings of a result, 4.8 of a state. */
static const double allowed[2][LINEAR_JUDGED] = {
    {24, 20, 26, 28, 20, 20, 2, 2, 2.5},
    {16, 16, 16, 20, 16, 16, 1, 1, 1},
};

/* On a device sums are f32 in another order; of bf16 and f16 scores, states and faded rows are rounded to the type
 * before they are multiplied. */
static double allowed_there(const linear_case *c)
{
    const heddle_dtype dtype = c->shape.dtype;
    if (c->options.space != HEDDLE_SPACE_DEVICE) {
        return 0;
    }
    return dtype == HEDDLE_BF16 ? 4 * 0x1p16 : dtype == HEDDLE_F16 ? 4 * 0x1p13 : 16;
}

static void clear_errors(linear_errors *errors, const linear_case *c)
{
    const heddle_dtype dtype = c->shape.dtype;
    static const char *const name[] = {"state", "decayed state", "<q dq> = <do o>", "<k dk> = <do o>",
                                       "<v dv> = <do o>"};
    memset(errors, 0, sizeof *errors);
    for (int i = 0; i < LINEAR_JUDGED; i++) {
        errors->of[i].name = i < LINEAR_STATE ? array_name[RESULTS + i] : name[i - LINEAR_STATE];
        errors->of[i].allowed = allowed[dtype == HEDDLE_F64 ? 0 : 1][i];
        errors->of[i].allowed += i < LINEAR_BY_Q ? allowed_there(c) : 0;
    }
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static double value_of(const linear_case *c, int which, int64_t index)
{
    random_source source = {c->seed * 1000003 + (uint64_t)which * 7919 + (uint64_t)index * 2654435761u};
    random_bits(&source);
    double value = (double)(int64_t)(random_bits(&source) >> 12) / (double)((int64_t)1 << 51) - 1;
    char stored[8];
    judge_store(stored, c->shape.dtype, value);
    return judge_load(stored, c->shape.dtype);
}

static int64_t elems_of(const check *k, int which)
{
    return k->b * k->s * k->h * k->width[which];
}

static heddle_status make_whole(check *k)
{
    size_t state_elems = (size_t)(k->b * k->h * k->width[Q] * k->width[V]) + 1;
    k->state = calloc(state_elems, sizeof(double));
    k->state_size = calloc(state_elems, sizeof(double));
    heddle_status st = k->state == NULL || k->state_size == NULL
                           ? judge_no_memory("the states of all heads", 16.0 * (double)state_elems)
                           : HEDDLE_OK;
    for (int w = 0; w < ARRAYS && st == HEDDLE_OK; w++) {
        k->whole[w] = calloc((size_t)elems_of(k, w) + 1, sizeof(double));
        k->size[w] = calloc((size_t)elems_of(k, w) + 1, sizeof(double));
        st = k->whole[w] == NULL || k->size[w] == NULL ? judge_no_memory(array_name[w], 16.0 * (double)elems_of(k, w))
                                                       : HEDDLE_OK;
        for (int64_t i = 0; st == HEDDLE_OK && i < elems_of(k, w) && w < RESULTS; i++) {
            k->whole[w][i] = value_of(k->c, w, i);
        }
    }
    if (st == HEDDLE_OK && k->c->nan_at > 0 && elems_of(k, K) > 0) {
        k->whole[K][k->c->nan_at * 3 % elems_of(k, K)] = NAN;
        k->whole[V][k->c->nan_at % elems_of(k, V)] = NAN;
    }
    for (int w = 0; w < RESULTS && st == HEDDLE_OK; w++) {
        for (int64_t i = 0; i < elems_of(k, w); i++) {
            k->size[w][i] = fabs(k->whole[w][i]);
        }
    }
    return st;
}

/* One sequence of one head between a whole array and a dense one. */
static void move_head(const check *k, double *const *whole, int which, int64_t head, double *dense, int to_whole)
{
    int64_t b = head / k->h, h = head % k->h, d = k->width[which];
    for (int64_t s = 0; s < k->s; s++) {
        double *row = whole[which] + ((b * k->s + s) * k->h + h) * d;
        memcpy(to_whole ? row : dense + s * d, to_whole ? dense + s * d : row, (size_t)d * sizeof(double));
    }
}

/* The results are sums of products without a minus: of absolute values the recurrence makes their sizes. */
static heddle_status run_recurrence(check *k, double *const *whole, double *state)
{
    heddle_status st = HEDDLE_OK;
    double *dense[ARRAYS] = {NULL};
    for (int w = 0; w < ARRAYS && st == HEDDLE_OK; w++) {
        dense[w] = calloc((size_t)(k->s * k->width[w]) + 1, sizeof(double));
        st = dense[w] == NULL ? judge_no_memory("a head of the recurrence", 8.0 * (double)(k->s * k->width[w]))
                              : HEDDLE_OK;
    }
    for (int64_t i = 0; i < k->b * k->h && st == HEDDLE_OK; i++) {
        for (int w = Q; w < RESULTS; w++) {
            move_head(k, whole, w, i, dense[w], 0);
        }
        const linear_recurrence reference = {.rows = k->s,
                                             .dk = k->width[Q],
                                             .dv = k->width[V],
                                             .decay = k->c->decay[i % k->h],
                                             .bidirectional = k->c->options.bidirectional,
                                             .q = dense[Q],
                                             .k = dense[K],
                                             .v = dense[V],
                                             .d_o = dense[DO],
                                             .o = dense[RESULTS + LINEAR_O],
                                             .dq = dense[RESULTS + LINEAR_DQ],
                                             .dk_out = dense[RESULTS + LINEAR_DK],
                                             .dv_out = dense[RESULTS + LINEAR_DV],
                                             .state = state + i * k->width[Q] * k->width[V]};
        st = linear_reference(&reference);
        for (int w = RESULTS; w < ARRAYS; w++) {
            move_head(k, whole, w, i, dense[w], 1);
        }
    }
    for (int w = 0; w < ARRAYS; w++) {
        free(dense[w]);
    }
    return st;
}

/* --- local arrays ------------------------------------------------------------------------------------------------- */

static heddle_status make_arrays(check *k)
{
    const heddle_box *box = &k->box;
    heddle_status st = HEDDLE_OK;
    for (int w = 0; w < ARRAYS && st == HEDDLE_OK; w++) {
        int64_t d = k->width[w];
        const judge_part part = {.batch_lo = box->lo[0],
                                 .batch = box->len[0],
                                 .head_lo = box->lo[2],
                                 .heads = box->len[2],
                                 .width = d,
                                 .rows = {box->len[1], {box->lo[1]}, {box->len[1]}},
                                 .whole_stride = {k->s * k->h * d, k->h * d, d}};
        st = judge_array_make(&k->array[w], array_name[w], k->c->shape.dtype, &part, k->c->storage);
        if (st == HEDDLE_OK && w < RESULTS) {
            judge_array_put(&k->array[w], k->whole[w]);
        }
    }
    return st;
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

static void judge_results(check *k, int check_gaps)
{
    for (int w = RESULTS; w < ARRAYS; w++) {
        judge_error *error = &k->errors->of[w - RESULTS];
        judge_array_compare(error, &k->array[w], k->whole[w], k->size[w]);
        complain(k, error);
        if (check_gaps && !judge_array_gaps_kept(&k->array[w]) && k->problem[0] == 0) {
            snprintf(k->problem, LINEAR_PROBLEM_BYTES, "rank %d: memory beside the elements of %s was written",
                     heddle_comm_rank(k->comm), array_name[w]);
        }
    }
}

static void judge_inputs(check *k)
{
    for (int w = 0; w < RESULTS; w++) {
        judge_error error = {.name = array_name[w]};
        judge_array_compare(&error, &k->array[w], k->whole[w], k->size[w]);
        complain(k, &error);
    }
}

static heddle_status judge_identities(check *k)
{
    const int pair[4][2] = {{DO, LINEAR_O}, {Q, LINEAR_DQ}, {K, LINEAR_DK}, {V, LINEAR_DV}};
    double sums[9] = {[8] = k->problem[0] != 0};
    for (int i = 0; i < 4 && k->counts; i++) {
        int result = RESULTS + pair[i][1];
        judge_array_product(&sums[i], &sums[4 + i], &k->array[pair[i][0]], &k->array[result], k->size[result]);
    }
    heddle_status st = heddle_comm_allreduce_sum(k->comm, sums, 9, HEDDLE_F64);
    for (int i = 1; i < 4 && st == HEDDLE_OK && k->c->nan_at == 0; i++) {
        judge_error *error = &k->errors->of[LINEAR_BY_Q + i - 1];
        judge_identity(error, k->c->shape.dtype, sums[i], sums[0], sums[4] + sums[4 + i]);
        if (sums[8] == 0) { /* else a rank can name an element, which says more */
            complain(k, error);
        }
    }
    return st;
}

/* By way of the device where it is there. */
static heddle_status take_state(char *out, size_t bytes, const check *k, const heddle_linear_attention *attention,
                                heddle_linear_state convention)
{
    void *there = out;
    const int is_there = k->there.is_used && bytes > 0;
    heddle_status st = is_there ? heddle_buffer_alloc(&there, k->comm, bytes, HEDDLE_SPACE_DEVICE) : HEDDLE_OK;
    st = st != HEDDLE_OK ? st : heddle_linear_attention_state(there, attention, convention, k->there.stream);
    if (is_there) {
        st = st != HEDDLE_OK ? st : judge_device_copy(k->comm, out, there, bytes, k->there.stream);
        heddle_buffer_free(k->comm, there);
    }
    return st;
}

/* The state behind the last row, in both conventions. */
static heddle_status judge_state(check *k, const heddle_linear_attention *attention)
{
    const heddle_dtype real = k->c->shape.dtype == HEDDLE_F64 ? HEDDLE_F64 : HEDDLE_F32;
    const int64_t dv = k->width[V], elems = k->width[Q] * dv, all = k->box.len[0] * k->box.len[2] * elems;
    char *got = calloc((size_t)all + 1, 8);
    heddle_status st = got == NULL ? judge_no_memory("the states of a rank", 8.0 * (double)all) : HEDDLE_OK;
    for (int convention = 0; convention < 2 && st == HEDDLE_OK; convention++) {
        judge_error *error = &k->errors->of[LINEAR_STATE + convention];
        st = take_state(got, (size_t)all * heddle_dtype_bytes(real), k, attention, (heddle_linear_state)convention);
        for (int64_t i = 0; i < all && st == HEDDLE_OK; i++) {
            int64_t head = i / elems, b = k->box.lo[0] + head / k->box.len[2], h = k->box.lo[2] + head % k->box.len[2];
            int64_t at = (b * k->h + h) * elems + i % elems;
            double decay = convention == HEDDLE_LINEAR_STATE_DECAYED ? k->c->decay[h] : 1;
            const int64_t index[] = {b, h, i % elems / dv, i % dv};
            judge_element(error, real, judge_load(got + i * (int64_t)heddle_dtype_bytes(real), real),
                          k->state[at] * decay, k->state_size[at] * decay, index);
        }
        complain(k, error);
    }
    free(got);
    return st;
}

static heddle_status run_calls(check *k, heddle_linear_attention *attention)
{
    heddle_status st = HEDDLE_OK;
    const judge_there *there = &k->there;
    heddle_attention_array x[ARRAYS], *out = x + RESULTS;
    for (int w = 0; w < ARRAYS; w++) {
        x[w] = judge_there_array(there, w);
    }
    for (int call = 0; call < LINEAR_CALLS && st == HEDDLE_OK; call++) {
        for (int w = RESULTS; w < ARRAYS; w++) {
            judge_array_poison(&k->array[w]);
        }
        st = judge_there_bring(there);
        st = st != HEDDLE_OK
                 ? st
                 : heddle_linear_attention_forward(attention, &x[Q], &x[K], &x[V], &out[LINEAR_O], there->stream);
        st = st != HEDDLE_OK ? st
                             : heddle_linear_attention_backward(attention, &x[Q], &x[K], &x[V], &x[DO], &out[LINEAR_DQ],
                                                                &out[LINEAR_DK], &out[LINEAR_DV], there->stream);
        st = st != HEDDLE_OK ? st : judge_there_fetch(there, RESULTS);
        if (st == HEDDLE_OK) {
            judge_results(k, call + 1 < LINEAR_CALLS);
        }
    }
    return st;
}

static heddle_status judge_all(check *k, heddle_linear_attention *attention)
{
    linear_errors *e = k->errors;
    heddle_linear_attention_info info = HEDDLE_EMPTY(heddle_linear_attention_info);
    heddle_attention_traffic planned;
    const int rank = heddle_comm_rank(k->comm);
    heddle_status st = run_calls(k, attention);
    st = st != HEDDLE_OK ? st : heddle_linear_attention_get_info(&info, attention);
    st = st != HEDDLE_OK ? st
                         : heddle_linear_attention_plan_traffic(&planned, &k->c->shape, &k->c->mesh, &k->c->layout,
                                                                &k->c->options, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    e->planned = planned;
    e->state_bytes = info.state_bytes;
    e->serial_steps = info.serial_steps;
    judge_inputs(k);
    if (k->problem[0] == 0) {
        judge_counts(k->problem, LINEAR_PROBLEM_BYTES, rank, LINEAR_CALLS, &info.measured, &info.planned, &planned);
    }
    int at_end = k->box.lo[1] + k->box.len[1] == k->s && k->box.len[1] > 0;
    if (at_end && !k->c->options.bidirectional) {
        st = judge_state(k, attention);
    }
    st = st != HEDDLE_OK ? st : judge_identities(k);
    return st != HEDDLE_OK ? st : judge_share(e->of, LINEAR_JUDGED, k->comm);
}

/* What the ranks computed, whole on every rank, with the inputs. */
static heddle_status gather(check *k, linear_arrays *global)
{
    double **to[ARRAYS] = {&global->q, &global->k,  &global->v,  &global->d_o,
                           &global->o, &global->dq, &global->dk, &global->dv};
    heddle_status st = HEDDLE_OK;
    for (int w = 0; w < ARRAYS && st == HEDDLE_OK; w++) {
        *to[w] = k->whole[w];
        k->whole[w] = NULL;
        if (w < RESULTS) {
            continue;
        }
        memset(*to[w], 0, (size_t)elems_of(k, w) * sizeof(double));
        if (k->counts) {
            judge_array_get(&k->array[w], *to[w]);
        }
        st = heddle_comm_allreduce_sum(k->comm, *to[w], elems_of(k, w), HEDDLE_F64);
    }
    return st;
}

static heddle_status place_rank(check *k)
{
    int coords[HEDDLE_MAX_AXES], rank = heddle_comm_rank(k->comm);
    heddle_status st = heddle_layout_box(&k->box, &k->c->shape, &k->c->mesh, &k->c->layout, rank);
    st = st != HEDDLE_OK ? st : heddle_mesh_coords(coords, &k->c->mesh, rank);
    k->counts = st == HEDDLE_OK && judge_counts_once(&k->c->mesh, &k->c->layout, coords);
    return st;
}

heddle_status linear_check(heddle_comm *comm, const linear_case *c, char *problem, linear_errors *errors,
                           linear_arrays *global)
{
    linear_errors ignored;
    linear_case copy = *c;
    heddle_linear_attention *attention = NULL;
    check k = {.comm = comm, .c = &copy, .problem = problem, .errors = errors != NULL ? errors : &ignored};
    clear_errors(k.errors, c);
    problem[0] = 0;
    copy.options.decay = copy.decay;
    copy.options.device = c->options.space == HEDDLE_SPACE_DEVICE ? heddle_comm_device(comm) : 0;
    copy.options.dv = c->options.dv == 0 ? c->shape.dim[3].extent : c->options.dv;
    heddle_status st =
        heddle_linear_attention_create(&attention, comm, &copy.shape, &copy.mesh, &copy.layout, &copy.options);
    k.b = c->shape.dim[0].extent;
    k.s = c->shape.dim[1].extent;
    k.h = c->shape.dim[2].extent;
    for (int w = 0; w < ARRAYS; w++) {
        int of_v = w == V || w == DO || w == RESULTS + LINEAR_O || w == RESULTS + LINEAR_DV;
        k.width[w] = of_v ? copy.options.dv : c->shape.dim[3].extent;
    }
    st = st != HEDDLE_OK ? st : place_rank(&k);
    st = st != HEDDLE_OK ? st : make_whole(&k);
    st = st != HEDDLE_OK ? st : run_recurrence(&k, k.whole, k.state);
    st = st != HEDDLE_OK ? st : run_recurrence(&k, k.size, k.state_size);
    st = st != HEDDLE_OK ? st : make_arrays(&k);
    st = st != HEDDLE_OK ? st
                         : judge_there_make(&k.there, comm, k.array, ARRAYS, c->options.space == HEDDLE_SPACE_DEVICE);
    st = st != HEDDLE_OK ? st : judge_all(&k, attention);
    st = st != HEDDLE_OK || global == NULL ? st : gather(&k, global);
    heddle_linear_attention_destroy(attention);
    judge_there_free(&k.there, comm);
    for (int w = 0; w < ARRAYS; w++) {
        free(k.whole[w]);
        free(k.size[w]);
        judge_array_free(&k.array[w]);
    }
    free(k.state);
    free(k.state_size);
    return st;
}
