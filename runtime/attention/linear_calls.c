/* Forward and backward of linear attention on chunks: the work on the own rows, then what comes from other ranks.
 *
 * Own part first: every chunk's contribution to the state; their total goes to the flow, and while that is on its way
 * the products inside the chunks are done. When the state of the ranks before arrives, contributions become states and
 * every chunk takes its own. No product is done twice.
 */
#include "runtime/attention/linear_internal.h"
#include "runtime/base/threads.h"

#include <string.h>

/* States a call makes: the one that goes right and the one that goes left. */
static int rightward_states(const heddle_linear_attention *a)
{
    return a->going_back ? HD_STATES_G_LEFT : HD_STATES_KV_LEFT;
}

static int leftward_states(const heddle_linear_attention *a)
{
    return a->going_back ? HD_STATES_G_RIGHT : HD_STATES_KV_RIGHT;
}

/* --- work on one head of one sample, by any thread ---------------------------------------------------------------- */

static heddle_status contribute(void *ctx, int thread, int64_t i)
{
    heddle_linear_attention *a = ctx;
    void *scratch = hd_linear_scratch(a, thread, i);
    int right = rightward_states(a), left = leftward_states(a);
    for (int64_t c = 0; c < a->problem.nchunks; c++) {
        hd_linear_chunk chunk;
        hd_linear_chunk_views(&chunk, a, i, c);
        a->kernels->states(scratch, &chunk, a->going_back,
                           a->states[right] == NULL ? NULL : hd_linear_state(a, right, i, c),
                           a->states[left] == NULL ? NULL : hd_linear_state(a, left, i, c));
    }
    if (a->uses[0]) {
        hd_linear_total(a, thread, right, i, a->flow[0]->own);
    }
    if (a->uses[1]) {
        hd_linear_total(a, thread, left, i, a->flow[1]->own);
    }
    return HEDDLE_OK;
}

static heddle_status inner_forward(void *ctx, int thread, int64_t i)
{
    heddle_status st = HEDDLE_OK;
    heddle_linear_attention *a = ctx;
    void *scratch = hd_linear_scratch(a, thread, i);
    for (int64_t c = 0; c < a->problem.nchunks; c++) {
        hd_linear_chunk chunk;
        hd_linear_chunk_views(&chunk, a, i, c);
        chunk.o = chunk.o_so_far;
        a->kernels->inner(scratch, &chunk);
        HD_TRY(hd_linear_poll(a, thread));
    }
out:
    return st;
}

static heddle_status inner_backward(void *ctx, int thread, int64_t i)
{
    heddle_status st = HEDDLE_OK;
    heddle_linear_attention *a = ctx;
    void *scratch = hd_linear_scratch(a, thread, i);
    for (int64_t c = 0; c < a->problem.nchunks; c++) {
        hd_linear_chunk chunk;
        hd_linear_chunk_views(&chunk, a, i, c);
        chunk.dk = chunk.dk_so_far;
        chunk.dv = chunk.dv_so_far;
        a->kernels->inner_back(scratch, &chunk, hd_linear_before(a, HD_STATES_KV_LEFT, i, c),
                               hd_linear_before(a, HD_STATES_KV_RIGHT, i, c));
        HD_TRY(hd_linear_poll(a, thread));
    }
out:
    return st;
}

static const void *arrived(const heddle_linear_attention *a, int flow)
{
    return a->flow[flow] != NULL ? a->flow[flow]->in : NULL;
}

static void spread(heddle_linear_attention *a, int thread, int64_t i)
{
    if (a->states[rightward_states(a)] != NULL) {
        hd_linear_spread(a, thread, rightward_states(a), i, arrived(a, 0));
    }
    if (a->states[leftward_states(a)] != NULL) {
        hd_linear_spread(a, thread, leftward_states(a), i, arrived(a, 1));
    }
}

static heddle_status outer(void *ctx, int thread, int64_t i)
{
    heddle_status st = HEDDLE_OK;
    heddle_linear_attention *a = ctx;
    void *scratch = hd_linear_scratch(a, thread, i);
    spread(a, thread, i);
    for (int64_t c = 0; c < a->problem.nchunks; c++) {
        hd_linear_chunk chunk;
        const void *left = hd_linear_before(a, rightward_states(a), i, c);
        const void *right = hd_linear_before(a, leftward_states(a), i, c);
        hd_linear_chunk_views(&chunk, a, i, c);
        if (left != NULL || right != NULL || a->part[0] != NULL) {
            (a->going_back ? a->kernels->outer_back : a->kernels->outer)(scratch, &chunk, left, right);
        }
        HD_TRY(hd_linear_poll(a, thread));
    }
out:
    return st;
}

/* Causal and the state before this rank known: one walk over the rows. */
static heddle_status whole_forward(void *ctx, int thread, int64_t i)
{
    heddle_linear_attention *a = ctx;
    void *scratch = hd_linear_scratch(a, thread, i);
    unsigned char *state = hd_linear_carry(a, thread, 0);
    size_t bytes = (size_t)a->padded_elems * a->kernels->real_bytes;
    hd_linear_widen(a, state, arrived(a, 0), i);
    for (int64_t c = 0; c < a->problem.nchunks; c++) {
        hd_linear_chunk chunk;
        hd_linear_chunk_views(&chunk, a, i, c);
        memcpy(hd_linear_state(a, HD_STATES_KV_LEFT, i, c), state, bytes);
        a->kernels->forward(scratch, &chunk, state);
    }
    hd_linear_narrow(a, a->last, state, i);
    return HEDDLE_OK;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* On all threads; the calling one moves the flows on in between. */
static heddle_status on_all_heads(heddle_linear_attention *a, hd_thread_job work)
{
    const hd_threads threads = {.name = "hd-linear",
                                .count = a->problem.options.threads,
                                .jobs = a->problem.batch * a->problem.heads,
                                .fn = work,
                                .ctx = a};
    return hd_threads_run(&threads);
}

static heddle_status begin(heddle_linear_attention *a, int going_back)
{
    heddle_status st = HEDDLE_OK;
    int both = a->problem.options.bidirectional;
    hd_room_place(&a->user);
    a->going_back = going_back;
    for (int i = 0; i < 2; i++) {
        a->uses[i] = a->flow[i] != NULL && (both || i == going_back);
        if (a->uses[i]) {
            HD_TRY(hd_flow_begin(a->flow[i]));
        }
    }
out:
    return st;
}

static heddle_status give(heddle_linear_attention *a)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 2 && st == HEDDLE_OK; i++) {
        st = a->uses[i] ? hd_flow_give(a->flow[i], 0) : HEDDLE_OK;
    }
    return st;
}

static void count(heddle_linear_attention *a, int64_t *messages, int64_t *bytes)
{
    for (int i = 0; i < 2; i++) {
        if (a->flow[i] != NULL) {
            *messages += a->flow[i]->sent_messages;
            *bytes += a->flow[i]->sent_messages * a->problem.state_bytes;
            a->flow[i]->sent_messages = 0;
        }
    }
}

/* The published order: nothing before the state has come, and it goes on after everything. */
static heddle_status forward_in_order(heddle_linear_attention *a)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_linear_wait(a, 0));
    HD_TRY(on_all_heads(a, whole_forward));
    if (a->uses[0]) {
        memcpy(a->flow[0]->out, a->last, (size_t)a->problem.state_bytes);
        HD_TRY(hd_flow_give(a->flow[0], 1));
    }
    HD_TRY(hd_linear_wait(a, 1));
out:
    return st;
}

/* The state behind this rank's rows. */
static void take_last(heddle_linear_attention *a)
{
    if (!a->problem.options.bidirectional) {
        hd_flow_fold(a->flow[0], a->last, a->problem.rows, a->flow[0]->in, a->flow[0]->own);
    }
}

static heddle_status run_forward(heddle_linear_attention *a)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(begin(a, 0));
    if (!a->problem.options.bidirectional && (a->flow[0] == NULL || a->problem.options.receive_first)) {
        return forward_in_order(a);
    }
    HD_TRY(on_all_heads(a, contribute));
    HD_TRY(give(a));
    HD_TRY(on_all_heads(a, inner_forward));
    HD_TRY(hd_linear_wait(a, 0));
    HD_TRY(on_all_heads(a, outer));
    HD_TRY(hd_linear_wait(a, 1));
    if (a->flow[0] != NULL) {
        take_last(a);
    }
out:
    return st;
}

static heddle_status run_backward(heddle_linear_attention *a)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(begin(a, 1));
    if (a->problem.options.receive_first) {
        HD_TRY(hd_linear_wait(a, 0));
    }
    HD_TRY(on_all_heads(a, contribute));
    if (!a->problem.options.receive_first) {
        HD_TRY(give(a));
    }
    HD_TRY(on_all_heads(a, inner_backward));
    HD_TRY(hd_linear_wait(a, 0));
    HD_TRY(on_all_heads(a, outer));
    if (a->problem.options.receive_first) {
        HD_TRY(give(a));
    }
    HD_TRY(hd_linear_wait(a, 1));
out:
    return st;
}

/* --- arguments ---------------------------------------------------------------------------------------------------- */

typedef struct argument {
    const char *name;
    const heddle_attention_array *array;
    heddle_attention_array *to;
    int64_t width;
    int is_written;
} argument;

static heddle_status check_arguments(const heddle_linear_attention *a, const argument *arguments, int n,
                                     const char *function)
{
    const hd_linear_problem *p = &a->problem;
    for (int i = 0; i < n; i++) {
        const argument *x = &arguments[i];
        const hd_object_array array = {
            function, x->name, x->array, &p->shape, {p->batch, p->rows, p->heads, x->width}, x->is_written};
        heddle_status st = hd_object_check_array(&array, hd_comm_rank_name(a->comm, heddle_comm_rank(a->comm)));
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

/* Without any it is dense. */
static heddle_attention_array with_strides(const heddle_linear_attention *a, const heddle_attention_array *array,
                                           int64_t width)
{
    heddle_attention_array out = array != NULL ? *array : (heddle_attention_array){.data = NULL};
    int64_t *stride = out.stride_elems;
    if (hd_array_is_dense(&out)) {
        stride[3] = 1;
        stride[2] = width;
        stride[1] = a->problem.heads * width;
        stride[0] = a->problem.rows * stride[1];
    }
    return out;
}

static heddle_status take_arguments(heddle_linear_attention *a, const argument *arguments, int n, const char *function)
{
    if (hd_object_is_broken(&a->broken, a->comm)) {
        return hd_fail(a->broken.status, "the linear attention failed before: %s", a->broken.why);
    }
    heddle_status st = check_arguments(a, arguments, n, function);
    if (st != HEDDLE_OK) {
        return hd_object_refuse(a->comm, a->problem.nranks, st);
    }
    for (int i = 0; i < n && st == HEDDLE_OK; i++) {
        const heddle_attention_array array = with_strides(a, arguments[i].array, arguments[i].width);
        st = a->on != NULL ? hd_linear_on_check_array(a, &array, arguments[i].name, function) : HEDDLE_OK;
        *arguments[i].to = array;
    }
    return st == HEDDLE_OK ? st : hd_object_refuse(a->comm, a->problem.nranks, st);
}

static heddle_status give_up(heddle_linear_attention *a, heddle_status st)
{
    return hd_object_give_up(&a->broken, a->comm, a->problem.nranks, hd_linear_forgo(a, st));
}

heddle_status heddle_linear_attention_forward(heddle_linear_attention *attention, const heddle_attention_array *q,
                                              const heddle_attention_array *k, const heddle_attention_array *v,
                                              const heddle_attention_array *o, heddle_stream stream)
{
    heddle_linear_attention *a = attention;
    if (a == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_linear_attention_forward: attention is NULL");
    }
    int64_t wk = a->problem.dk, wv = a->problem.dv;
    const argument arguments[] = {
        {"q", q, &a->q, wk, 0}, {"k", k, &a->k, wk, 0}, {"v", v, &a->v, wv, 0}, {"o", o, &a->o, wv, 1}};
    heddle_status st = take_arguments(a, arguments, 4, __func__);
    if (st != HEDDLE_OK) {
        return st;
    }
    a->has_forward = 0;
    st = a->on != NULL ? hd_linear_on_call(a, 0, stream) : run_forward(a);
    a->has_forward = st == HEDDLE_OK;
    count(a, &a->measured.forward_messages, &a->measured.forward_bytes);
    a->forwards += st == HEDDLE_OK;
    return st == HEDDLE_OK ? st : give_up(a, st);
}

heddle_status heddle_linear_attention_backward(heddle_linear_attention *attention, const heddle_attention_array *q,
                                               const heddle_attention_array *k, const heddle_attention_array *v,
                                               const heddle_attention_array *d_o, const heddle_attention_array *dq,
                                               const heddle_attention_array *dk, const heddle_attention_array *dv,
                                               heddle_stream stream)
{
    heddle_linear_attention *a = attention;
    if (a == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_linear_attention_backward: attention is NULL");
    }
    int64_t wk = a->problem.dk, wv = a->problem.dv;
    const argument arguments[] = {{"q", q, &a->q, wk, 0},       {"k", k, &a->k, wk, 0},    {"v", v, &a->v, wv, 0},
                                  {"d_o", d_o, &a->d_o, wv, 0}, {"dq", dq, &a->dq, wk, 1}, {"dk", dk, &a->dk, wk, 1},
                                  {"dv", dv, &a->dv, wv, 1}};
    if (!hd_object_is_broken(&a->broken, a->comm) && !a->has_forward) {
        return hd_fail(HEDDLE_ERR_ARG, "linear attention: backward before any forward");
    }
    heddle_status st = take_arguments(a, arguments, 7, __func__);
    if (st != HEDDLE_OK) {
        return st;
    }
    st = a->on != NULL ? hd_linear_on_call(a, 1, stream) : run_backward(a);
    count(a, &a->measured.backward_messages, &a->measured.backward_bytes);
    a->backwards += st == HEDDLE_OK;
    return st == HEDDLE_OK ? st : give_up(a, st);
}
