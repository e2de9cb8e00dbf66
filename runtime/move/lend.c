/* Lending: receivers read the sender's array where it lies. READY says that they may, DONE that they do not any more;
 * in between they count as copying, so that a rank that fails keeps its memory until nobody reads it.
 */
#include "runtime/move/transfer.h"

int hd_can_lend(const heddle_comm *comm)
{
    int reached = 0;
    for (int r = 0; r < heddle_comm_size(comm); r++) {
        reached += heddle_comm_reaches(comm, r);
    }
    return reached == heddle_comm_size(comm);
}

/* One thread of a rank writes its mark. */
static void borrow(hd_channel *c, int arrays)
{
    int moving = atomic_load_explicit(c->view.moving, memory_order_relaxed);
    c->borrowed += arrays;
    atomic_store_explicit(c->view.moving, moving + arrays * HD_BORROWS, memory_order_release);
}

/* A flag of a peer; what else this rank has in flight goes on meanwhile. */
static heddle_status await(hd_channel *c, int kind, int peer, uint64_t *words, int nwords)
{
    heddle_status st = HEDDLE_OK;
    c->deadline_ns = 0;
    for (int round = 0, here = 0;; round++) {
        HD_TRY(hd_channel_await(c, kind, peer, words, nwords, *c->view.in_flight == NULL, &here));
        if (here) {
            return HEDDLE_OK;
        }
        HD_TRY(hd_channel_linger(c));
        hd_comm_relax(c->comm, round);
    }
out:
    return st;
}

heddle_status hd_channel_lend(hd_channel *c, const hd_leg *leg)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_channel_check_free(c));
    c->kept[0] = *leg;
    c->leg = c->kept;
    c->at = 0;
    c->deadline_ns = 0;
    c->sequence++;
    c->epoch++;
    c->is_lent = 1;
    st = hd_transfer_announce(leg->transfer, leg);
    return st == HEDDLE_OK ? st : hd_channel_give_up(c, st);
out:
    return st;
}

heddle_status hd_channel_borrow(hd_channel *c, int peer, const void **at)
{
    heddle_status st = HEDDLE_OK;
    uint64_t words[2];
    HD_TRY(await(c, HD_SLOT_READY, peer, words, 2));
    borrow(c, 1);
    atomic_thread_fence(memory_order_seq_cst);
    st = hd_channel_heed(c);
    if (st != HEDDLE_OK) {
        borrow(c, -1); /* nobody is going to read it, and others wait for that */
        goto out;
    }
    *at = hd_link_at(c->link, peer, words[1]);
    return HEDDLE_OK;
out:
    return hd_channel_give_up(c, st);
}

static int64_t bytes_from(const hd_transfer *t, int peer)
{
    int64_t bytes = 0;
    for (int i = 0; i < t->recv.count; i++) {
        bytes += t->recv.part[i].peer == peer ? t->recv.part[i].copy.run_bytes : 0;
    }
    return bytes;
}

heddle_status hd_channel_return(hd_channel *c, int peer)
{
    uint64_t bytes = (uint64_t)bytes_from(c->leg->transfer, peer);
    heddle_status st = hd_channel_post(c, HD_SLOT_DONE, peer, &bytes, 1);
    borrow(c, -1);
    return st == HEDDLE_OK ? st : hd_channel_give_up(c, st);
}

heddle_status hd_channel_regain(hd_channel *c)
{
    heddle_status st = HEDDLE_OK;
    const hd_peers *peers = &c->leg->transfer->peers;
    for (int i = 0; i < peers->nmovers; i++) {
        uint64_t bytes;
        HD_TRY(await(c, HD_SLOT_DONE, peers->movers[i], &bytes, 1));
        c->sent[peers->movers[i]] += (int64_t)bytes;
    }
    c->is_lent = 0;
    return HEDDLE_OK;
out:
    return hd_channel_give_up(c, st);
}

heddle_status hd_channel_forgo(hd_channel *c, heddle_status st)
{
    borrow(c, -c->borrowed);
    return hd_channel_break(c, st);
}
