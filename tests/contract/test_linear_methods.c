/* Linear attention on real ranks: every method against the recurrence, states, traffic, refusals, a rank that dies. */
#include "case.h"
#include "found.h"
#include "time_limit.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/verify/linear_check.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct job {
    int count;
    uint64_t seed;
    heddle_dtype dtype;
} job;

static heddle_status check(heddle_comm *comm, const linear_case *c, linear_errors *errors)
{
    char text[2048], problem[LINEAR_PROBLEM_BYTES] = "";
    heddle_status st = linear_check(comm, c, problem, errors, NULL);
    linear_describe(text, sizeof text, c);
    return found(comm, st, problem, text);
}

static heddle_status random_cases(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    random_source source = {j->seed};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < j->count && st == HEDDLE_OK; i++) {
        linear_case c;
        linear_draw(&c, &source, heddle_comm_size(comm), j->dtype);
        st = check(comm, &c, NULL);
    }
    return st;
}

HD_CASE(random_on_threads)
{
    for (int ranks = 1; ranks <= 8; ranks++) {
        job j = {.count = hd_rounds(25), .seed = 40 + (uint64_t)ranks, .dtype = HEDDLE_DTYPE_COUNT};
        HD_OK(heddle_run_ranks(ranks, "threads", random_cases, &j));
    }
}

HD_CASE(random_on_shm)
{
    for (int ranks = 2; ranks <= 5; ranks++) {
        job j = {.count = hd_rounds(15), .seed = 60 + (uint64_t)ranks, .dtype = HEDDLE_DTYPE_COUNT};
        HD_OK(heddle_run_ranks(ranks, "shm", random_cases, &j));
    }
}

/* --- every method, decay and number of ranks, uneven lengths, dk != dv: to 1e-12 ---------------------------------- */

static void plain_case(linear_case *c, int ranks, heddle_linear_method method, double decay, int64_t rows)
{
    char text[80];
    memset(c, 0, sizeof *c);
    snprintf(text, sizeof text, "f64[b=2 s=%lld h=2 d=7]", (long long)rows);
    heddle_ignore(heddle_shape_parse(&c->shape, text));
    snprintf(text, sizeof text, "[sp=%d]", ranks);
    heddle_ignore(heddle_mesh_parse(&c->mesh, text));
    heddle_ignore(heddle_layout_parse(&c->layout, "s@sp", &c->shape, &c->mesh));
    heddle_linear_attention_options_init(&c->options);
    c->options.method = method;
    c->options.dv = 5;
    c->options.chunk_rows = 3;
    c->seed = 11;
    for (int h = 0; h < LINEAR_MAX_HEADS; h++) {
        c->decay[h] = decay;
    }
}

/* What the papers say a rank at position p of n sends in one call. */
static int64_t published_messages(heddle_linear_method method, int p, int n)
{
    int64_t scan = 0;
    for (int d = 1; d < n; d *= 2) {
        scan += p + d < n;
    }
    return method == HEDDLE_LINEAR_LASP ? p + 1 < n : method == HEDDLE_LINEAR_LASP2 ? n - 1 : scan;
}

static heddle_status all_methods(heddle_comm *comm, void *arg)
{
    static const double decays[] = {1, 0.99, 0.5};
    static const int64_t lengths[] = {37, 3};
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm), p = heddle_comm_rank(comm);
    (void)arg;
    for (int m = HEDDLE_LINEAR_LASP; m < HEDDLE_LINEAR_METHOD_COUNT; m++) {
        for (int i = 0; i < 12; i++) {
            linear_case c;
            linear_errors e;
            plain_case(&c, n, (heddle_linear_method)m, decays[i % 3], lengths[i / 6]);
            c.options.bidirectional = i / 3 % 2;
            HD_TRY(check(comm, &c, &e));
            if (c.options.bidirectional) {
                continue;
            }
            int64_t right = published_messages(c.options.method, p, n);
            int64_t left = published_messages(c.options.method, n - 1 - p, n);
            const int64_t state_bytes = 2 * 2 * 7 * 5 * 8; /* whatever the length */
            if (e.planned.forward_messages != right || e.planned.backward_messages != left ||
                e.planned.forward_bytes != right * state_bytes || e.planned.backward_bytes != left * state_bytes) {
                fprintf(stderr, "rank %d of %d, %s: %lld messages of %lld bytes\n", p, n,
                        heddle_linear_method_name(c.options.method), (long long)e.planned.forward_messages,
                        (long long)e.planned.forward_bytes);
                return HEDDLE_ERR_MISMATCH;
            }
        }
    }
out:
    return st;
}

HD_CASE(methods_decays_and_traffic)
{
    for (int ranks = 1; ranks <= 8; ranks++) {
        HD_OK(heddle_run_ranks(ranks, "threads", all_methods, NULL));
    }
}

HD_RANK_CASE(empty_ranks_pass_states_on, "5 threads")
{
    heddle_status st = HEDDLE_OK;
    for (int m = HEDDLE_LINEAR_LASP; m < HEDDLE_LINEAR_METHOD_COUNT; m++) {
        for (int both = 0; both < 2; both++) {
            linear_case c;
            plain_case(&c, 5, (heddle_linear_method)m, 0.9, 21);
            HD_TRY(heddle_layout_parse(&c.layout, "s@sp(0 9 0 11 1)", &c.shape, &c.mesh));
            c.options.bidirectional = both;
            HD_TRY(check(comm, &c, NULL));
        }
    }
out:
    return st;
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

/* All ranks ask for decays of 0.9, but for that one. */
static heddle_status create_with_decay(heddle_comm *comm, heddle_linear_method method, int rank, double decay)
{
    linear_case c;
    heddle_linear_attention *a = NULL;
    plain_case(&c, 3, method, 0.9, 12);
    c.options.decay = c.decay;
    c.decay[1] = heddle_comm_rank(comm) == rank ? decay : 0.9;
    heddle_status st = heddle_linear_attention_create(&a, comm, &c.shape, &c.mesh, &c.layout, &c.options);
    heddle_linear_attention_destroy(a);
    return st;
}

static heddle_status different_decays(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = create_with_decay(comm, HEDDLE_LINEAR_LASP, 2, 0.8);
    int named = strstr(heddle_last_error(), "rank 2 asks for another linear attention: its decay") != NULL;
    return st == HEDDLE_ERR_MISMATCH && named ? HEDDLE_OK : HEDDLE_ERR_INTERNAL;
}

static heddle_status one_bad_option(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = create_with_decay(comm, HEDDLE_LINEAR_SCAN, 1, 1.5);
    return st == (heddle_comm_rank(comm) == 1 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER) ? HEDDLE_OK : HEDDLE_ERR_INTERNAL;
}

/* A plan of the plain case, and arrays that are large enough for it. */
typedef struct small_call {
    heddle_linear_attention *plan;
    double memory[2 * 12 * 2 * 7], result[2 * 12 * 2 * 7];
    heddle_attention_array in, out;
} small_call;

static heddle_status open_call(small_call *call, heddle_comm *comm, heddle_linear_method method, int64_t deadline_ms)
{
    linear_case c;
    memset(call, 0, sizeof *call);
    call->in.data = call->memory;
    call->out.data = call->result;
    plain_case(&c, heddle_comm_size(comm), method, 0.9, 12);
    c.options.deadline_ms = deadline_ms;
    return heddle_linear_attention_create(&call->plan, comm, &c.shape, &c.mesh, &c.layout, &c.options);
}

static heddle_status forward(small_call *call)
{
    return heddle_linear_attention_forward(call->plan, &call->in, &call->in, &call->in, &call->out, HEDDLE_NO_STREAM);
}

static heddle_status null_array(heddle_comm *comm, void *arg)
{
    small_call call;
    heddle_status st = HEDDLE_OK;
    (void)arg;
    HD_TRY(open_call(&call, comm, HEDDLE_LINEAR_LASP, 0));
    call.in.data = heddle_comm_rank(comm) == 0 ? NULL : call.memory;
    st = forward(&call);
    heddle_status wanted = heddle_comm_rank(comm) == 0 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER;
    heddle_status again = forward(&call);
    st = st == wanted && again == wanted ? HEDDLE_OK : HEDDLE_ERR_INTERNAL;
out:
    heddle_linear_attention_destroy(call.plan);
    return st;
}

HD_CASE(refusals_reach_every_rank)
{
    HD_OK(heddle_run_ranks(3, "threads", different_decays, NULL));
    HD_OK(heddle_run_ranks(3, "threads", one_bad_option, NULL));
    HD_OK(heddle_run_ranks(3, "threads", null_array, NULL));
}

/* --- a rank that dies in the middle of the ring ------------------------------------------------------------------- */

static heddle_status dying_ring(heddle_comm *comm, void *arg)
{
    small_call call;
    heddle_status st = HEDDLE_OK;
    HD_TRY(open_call(&call, comm, *(const heddle_linear_method *)arg, 0));
    for (int i = 0; i < 100000 && st == HEDDLE_OK; i++) {
        if (i == 7 && heddle_comm_rank(comm) == 1) {
            raise(SIGKILL);
        }
        st = forward(&call);
    }
    if (st != HEDDLE_ERR_PEER) {
        fprintf(stderr, "rank %d: %s, %s\n", heddle_comm_rank(comm), heddle_status_name(st), heddle_last_error());
        st = HEDDLE_ERR_INTERNAL;
    }
out:
    heddle_linear_attention_destroy(call.plan);
    return st;
}

HD_CASE(a_rank_dies_mid_ring)
{
    for (int m = HEDDLE_LINEAR_LASP; m < HEDDLE_LINEAR_METHOD_COUNT; m++) {
        heddle_linear_method method = (heddle_linear_method)m;
        int64_t start_ns = hd_now_ns();
        HD_FAILS(HEDDLE_ERR_PEER, heddle_run_ranks(4, "shm", dying_ring, &method));
        assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(10));
    }
}

HD_RANK_CASE(deadlines_name_the_late_rank, "2 threads")
{
    small_call call;
    heddle_status st = HEDDLE_OK;
    HD_TRY(open_call(&call, comm, HEDDLE_LINEAR_LASP, hd_test_missed_ns(0.3) / 1000000));
    if (heddle_comm_rank(comm) == 0) {
        while (hd_comm_check(comm) == HEDDLE_OK) {
            usleep(1000); /* in a barrier rank 1 would be told at once */
        }
        st = forward(&call);
        st = st == HEDDLE_ERR_PEER ? HEDDLE_OK : HEDDLE_ERR_INTERNAL;
    } else {
        st = forward(&call);
        int named = strstr(heddle_last_error(), "rank 1: the state of rank 0 did not come in time (lasp)") != NULL;
        st = st == HEDDLE_ERR_TIMEOUT && named ? HEDDLE_OK : HEDDLE_ERR_INTERNAL;
    }
out:
    heddle_linear_attention_destroy(call.plan);
    return st;
}
