/* Channels, and what happens when an execution cannot begin or cannot go on. */
#include "runtime/move/transfer.h"

#include <stdio.h>
#include <string.h>

/* As it was made; of an execution that was in flight whoever waits for it is told. */
static void renew(void *arg)
{
    hd_channel *c = arg;
    c->outcome = c->state != HD_IDLE ? HEDDLE_ERR_PEER : HEDDLE_OK;
    c->broken.status = HEDDLE_OK;
    c->state = HD_IDLE;
    c->is_listed = c->is_marked = c->is_lent = c->borrowed = c->regained = c->pending = c->refused_by = 0;
    c->half = c->alternates ? 0 : c->half;
    c->sequence = 0;
}

heddle_status hd_channel_create(hd_channel **out, heddle_comm *comm, const hd_channel_options *options)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *c = NULL;
    size_t n = (size_t)heddle_comm_size(comm);
    HD_TRY(hd_alloc((void **)&c, 1, sizeof *c, "a channel"));
    c->comm = comm;
    hd_comm_get_view(&c->view, comm);
    c->rank = heddle_comm_rank(comm);
    c->nranks = (int)n;
    c->options = *options;
    snprintf(c->call, sizeof c->call, strcmp(options->what, "sendrecv") == 0 ? "a %s" : "an execution of a %s",
             options->what);
    c->alternates = 1;
    c->links_all = hd_comm_links_all(comm);
    HD_TRY(hd_alloc((void **)&c->component, n, 1, "a channel"));
    HD_TRY(hd_alloc((void **)&c->src_at, n, sizeof *c->src_at, "a channel"));
    HD_TRY(hd_alloc((void **)&c->dst_at, n, sizeof *c->dst_at, "a channel"));
    HD_TRY(hd_alloc((void **)&c->moved, n, sizeof *c->moved, "a channel"));
    HD_TRY(hd_alloc((void **)&c->sent, n, sizeof *c->sent, "a channel"));
    HD_TRY(hd_alloc((void **)&c->reach_of, n, 1, "a channel"));
    c->renewal = (hd_renewal){.renew = renew, .arg = c};
    hd_comm_renewal_add(comm, &c->renewal);
    *out = c;
    c = NULL;
out:
    hd_channel_destroy(c);
    return st;
}

void hd_channel_destroy(hd_channel *c)
{
    if (c == NULL) {
        return;
    }
    if (c->is_lent || c->borrowed > 0) {
        heddle_ignore(
            hd_channel_forgo(c, hd_fail(HEDDLE_ERR_ARG, "a %s is destroyed while memory is lent", c->options.what)));
    }
    if (c->state != HD_IDLE) {
        hd_channel_leave(c);
    }
    hd_comm_renewal_remove(&c->renewal);
    hd_link_destroy(c->link);
    HD_FREE_ALL(c->component, c->src_at, c->dst_at, c->moved, c->sent, c->reach_of, c);
}

int64_t *hd_channel_sent(hd_channel *c)
{
    return c->sent;
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

int64_t hd_channel_deadline(hd_channel *c)
{
    if (c->deadline_ns == 0) {
        c->deadline_ns = hd_comm_deadline_ns(c->comm, c->options.deadline_ms);
    }
    return c->deadline_ns;
}

/* Adds the ranks of `peer` whose flag has not come. */
static size_t list_missing(hd_channel *c, int kind, const int *peer, int n, char *text, size_t bytes)
{
    size_t at = 0;
    for (int i = 0; i < n && at < bytes; i++) {
        int here = 0;
        if (hd_channel_await(c, kind, peer[i], NULL, 0, 0, &here) == HEDDLE_OK && !here) {
            at += (size_t)snprintf(text + at, bytes - at, "%s%d", at == 0 ? "rank " : ", ",
                                   hd_comm_rank_name(c->comm, peer[i]));
        }
    }
    return at;
}

/* Whom an execution still waits for, and which one it is: what an overdue wait has to say. */
static void say_overdue(hd_channel *c, char *text, size_t bytes)
{
    const hd_transfer *t = c->leg[c->at].transfer;
    char missing[160] = "", mail[160] = "", standing[HD_SENTENCE_BYTES / 4] = "";
    const int peer = c->is_lent ? -1 : hd_channel_awaits(c);
    if (peer >= 0 && strstr(heddle_last_error(), " is in ") == NULL) {
        hd_comm_say_standing(standing, sizeof standing, c->comm, peer);
    }
    if (list_missing(c, HD_SLOT_READY, t->peers.hear, t->peers.nhear, missing, sizeof missing) == 0) {
        list_missing(c, HD_SLOT_DONE, t->peers.movers, t->peers.nmovers, missing, sizeof missing);
    }
    if (t->mail.exchange != NULL && !c->mail_done) {
        hd_exchange_missing(t->mail.exchange, mail, sizeof mail);
    }
    snprintf(text, bytes, "%s%s%s%s%s; %s%s%s", standing, missing[0] != 0 ? "; missing: " : "", missing,
             mail[0] != 0 ? "; messages under way with " : "", mail, c->options.what,
             c->options.line != NULL ? " " : "", c->options.line != NULL ? c->options.line : "");
}

heddle_status hd_channel_break(hd_channel *c, heddle_status st)
{
    hd_broken_keep(&c->broken, st);
    hd_channel_leave(c);
    hd_channel_mark(c, 0);
    return atomic_load(c->view.moving) != 0 /* of what is borrowed, here or by another channel */
               ? hd_comm_abort_with(c->comm, st)
               : hd_comm_give_up(c->comm, st, c->broken.why, sizeof c->broken.why);
}

heddle_status hd_channel_give_up(hd_channel *c, heddle_status st)
{
    if (st == HEDDLE_ERR_TIMEOUT) {
        char why[HD_SENTENCE_BYTES], more[HD_SENTENCE_BYTES];
        hd_copy_text(why, sizeof why, heddle_last_error());
        say_overdue(c, more, sizeof more);
        heddle_ignore(hd_fail(st, "%s%s", why, more));
    }
    return hd_channel_break(c, st);
}

heddle_status hd_channel_take_outcome(hd_channel *c)
{
    heddle_status st = c->outcome;
    c->outcome = HEDDLE_OK;
    if (c->broken.status != HEDDLE_OK) {
        return hd_fail(c->broken.status, "the %s failed before: %s", c->options.what, c->broken.why);
    }
    if (st != HEDDLE_OK && c->refused_by == 0) {
        return hd_fail(st, "the %s was in flight when the communicator was reset", c->options.what);
    }
    return st == HEDDLE_OK ? st : hd_channel_tell_refusal(c);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

const char *hd_refusal_text(const hd_channel_options *options, int reason)
{
    switch (reason) {
    case HD_REFUSED_CAPTURE:
        return "its stream is being captured, and this wire waits on the host";
    case HD_REFUSED_NOT_EXECUTE:
        return "its stream is being captured, and of this only execute can be";
    default:
        return reason > 0 && reason < options->nrefusals ? options->refusal[reason] : "for an unknown reason";
    }
}

static heddle_status tell(const hd_channel *c, int rank, int reason)
{
    return hd_fail(HEDDLE_ERR_ARG, "rank %d refuses the execution: %s", hd_comm_rank_name(c->comm, rank),
                   hd_refusal_text(&c->options, reason));
}

heddle_status hd_channel_tell_refusal(const hd_channel *c)
{
    return tell(c, c->refused_by - 1, c->refusal);
}

/* After a refusal: the others have seen it before a mark of this rank is used again. */
static heddle_status settle(hd_channel *c)
{
    heddle_status st = HEDDLE_OK;
    c->deadline_ns = 0;
    for (int i = 0; i < c->guard->peers.nhear; i++) {
        uint64_t words[3];
        int here;
        HD_TRY(hd_channel_await(c, HD_SLOT_READY, c->guard->peers.hear[i], words, 3, 1, &here));
    }
    c->pending = 0;
    return HEDDLE_OK;
out:
    return hd_channel_give_up(c, st);
}

heddle_status hd_channel_make_free(hd_channel *c)
{
    if (c->broken.status != HEDDLE_OK) {
        return hd_channel_take_outcome(c);
    }
    if (c->state != HD_IDLE || c->is_lent) {
        return hd_fail(HEDDLE_ERR_ARG, "an execution of this %s is already in flight", c->options.what);
    }
    c->outcome = HEDDLE_OK;
    return c->pending ? settle(c) : HEDDLE_OK;
}

heddle_status hd_channel_refuse(hd_channel *c, int reason)
{
    heddle_status st = HEDDLE_OK;
    uint64_t words[3] = {(uint64_t)reason, 0, 0};
    const hd_peers *peers = &c->guard->peers;
    HD_TRY(hd_channel_check_free(c));
    c->kept[0] = (hd_leg){.transfer = c->guard};
    c->leg = c->kept;
    c->at = 0;
    c->deadline_ns = 0;
    if (c->any_mail) { /* messages carry no marks */
        return hd_channel_give_up(c, tell(c, c->rank, reason));
    }
    c->sequence++;
    c->half ^= c->alternates;
    for (int i = 0; i < peers->ntell && st == HEDDLE_OK; i++) {
        st = hd_channel_post(c, HD_SLOT_READY, peers->tell[i], words, 3);
    }
    if (st != HEDDLE_OK) {
        return hd_channel_give_up(c, st);
    }
    c->pending = peers->ntell > 0;
    st = tell(c, c->rank, reason);
out:
    return st;
}
