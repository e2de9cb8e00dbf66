/* One execution: a small state machine, one function per state. */
#include "runtime/move/transfer.h"

#include <stdatomic.h>

static hd_transfer *current(const hd_channel *c)
{
    return c->leg[c->at].transfer;
}

/* Whoever copies says so before, then asks whether anybody has given up; a full fence lies between. */
static void mark(hd_channel *c, int moving)
{
    hd_comm_set_moving(c->comm, moving);
    c->is_marked = moving;
}

static heddle_status begin(hd_channel *c)
{
    heddle_status st = HEDDLE_OK;
    const hd_leg *leg = &c->leg[c->at];
    c->sequence++;
    c->waited = 0;
    if (c->is_whole && leg->transfer->mail.exchange == NULL) {
        mark(c, 1); /* the READYs are its fence, and nothing but them is waited for */
    }
    HD_TRY(hd_peer_announce(leg->transfer, leg));
    HD_TRY(hd_mail_begin(leg->transfer, leg));
    c->state = HD_COLLECT;
out:
    return st;
}

heddle_status hd_transfer_launch(hd_channel *c)
{
    c->at = 0;
    c->deadline_ns = 0;
    c->refused_by = 0;
    c->epoch++;
    heddle_status st = begin(c);
    return st == HEDDLE_OK ? st : hd_channel_give_up(c, st);
}

static heddle_status collect(hd_channel *c, int block, int *stuck)
{
    hd_transfer *t = current(c);
    heddle_status st = HEDDLE_OK;
    for (; c->waited < t->peers.nhear; c->waited++) {
        uint64_t words[3];
        int here;
        HD_TRY(hd_peer_await(c, HD_SLOT_READY, t->peers.hear[c->waited], words, 3, block && c->mail_done, &here));
        if (!here) {
            *stuck = 1;
            return HEDDLE_OK;
        }
        hd_peer_take(t, c->waited, words);
    }
    if (__builtin_expect(c->refused_by > 0, 0)) {
        mark(c, 0);
        hd_channel_leave(c);
        return hd_channel_tell_refusal(c);
    }
    c->state = HD_MOVE;
out:
    return st;
}

static heddle_status poll_mail(hd_channel *c, int *stuck)
{
    heddle_status st = c->mail_done ? HEDDLE_OK : hd_mail_poll(current(c), &c->leg[c->at]);
    *stuck = st == HEDDLE_OK && !c->mail_done;
    return st;
}

static heddle_status move(hd_channel *c, int *stuck)
{
    hd_transfer *t = current(c);
    heddle_status st = HEDDLE_OK;
    if (t->adds) { /* terms may come as messages */
        HD_TRY(poll_mail(c, stuck));
        if (*stuck) {
            return HEDDLE_OK;
        }
    }
    if (!c->is_marked) {
        mark(c, 1);
        atomic_thread_fence(memory_order_seq_cst);
    }
    if (__builtin_expect(hd_comm_is_aborted(c->comm), 0)) {
        HD_TRY(hd_comm_check(c->comm));
    }
    if (t->clears && t->mail.exchange == NULL) {
        hd_copy_clear(t->kernels, &t->clear, c->leg[c->at].dst);
    }
    HD_TRY(hd_peer_move(t, &c->leg[c->at]));
    mark(c, 0);
    c->waited = 0;
    c->state = HD_MAIL;
out:
    return st;
}

static heddle_status finish(hd_channel *c, int block, int *stuck)
{
    const hd_transfer *t = current(c);
    heddle_status st = HEDDLE_OK;
    for (; c->waited < t->peers.nmovers; c->waited++) {
        uint64_t bytes;
        int here, peer = t->peers.movers[c->waited];
        HD_TRY(hd_peer_await(c, HD_SLOT_DONE, peer, &bytes, 1, block, &here));
        if (!here) {
            *stuck = 1;
            return HEDDLE_OK;
        }
        c->sent[peer] += t->push ? 0 : (int64_t)bytes;
    }
    if (++c->at < c->nlegs) {
        return begin(c);
    }
    hd_channel_leave(c);
out:
    return st;
}

heddle_status hd_transfer_advance(hd_channel *c, int block, int *stuck)
{
    heddle_status st = HEDDLE_OK;
    *stuck = 0;
    while (c->state != HD_IDLE && !*stuck && st == HEDDLE_OK) {
        switch (c->state) {
        case HD_COLLECT:
            st = collect(c, block, stuck);
            break;
        case HD_MOVE:
            st = move(c, stuck);
            break;
        case HD_MAIL:
            st = poll_mail(c, stuck);
            c->state = st == HEDDLE_OK && !*stuck ? HD_FINISH : c->state;
            break;
        default:
            st = finish(c, block, stuck);
            break;
        }
    }
    if (st != HEDDLE_OK && c->state != HD_IDLE) { /* idle: a refusal, which breaks nothing */
        st = hd_channel_give_up(c, st);
    }
    return st;
}
