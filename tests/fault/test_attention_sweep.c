/* Every method of softmax and linear attention over a broken transport: call n of a rank fails, or the rank is killed
 * in it, for growing n until a run is not hit any more; calls come late or in random order. Every rank returns in time
 * with its own error or one that names the rank, nothing is left, and what comes out of a late run has the same bits.
 */
#include "case.h"
#include "left_over.h"
#include "time_limit.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, ARRAYS = 8, CALLS = 2, SECONDS = 5, OF_RANK = 1 };

typedef struct job {
    int linear, method, both; /* both: causal softmax with shared heads; bidirectional linear */
    int64_t deadline_ms;      /* whoever waits for it takes too long */
    volatile int returned[RANKS], status[RANKS];
    volatile uint64_t sum[RANKS]; /* of the results' bits */
    char why[RANKS][256];
} job;

typedef struct problem {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention_array x[ARRAYS];
    float *data;
    size_t elems;
} problem;

static heddle_status make_problem(problem *p, const job *j, int rank)
{
    int usp = !j->linear && j->method == HEDDLE_ATTENTION_USP;
    int local = j->method == (j->linear ? (int)HEDDLE_LINEAR_LOCAL : (int)HEDDLE_ATTENTION_LOCAL);
    heddle_box box;
    memset(p, 0, sizeof *p);
    HD_OK(heddle_shape_parse(&p->shape, "f32[b=4 s=45 h=4 d=16]")); /* no number of rows that four divides */
    HD_OK(heddle_mesh_parse(&p->mesh, usp ? "[a=2 b=2]" : "[sp=4]"));
    HD_OK(heddle_layout_parse(&p->layout, usp ? "s@a,s@b" : local ? "b@sp" : "s@sp", &p->shape, &p->mesh));
    HD_OK(heddle_layout_box(&box, &p->shape, &p->mesh, &p->layout, rank));
    p->elems = (size_t)(box.len[0] * box.len[1] * box.len[2] * box.len[3]);
    p->data = calloc(ARRAYS * p->elems, sizeof *p->data);
    if (p->data == NULL) {
        return HEDDLE_ERR_NOMEM;
    }
    for (int i = 0; i < ARRAYS; i++) {
        p->x[i].data = p->data + (size_t)i * p->elems;
    }
    for (size_t i = 0; i < 5 * p->elems; i++) {
        p->data[i] = (float)((i + 31 * (size_t)rank) * 7919 % 1999) / 1000 - 1;
    }
    return HEDDLE_OK;
}

static heddle_status run_softmax(heddle_comm *comm, const job *j, problem *p)
{
    heddle_attention *attention = NULL;
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    options.method = (heddle_attention_method)j->method;
    options.deadline_ms = j->deadline_ms;
    options.causal = j->both;
    options.kv_heads = j->both ? 2 : 0;
    options.threads = j->both ? 2 : 1;
    heddle_attention_array *x = p->x;
    heddle_status st = heddle_attention_create(&attention, comm, &p->shape, &p->mesh, &p->layout, &options);
    for (int i = 0; i < CALLS && st == HEDDLE_OK; i++) {
        st = heddle_attention_forward(attention, &x[0], &x[1], &x[2], &x[3], NULL, HEDDLE_NO_STREAM);
        st = st != HEDDLE_OK ? st : heddle_attention_backward(attention, &x[4], &x[5], &x[6], &x[7], HEDDLE_NO_STREAM);
    }
    if (st != HEDDLE_OK && attention != NULL) { /* broken for good, and says why again */
        HD_FAILS(st, heddle_attention_backward(attention, &x[4], &x[5], &x[6], &x[7], HEDDLE_NO_STREAM));
    }
    heddle_attention_destroy(attention);
    return st;
}

static heddle_status run_linear(heddle_comm *comm, const job *j, problem *p)
{
    heddle_linear_attention *attention = NULL;
    heddle_linear_attention_options options;
    const double decay[] = {1, 0.99, 0.9, 0.5};
    heddle_linear_attention_options_init(&options);
    options.method = (heddle_linear_method)j->method;
    options.deadline_ms = j->deadline_ms;
    options.bidirectional = j->both;
    options.threads = j->both ? 2 : 1;
    options.chunk_rows = 4;
    options.decay = decay;
    heddle_attention_array *x = p->x;
    heddle_status st = heddle_linear_attention_create(&attention, comm, &p->shape, &p->mesh, &p->layout, &options);
    for (int i = 0; i < CALLS && st == HEDDLE_OK; i++) {
        st = heddle_linear_attention_forward(attention, &x[0], &x[1], &x[2], &x[3], HEDDLE_NO_STREAM);
        st = st != HEDDLE_OK ? st
                             : heddle_linear_attention_backward(attention, &x[0], &x[1], &x[2], &x[4], &x[5], &x[6],
                                                                &x[7], HEDDLE_NO_STREAM);
    }
    if (st != HEDDLE_OK && attention != NULL) {
        HD_FAILS(st, heddle_linear_attention_forward(attention, &x[0], &x[1], &x[2], &x[3], HEDDLE_NO_STREAM));
    }
    heddle_linear_attention_destroy(attention);
    return st;
}

static heddle_status run_rank(heddle_comm *comm, void *arg)
{
    job *j = arg;
    int rank = heddle_comm_rank(comm);
    problem p;
    heddle_status st = make_problem(&p, j, rank);
    st = st != HEDDLE_OK ? st : j->linear ? run_linear(comm, j, &p) : run_softmax(comm, j, &p);
    snprintf(j->why[rank], sizeof j->why[rank], "%s", st != HEDDLE_OK ? heddle_last_error() : "");
    uint64_t sum = 1469598103934665603u;
    for (size_t i = 0; p.data != NULL && i < ARRAYS * p.elems * sizeof(float); i++) {
        sum = (sum ^ ((const unsigned char *)p.data)[i]) * 1099511628211u;
    }
    j->sum[rank] = sum;
    j->status[rank] = (int)st;
    j->returned[rank] = 1;
    free(p.data);
    return st;
}

static heddle_status run(job *j, const char *transport)
{
    const int64_t began_ns = hd_now_ns();
    memset((void *)j->returned, 0, sizeof j->returned);
    j->deadline_ms = 4 * hd_test_limit_ns(SECONDS) / 1000000;
    heddle_status st = heddle_run_ranks(RANKS, transport, run_rank, j);
    const int64_t took_ns = hd_now_ns() - began_ns;
    if (took_ns > hd_test_limit_ns(SECONDS)) {
        fail_msg("%s, %s %d: took %.1f s", transport, j->linear ? "linear" : "softmax", j->method, took_ns / 1e9);
    }
    return st;
}

/* Whoever failed says why: its own transport, or the rank that did. */
static void check_ranks(const job *j, const char *spec, int killed)
{
    for (int r = 0; r < RANKS; r++) {
        if (!j->returned[r]) {
            if (!killed || r != OF_RANK) {
                fail_msg("%s, %s %d: rank %d did not return", spec, j->linear ? "linear" : "softmax", j->method, r);
            }
            continue;
        }
        int wanted = r == OF_RANK ? HEDDLE_ERR_TRANSPORT : HEDDLE_ERR_PEER;
        if (j->status[r] != HEDDLE_OK && (j->status[r] != wanted || strstr(j->why[r], "rank 1") == NULL)) {
            fail_msg("%s, %s %d: rank %d: %s (%s)", spec, j->linear ? "linear" : "softmax", j->method, r,
                     heddle_status_name((heddle_status)j->status[r]), j->why[r]);
        }
    }
}

static job *shared_job(int linear, int method, int both)
{
    job *j = hd_shared(sizeof *j);
    *j = (job){.linear = linear, .method = method, .both = both};
    return j;
}

static void sweep(int linear, const char *kind, const char *where)
{
    if (strcmp(where, "shm") == 0) {
        hd_see_processes();
    }
    int methods = linear ? HEDDLE_LINEAR_METHOD_COUNT : HEDDLE_ATTENTION_METHOD_COUNT, hit = 0;
    const holdings at_first = holdings_now();
    for (int i = 0; i < 2 * methods; i++) {
        if (i % 2 == 0 && !hd_goes("%s %s %d %d", kind, where, linear, i)) {
            continue; /* both ways is the longer half */
        }
        job *j = shared_job(linear, i / 2, i % 2);
        heddle_status st = HEDDLE_ERR_PEER;
        for (int n = 1, before = 1; st != HEDDLE_OK; n += before, before = n - before) {
            char spec[64];
            snprintf(spec, sizeof spec, "fault(%s=%d@%d):%s", kind, n, OF_RANK, where);
            st = run(j, spec);
            hit += st != HEDDLE_OK;
            check_ranks(j, spec, strcmp(kind, "kill") == 0);
            assert_true(n < 1000000);
        }
    }
    assert_true(hit > 2 * methods);
    assert_nothing_left(at_first);
}

HD_CASE(a_call_fails)
{
    sweep(0, "fail", "threads");
    sweep(1, "fail", "threads");
}

HD_CASE(a_call_of_a_process_fails)
{
    sweep(0, "fail", "shm");
    sweep(1, "fail", "shm");
}

HD_CASE(a_rank_is_killed)
{
    sweep(0, "kill", "shm");
    sweep(1, "kill", "shm");
}

HD_CASE(late_calls_change_no_bit)
{
    static const char *const late[] = {"fault(delay=0.3ms@1):threads", "fault(reorder=7):threads",
                                       "fault(reorder=9,delay=0.1ms@2):shm"};
    for (int linear = 0; linear < 2; linear++) {
        int methods = linear ? HEDDLE_LINEAR_METHOD_COUNT : HEDDLE_ATTENTION_METHOD_COUNT;
        for (int i = 0; i < 2 * methods; i++) {
            job *right = shared_job(linear, i / 2, i % 2), *j = shared_job(linear, i / 2, i % 2);
            HD_OK(run(right, "threads"));
            for (size_t k = 0; k < sizeof late / sizeof late[0]; k++) {
                HD_OK(run(j, late[k]));
                for (int r = 0; r < RANKS; r++) {
                    if (right->sum[r] != j->sum[r]) {
                        fail_msg("%s, %s %d: rank %d has other bits", late[k], linear ? "linear" : "softmax", i / 2, r);
                    }
                }
            }
        }
    }
}
