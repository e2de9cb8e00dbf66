/* The thread beside a rank whose messages between devices are under way. It finds that they are overdue or that
 * somebody has given up, because the rank's own may wait for the device and ask nobody; and it ends the library's
 * handle, which waits for graphs that have work of it, and perhaps for other ranks. */
#include "runtime/comm/device_nccl.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

enum { LOOK_EVERY_NS = 20000000 };

/* With the lock, until there are news; 0: the time is over. */
static int await_news(hd_comm_nccl *nccl, int64_t until_ns)
{
    const struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    return pthread_cond_timedwait(&nccl->news, &nccl->lock, &until) != ETIMEDOUT;
}

/* --- what is overdue ---------------------------------------------------------------------------------------------- */

static heddle_status look_at_span(hd_comm_nccl *nccl, hd_nccl_span *span, int *ended)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = nccl->device;
    int begun = span->late_ns != 0;
    *ended = 0;
    if (!begun) {
        HD_TRY(device->library->event_test(span->begun, device->number, &begun));
        span->late_ns = begun ? hd_comm_deadline_ns(nccl->root, span->deadline_ms) : 0;
    }
    HD_TRY(begun ? device->library->event_test(span->ended, device->number, ended) : HEDDLE_OK);
    if (begun && !*ended && hd_now_ns() > span->late_ns) {
        st = hd_fail(HEDDLE_ERR_TIMEOUT,
                     "rank %d: messages between devices (%s) that its stream has come to did not come before the "
                     "deadline",
                     nccl->root->rank, nccl->messages.describe);
    }
out:
    return st;
}

/* Several streams may have some, so that any of them may be the one that is stuck. */
heddle_status hd_comm_nccl_look_at_clock(hd_comm_nccl *nccl, int all)
{
    heddle_status st = HEDDLE_OK;
    hd_nccl_span *before = NULL, *span = nccl->under_way;
    while (span != NULL) {
        hd_nccl_span *next = span->next;
        int ended = 0;
        HD_TRY(look_at_span(nccl, span, &ended));
        if (!ended) {
            before = span;
            next = all ? next : NULL;
        } else {
            *(before != NULL ? &before->next : &nccl->under_way) = next;
            nccl->last = nccl->last == span ? before : nccl->last;
            span->next = nccl->spare;
            nccl->spare = span;
        }
        span = next;
    }
out:
    return st;
}

heddle_status hd_comm_nccl_add_spare(hd_comm_nccl *nccl)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = nccl->device;
    hd_nccl_span *span = NULL;
    HD_TRY(hd_alloc((void **)&span, 1, sizeof *span, "messages between devices"));
    span->next = nccl->spare;
    nccl->spare = span;
    HD_TRY(device->library->event_create(&span->begun, device->number));
    st = device->library->event_create(&span->ended, device->number);
out:
    return st;
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

void hd_comm_nccl_break_off(hd_comm_nccl *nccl, heddle_status st)
{
    hd_broken_keep(&nccl->broken, st);
    pthread_cond_broadcast(&nccl->news);
}

/* The library knows that some rank is gone, and the group may hear in a moment which. 0: there was time enough. */
static int awaits_cause(hd_comm_nccl *nccl, heddle_status st)
{
    if (!hd_comm_nccl_is_gone(st)) {
        return 0;
    }
    nccl->gone_ns = nccl->gone_ns != 0 ? nccl->gone_ns : hd_now_ns();
    return hd_now_ns() < nccl->gone_ns + HD_NCCL_NEWS_NS;
}

/* With the lock. It must not ask what only the rank's thread may (hd_comm_check): who it was is said when that asks. */
static void look_around(hd_comm_nccl *nccl)
{
    heddle_status st = HEDDLE_OK;
    int done = 0, is_over = hd_group_is_over(nccl->root->group, nccl->life);
    if (is_over) {
        st = hd_fail(HEDDLE_ERR_PEER, "rank %d: a rank has given up or died", nccl->root->rank);
    } else {
        st = hd_comm_nccl_look(nccl, &done);
        st = st == HEDDLE_OK ? hd_comm_nccl_look_at_clock(nccl, 1) : st;
    }
    if (st != HEDDLE_OK && (is_over || !awaits_cause(nccl, st))) {
        if (!is_over) {
            heddle_ignore(hd_comm_abort(nccl->root, heddle_last_error()));
        }
        hd_comm_nccl_break_off(nccl, st);
    }
}

static void *watch(void *arg)
{
    hd_comm_nccl *nccl = arg;
    pthread_mutex_lock(&nccl->lock);
    while (!nccl->shall_end && nccl->broken.status == HEDDLE_OK) {
        if (!await_news(nccl, hd_now_ns() + LOOK_EVERY_NS) && !nccl->shall_end && nccl->broken.status == HEDDLE_OK) {
            look_around(nccl);
        }
    }
    int gives_up = nccl->broken.status != HEDDLE_OK || nccl->gives_up;
    pthread_mutex_unlock(&nccl->lock);
    hd_messages_end(&nccl->messages, gives_up); /* nobody else asks the library any more */
    pthread_mutex_lock(&nccl->lock);
    nccl->has_ended = 1;
    int is_left = nccl->is_left;
    pthread_cond_broadcast(&nccl->news);
    pthread_mutex_unlock(&nccl->lock);
    if (is_left) {
        hd_comm_nccl_free(nccl);
    }
    return NULL;
}

heddle_status hd_comm_nccl_start_watch(hd_comm_nccl *nccl)
{
    int error = pthread_create(&nccl->watch, NULL, watch, nccl);
    nccl->is_watched = error == 0;
    return error == 0 ? HEDDLE_OK
                      : hd_fail(HEDDLE_ERR_NOMEM, "the thread that watches over device %s cannot be started (error %d)",
                                nccl->device->name, error);
}

/* --- its end ------------------------------------------------------------------------------------------------------ */

static void free_spans(hd_comm_nccl *nccl, hd_nccl_span **spans)
{
    while (*spans != NULL) {
        hd_nccl_span *span = *spans;
        *spans = span->next;
        nccl->device->library->event_destroy(span->begun, nccl->device->number);
        nccl->device->library->event_destroy(span->ended, nccl->device->number);
        hd_free(span);
    }
}

void hd_comm_nccl_free(hd_comm_nccl *nccl)
{
    pthread_mutex_destroy(&nccl->lock);
    pthread_cond_destroy(&nccl->news);
    hd_free(nccl);
}

void hd_comm_nccl_end(hd_comm_nccl *nccl, int gives_up)
{
    int64_t until_ns = hd_comm_deadline_ns(nccl->root, 0);
    pthread_mutex_lock(&nccl->lock);
    nccl->shall_end = 1;
    nccl->gives_up = gives_up;
    pthread_cond_broadcast(&nccl->news);
    free_spans(nccl, &nccl->under_way);
    free_spans(nccl, &nccl->spare);
    hd_group_free_lives(nccl->life, nccl->root->group);
    while (nccl->is_watched && !nccl->has_ended && await_news(nccl, until_ns)) {
    }
    nccl->is_left = nccl->is_watched && !nccl->has_ended; /* the device and the communicator go before it */
    int is_left = nccl->is_left;
    pthread_t thread = nccl->watch;
    pthread_mutex_unlock(&nccl->lock);
    if (is_left) {
        pthread_detach(thread);
        return;
    }
    if (nccl->is_watched) {
        pthread_join(nccl->watch, NULL);
    }
    hd_messages_end(&nccl->messages, 1);
    hd_comm_nccl_free(nccl);
}
