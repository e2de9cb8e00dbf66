/* One execution is a small state machine, one function per state. */
#include "runtime/move/transfer.h"

/* --- in flight on one communicator: whoever waits for one helps the others, so that ranks may wait for several in
 * different orders ------------------------------------------------------------------------------------------------- */

static void enter(hd_channel *c)
{
    c->next = *c->view.in_flight;
    c->is_listed = 1;
    *c->view.in_flight = c;
}

void hd_channel_leave(hd_channel *c)
{
    c->state = HD_IDLE;
    if (!c->is_listed) {
        return;
    }
    hd_channel *first = *c->view.in_flight;
    c->is_listed = 0;
    if (first == c) {
        *c->view.in_flight = c->next;
        return;
    }
    for (; first != NULL; first = first->next) {
        if (first->next == c) {
            first->next = c->next;
        }
    }
}

/* --- the states of one execution -------------------------------------------------------------------------------- */

static hd_transfer *current(const hd_channel *c)
{
    return c->leg[c->at].transfer;
}

void hd_channel_mark(hd_channel *c, int moving)
{
    int borrows = atomic_load_explicit(c->view.moving, memory_order_relaxed) & ~HD_COPIES;
    atomic_store_explicit(c->view.moving, borrows | moving, memory_order_release);
    c->is_marked = moving;
}

heddle_status hd_channel_heed(hd_channel *c)
{
    return __builtin_expect(atomic_load(c->view.alarm) != 0, 0) ? hd_comm_check(c->comm) : HEDDLE_OK;
}

static heddle_status begin(hd_channel *c)
{
    heddle_status st = HEDDLE_OK;
    const hd_leg *leg = &c->leg[c->at];
    c->sequence++;
    if (c->is_whole && leg->transfer->mail.exchange == NULL) {
        hd_channel_mark(c, 1); /* the READYs are its fence, and nothing but them is waited for */
    }
    HD_TRY(hd_peer_announce(leg->transfer, leg));
    c->mail_done = leg->transfer->mail.exchange == NULL;
    if (!c->mail_done) {
        HD_TRY(hd_mail_begin(leg->transfer, leg));
    }
    c->waited = 0;
    c->state = HD_COLLECT;
out:
    return st;
}

static heddle_status launch(hd_channel *c)
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
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_peer_collect(current(c), block && c->mail_done, stuck));
    if (*stuck) {
        return HEDDLE_OK;
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
    HD_TRY(hd_channel_heed(c));
    if (t->clears && t->mail.exchange == NULL) {
        hd_copy_clear(t->kernels, &t->clear, c->leg[c->at].dst);
    }
    HD_TRY(hd_peer_move(t, &c->leg[c->at]));
    hd_channel_mark(c, 0);
    c->waited = 0;
    c->state = HD_MAIL;
out:
    return st;
}

static heddle_status finish(hd_channel *c, int block, int *stuck)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_peer_finish(current(c), block, stuck));
    if (*stuck) {
        return HEDDLE_OK;
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
        case HD_LENT: /* peers do the rest */
            st = hd_channel_heed(c);
            *stuck = 1;
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

/* --- beginning one ------------------------------------------------------------------------------------------------ */

heddle_status hd_channel_check_free(hd_channel *c)
{
    int is_plain = c->state == HD_IDLE && c->broken == HEDDLE_OK && c->outcome == HEDDLE_OK && !c->pending;
    return __builtin_expect(is_plain, 1) ? HEDDLE_OK : hd_channel_make_free(c);
}

heddle_status hd_channel_start(hd_channel *c, const hd_leg *legs, int nlegs)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_channel_check_free(c));
    for (int i = 0; i < nlegs; i++) {
        c->kept[i] = legs[i];
    }
    c->leg = c->kept;
    c->nlegs = nlegs;
    c->is_whole = 0;
    enter(c);
    st = launch(c);
out:
    return st;
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
    HD_TRY(launch(c));
    if (c->is_whole) {
        st = hd_channel_advance(c, 1, &stuck);
    }
    return st == HEDDLE_OK && stuck ? hd_channel_wait(c) : st;
out:
    return st;
}

heddle_status hd_channel_progress(hd_channel *c, int *done)
{
    int stuck;
    heddle_status st = c->broken != HEDDLE_OK || c->outcome != HEDDLE_OK ? hd_channel_take_outcome(c)
                                                                         : hd_channel_advance(c, 0, &stuck);
    *done = c->state == HD_IDLE;
    return st;
}

int hd_channel_is_idle(const hd_channel *c)
{
    return c->state == HD_IDLE;
}

int64_t *hd_channel_sent(hd_channel *c)
{
    return c->sent;
}
