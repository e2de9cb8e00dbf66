#include "runtime/attention/jobs.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct pool {
    _Atomic int64_t next;
    int64_t jobs;
    hd_job_fn fn;
    void *ctx;
} pool;

typedef struct worker {
    pool *pool;
    int thread;
} worker;

static void *work(void *arg)
{
    const worker *w = arg;
    for (;;) {
        int64_t job = atomic_fetch_add(&w->pool->next, 1);
        if (job >= w->pool->jobs) {
            return NULL;
        }
        w->pool->fn(w->pool->ctx, w->thread, job);
    }
}

void hd_run_jobs(int threads, int64_t jobs, hd_job_fn fn, void *ctx)
{
    pthread_t thread[HD_MAX_THREADS];
    worker workers[HD_MAX_THREADS];
    pool all = {.jobs = jobs, .fn = fn, .ctx = ctx};
    int wanted = jobs < threads ? (int)jobs : threads, started = 1;
    for (int i = 0; i < wanted; i++) {
        workers[i] = (worker){&all, i};
    }
    while (started < wanted && pthread_create(&thread[started], NULL, work, &workers[started]) == 0) {
        started++;
    }
    if (wanted > 0) {
        work(&workers[0]);
    }
    for (int i = 1; i < started; i++) {
        pthread_join(thread[i], NULL);
    }
}
