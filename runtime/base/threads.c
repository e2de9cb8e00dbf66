#include "runtime/base/threads.h"

#include "runtime/base/base.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

typedef struct team {
    const hd_threads *threads;
    _Atomic int64_t next;
    _Atomic int failed; /* status of the first that did; its sentence is there when all have been joined */
    char sentence[512];
} team;

typedef struct member {
    team *team;
    int seat;
} member;

static void work(team *t, int seat)
{
    const hd_threads *w = t->threads;
    int entered = w->enter != NULL ? w->enter() : 0;
    while (atomic_load(&t->failed) == HEDDLE_OK) {
        int64_t job = atomic_fetch_add(&t->next, 1);
        if (job >= w->jobs) {
            break;
        }
        heddle_status st = w->fn(w->ctx, seat, job);
        int none = HEDDLE_OK;
        if (st != HEDDLE_OK && atomic_compare_exchange_strong(&t->failed, &none, (int)st)) {
            hd_copy_text(t->sentence, sizeof t->sentence, heddle_last_error());
        }
    }
    if (w->leave != NULL) {
        w->leave(entered);
    }
}

static void *thread_main(void *arg)
{
    const member *m = arg;
    if (m->team->threads->name != NULL) {
        pthread_setname_np(pthread_self(), m->team->threads->name);
    }
    work(m->team, m->seat);
    return NULL;
}

heddle_status hd_threads_run(const hd_threads *threads)
{
    pthread_t thread[HD_MAX_THREADS];
    member members[HD_MAX_THREADS];
    team all = {.threads = threads};
    int64_t wanted = threads->count < threads->jobs ? threads->count : threads->jobs;
    int started = 1;
    wanted = wanted < HD_MAX_THREADS ? wanted : HD_MAX_THREADS;
    for (; started < wanted; started++) {
        members[started] = (member){&all, started};
        if (pthread_create(&thread[started], NULL, thread_main, &members[started]) != 0) {
            break;
        }
    }
    work(&all, 0);
    for (int i = 1; i < started; i++) {
        pthread_join(thread[i], NULL);
    }
    int failed = atomic_load(&all.failed);
    return failed == HEDDLE_OK ? HEDDLE_OK : hd_fail((heddle_status)failed, "%s", all.sentence);
}
