/* Exchanges: strided messages between ranks that do not reach one another. Checked and numbered here, carried by the
 * transport. */
#include "runtime/comm/comm_private.h"

#include <stdio.h>
#include <string.h>

struct hd_exchange {
    heddle_comm *comm;
    void *inner;               /* of comm->ops; NULL: withdrawn */
    hd_exchange *next, **from; /* in the root's list; `from` points at what points here */
};

static heddle_status check_messages(const heddle_comm *comm, const heddle_message *messages, int nmessages)
{
    for (int i = 0; i < nmessages; i++) {
        const heddle_message *m = &messages[i];
        if (m->peer < 0 || m->peer >= comm->size || m->nloops < 0 || m->nloops > HEDDLE_MAX_LOOPS || m->run_bytes < 0) {
            return hd_fail(HEDDLE_ERR_ARG, "message %d: peer %d of %d, %d loops of at most %d, runs of %lld bytes", i,
                           m->peer, comm->size, m->nloops, HEDDLE_MAX_LOOPS, (long long)m->run_bytes);
        }
        for (int l = 0; l < m->nloops; l++) {
            if (m->count[l] < 0) {
                return hd_fail(HEDDLE_ERR_ARG, "message %d: loop %d has %lld turns", i, l, (long long)m->count[l]);
            }
        }
    }
    return HEDDLE_OK;
}

/* Tags only grow on every rank, so an exchange of an axis group never meets one of the whole under the same tag. */
static heddle_status agree_on_tag(heddle_comm *comm, heddle_status mine, int *tag)
{
    heddle_comm *root = comm->root;
    hd_record own = {.number = root->next_tag};
    heddle_status st = hd_comm_agree_with(comm, mine, &own);
    for (int r = 0; r < comm->size && st == HEDDLE_OK; r++) {
        int theirs = comm->records[r].number;
        root->next_tag = theirs > root->next_tag ? theirs : root->next_tag;
    }
    *tag = root->next_tag++;
    return st;
}

static void enter_list(hd_exchange *exchange)
{
    hd_exchange **first = &exchange->comm->root->exchanges;
    exchange->next = *first;
    exchange->from = first;
    if (exchange->next != NULL) {
        exchange->next->from = &exchange->next;
    }
    *first = exchange;
}

heddle_status hd_exchange_create(hd_exchange **out, heddle_comm *comm, const heddle_message *messages, int nmessages)
{
    heddle_status st = HEDDLE_OK;
    hd_exchange *exchange = NULL;
    int tag = 0;
    heddle_status mine = check_messages(comm, messages, nmessages);
    if (mine == HEDDLE_OK) {
        mine = hd_alloc((void **)&exchange, 1, sizeof *exchange, "an exchange");
    }
    HD_TRY(agree_on_tag(comm, mine, &tag));
    exchange->comm = comm;
    mine = comm->ops->exchange_create(comm, &exchange->inner, messages, nmessages, tag);
    HD_TRY(hd_comm_agree(comm, mine));
    enter_list(exchange);
    *out = exchange;
    exchange = NULL;
out:
    hd_exchange_destroy(exchange);
    return st;
}

static heddle_status check_there(const hd_exchange *exchange)
{
    return __builtin_expect(exchange->inner != NULL, 1)
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_PEER, "rank %d: the messages were withdrawn when another operation failed",
                         hd_comm_root_rank(exchange->comm, exchange->comm->rank));
}

heddle_status hd_exchange_start(hd_exchange *exchange, const void *src, void *dst)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_fault_point(exchange->comm, "exchange start"));
    HD_TRY(check_there(exchange));
    HD_TRY(hd_comm_enter(exchange->comm));
    st = exchange->comm->ops->exchange_start(exchange->comm, exchange->inner, src, dst);
out:
    return st;
}

heddle_status hd_exchange_test(hd_exchange *exchange, int *done)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_fault_point(exchange->comm, "exchange test"));
    HD_TRY(check_there(exchange));
    st = exchange->comm->ops->exchange_test(exchange->comm, exchange->inner, done);
out:
    return st;
}

static void drop_inner(hd_exchange *exchange)
{
    if (exchange->inner != NULL) {
        exchange->comm->ops->exchange_destroy(exchange->comm, exchange->inner);
        exchange->inner = NULL;
    }
}

void hd_exchange_destroy(hd_exchange *exchange)
{
    if (exchange == NULL) {
        return;
    }
    drop_inner(exchange);
    if (exchange->from != NULL) {
        *exchange->from = exchange->next;
        if (exchange->next != NULL) {
            exchange->next->from = exchange->from;
        }
    }
    hd_free(exchange);
}

void hd_comm_withdraw(heddle_comm *comm, char *why, size_t why_bytes)
{
    heddle_comm *root = comm->root;
    if (root->ops->withdraw(root) != HEDDLE_OK) {
        char more[512]; /* who is to leave what alone: the last to be cut */
        snprintf(more, sizeof more, "; ");
        hd_add_text(more, sizeof more, heddle_last_error());
        hd_add_text(why, why_bytes, more);
    }
    for (hd_exchange *x = root->exchanges; x != NULL; x = x->next) {
        drop_inner(x);
    }
}

int hd_exchange_peer(hd_exchange *exchange)
{
    int peer = -1;
    return exchange->inner != NULL &&
                   exchange->comm->ops->exchange_missing(exchange->comm, exchange->inner, &peer, 1) > 0
               ? peer
               : -1;
}

void hd_exchange_missing(hd_exchange *exchange, char *text, size_t text_bytes)
{
    enum { NAMED = 16 };
    heddle_comm *comm = exchange->comm;
    int peer[NAMED];
    int n = exchange->inner != NULL ? comm->ops->exchange_missing(comm, exchange->inner, peer, NAMED) : 0;
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < n && at < text_bytes; i++) {
        at += (size_t)snprintf(text + at, text_bytes - at, "%s%d",
                               i > 0   ? ", "
                               : n > 1 ? "ranks "
                                       : "rank ",
                               hd_comm_root_rank(comm, peer[i]));
    }
}
