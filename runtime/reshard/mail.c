/* Messages to and from ranks that cannot be reached. Only the side that does not lie together is typed or packed. */
#include "runtime/reshard/plan.h"

#include <string.h>

/* Both ends list the bytes of a piece in the same order. */
static heddle_status stream_copy(hd_copy *copy, heddle_reshard *plan, int phase, const hd_piece *piece, int is_send)
{
    heddle_status st =
        hd_plan_copy(copy, plan, phase, piece, is_send ? plan->rank : piece->peer, is_send ? piece->peer : plan->rank);
    if (st == HEDDLE_OK && plan->step[phase].any_sums) {
        hd_copy_walk(copy, HD_SIDE_DST);
    } else if (st == HEDDLE_OK) {
        hd_copy_stream(copy);
    }
    return st;
}

typedef struct side_plan {
    const hd_pieces *pieces;
    hd_copy *copy;
    int *peer, *index; /* of the piece */
    int n, strided;
    int64_t bytes;
} side_plan;

static heddle_status survey(side_plan *out, heddle_reshard *plan, int phase, int is_send)
{
    heddle_status st = HEDDLE_OK;
    const hd_step *step = &plan->step[phase];
    const hd_pieces *pieces = out->pieces = is_send ? &step->send : &step->recv;
    size_t n = (size_t)pieces->count;
    HD_TRY(hd_alloc((void **)&out->copy, n, sizeof(hd_copy), "messages of a reshard"));
    HD_TRY(hd_alloc((void **)&out->peer, n, sizeof(int), "messages of a reshard"));
    HD_TRY(hd_alloc((void **)&out->index, n, sizeof(int), "messages of a reshard"));
    for (int i = 0; i < pieces->count; i++) {
        if (hd_plan_near(plan, pieces->piece[i].peer)) {
            continue;
        }
        hd_copy *copy = &out->copy[out->n];
        HD_TRY(stream_copy(copy, plan, phase, &pieces->piece[i], is_send));
        out->peer[out->n] = pieces->piece[i].peer;
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
    hd_free(side->copy);
    hd_free(side->peer);
    hd_free(side->index);
}

/* Append one side's messages; through staging when `stage` is asked for. */
static heddle_status append(hd_mail *mail, heddle_reshard *plan, side_plan *side, int is_send, int stage, int copies)
{
    heddle_status st = HEDDLE_OK;
    hd_side far = is_send ? HD_SIDE_DST : HD_SIDE_SRC;
    int64_t offset = 0;
    if (stage && side->n > 0) {
        HD_TRY(hd_alloc_aligned((void **)(is_send ? &mail->send_stage : &mail->recv_stage), 4096, (size_t)side->bytes,
                                "staging of messages"));
        mail->stage_bytes += side->bytes;
    }
    for (int i = 0; i < side->n; i++) {
        hd_copy *copy = &side->copy[i];
        int64_t bytes = hd_copy_bytes(copy);
        heddle_message *m = &mail->message[mail->nmessages];
        if (stage) {
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
    if (stage && copies) {
        hd_lanes *lanes = is_send ? &mail->pack : &mail->unpack;
        HD_TRY(hd_lanes_build(lanes, side->copy, side->peer, side->n, is_send ? HD_SIDE_SRC : HD_SIDE_DST, plan->rank,
                              plan->nranks, HD_LONG_RUN_BYTES));
        hd_lanes_choose(lanes, NULL, &plan->hint);
    }
out:
    return st;
}

heddle_status hd_mail_build(heddle_reshard *plan, int phase, int packed)
{
    heddle_status st = HEDDLE_OK;
    hd_step *step = &plan->step[phase];
    hd_mail *mail = &step->mail;
    side_plan send = {0}, recv = {0};
    memset(mail, 0, sizeof *mail);
    mail->is_packed = packed;
    if (!step->any_mail) {
        return HEDDLE_OK;
    }
    HD_TRY(survey(&send, plan, phase, 1));
    HD_TRY(survey(&recv, plan, phase, 0));
    HD_TRY(hd_alloc((void **)&mail->message, (size_t)(send.n + recv.n), sizeof(heddle_message), "messages"));
    HD_TRY(hd_alloc((void **)&mail->message_bytes, (size_t)(send.n + recv.n), sizeof(int64_t), "messages"));
    HD_TRY(hd_alloc((void **)&mail->recv_offset, (size_t)step->recv.count, sizeof(int64_t), "messages"));
    HD_TRY(append(mail, plan, &send, 1, packed && send.strided, 1));
    HD_TRY(append(mail, plan, &recv, 0, step->recv.sums || (packed && recv.strided), !step->recv.sums));
out:
    survey_free(&send);
    survey_free(&recv);
    if (st != HEDDLE_OK) {
        hd_mail_free(mail);
    }
    return st;
}

void hd_mail_free(hd_mail *mail)
{
    if (mail->exchange != NULL) {
        hd_exchange_destroy(mail->exchange);
    }
    hd_free(mail->message);
    hd_free(mail->message_bytes);
    hd_free(mail->recv_offset);
    hd_free(mail->send_stage);
    hd_free(mail->recv_stage);
    hd_lanes_free(&mail->pack);
    hd_lanes_free(&mail->unpack);
    memset(mail, 0, sizeof *mail);
}
