/* The wire nccl: messages between the ranks' devices. The library's handle belongs to the communicator without parent;
 * whoever finds that something went wrong ends it, once, and with it what is enqueued on the device: the rank's thread,
 * or one beside it, because the rank's may wait for the device and ask nobody. */
#include "runtime/comm/device_messages.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    YIELDS = 256,
    NAP_NS = 20000,
    NEWS_NS = 100000000, /* that who is to blame needs to get here */
    LOOK_EVERY_NS = 20000000
};

void hd_comm_mail_nap(int turn)
{
    const struct timespec some = {.tv_nsec = NAP_NS};
    if (turn < YIELDS) {
        sched_yield();
    } else {
        nanosleep(&some, NULL);
    }
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------- */

/* With the lock, with the sentence of the moment. */
static void break_off(hd_comm_mail *mail, heddle_status st)
{
    if (mail->broken == HEDDLE_OK) {
        mail->broken = st;
        snprintf(mail->why, sizeof mail->why, "%s", heddle_last_error());
        hd_messages_end(&mail->messages, 1);
    }
}

/* With the lock. The exchange that was enqueued last: the deadline runs from when its stream is known to have come to
 * it. */
static heddle_status look_at_clock(hd_comm_mail *mail)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = mail->device;
    int done = 0;
    if (!mail->is_recorded) {
        return HEDDLE_OK;
    }
    HD_TRY(device->library->event_test(mail->ended, device->number, &done));
    mail->is_recorded = !done;
    if (!done && mail->late_ns == 0) {
        HD_TRY(device->library->event_test(mail->begun, device->number, &done));
        mail->late_ns = done ? hd_comm_deadline_ns(mail->root, mail->deadline_ms) : 0;
    } else if (!done && hd_now_ns() > mail->late_ns) {
        st = hd_fail(HEDDLE_ERR_TIMEOUT,
                     "rank %d: messages between devices (%s) that its stream has come to did not come before the "
                     "deadline",
                     mail->root->rank, mail->messages.describe);
    }
out:
    return st;
}

heddle_status hd_comm_mail_look(hd_comm_mail *mail, int *done)
{
    if (mail->broken != HEDDLE_OK) {
        return hd_fail(mail->broken, "%s", mail->why);
    }
    return mail->messages.library->test(mail->messages.handle, done);
}

/* A library, or the thread beside, says that some rank is gone; the communicator says which and why, if it knows in a
 * moment. */
static heddle_status find_cause(heddle_comm *root, heddle_status st, char *why, size_t why_bytes)
{
    int64_t until_ns = hd_now_ns() + NEWS_NS;
    snprintf(why, why_bytes, "%s", heddle_last_error());
    heddle_status cause = hd_comm_check(root);
    int is_gone = st == HEDDLE_ERR_TRANSPORT || st == HEDDLE_ERR_PEER;
    for (int turn = 0; is_gone && cause == HEDDLE_OK && hd_now_ns() < until_ns; turn++) {
        cause = hd_comm_check(root);
        hd_comm_mail_nap(turn);
    }
    if (cause == HEDDLE_OK) {
        return hd_fail(st, "%s", why);
    }
    snprintf(why, why_bytes, "%s", heddle_last_error());
    return cause;
}

/* All ranks are told before the library is: its peers see only that somebody has gone. */
heddle_status hd_comm_mail_give_up(heddle_comm *comm, heddle_status st)
{
    heddle_comm *root = comm->root;
    char why[1024];
    st = find_cause(root, st, why, sizeof why);
    st = hd_comm_abort_with(root, st);
    pthread_mutex_lock(&root->mail->lock);
    break_off(root->mail, st);
    pthread_mutex_unlock(&root->mail->lock);
    return hd_fail(st, "%s", why);
}

heddle_status hd_comm_mail_check(heddle_comm *comm)
{
    heddle_comm *root = comm->root;
    hd_comm_mail *mail = root->mail;
    int done = 0;
    pthread_mutex_lock(&mail->lock);
    heddle_status st = hd_comm_mail_look(mail, &done);
    st = st == HEDDLE_OK ? look_at_clock(mail) : st;
    int is_known = mail->broken != HEDDLE_OK && mail->broken != HEDDLE_ERR_PEER; /* and all have been told */
    pthread_mutex_unlock(&mail->lock);
    st = st == HEDDLE_OK ? hd_comm_check(root) : st;
    return st == HEDDLE_OK || is_known ? st : hd_comm_mail_give_up(root, st);
}

/* --- the thread beside -------------------------------------------------------------------------------------------- */

/* With the lock. It must not ask what only the rank's thread may (hd_comm_check): who it was is said when that asks. */
static void look_around(hd_comm_mail *mail)
{
    heddle_status st = HEDDLE_OK;
    int done = 0, is_over = hd_group_is_over(mail->root->group, mail->life);
    if (mail->broken != HEDDLE_OK) {
        return;
    }
    if (is_over) {
        st = hd_fail(HEDDLE_ERR_PEER, "rank %d: a rank has given up or died", mail->root->rank);
    } else {
        st = hd_comm_mail_look(mail, &done);
        st = st == HEDDLE_OK ? look_at_clock(mail) : st;
    }
    if (st != HEDDLE_OK) {
        if (!is_over) {
            (void)hd_comm_abort(mail->root, heddle_last_error());
        }
        break_off(mail, st);
    }
}

static void *watch(void *arg)
{
    hd_comm_mail *mail = arg;
    pthread_mutex_lock(&mail->lock);
    while (!mail->shall_end) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        int64_t ns = until.tv_nsec + LOOK_EVERY_NS;
        until.tv_sec += ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        if (pthread_cond_timedwait(&mail->ends, &mail->lock, &until) == ETIMEDOUT && !mail->shall_end) {
            look_around(mail);
        }
    }
    pthread_mutex_unlock(&mail->lock);
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

void hd_comm_mail_stop_watch(hd_comm_mail *mail)
{
    if (mail->is_watched) {
        pthread_mutex_lock(&mail->lock);
        mail->shall_end = 1;
        pthread_cond_signal(&mail->ends);
        pthread_mutex_unlock(&mail->lock);
        pthread_join(mail->watch, NULL);
        mail->is_watched = 0;
    }
}

/* --- exchanges ---------------------------------------------------------------------------------------------------- */

heddle_status hd_comm_mail_settle(hd_comm_mail *mail, int64_t deadline_ms, const char *what)
{
    heddle_status st = HEDDLE_OK;
    int64_t deadline_ns = hd_comm_deadline_ns(mail->root, deadline_ms);
    for (int turn = 0;; turn++) {
        int done = 0;
        pthread_mutex_lock(&mail->lock);
        st = hd_comm_mail_look(mail, &done);
        pthread_mutex_unlock(&mail->lock);
        if (done || st != HEDDLE_OK) {
            return st;
        }
        HD_TRY(hd_comm_check(mail->root));
        if (hd_now_ns() > deadline_ns) {
            return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: %s (%s) did not go on before the deadline", mail->root->rank,
                           what, mail->messages.describe);
        }
        hd_comm_mail_nap(turn);
    }
out:
    return st;
}

heddle_status hd_comm_mail_begin(hd_comm_mail *mail, const hd_comm_letters *letters, heddle_stream stream)
{
    int done = 0;
    pthread_mutex_lock(&mail->lock);
    heddle_status st = hd_comm_mail_look(mail, &done);
    if (st == HEDDLE_OK) {
        st = mail->messages.library->exchange(mail->messages.handle, letters->send, letters->nsends, letters->recv,
                                              letters->nrecvs, stream);
    }
    pthread_mutex_unlock(&mail->lock);
    return st;
}

static heddle_status record(hd_comm_mail *mail, void *event, heddle_stream stream, int64_t deadline_ms)
{
    pthread_mutex_lock(&mail->lock);
    heddle_status st = mail->device->library->event_record(event, mail->device->number, stream);
    mail->is_recorded = st == HEDDLE_OK && event == mail->ended;
    mail->late_ns = 0;
    mail->deadline_ms = deadline_ms;
    pthread_mutex_unlock(&mail->lock);
    return st;
}

heddle_status hd_comm_mail_exchange(heddle_comm *comm, const hd_comm_letters *letters, heddle_stream stream,
                                    int is_captured)
{
    heddle_status st = HEDDLE_OK;
    hd_comm_mail *mail = comm->root->mail;
    HD_TRY(is_captured ? HEDDLE_OK : record(mail, mail->begun, stream, letters->deadline_ms));
    HD_TRY(hd_comm_mail_begin(mail, letters, stream));
    HD_TRY(hd_comm_mail_settle(mail, letters->deadline_ms, "an exchange between devices"));
    st = is_captured ? HEDDLE_OK : record(mail, mail->ended, stream, letters->deadline_ms);
out:
    return st == HEDDLE_OK ? st : hd_comm_mail_give_up(comm, st);
}
