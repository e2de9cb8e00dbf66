/* Threads of a call, and waiting for other ranks. */
#include "runtime/attention/linear_internal.h"

#include <pthread.h>
#include <stdio.h>

enum { MAX_THREADS = 256 };

typedef struct share {
    heddle_linear_attention *a;
    hd_linear_work work;
    int thread;
    int64_t from, to;
} share;

static void *run_share(void *arg)
{
    share *s = arg;
    for (int64_t i = s->from; i < s->to; i++) {
        s->work(s->a, s->thread, i);
    }
    return NULL;
}

heddle_status hd_linear_parallel(heddle_linear_attention *a, hd_linear_work work)
{
    pthread_t thread[MAX_THREADS];
    share shares[MAX_THREADS];
    int64_t all = a->problem.batch * a->problem.heads;
    int n = a->problem.options.threads < all ? a->problem.options.threads : (int)all;
    int started[MAX_THREADS] = {0};
    a->poll_status = HEDDLE_OK;
    for (int i = n - 1; i >= 0; i--) {
        shares[i] = (share){.a = a, .work = work, .thread = i, .from = all * i / n, .to = all * (i + 1) / n};
        started[i] = i > 0 && pthread_create(&thread[i], NULL, run_share, &shares[i]) == 0;
        if (i > 0 && !started[i]) { /* no more threads to be had: this one does it */
            shares[i].thread = 0;
            run_share(&shares[i]);
        }
    }
    if (n > 0) {
        run_share(&shares[0]);
    }
    for (int i = 1; i < n; i++) {
        if (started[i]) {
            pthread_join(thread[i], NULL);
        }
    }
    return a->poll_status;
}

static heddle_status test_flows(heddle_linear_attention *a)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 2 && st == HEDDLE_OK; i++) {
        st = a->uses[i] ? hd_flow_test(a->flow[i]) : HEDDLE_OK;
    }
    return st;
}

void hd_linear_poll(heddle_linear_attention *a, int thread)
{
    if (thread == 0 && a->poll_status == HEDDLE_OK) {
        a->poll_status = test_flows(a);
    }
}

/* The first flow that is not there yet; NULL: none. */
static const hd_flow *late_flow(const heddle_linear_attention *a, int done)
{
    for (int i = 0; i < 2; i++) {
        if (a->uses[i] && !(done ? a->flow[i]->done : a->flow[i]->ready)) {
            return a->flow[i];
        }
    }
    return NULL;
}

heddle_status hd_linear_wait(heddle_linear_attention *a, int done)
{
    heddle_status st = HEDDLE_OK;
    int64_t start_ns = hd_now_ns(), deadline_ns = 0;
    if (late_flow(a, done) == NULL) {
        return HEDDLE_OK;
    }
    deadline_ns = hd_comm_deadline_ns(a->comm, a->problem.options.deadline_ms);
    for (int round = 0;; round++) {
        HD_TRY(test_flows(a));
        const hd_flow *late = late_flow(a, done);
        if (late == NULL) {
            break;
        }
        HD_TRY(hd_comm_check(a->comm));
        if (hd_now_ns() > deadline_ns) {
            st = hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: the state of rank %d did not come in time (%s)",
                         heddle_comm_rank(a->comm), late->waits_for, late->method->name);
            goto out;
        }
        hd_comm_relax(a->comm, round);
    }
out:
    a->wait_ns += hd_now_ns() - start_ns;
    return st;
}

heddle_status hd_linear_give_up(heddle_linear_attention *a, heddle_status why)
{
    a->broken = why;
    snprintf(a->why, sizeof a->why, "%s", heddle_last_error());
    if (a->problem.nranks > 1) {
        heddle_comm_abort(a->comm, a->why);
    }
    return hd_fail(why, "%s", a->why);
}
