/* Loads and stores between ranks that reach one another: the flags around them, and the moving. */
#include "runtime/move/transfer.h"

/* --- flags -------------------------------------------------------------------------------------------------------- */

static int slot_of(const hd_channel *c, int kind)
{
    return kind + (c->alternates ? (int)(c->epoch & 1) : c->half);
}

heddle_status hd_peer_post(hd_channel *c, int kind, int peer, const uint64_t *words, int nwords)
{
    return hd_link_post(c->link, peer, slot_of(c, kind), c->sequence, words, nwords);
}

int hd_channel_can_travel(const hd_channel *c, const void *memory, size_t bytes)
{
    return !c->has_near || hd_link_name(c->link, memory, bytes) != 0;
}

/* Names stay while the arrays do. */
static heddle_status name_arrays(hd_transfer *t, const void *src, void *dst)
{
    const hd_channel *c = t->channel;
    if (src == t->named_src && dst == t->named_dst && (src != NULL || dst != NULL)) {
        return HEDDLE_OK;
    }
    t->src_name = hd_link_name(c->link, src, t->src_bytes);
    t->dst_name = hd_link_name(c->link, dst, t->dst_bytes);
    if (t->peers.is_touched && (t->push ? t->dst_name : t->src_name) == 0 && !(t->push ? t->any_dst : t->any_src)) {
        t->named_src = t->named_dst = NULL;
        return hd_fail(HEDDLE_ERR_INTERNAL, "rank %d: memory that travels is out of its peers' reach (%s)", c->rank,
                       c->options.what);
    }
    t->named_src = src;
    t->named_dst = dst;
    return HEDDLE_OK;
}

static heddle_status post_ready(hd_transfer *t, const hd_leg *leg)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *c = t->channel;
    const hd_peers *p = &t->peers;
    hd_reach reach = HD_REACH_DIRECT;
    HD_TRY(name_arrays(t, leg->src, leg->dst));
    if (t->own.used) {
        reach = t->own.is_private && t->src_name == 0 ? t->reach : HD_REACH_DIRECT;
        hd_private_pack(t, leg->src, reach);
    }
    for (int i = 0; i < p->ntell; i++) {
        hd_reach theirs = t->own.used && !hd_channel_near(c, p->tell[i]) ? HD_REACH_STAGED : reach;
        uint64_t words[3] = {(uint64_t)theirs << 8, t->src_name, t->oneway != NULL ? t->offer : t->dst_name};
        if (theirs == HD_REACH_READV) {
            words[1] = (uint64_t)(uintptr_t)leg->src;
        } else if (theirs == HD_REACH_STAGED) {
            words[1] = hd_private_piece(t, p->tell[i]);
        }
        HD_TRY(hd_peer_post(c, HD_SLOT_READY, p->tell[i], words, 3));
    }
out:
    return st;
}

/* Post where this rank's arrays lie; while the flags travel, make ready what is needed when they have come. */
heddle_status hd_peer_announce(hd_transfer *t, const hd_leg *leg)
{
    hd_channel *c = t->channel;
    heddle_status st = t->peers.ntell > 0 ? post_ready(t, leg) : HEDDLE_OK;
    c->src_at[c->rank] = leg->src;
    c->dst_at[c->rank] = leg->dst;
    c->reach_of[c->rank] = HD_REACH_DIRECT;
    for (int i = 0; i < t->peers.nserved; i++) {
        c->moved[t->peers.served[i]] = 0;
    }
    return st;
}

/* Look for a flag of a peer, or wait for it when nothing else needs progress. */
heddle_status hd_peer_await(hd_channel *c, int kind, int peer, uint64_t *words, int nwords, int block, int *here)
{
    if (!block) {
        return hd_link_poll(c->link, peer, slot_of(c, kind), c->sequence, words, nwords, here);
    }
    *here = 1;
    /* The communicator's own deadline is looked up by whoever waits long enough to need it: the clock costs as much as
     * the flag. */
    int64_t deadline_ns = c->options.deadline_ms > 0 ? hd_channel_deadline(c) : 0;
    return hd_link_wait(c->link, peer, slot_of(c, kind), c->sequence, words, nwords, deadline_ns,
                        kind == HD_SLOT_READY ? "waiting until it is ready" : "waiting until it has moved its part");
}

/* READY of peers.hear[i]. */
static void take(hd_transfer *t, int i, const uint64_t *words)
{
    hd_channel *c = t->channel;
    int peer = t->peers.hear[i];
    if (__builtin_expect((words[0] & 255) != 0, 0)) {
        c->refused_by = 1 + peer; /* collect the others first: all are told alike */
        c->refusal = (int)(words[0] & 255);
    } else if (t->peers.uses[i] && t->push) {
        c->dst_at[peer] = hd_link_at(c->link, peer, words[2]);
    } else if (t->peers.uses[i]) {
        c->reach_of[peer] = (unsigned char)(words[0] >> 8);
        c->src_at[peer] = c->reach_of[peer] == HD_REACH_READV ? (const void *)(uintptr_t)words[1]
                                                              : hd_link_at(c->link, peer, words[1]);
        if (t->oneway != NULL) {
            hd_oneway_take(t, words[2]);
        }
    }
}

heddle_status hd_peer_collect(hd_transfer *t, int block, int *stuck)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *c = t->channel;
    for (; c->waited < t->peers.nhear; c->waited++) {
        uint64_t words[3];
        int here;
        HD_TRY(hd_peer_await(c, HD_SLOT_READY, t->peers.hear[c->waited], words, 3, block, &here));
        if (!here) {
            *stuck = 1;
            return HEDDLE_OK;
        }
        take(t, c->waited, words);
    }
out:
    return st;
}

heddle_status hd_peer_finish(hd_transfer *t, int block, int *stuck)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *c = t->channel;
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
out:
    return st;
}

/* --- moving ------------------------------------------------------------------------------------------------------- */

heddle_status hd_peer_move(hd_transfer *t, const hd_leg *leg)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *c = t->channel;
    const hd_peers *p = &t->peers;
    hd_bases bases = {t->push ? &leg->src : c->src_at, t->push ? c->dst_at : &leg->dst, c->moved};
    int by_lanes = !t->adds && (!t->own.used || hd_private_all_direct(t));
    if (by_lanes) {
        hd_lanes_run_groups(&t->lanes, &bases, t->own_groups, t->lanes.ngroups);
    } else if (t->adds) {
        hd_sums_run(t, leg->dst);
    } else {
        HD_TRY(hd_private_move(t, leg->dst));
    }
    for (int i = 0; i < p->nserved; i++) {
        int peer = p->served[i];
        uint64_t bytes = (uint64_t)(t->refuses ? HD_REFUSED : c->moved[peer]);
        c->sent[peer] += t->push ? c->moved[peer] : 0;
        HD_TRY(hd_peer_post(c, HD_SLOT_DONE, peer, &bytes, 1));
    }
    if (by_lanes) { /* what stays on this rank is copied while the flags travel */
        hd_lanes_run_groups(&t->lanes, &bases, 0, t->own_groups);
    }
out:
    return st;
}
