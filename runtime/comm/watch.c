/* The watch of a communicator whose devices wait for one another. */
#include "runtime/comm/watch.h"
#include "runtime/comm/comm_private.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_EVERY_NS = 20000000, PAGE_BYTES = 4096 };

struct hd_watch {
    const hd_group *group;
    const hd_device *device;
    struct pollfd *life; /* own copies: the group's belong to the rank's thread */
    uint64_t *word;      /* a page */
    int is_pinned, runs;
    pid_t maker;
    hd_outlook *outlooks; /* with the lock, but to be read by the thread that changes them */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ends;
    int shall_end;
};

/* 1: it is to end. */
static int rest(hd_watch *watch)
{
    struct timespec until;
    pthread_mutex_lock(&watch->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + LOOK_EVERY_NS;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    int waited = 0;
    while (!watch->shall_end && waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&watch->ends, &watch->lock, &until);
    }
    int shall_end = watch->shall_end;
    pthread_mutex_unlock(&watch->lock);
    return shall_end;
}

static void ask_all(hd_watch *watch)
{
    pthread_mutex_lock(&watch->lock);
    for (const hd_outlook *o = watch->outlooks; o != NULL; o = o->next) {
        o->ask_beside(o->arg);
    }
    pthread_mutex_unlock(&watch->lock);
}

static void *look_around(void *arg)
{
    hd_watch *watch = arg;
    int is_over = 0; /* which is not undone any more */
    while (!rest(watch)) {
        if (!is_over && hd_group_is_over(watch->group, watch->life)) {
            __atomic_store_n(watch->word, 1, __ATOMIC_RELEASE);
            is_over = 1;
        }
        if (is_over) {
            ask_all(watch);
        }
    }
    return NULL;
}

static heddle_status run(hd_watch *watch)
{
    pthread_condattr_t by_monotonic;
    pthread_condattr_init(&by_monotonic);
    pthread_condattr_setclock(&by_monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->ends, &by_monotonic);
    pthread_condattr_destroy(&by_monotonic);
    pthread_mutex_init(&watch->lock, NULL);
    int error = pthread_create(&watch->thread, NULL, look_around, watch);
    watch->runs = error == 0;
    return error == 0 ? HEDDLE_OK
                      : hd_fail(HEDDLE_ERR_NOMEM, "the thread that watches over device %s cannot be started (error %d)",
                                watch->device->name, error);
}

heddle_status hd_watch_start(hd_watch **out, hd_group *group, const hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    hd_watch *watch = NULL;
    HD_TRY(hd_alloc((void **)&watch, 1, sizeof *watch, "a watch"));
    watch->group = group;
    watch->device = device;
    watch->maker = getpid();
    HD_TRY(hd_group_copy_lives(&watch->life, group));
    HD_TRY(hd_alloc_aligned((void **)&watch->word, PAGE_BYTES, PAGE_BYTES, "a watch"));
    *watch->word = 0;
    HD_TRY(device->library->pin(watch->word, PAGE_BYTES, device->number));
    watch->is_pinned = 1;
    HD_TRY(run(watch));
    *out = watch;
    watch = NULL;
out:
    hd_watch_stop(watch);
    return st;
}

void hd_watch_stop(hd_watch *watch)
{
    if (watch == NULL) {
        return;
    }
    int is_own = watch->maker == getpid();
    if (watch->runs && is_own) {
        pthread_mutex_lock(&watch->lock);
        watch->shall_end = 1;
        pthread_cond_signal(&watch->ends);
        pthread_mutex_unlock(&watch->lock);
        pthread_join(watch->thread, NULL);
    }
    hd_group_free_lives(watch->life, watch->group);
    if (watch->is_pinned && is_own && !watch->device->is_left) { /* else it would wait for what does not end */
        watch->device->library->unpin(watch->word, watch->device->number);
    }
    if (!watch->device->is_left) {
        hd_free(watch->word);
    }
    hd_free(watch);
}

void hd_comm_outlook_add(heddle_comm *comm, hd_outlook *outlook)
{
    hd_watch *watch = comm->root->watch;
    pthread_mutex_lock(&watch->lock);
    outlook->next = watch->outlooks;
    watch->outlooks = outlook;
    pthread_mutex_unlock(&watch->lock);
}

void hd_comm_outlook_remove(heddle_comm *comm, hd_outlook *outlook)
{
    hd_watch *watch = comm->root->watch;
    if (watch->maker != getpid()) { /* in a fork nobody asks, and the lock may be held for ever */
        return;
    }
    pthread_mutex_lock(&watch->lock);
    hd_outlook **at = &watch->outlooks;
    while (*at != NULL && *at != outlook) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = outlook->next;
    }
    pthread_mutex_unlock(&watch->lock);
}

const hd_outlook *hd_watch_outlooks(const hd_watch *watch)
{
    return watch != NULL ? watch->outlooks : NULL;
}

const uint64_t *hd_comm_abort_word(const heddle_comm *comm)
{
    return comm->root->watch->word;
}
