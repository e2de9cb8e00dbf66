/* The wire nccl: messages between the ranks' devices. The library's handle belongs to the communicator without parent;
 * whoever finds that something went wrong ends it, once, and with it what is enqueued on the device. */
#include "runtime/comm/comm_private.h"
#include "runtime/device/messages.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    YIELDS = 256,
    NAP_NS = 20000,
    NEWS_NS = 100000000 /* that who is to blame needs to get here */,
    WORD_BYTES = 16
};

struct hd_comm_mail {
    hd_messages messages;
    void *begun, *ended; /* events around the last exchange; not of those in graphs */
    int is_recorded;     /* it has not ended, as far as is known */
    int64_t late_ns;     /* 0: it has not begun, as far as is known */
    int64_t deadline_ms;
    heddle_status broken;
    char why[1024];
};

static void nap(int turn)
{
    const struct timespec some = {.tv_nsec = NAP_NS};
    if (turn < YIELDS) {
        sched_yield();
    } else {
        nanosleep(&some, NULL);
    }
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------- */

/* A library says that some rank is gone; the communicator says which and why, if it knows in a moment. */
static heddle_status find_cause(heddle_comm *root, heddle_status st, char *why, size_t why_bytes)
{
    int64_t until_ns = hd_now_ns() + NEWS_NS;
    snprintf(why, why_bytes, "%s", heddle_last_error());
    heddle_status cause = HEDDLE_OK;
    for (int turn = 0; st == HEDDLE_ERR_TRANSPORT && cause == HEDDLE_OK && hd_now_ns() < until_ns; turn++) {
        cause = hd_comm_check(root);
        nap(turn);
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
    heddle_comm *root = hd_comm_root(comm);
    hd_comm_mail *mail = root->mail;
    if (mail->broken != HEDDLE_OK) {
        return st;
    }
    mail->broken = find_cause(root, st, mail->why, sizeof mail->why);
    (void)hd_comm_abort_with(root, mail->broken);
    hd_messages_end(&mail->messages, 1);
    return hd_fail(mail->broken, "%s", mail->why);
}

/* The exchange that was enqueued last: the deadline runs from when its stream is known to have come to it. */
static heddle_status look_at_clock(hd_comm_mail *mail, heddle_comm *root)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = root->device;
    int done = 0;
    if (!mail->is_recorded) {
        return HEDDLE_OK;
    }
    HD_TRY(device->library->event_test(mail->ended, device->number, &done));
    mail->is_recorded = !done;
    if (!done && mail->late_ns == 0) {
        HD_TRY(device->library->event_test(mail->begun, device->number, &done));
        mail->late_ns = done ? hd_comm_deadline_ns(root, mail->deadline_ms) : 0;
    } else if (!done && hd_now_ns() > mail->late_ns) {
        st = hd_fail(HEDDLE_ERR_TIMEOUT,
                     "rank %d: messages between devices (%s) that its stream has come to did not come before the "
                     "deadline",
                     root->rank, mail->messages.describe);
    }
out:
    return st;
}

heddle_status hd_comm_mail_check(heddle_comm *comm)
{
    heddle_comm *root = hd_comm_root(comm);
    hd_comm_mail *mail = root->mail;
    int done = 0;
    if (mail->broken != HEDDLE_OK) {
        return hd_fail(mail->broken, "%s", mail->why);
    }
    heddle_status st = hd_comm_check(root);
    st = st == HEDDLE_OK ? mail->messages.library->test(mail->messages.handle, &done) : st;
    st = st == HEDDLE_OK ? look_at_clock(mail, root) : st;
    return st == HEDDLE_OK ? st : hd_comm_mail_give_up(root, st);
}

/* --- exchanges ---------------------------------------------------------------------------------------------------- */

/* Until the library has done what it has begun, which may need the other ranks. */
static heddle_status settle(heddle_comm *root, const hd_messages *messages, int64_t deadline_ms, const char *what)
{
    heddle_status st = HEDDLE_OK;
    int64_t deadline_ns = hd_comm_deadline_ns(root, deadline_ms);
    for (int turn = 0;; turn++) {
        int done = 0;
        HD_TRY(messages->library->test(messages->handle, &done));
        if (done) {
            return HEDDLE_OK;
        }
        HD_TRY(hd_comm_check(root));
        if (hd_now_ns() > deadline_ns) {
            return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: %s (%s) did not go on before the deadline", root->rank, what,
                           messages->describe);
        }
        nap(turn);
    }
out:
    return st;
}

heddle_status hd_comm_mail_exchange(heddle_comm *comm, const hd_comm_letters *letters, heddle_stream stream,
                                    int is_captured)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *root = hd_comm_root(comm);
    hd_comm_mail *mail = root->mail;
    const hd_device *device = root->device;
    HD_TRY(hd_comm_mail_check(comm));
    if (!is_captured) {
        HD_TRY(device->library->event_record(mail->begun, device->number, stream));
    }
    HD_TRY(mail->messages.library->exchange(mail->messages.handle, letters->send, letters->nsends, letters->recv,
                                            letters->nrecvs, stream));
    HD_TRY(settle(root, &mail->messages, letters->deadline_ms, "an exchange between devices"));
    if (!is_captured) {
        HD_TRY(device->library->event_record(mail->ended, device->number, stream));
        mail->is_recorded = 1;
        mail->late_ns = 0;
        mail->deadline_ms = letters->deadline_ms;
    }
out:
    return st == HEDDLE_OK ? st : hd_comm_mail_give_up(root, st);
}

/* --- opening and ending ------------------------------------------------------------------------------------------- */

/* Which library it is, if there is one. */
heddle_status hd_comm_can_mail(const heddle_comm *comm, const hd_device *device, const hd_device_place *place)
{
    hd_messages found;
    (void)comm;
    (void)place;
    if (device->library->kernels == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the library of %s was built without kernels (nvcc)", device->name);
    }
    return hd_messages_load(&found, "nccl", device->folder, device);
}

/* Collective: rank 0's name for all. */
static heddle_status share_id(unsigned char *id, heddle_comm *comm, const hd_messages *messages)
{
    heddle_status st = HEDDLE_OK;
    unsigned char *all = NULL;
    heddle_status mine =
        hd_alloc((void **)&all, (size_t)comm->size, HEDDLE_MESSAGES_ID_BYTES, "names under which ranks meet");
    memset(id, 0, HEDDLE_MESSAGES_ID_BYTES);
    if (mine == HEDDLE_OK && comm->rank == 0) {
        mine = messages->library->make_id(id);
    }
    HD_TRY(hd_comm_agree(comm, mine));
    HD_TRY(hd_comm_gather(comm, HD_CALL_ALLGATHER, id, all, HEDDLE_MESSAGES_ID_BYTES));
    memcpy(id, all, HEDDLE_MESSAGES_ID_BYTES);
out:
    hd_free(all);
    return st;
}

/* A word to and from every rank, so that what the library sets up for two ranks when they talk first is there. */
static heddle_status greet(heddle_comm *comm, const hd_device *device, const hd_messages *messages,
                           heddle_stream stream, char *words)
{
    heddle_status st = HEDDLE_OK;
    int n = comm->size, nothers = 0;
    heddle_device_message *to = NULL, *from = NULL;
    HD_TRY(hd_alloc((void **)&to, (size_t)n, sizeof *to, "messages between devices"));
    HD_TRY(hd_alloc((void **)&from, (size_t)n, sizeof *from, "messages between devices"));
    for (int r = 0; r < n; r++) {
        if (r != comm->rank) {
            to[nothers] = (heddle_device_message){words, WORD_BYTES, r};
            from[nothers++] = (heddle_device_message){words + (r + 1) * WORD_BYTES, WORD_BYTES, r};
        }
    }
    HD_TRY(messages->library->exchange(messages->handle, to, nothers, from, nothers, stream));
    HD_TRY(settle(comm, messages, 0, "the first exchange between devices"));
out:
    hd_free(to);
    hd_free(from);
    (void)device;
    return st;
}

static heddle_status await(heddle_comm *comm, const hd_device *device, const hd_messages *messages, void *event)
{
    heddle_status st = HEDDLE_OK;
    int64_t deadline_ns = hd_comm_deadline_ns(comm, 0);
    int done = 0, settled = 0;
    for (int turn = 0; !done; turn++) {
        HD_TRY(device->library->event_test(event, device->number, &done));
        HD_TRY(messages->library->test(messages->handle, &settled));
        HD_TRY(hd_comm_check(comm));
        if (hd_now_ns() > deadline_ns) {
            return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: the first messages between devices did not come", comm->rank);
        }
        nap(turn);
    }
out:
    return st;
}

/* Everything that may fail or wait once: later exchanges only enqueue. */
static heddle_status try_out(heddle_comm *comm, const hd_device *device, hd_messages *messages)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = device->library;
    heddle_stream stream = NULL;
    void *words = NULL, *event = NULL;
    HD_TRY(settle(comm, messages, 0, "the meeting of the ranks"));
    HD_TRY(library->alloc(&words, device->number, (size_t)(comm->size + 1) * WORD_BYTES));
    HD_TRY(library->stream_create(&stream, device->number));
    HD_TRY(library->event_create(&event, device->number));
    HD_TRY(greet(comm, device, messages, stream, words));
    HD_TRY(library->event_record(event, device->number, stream));
    st = await(comm, device, messages, event);
out:
    if (st != HEDDLE_OK) {
        hd_messages_end(messages, 1); /* before its memory goes */
    }
    library->event_destroy(event, device->number);
    library->stream_destroy(stream, device->number);
    library->free(words, device->number);
    return st;
}

static void mail_free(hd_comm_mail *mail, const hd_device *device)
{
    if (mail != NULL) {
        device->library->event_destroy(mail->begun, device->number);
        device->library->event_destroy(mail->ended, device->number);
        hd_free(mail);
    }
}

static heddle_status make_mail(hd_comm_mail **out, const hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_alloc((void **)out, 1, sizeof **out, "messages between devices"));
    HD_TRY(device->library->event_create(&(*out)->begun, device->number));
    HD_TRY(device->library->event_create(&(*out)->ended, device->number));
    st = hd_messages_load(&(*out)->messages, "nccl", device->folder, device);
out:
    return st;
}

heddle_status hd_comm_open_mail(heddle_comm *comm, const hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    hd_comm_mail *mail = NULL;
    unsigned char id[HEDDLE_MESSAGES_ID_BYTES];
    HD_TRY(hd_comm_agree(comm, make_mail(&mail, device)));
    HD_TRY(share_id(id, comm, &mail->messages));
    HD_TRY(hd_comm_agree(
        comm, mail->messages.library->begin(&mail->messages.handle, id, comm->rank, comm->size, device->number)));
    HD_TRY(hd_comm_agree(comm, try_out(comm, device, &mail->messages)));
    comm->mail = mail;
    mail = NULL;
out:
    if (mail != NULL) {
        hd_messages_end(&mail->messages, 1);
        mail_free(mail, device);
    }
    return st;
}

/* When all has gone well nothing is under way any more: plans and sessions end before. */
void hd_comm_close_mail(heddle_comm *comm)
{
    if (comm->mail == NULL) {
        return;
    }
    if (!hd_group_is_fork(comm->group)) {
        hd_messages_end(&comm->mail->messages, comm->mail->broken != HEDDLE_OK || hd_comm_check(comm) != HEDDLE_OK);
    }
    mail_free(comm->mail, comm->device);
    comm->mail = NULL;
}
