/* Threads of a call, and waiting for other ranks. */
#include "runtime/attention/linear_internal.h"
#include "runtime/base/threads.h"

#include <stdio.h>

typedef struct job {
    heddle_linear_attention *a;
    hd_linear_work work;
} job;

static heddle_status run_job(void *ctx, int thread, int64_t sample_head)
{
    const job *j = ctx;
    j->work(j->a, thread, sample_head);
    return HEDDLE_OK;
}

heddle_status hd_linear_parallel(heddle_linear_attention *a, hd_linear_work work)
{
    job j = {a, work};
    a->poll_status = HEDDLE_OK;
    const hd_threads threads = {.name = "hd-linear",
                                .count = a->problem.options.threads,
                                .jobs = a->problem.batch * a->problem.heads,
                                .fn = run_job,
                                .ctx = &j};
    heddle_status st = hd_threads_run(&threads);
    return st != HEDDLE_OK ? st : a->poll_status;
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

static heddle_status leave(heddle_linear_attention *a, heddle_status st, char *why, size_t bytes)
{
    if (a->problem.nranks > 1) {
        return hd_comm_give_up(a->comm, st, why, bytes);
    }
    snprintf(why, bytes, "%s", heddle_last_error());
    return hd_fail(st, "%s", why);
}

heddle_status hd_linear_give_up(heddle_linear_attention *a, heddle_status st)
{
    a->broken = st;
    return leave(a, st, a->why, sizeof a->why);
}

heddle_status hd_linear_refuse(heddle_linear_attention *a, heddle_status st)
{
    char why[sizeof a->why];
    return leave(a, st, why, sizeof why);
}
