/* Messages to and from ranks that a transport leads to. Only the side that does not lie together is typed or packed. */
#include "runtime/move/transfer.h"

#include <string.h>

/* The sends or the receives of this rank, in the order of its own array. */
typedef struct side_plan {
    hd_copy *copy;
    int *peer, *index; /* of the item */
    int n, strided;
    int64_t bytes;
} side_plan;

/* `strided`: at least one message has rows apart; then typed and packed messages are two different things. */
static heddle_status survey(side_plan *out, const hd_transfer *t, int is_send)
{
    heddle_status st = HEDDLE_OK;
    const hd_items *items = is_send ? &t->send : &t->recv;
    size_t n = (size_t)items->count;
    HD_TRY(hd_alloc((void **)&out->copy, n, sizeof(hd_copy), "messages of a transfer"));
    HD_TRY(hd_alloc((void **)&out->peer, n, sizeof(int), "messages of a transfer"));
    HD_TRY(hd_alloc((void **)&out->index, n, sizeof(int), "messages of a transfer"));
    for (int i = 0; i < items->count; i++) {
        if (hd_channel_linked(t->channel, items->item[i].peer)) {
            continue;
        }
        hd_copy *copy = &out->copy[out->n];
        *copy = items->item[i].copy;
        hd_item_stream(copy, t);
        out->peer[out->n] = items->item[i].peer;
        out->index[out->n] = i;
        out->bytes += hd_copy_bytes(copy);
        out->strided |= hd_copy_message(copy, is_send ? HD_SIDE_SRC : HD_SIDE_DST, 0).nloops > 0;
        out->n++;
    }
out:
    return st;
}

static void survey_free(side_plan *side)
{
    HD_FREE_ALL(side->copy, side->peer, side->index);
}

/* Append one side's messages. */
static heddle_status append(hd_mail *mail, const hd_transfer *t, side_plan *side, int is_send, int is_packed)
{
    heddle_status st = HEDDLE_OK;
    hd_side far = is_send ? HD_SIDE_DST : HD_SIDE_SRC;
    int64_t offset = 0;
    if (is_packed && side->n > 0) {
        HD_TRY(hd_alloc_aligned((void **)(is_send ? &mail->send_packed : &mail->recv_packed), 4096, (size_t)side->bytes,
                                "packed messages"));
        mail->packed_bytes += side->bytes;
    }
    for (int i = 0; i < side->n; i++) {
        hd_copy *copy = &side->copy[i];
        int64_t bytes = hd_copy_bytes(copy);
        heddle_message *m = &mail->message[mail->nmessages];
        if (is_packed) {
            hd_copy_make_dense(copy, far, offset);
            *m =
                (heddle_message){.peer = side->peer[i], .is_send = is_send, .offset_bytes = offset, .run_bytes = bytes};
        } else {
            *m = hd_copy_message(copy, is_send ? HD_SIDE_SRC : HD_SIDE_DST, side->peer[i]);
        }
        if (!is_send) {
            mail->recv_offset[side->index[i]] = offset;
        }
        mail->message_bytes[mail->nmessages++] = bytes;
        offset += bytes;
    }
    mail->nsends += is_send ? side->n : 0;
    if (is_packed && (is_send || !t->adds)) {
        hd_lanes *lanes = is_send ? &mail->pack : &mail->unpack;
        HD_TRY(hd_lanes_build(lanes, side->copy, side->peer, side->n, is_send ? HD_SIDE_SRC : HD_SIDE_DST,
                              t->channel->rank, t->channel->nranks, HD_LONG_RUN_BYTES));
        hd_lanes_choose(lanes, NULL, &t->hint);
    }
out:
    return st;
}

heddle_status hd_mail_build(hd_transfer *t, int packed)
{
    heddle_status st = HEDDLE_OK;
    hd_mail *mail = &t->mail;
    side_plan send = {0}, recv = {0};
    memset(mail, 0, sizeof *mail);
    mail->is_packed = packed;
    HD_TRY(survey(&send, t, 1));
    HD_TRY(survey(&recv, t, 0));
    HD_TRY(hd_alloc((void **)&mail->message, (size_t)(send.n + recv.n), sizeof(heddle_message), "messages"));
    HD_TRY(hd_alloc((void **)&mail->message_bytes, (size_t)(send.n + recv.n), sizeof(int64_t), "messages"));
    HD_TRY(hd_alloc((void **)&mail->recv_offset, (size_t)t->recv.count, sizeof(int64_t), "messages"));
    HD_TRY(append(mail, t, &send, 1, packed && send.strided));
    HD_TRY(append(mail, t, &recv, 0, t->adds || (packed && recv.strided)));
out:
    survey_free(&send);
    survey_free(&recv);
    if (st != HEDDLE_OK) {
        hd_mail_free(mail);
    }
    return st;
}

/* For a trial: the same messages the other way, typed where they are packed. The winner is kept, the spare dropped. */
heddle_status hd_transfer_open_spare(hd_transfer *t)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *c = t->channel;
    if (!t->any_mail) {
        return HEDDLE_OK;
    }
    hd_mail typed = t->mail;
    heddle_status built = hd_mail_build(t, !typed.is_packed);
    t->spare = t->mail;
    t->mail = typed;
    HD_TRY(hd_comm_agree(c->comm, built));
    HD_TRY(hd_exchange_create(&t->spare.exchange, c->comm, t->spare.message, t->spare.nmessages));
out:
    return st;
}

void hd_transfer_use_packed(hd_transfer *t, int packed)
{
    if (t->any_mail && t->mail.is_packed != packed) {
        hd_mail other = t->mail;
        t->mail = t->spare;
        t->spare = other;
    }
}

void hd_transfer_drop_spare(hd_transfer *t)
{
    hd_mail_free(&t->spare);
}

/* Packs, then starts. The destination may be written from here on. */
heddle_status hd_mail_begin(hd_transfer *t, const hd_leg *leg)
{
    hd_mail *mail = &t->mail;
    if (t->clears) {
        hd_copy_clear(t->kernels, &t->clear, leg->dst);
    }
    if (mail->pack.nlanes > 0) {
        void *packed = mail->send_packed;
        hd_lanes_run(&mail->pack, &(hd_bases){.src = &leg->src, .dst = &packed});
    }
    return hd_exchange_start(mail->exchange, mail->send_packed != NULL ? mail->send_packed : leg->src,
                             mail->recv_packed != NULL ? mail->recv_packed : leg->dst);
}

/* Unpacks when all messages are there. Bytes count as sent then: what a failed exchange moved is nobody's figure. */
heddle_status hd_mail_poll(hd_transfer *t, const hd_leg *leg)
{
    hd_mail *mail = &t->mail;
    hd_channel *c = t->channel;
    heddle_status st = hd_exchange_test(mail->exchange, &c->mail_done);
    if (st != HEDDLE_OK || !c->mail_done) {
        return st;
    }
    for (int i = 0; i < mail->nsends; i++) {
        c->sent[mail->message[i].peer] += mail->message_bytes[i];
    }
    if (mail->unpack.nlanes > 0) {
        const void *packed = mail->recv_packed;
        hd_lanes_run(&mail->unpack, &(hd_bases){.src = &packed, .dst = &leg->dst});
    }
    return HEDDLE_OK;
}

void hd_mail_free(hd_mail *mail)
{
    if (mail->exchange != NULL) {
        hd_exchange_destroy(mail->exchange);
    }
    HD_FREE_ALL(mail->message, mail->message_bytes, mail->recv_offset, mail->send_packed, mail->recv_packed);
    hd_lanes_free(&mail->pack);
    hd_lanes_free(&mail->unpack);
    memset(mail, 0, sizeof *mail);
}
