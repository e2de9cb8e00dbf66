/* The thread beside a rank whose messages between devices are under way. It finds that they are overdue or that
 * somebody has given up, because the rank's own may wait for the device and ask nobody; and it ends the library's
 * handle, which waits for graphs that have work of it, and perhaps for other ranks. */
#include "runtime/comm/device_messages.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

enum { LOOK_EVERY_NS = 20000000 };

/* With the lock, until there are news; 0: the time is over. */
static int await_news(hd_comm_mail *mail, int64_t until_ns)
{
    const struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    return pthread_cond_timedwait(&mail->news, &mail->lock, &until) != ETIMEDOUT;
}

/* --- what is overdue ---------------------------------------------------------------------------------------------- */

static heddle_status look_at_span(hd_comm_mail *mail, hd_mail_span *span, int *ended)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = mail->device;
    int begun = span->late_ns != 0;
    *ended = 0;
    if (!begun) {
        HD_TRY(device->library->event_test(span->begun, device->number, &begun));
        span->late_ns = begun ? hd_comm_deadline_ns(mail->root, span->deadline_ms) : 0;
    }
    HD_TRY(begun ? device->library->event_test(span->ended, device->number, ended) : HEDDLE_OK);
    if (begun && !*ended && hd_now_ns() > span->late_ns) {
        st = hd_fail(HEDDLE_ERR_TIMEOUT,
                     "rank %d: messages between devices (%s) that its stream has come to did not come before the "
                     "deadline",
                     mail->root->rank, mail->messages.describe);
    }
out:
    return st;
}

/* Several streams may have some, so that any of them may be the one that is stuck. */
heddle_status hd_comm_mail_look_at_clock(hd_comm_mail *mail, int all)
{
    heddle_status st = HEDDLE_OK;
    hd_mail_span *before = NULL, *span = mail->under_way;
    while (span != NULL) {
        hd_mail_span *next = span->next;
        int ended = 0;
        HD_TRY(look_at_span(mail, span, &ended));
        if (!ended) {
            before = span;
            next = all ? next : NULL;
        } else {
            *(before != NULL ? &before->next : &mail->under_way) = next;
            mail->last = mail->last == span ? before : mail->last;
            span->next = mail->spare;
            mail->spare = span;
        }
        span = next;
    }
out:
    return st;
}

heddle_status hd_comm_mail_add_spare(hd_comm_mail *mail)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = mail->device;
    hd_mail_span *span = NULL;
    HD_TRY(hd_alloc((void **)&span, 1, sizeof *span, "messages between devices"));
    span->next = mail->spare;
    mail->spare = span;
    HD_TRY(device->library->event_create(&span->begun, device->number));
    st = device->library->event_create(&span->ended, device->number);
out:
    return st;
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

void hd_comm_mail_break_off(hd_comm_mail *mail, heddle_status st)
{
    hd_broken_keep(&mail->broken, st);
    pthread_cond_broadcast(&mail->news);
}

/* With the lock. It must not ask what only the rank's thread may (hd_comm_check): who it was is said when that asks. */
static void look_around(hd_comm_mail *mail)
{
    heddle_status st = HEDDLE_OK;
    int done = 0, is_over = hd_group_is_over(mail->root->group, mail->life);
    if (is_over) {
        st = hd_fail(HEDDLE_ERR_PEER, "rank %d: a rank has given up or died", mail->root->rank);
    } else {
        st = hd_comm_mail_look(mail, &done);
        st = st == HEDDLE_OK ? hd_comm_mail_look_at_clock(mail, 1) : st;
    }
    if (st != HEDDLE_OK) {
        if (!is_over) {
            heddle_ignore(hd_comm_abort(mail->root, heddle_last_error()));
        }
        hd_comm_mail_break_off(mail, st);
    }
}

static void *watch(void *arg)
{
    hd_comm_mail *mail = arg;
    pthread_mutex_lock(&mail->lock);
    while (!mail->shall_end && mail->broken.status == HEDDLE_OK) {
        if (!await_news(mail, hd_now_ns() + LOOK_EVERY_NS) && !mail->shall_end && mail->broken.status == HEDDLE_OK) {
            look_around(mail);
        }
    }
    int gives_up = mail->broken.status != HEDDLE_OK || mail->gives_up;
    pthread_mutex_unlock(&mail->lock);
    hd_messages_end(&mail->messages, gives_up); /* nobody else asks the library any more */
    pthread_mutex_lock(&mail->lock);
    mail->has_ended = 1;
    int is_left = mail->is_left;
    pthread_cond_broadcast(&mail->news);
    pthread_mutex_unlock(&mail->lock);
    if (is_left) {
        hd_comm_mail_free(mail);
    }
    return NULL;
}

heddle_status hd_comm_mail_start_watch(hd_comm_mail *mail)
{
    int error = pthread_create(&mail->watch, NULL, watch, mail);
    mail->is_watched = error == 0;
    return error == 0 ? HEDDLE_OK
                      : hd_fail(HEDDLE_ERR_NOMEM, "the thread that watches over device %s cannot be started (error %d)",
                                mail->device->name, error);
}

/* --- its end ------------------------------------------------------------------------------------------------------ */

static void free_spans(hd_comm_mail *mail, hd_mail_span **spans)
{
    while (*spans != NULL) {
        hd_mail_span *span = *spans;
        *spans = span->next;
        mail->device->library->event_destroy(span->begun, mail->device->number);
        mail->device->library->event_destroy(span->ended, mail->device->number);
        hd_free(span);
    }
}

void hd_comm_mail_free(hd_comm_mail *mail)
{
    pthread_mutex_destroy(&mail->lock);
    pthread_cond_destroy(&mail->news);
    hd_free(mail);
}

void hd_comm_mail_end(hd_comm_mail *mail, int gives_up)
{
    int64_t until_ns = hd_comm_deadline_ns(mail->root, 0);
    pthread_mutex_lock(&mail->lock);
    mail->shall_end = 1;
    mail->gives_up = gives_up;
    pthread_cond_broadcast(&mail->news);
    free_spans(mail, &mail->under_way);
    free_spans(mail, &mail->spare);
    hd_group_free_lives(mail->life, mail->root->group);
    while (mail->is_watched && !mail->has_ended && await_news(mail, until_ns)) {
    }
    mail->is_left = mail->is_watched && !mail->has_ended; /* the device and the communicator go before it */
    int is_left = mail->is_left;
    pthread_t thread = mail->watch;
    pthread_mutex_unlock(&mail->lock);
    if (is_left) {
        pthread_detach(thread);
        return;
    }
    if (mail->is_watched) {
        pthread_join(mail->watch, NULL);
    }
    hd_messages_end(&mail->messages, 1);
    hd_comm_mail_free(mail);
}
