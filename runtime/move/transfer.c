/* One execution is a small state machine, one function per state: flags say READY, what moves is moved, flags say DONE.
 */
#include "runtime/move/transfer.h"

/* --- flags -------------------------------------------------------------------------------------------------------- */

heddle_status hd_channel_post(hd_channel *c, int kind, int peer, const uint64_t *words, int nwords)
{
    return hd_link_post(c->link, peer, kind + c->half, c->sequence, words, nwords);
}

heddle_status hd_channel_await(hd_channel *c, int kind, int peer, uint64_t *words, int nwords, int block, int *here)
{
    if (!block) {
        return hd_link_poll(c->link, peer, kind + c->half, c->sequence, words, nwords, here);
    }
    *here = 1;
    /* The communicator's own deadline is looked up by whoever waits long enough to need it: the clock costs as much as
     * the flag. */
    int64_t deadline_ns = c->options.deadline_ms > 0 ? hd_channel_deadline(c) : 0;
    return hd_link_wait(c->link, peer, kind + c->half, c->sequence, words, nwords, deadline_ns,
                        kind == HD_SLOT_READY ? HD_UNTIL_READY : HD_UNTIL_DONE);
}

void hd_channel_mark(hd_channel *c, int moving)
{
    int borrows = atomic_load_explicit(c->view.moving, memory_order_relaxed) & ~HD_COPIES;
    atomic_store_explicit(c->view.moving, borrows | moving, memory_order_release);
    c->is_marked = moving;
}

/* --- READY -------------------------------------------------------------------------------------------------------- */

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
        return hd_fail(HEDDLE_ERR_INTERNAL, "rank %d: memory that travels is out of its peers' reach (%s)",
                       hd_comm_rank_name(c->comm, c->rank), c->options.what);
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
            words[1] = hd_private_item(t, p->tell[i]);
        }
        HD_TRY(hd_channel_post(c, HD_SLOT_READY, p->tell[i], words, 3));
    }
out:
    return st;
}

/* Posts where this rank's arrays lie; while the flags travel, makes ready what is needed when they have come. */
static heddle_status announce(hd_transfer *t, const hd_leg *leg)
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

static heddle_status begin(hd_channel *c)
{
    heddle_status st = HEDDLE_OK;
    const hd_leg *leg = &c->leg[c->at];
    c->sequence++;
    if (c->is_whole && leg->transfer->mail.exchange == NULL) {
        hd_channel_mark(c, 1); /* the READYs are its fence, and nothing but them is waited for */
    }
    HD_TRY(announce(leg->transfer, leg));
    c->mail_done = leg->transfer->mail.exchange == NULL;
    if (!c->mail_done) {
        HD_TRY(hd_mail_begin(leg->transfer, leg));
    }
    c->waited = 0;
    c->state = HD_COLLECT;
out:
    return st;
}

heddle_status hd_channel_launch(hd_channel *c)
{
    c->at = 0;
    c->deadline_ns = 0;
    c->refused_by = 0;
    c->half ^= c->alternates;
    heddle_status st = begin(c);
    return st == HEDDLE_OK ? st : hd_channel_give_up(c, st);
}

/* --- what the peers say ------------------------------------------------------------------------------------------- */

static hd_transfer *current(const hd_channel *c)
{
    return c->leg[c->at].transfer;
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

static heddle_status collect(hd_channel *c, int block, int *stuck)
{
    heddle_status st = HEDDLE_OK;
    hd_transfer *t = current(c);
    for (; c->waited < t->peers.nhear; c->waited++) {
        uint64_t words[3];
        int here;
        HD_TRY(hd_channel_await(c, HD_SLOT_READY, t->peers.hear[c->waited], words, 3, block && c->mail_done, &here));
        if (!here) {
            *stuck = 1;
            return HEDDLE_OK;
        }
        take(t, c->waited, words);
    }
    if (__builtin_expect(c->refused_by > 0, 0)) {
        hd_channel_mark(c, 0);
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

/* --- moving ------------------------------------------------------------------------------------------------------- */

static heddle_status post_done(hd_transfer *t)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *c = t->channel;
    for (int i = 0; i < t->peers.nserved; i++) {
        int peer = t->peers.served[i];
        uint64_t bytes = (uint64_t)(t->refuses ? HD_REFUSED : c->moved[peer]);
        c->sent[peer] += t->push ? c->moved[peer] : 0;
        HD_TRY(hd_channel_post(c, HD_SLOT_DONE, peer, &bytes, 1));
    }
out:
    return st;
}

/* Everything but what stays on this rank, then DONE, then that: it is copied while the flags travel. */
static heddle_status carry(hd_transfer *t, const hd_leg *leg)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *c = t->channel;
    hd_bases bases = {t->push ? &leg->src : c->src_at, t->push ? c->dst_at : &leg->dst, c->moved};
    int by_lanes = !t->adds && (!t->own.used || hd_private_all_direct(t));
    if (by_lanes) {
        hd_lanes_run_groups(&t->lanes, &bases, t->own_groups, t->lanes.ngroups);
    } else if (t->adds) {
        hd_sums_run(t, leg->dst);
    } else {
        HD_TRY(hd_private_move(t, leg->dst));
    }
    HD_TRY(post_done(t));
    if (by_lanes) {
        hd_lanes_run_groups(&t->lanes, &bases, 0, t->own_groups);
    }
out:
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
        hd_channel_mark(c, 1);
        atomic_thread_fence(memory_order_seq_cst);
    }
    HD_TRY(hd_comm_heed(c->comm));
    if (t->clears && t->mail.exchange == NULL) {
        hd_copy_clear(t->kernels, &t->clear, c->leg[c->at].dst);
    }
    HD_TRY(carry(t, &c->leg[c->at]));
    hd_channel_mark(c, 0);
    c->waited = 0;
    c->state = HD_MAIL;
out:
    return st;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

void hd_channel_leave(hd_channel *c)
{
    c->state = HD_IDLE;
    c->is_lent = 0;
    if (c->is_listed) {
        hd_channel_unlist(c);
    }
}

/* The DONEs of all that move for this rank. */
static heddle_status finish(hd_channel *c, int block, int *stuck)
{
    heddle_status st = HEDDLE_OK;
    const hd_transfer *t = current(c);
    for (; c->waited < t->peers.nmovers; c->waited++) {
        uint64_t bytes;
        int here, peer = t->peers.movers[c->waited];
        HD_TRY(hd_channel_await(c, HD_SLOT_DONE, peer, &bytes, 1, block, &here));
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

heddle_status hd_channel_advance(hd_channel *c, int block, int *stuck)
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

/* --- in one go ---------------------------------------------------------------------------------------------------- */

heddle_status hd_channel_check_free(hd_channel *c)
{
    int is_plain =
        c->state == HD_IDLE && !c->is_lent && c->broken.status == HEDDLE_OK && c->outcome == HEDDLE_OK && !c->pending;
    return __builtin_expect(is_plain, 1) ? HEDDLE_OK : hd_channel_make_free(c);
}

/* Nobody else can be called meanwhile, so it is not listed among those in flight. */
heddle_status hd_channel_run(hd_channel *c, const hd_leg *legs, int nlegs)
{
    heddle_status st = HEDDLE_OK;
    int stuck = 1;
    HD_TRY(hd_channel_check_free(c));
    c->leg = legs;
    c->nlegs = nlegs;
    c->is_whole = *c->view.in_flight == NULL;
    HD_TRY(hd_channel_launch(c));
    if (c->is_whole) {
        st = hd_channel_advance(c, 1, &stuck);
    }
    return st == HEDDLE_OK && stuck ? hd_channel_wait(c) : st;
out:
    return st;
}
