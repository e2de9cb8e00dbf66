/* The wire nccl: messages between the ranks' devices. The library's handle belongs to the communicator without parent.
 * Whoever finds that something went wrong, the rank's thread or the one beside it, says so once; then the one beside it
 * ends the handle, and with it what is enqueued on the device. */
#include "runtime/comm/device_nccl.h"

#include <stdio.h>
#include <string.h>

/* --- what goes wrong ---------------------------------------------------------------------------------------------- */

heddle_status hd_comm_nccl_look(hd_comm_nccl *nccl, int *done)
{
    heddle_status st = hd_broken_say(&nccl->broken);
    return st == HEDDLE_OK ? nccl->messages.table->test(nccl->messages.handle, done) : st;
}

int hd_comm_nccl_is_gone(heddle_status st)
{
    return st == HEDDLE_ERR_TRANSPORT || st == HEDDLE_ERR_PEER;
}

/* A library, or the thread beside, says that some rank is gone; the communicator says which and why, if it knows in a
 * moment. */
static heddle_status find_cause(heddle_comm *root, heddle_status st, char *why, size_t why_bytes)
{
    int64_t until_ns = hd_now_ns() + HD_NCCL_NEWS_NS;
    hd_copy_text(why, why_bytes, heddle_last_error());
    heddle_status cause = hd_comm_check(root);
    for (int turn = 0; hd_comm_nccl_is_gone(st) && cause == HEDDLE_OK && hd_now_ns() < until_ns; turn++) {
        cause = hd_comm_check(root);
        hd_nap(turn);
    }
    if (cause == HEDDLE_OK) {
        return hd_fail(st, "%s", why);
    }
    hd_copy_text(why, why_bytes, heddle_last_error());
    return cause;
}

/* All ranks are told before the library is: its peers see only that somebody has gone. */
heddle_status hd_comm_nccl_give_up(heddle_comm *comm, heddle_status st)
{
    heddle_comm *root = comm->root;
    char why[1024];
    pthread_mutex_lock(&root->nccl->lock);
    int is_said = root->nccl->broken.status == st && st != HEDDLE_ERR_PEER; /* by this rank, which knows the cause */
    pthread_mutex_unlock(&root->nccl->lock);
    if (is_said) {
        return st;
    }
    st = find_cause(root, st, why, sizeof why);
    st = hd_comm_abort_with(root, st);
    pthread_mutex_lock(&root->nccl->lock);
    hd_comm_nccl_break_off(root->nccl, st);
    pthread_mutex_unlock(&root->nccl->lock);
    return hd_fail(st, "%s", why);
}

int hd_comm_nccl_is_left(heddle_comm *comm)
{
    const heddle_comm *root = comm->root;
    pthread_mutex_lock(&root->nccl->lock);
    int is_left = root->nccl->broken.status != HEDDLE_OK && root->lent != NULL;
    pthread_mutex_unlock(&root->nccl->lock);
    return is_left;
}

heddle_status hd_comm_nccl_check(heddle_comm *comm)
{
    heddle_comm *root = comm->root;
    hd_comm_nccl *nccl = root->nccl;
    int done = 0;
    pthread_mutex_lock(&nccl->lock);
    heddle_status st = hd_comm_nccl_look(nccl, &done);
    st = st == HEDDLE_OK ? hd_comm_nccl_look_at_clock(nccl, 0) : st;
    int is_known =
        nccl->broken.status != HEDDLE_OK && nccl->broken.status != HEDDLE_ERR_PEER; /* and all have been told */
    pthread_mutex_unlock(&nccl->lock);
    st = st == HEDDLE_OK ? hd_comm_check(root) : st;
    return st == HEDDLE_OK || is_known ? st : hd_comm_nccl_give_up(root, st);
}

/* --- exchanges ---------------------------------------------------------------------------------------------------- */

heddle_status hd_comm_nccl_settle(hd_comm_nccl *nccl, int64_t deadline_ms, const char *what)
{
    heddle_status st = HEDDLE_OK;
    int64_t deadline_ns = hd_comm_deadline_ns(nccl->root, deadline_ms);
    for (int turn = 0;; turn++) {
        int done = 0;
        pthread_mutex_lock(&nccl->lock);
        st = hd_comm_nccl_look(nccl, &done);
        pthread_mutex_unlock(&nccl->lock);
        if (done || st != HEDDLE_OK) {
            return st;
        }
        HD_TRY(hd_comm_check(nccl->root));
        if (hd_now_ns() > deadline_ns) {
            return hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: %s (%s) did not go on before the deadline", nccl->root->rank,
                           what, nccl->messages.describe);
        }
        hd_nap(turn);
    }
out:
    return st;
}

heddle_status hd_comm_nccl_begin(hd_comm_nccl *nccl, const hd_nccl_batch *batch, heddle_stream stream)
{
    int done = 0;
    pthread_mutex_lock(&nccl->lock);
    heddle_status st = hd_comm_nccl_look(nccl, &done);
    if (st == HEDDLE_OK) {
        st = nccl->messages.table->exchange(nccl->messages.handle, batch->send, batch->nsends, batch->recv,
                                            batch->nrecvs, stream);
    }
    pthread_mutex_unlock(&nccl->lock);
    return st;
}

/* What is behind it in the stream. */
static heddle_status begin_span(hd_nccl_span **out, hd_comm_nccl *nccl, heddle_stream stream, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    pthread_mutex_lock(&nccl->lock);
    HD_TRY(nccl->spare == NULL ? hd_comm_nccl_add_spare(nccl) : HEDDLE_OK);
    HD_TRY(nccl->device->library->event_record(nccl->spare->begun, nccl->device->number, stream));
    *out = nccl->spare;
    nccl->spare = (*out)->next;
    (*out)->next = NULL;
    (*out)->late_ns = 0;
    (*out)->deadline_ms = deadline_ms;
out:
    pthread_mutex_unlock(&nccl->lock);
    return st;
}

/* NULL is legal. */
static heddle_status end_span(hd_nccl_span *span, hd_comm_nccl *nccl, heddle_stream stream, heddle_status st)
{
    if (span == NULL) {
        return st;
    }
    pthread_mutex_lock(&nccl->lock);
    st = st == HEDDLE_OK ? nccl->device->library->event_record(span->ended, nccl->device->number, stream) : st;
    if (st == HEDDLE_OK) {
        *(nccl->last != NULL ? &nccl->last->next : &nccl->under_way) = span;
        nccl->last = span;
    } else {
        span->next = nccl->spare;
        nccl->spare = span;
    }
    pthread_mutex_unlock(&nccl->lock);
    return st;
}

heddle_status hd_comm_nccl_exchange(heddle_comm *comm, const hd_nccl_batch *batch, heddle_stream stream,
                                    int is_captured)
{
    heddle_status st = HEDDLE_OK;
    hd_comm_nccl *nccl = comm->root->nccl;
    hd_nccl_span *span = NULL;
    HD_TRY(is_captured ? HEDDLE_OK : begin_span(&span, nccl, stream, batch->deadline_ms));
    HD_TRY(hd_comm_nccl_begin(nccl, batch, stream));
    st = hd_comm_nccl_settle(nccl, batch->deadline_ms, "an exchange between devices");
out:
    st = end_span(span, nccl, stream, st);
    return st == HEDDLE_OK ? st : hd_comm_nccl_give_up(comm, st);
}
