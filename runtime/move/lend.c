/* Lending: receivers read the sender's array where it lies. READY says where, DONE that they do not read any more; in
 * between they count as copying, so that a rank that fails keeps its memory until nobody reads it.
 */
#include "runtime/move/transfer.h"

#include <string.h>

int hd_can_lend(const heddle_comm *comm)
{
    int reached = 0;
    for (int r = 0; r < heddle_comm_size(comm); r++) {
        reached += heddle_comm_reaches(comm, r);
    }
    return reached == heddle_comm_size(comm);
}

/* --- flags, of one word each -------------------------------------------------------------------------------------- */

static heddle_status post(hd_channel *c, int kind, int peer, uint64_t word)
{
    return hd_link_post(c->link, peer, kind + c->half, c->sequence, &word, 1);
}

static heddle_status look(hd_channel *c, int kind, int peer, uint64_t *word, int *here)
{
    return hd_link_poll(c->link, peer, kind + c->half, c->sequence, word, 1, here);
}

/* What else this rank has in flight goes on meanwhile. */
static heddle_status await(hd_channel *c, int kind, int peer, uint64_t *word)
{
    heddle_status st = HEDDLE_OK;
    c->deadline_ns = 0;
    if (*c->view.in_flight == NULL) {
        return hd_link_wait(c->link, peer, kind + c->half, c->sequence, word, 1,
                            c->options.deadline_ms > 0 ? hd_channel_deadline(c) : 0,
                            kind == HD_SLOT_READY ? HD_UNTIL_READY : HD_UNTIL_DONE);
    }
    for (int round = 0, here = 0;; round++) {
        HD_TRY(look(c, kind, peer, word, &here));
        if (here) {
            break;
        }
        HD_TRY(hd_channel_linger(c));
        HD_TRY(hd_comm_rests(c->comm, round) ? hd_channel_stand(c, peer) : HEDDLE_OK);
        hd_comm_relax(c->comm, round);
    }
out:
    hd_comm_go_on(c->comm);
    return st;
}

/* --- the owner ---------------------------------------------------------------------------------------------------- */

heddle_status hd_channel_lend(hd_channel *c, const hd_leg *leg)
{
    heddle_status st = HEDDLE_OK;
    const hd_transfer *t = leg->transfer;
    HD_TRY(c->state == HD_IDLE && !c->is_lent && c->broken.status == HEDDLE_OK ? HEDDLE_OK : hd_channel_make_free(c));
    c->kept[0] = *leg;
    c->leg = c->kept;
    c->at = 0;
    c->deadline_ns = 0;
    c->sequence++;
    c->is_lent = 1;
    c->regained = 0;
    const uint64_t name = t->peers.ntell > 0 ? hd_link_name(c->link, leg->src, t->src_bytes) : 0;
    if (t->peers.ntell > 0 && name == 0) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "rank %d: memory that is lent is out of its peers' reach (%s)",
                     hd_comm_rank_name(c->comm, c->rank), c->options.what);
    }
    for (int i = 0; i < t->peers.ntell && st == HEDDLE_OK; i++) {
        st = post(c, HD_SLOT_READY, t->peers.tell[i], name);
    }
    return st == HEDDLE_OK ? st : hd_channel_give_up(c, st);
out:
    return st;
}

/* DONEs, in the order of the list. block: waits for them. */
static heddle_status regain(hd_channel *c, int block)
{
    heddle_status st = HEDDLE_OK;
    const hd_peers *peers = &c->leg->transfer->peers;
    while (c->regained < peers->nmovers) {
        const int peer = peers->movers[c->regained];
        uint64_t bytes;
        int here = 1;
        HD_TRY(block ? await(c, HD_SLOT_DONE, peer, &bytes) : look(c, HD_SLOT_DONE, peer, &bytes, &here));
        if (!here) {
            return HEDDLE_OK;
        }
        c->sent[peer] += (int64_t)bytes;
        c->regained++;
    }
    c->is_lent = 0;
    return HEDDLE_OK;
out:
    return hd_channel_give_up(c, st);
}

heddle_status hd_channel_regain(hd_channel *c)
{
    return regain(c, 1);
}

heddle_status hd_channel_try_regain(hd_channel *c, int *done)
{
    heddle_status st = regain(c, 0);
    *done = !c->is_lent;
    return st;
}

/* --- a borrower --------------------------------------------------------------------------------------------------- */

/* One thread of a rank writes its mark. */
static void mark(hd_channel *c, int arrays)
{
    int moving = atomic_load_explicit(c->view.moving, memory_order_relaxed);
    c->borrowed += arrays;
    atomic_store_explicit(c->view.moving, moving + arrays * HD_BORROWS, memory_order_release);
}

static heddle_status borrow(hd_channel *c, int peer, uint64_t name, const void **at)
{
    mark(c, 1);
    atomic_thread_fence(memory_order_seq_cst);
    heddle_status st = hd_comm_heed(c->comm);
    if (st != HEDDLE_OK) {
        mark(c, -1); /* nobody is going to read it, and others wait for that */
        return hd_channel_give_up(c, st);
    }
    *at = hd_link_at(c->link, peer, name);
    return HEDDLE_OK;
}

heddle_status hd_channel_borrow(hd_channel *c, int peer, const void **at)
{
    uint64_t name;
    heddle_status st = await(c, HD_SLOT_READY, peer, &name);
    return st == HEDDLE_OK ? borrow(c, peer, name, at) : hd_channel_give_up(c, st);
}

static int64_t bytes_from(const hd_transfer *t, int peer)
{
    int64_t bytes = 0;
    for (int i = 0; i < t->recv.count; i++) {
        bytes += t->recv.item[i].peer == peer ? t->recv.item[i].copy.run_bytes : 0;
    }
    return bytes;
}

heddle_status hd_channel_return(hd_channel *c, int peer)
{
    heddle_status st = post(c, HD_SLOT_DONE, peer, (uint64_t)bytes_from(c->leg->transfer, peer));
    mark(c, -1);
    return st == HEDDLE_OK ? st : hd_channel_give_up(c, st);
}

heddle_status hd_channel_fetch(hd_channel *c, int peer, void *dst, int64_t *bytes)
{
    heddle_status st = HEDDLE_OK;
    uint64_t name;
    int here = 0;
    const void *at = NULL;
    *bytes = 0;
    st = look(c, HD_SLOT_READY, peer, &name, &here);
    if (st != HEDDLE_OK) {
        return hd_channel_give_up(c, st);
    }
    if (here) {
        HD_TRY(borrow(c, peer, name, &at));
        *bytes = bytes_from(c->leg->transfer, peer);
        memcpy(dst, at, (size_t)*bytes);
        st = hd_channel_return(c, peer);
    }
out:
    return st;
}

heddle_status hd_channel_forgo(hd_channel *c, heddle_status st)
{
    mark(c, -c->borrowed);
    return hd_channel_break(c, st);
}
