/* Ranks that are threads of this process. */
#include "runtime/comm/transport/run.h"

#include <pthread.h>
#include <string.h>

enum { STACK_BYTES = 16 << 20 };

typedef struct rank_thread {
    hd_run *run;
    hd_group *group;
    int rank;
    pthread_t thread;
    pthread_mutex_t *gate; /* held until all threads have been made */
    const int *cancelled;
} rank_thread;

static void *thread_main(void *arg)
{
    rank_thread *t = arg;
    pthread_mutex_lock(t->gate);
    int cancelled = *t->cancelled;
    pthread_mutex_unlock(t->gate);
    if (cancelled) {
        hd_group_destroy(t->group);
    } else {
        heddle_comm *comm = NULL;
        const heddle_status st = hd_run_comm(&comm, t->run, t->group, t->rank);
        hd_run_rank_main(t->run, comm, st, t->rank);
    }
    return NULL;
}

static heddle_status start_threads(rank_thread *threads, int n, int *started)
{
    heddle_status st = HEDDLE_OK;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (int i = 0; i < n; i++, ++*started) {
        int error = pthread_create(&threads[i].thread, &attributes, thread_main, &threads[i]);
        if (error != 0) {
            st = hd_fail(HEDDLE_ERR_NOMEM, "thread %d of %d cannot be started: %s", i + 1, n, strerror(error));
            break;
        }
    }
    pthread_attr_destroy(&attributes);
    return st;
}

static heddle_status run_threads(hd_run *run)
{
    heddle_status st = HEDDLE_OK;
    rank_thread *threads = NULL;
    hd_team *team = NULL;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    int cancelled = 0;
    int started = 0;
    HD_TRY(hd_alloc((void **)&threads, (size_t)run->nranks, sizeof *threads, "ranks that are threads"));
    HD_TRY(hd_team_create(&team, run->nranks));
    for (int i = 0; i < run->nranks; i++) {
        threads[i].run = run;
        threads[i].rank = i;
        threads[i].gate = &gate;
        threads[i].cancelled = &cancelled;
        HD_TRY(hd_group_of_team(&threads[i].group, team, i));
    }
    pthread_mutex_lock(&gate);
    st = start_threads(threads, run->nranks, &started);
    cancelled = st != HEDDLE_OK;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i].thread, NULL);
    }
out:
    for (int i = started; i < run->nranks && threads != NULL; i++) {
        hd_group_destroy(threads[i].group);
    }
    hd_team_release(team);
    hd_free(threads);
    pthread_mutex_destroy(&gate);
    return st;
}

const hd_transport hd_transport_threads = {
    .name = "threads",
    .instead = "ranks that are threads are started by heddle_run_ranks, they cannot be joined",
    .run = run_threads,
};
