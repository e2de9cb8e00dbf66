/* Executions that are started, several of them in flight on one communicator: whoever waits for one helps the others,
 * so that ranks may wait for them in different orders. */
#include "runtime/move/transfer.h"

static void enter(hd_channel *c)
{
    c->next = *c->view.in_flight;
    c->is_listed = 1;
    *c->view.in_flight = c;
}

void hd_channel_unlist(hd_channel *c)
{
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

static int is_alone(const hd_channel *c)
{
    const hd_channel *first = *c->view.in_flight;
    return first == NULL || (first == c && c->next == NULL);
}

/* What happens to the others is theirs to report, unless it is the end of all: then this rank has given up, and the one
 * that is waited for here ends with the reason, not with the alarm that its own rank has raised. */
static heddle_status help_others(hd_channel *c)
{
    hd_channel *other = *c->view.in_flight;
    while (other != NULL) {
        hd_channel *next = other->next;
        int stuck;
        if (other != c) {
            other->outcome = hd_channel_advance(other, 0, &stuck);
            if (other->broken.status != HEDDLE_OK) {
                return other->outcome;
            }
        }
        other = next;
    }
    return HEDDLE_OK;
}

/* --- standing still ----------------------------------------------------------------------------------------------- */

int hd_channel_awaits(const hd_channel *c)
{
    const hd_transfer *t = c->leg[c->at].transfer;
    switch (c->state) {
    case HD_COLLECT:
        return c->waited < t->peers.nhear ? t->peers.hear[c->waited] : -1;
    case HD_FINISH:
        return c->waited < t->peers.nmovers ? t->peers.movers[c->waited] : -1;
    case HD_IDLE:
        return -1;
    default:
        return t->mail.exchange != NULL ? hd_exchange_peer(t->mail.exchange) : -1;
    }
}

/* 0: it is not known whom this waits for, or there is no room. */
static int add(hd_wait *wait, const hd_channel *c, int peer)
{
    if (peer < 0 || wait->npeers == HD_WAIT_PEERS) {
        return 0;
    }
    wait->key = wait->key * 1099511628211u + (c->sequence << 20) + ((uint64_t)c->state << 16) + (uint64_t)c->waited +
                ((uint64_t)peer << 40);
    wait->is_slow |= c->state == HD_MOVE || c->state == HD_MAIL;
    wait->peer[wait->npeers++] = peer;
    return 1;
}

heddle_status hd_channel_stand(hd_channel *c, int peer)
{
    hd_wait wait = {.call = c->call, .line = c->options.line};
    int is_known = peer < 0 || add(&wait, c, peer);
    for (const hd_channel *o = *c->view.in_flight; o != NULL && is_known; o = o->next) {
        is_known = add(&wait, o, hd_channel_awaits(o));
    }
    if (peer < 0 && c->state != HD_IDLE && !c->is_listed && is_known) {
        is_known = add(&wait, c, hd_channel_awaits(c));
    }
    wait.npeers = is_known ? wait.npeers : 0;
    return hd_comm_stand(c->comm, &wait);
}

heddle_status hd_channel_linger(hd_channel *c)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_comm_check(c->comm));
    HD_TRY(help_others(c));
    if (hd_now_ns() > hd_channel_deadline(c)) {
        st = hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: a %s passed its deadline", hd_comm_rank_name(c->comm, c->rank),
                     c->options.what);
    }
out:
    return st;
}

static heddle_status go_on(hd_channel *c, int block)
{
    heddle_status st = HEDDLE_OK;
    int stuck;
    if (c->broken.status != HEDDLE_OK || c->outcome != HEDDLE_OK) {
        return hd_channel_take_outcome(c);
    }
    for (int round = 0;; round++) {
        st = hd_channel_advance(c, block && (c->is_whole || is_alone(c)), &stuck);
        if (st != HEDDLE_OK || !stuck) {
            return st;
        }
        st = hd_channel_linger(c);
        if (st != HEDDLE_OK) {
            return hd_channel_give_up(c, st);
        }
        if (!block) {
            return HEDDLE_OK;
        }
        st = hd_comm_rests(c->comm, round) ? hd_channel_stand(c, -1) : HEDDLE_OK;
        if (st != HEDDLE_OK) {
            return hd_channel_give_up(c, st);
        }
        if (c->outcome != HEDDLE_OK || c->broken.status != HEDDLE_OK) {
            return hd_channel_take_outcome(c);
        }
        hd_comm_relax(c->comm, round);
    }
}

static heddle_status drive(hd_channel *c, int block)
{
    heddle_status st = go_on(c, block);
    if (block) {
        hd_comm_go_on(c->comm);
    }
    return st;
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
    st = hd_channel_launch(c);
out:
    return st;
}

heddle_status hd_channel_test(hd_channel *c, int *done)
{
    heddle_status st = drive(c, 0);
    *done = c->state == HD_IDLE;
    return st;
}

heddle_status hd_channel_wait(hd_channel *c)
{
    return drive(c, 1);
}

heddle_status hd_channel_progress(hd_channel *c, int *done)
{
    int stuck;
    heddle_status st = c->broken.status != HEDDLE_OK || c->outcome != HEDDLE_OK ? hd_channel_take_outcome(c)
                                                                                : hd_channel_advance(c, 0, &stuck);
    *done = c->state == HD_IDLE;
    return st;
}
