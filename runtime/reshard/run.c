/* One execution: a small state machine, one function per state. */
#include "runtime/reshard/plan.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

int64_t hd_plan_deadline(heddle_reshard *plan)
{
    if (plan->deadline_ns == 0) {
        plan->deadline_ns = hd_comm_deadline_ns(plan->comm, plan->request.options.deadline_ms);
    }
    return plan->deadline_ns;
}

/* Adds the ranks of `peer` whose flag has not come. */
static size_t list_missing(heddle_reshard *plan, int kind, const int *peer, int n, char *text, size_t bytes)
{
    size_t at = 0;
    for (int i = 0; i < n && at < bytes; i++) {
        int here = 0;
        if (hd_plan_await(plan, kind, peer[i], NULL, 0, 0, &here) == HEDDLE_OK && !here) {
            at += (size_t)snprintf(text + at, bytes - at, "%s%d", at == 0 ? "rank " : ", ",
                                   hd_comm_rank_name(plan->comm, peer[i]));
        }
    }
    return at;
}

/* Whom an execution still waits for, and which one it is: what an overdue wait has to say. */
static void say_overdue(heddle_reshard *plan, char *text, size_t bytes)
{
    hd_step *step = &plan->step[plan->at];
    char missing[160] = "", mail[160] = "";
    if (list_missing(plan, HD_SLOT_READY, step->ready, step->nready, missing, sizeof missing) == 0) {
        list_missing(plan, HD_SLOT_DONE, step->movers, step->nmovers, missing, sizeof missing);
    }
    if (step->mail.exchange != NULL && !plan->mail_done) {
        hd_exchange_missing(step->mail.exchange, mail, sizeof mail);
    }
    snprintf(text, bytes, "%s%s%s%s; reshard %s", missing[0] != 0 ? "; missing: " : "", missing,
             mail[0] != 0 ? "; messages under way with " : "", mail, plan->line_text);
}

/* The plan cannot go on, and neither can those who wait for it. */
heddle_status hd_plan_give_up(heddle_reshard *plan, heddle_status st)
{
    char more[700] = "";
    if (st == HEDDLE_ERR_TIMEOUT) {
        char why[240];
        snprintf(why, sizeof why, "%s", heddle_last_error());
        say_overdue(plan, more, sizeof more);
        hd_fail(st, "%s", why);
    }
    snprintf(plan->broken_why, sizeof plan->broken_why, "%s%s", heddle_last_error(), more);
    plan->broken = st;
    hd_plan_leave(plan);
    hd_comm_set_moving(plan->comm, 0);
    heddle_comm_abort(plan->comm, plan->broken_why);
    hd_comm_quiesce(plan->comm); /* src and dst are the caller's again */
    hd_comm_withdraw(plan->comm, plan->broken_why, sizeof plan->broken_why);
    return hd_fail(st, "%s", plan->broken_why);
}

/* Look for a flag of a peer, or wait for it when nothing else needs progress. */
heddle_status hd_plan_await(heddle_reshard *plan, int kind, int peer, uint64_t *words, int nwords, int block, int *here)
{
    if (!block) {
        return hd_link_poll(plan->link, peer, hd_plan_slot(plan, kind), plan->sequence, words, nwords, here);
    }
    *here = 1;
    /* The communicator's own deadline is looked up by whoever waits long enough to need it: the clock costs as much as
     * the flag. */
    int64_t deadline_ns = plan->request.options.deadline_ms > 0 ? hd_plan_deadline(plan) : 0;
    return hd_link_wait(plan->link, peer, hd_plan_slot(plan, kind), plan->sequence, words, nwords, deadline_ns,
                        kind == HD_SLOT_READY ? "reshard: peer ready" : "reshard: peer done");
}

const void *hd_step_place(const heddle_reshard *plan, hd_place place, const void *src, const void *dst)
{
    switch (place) {
    case HD_PLACE_SRC:
        return plan->src_dense_offset >= 0 ? plan->buffer + plan->src_dense_offset : src;
    case HD_PLACE_DST:
        return plan->dst_dense_offset >= 0 ? plan->buffer + plan->dst_dense_offset : dst;
    default:
        return plan->buffer + plan->work_offset[place == HD_PLACE_WORK1];
    }
}

/* Post where this rank's arrays lie. */
static heddle_status post_ready(heddle_reshard *plan, hd_step *step)
{
    heddle_status st = HEDDLE_OK;
    hd_reach reach = HD_REACH_DIRECT;
    uint64_t src =
        plan->step_src == plan->src ? plan->src_name : hd_comm_export(plan->comm, plan->step_src, step->src_bytes);
    uint64_t dst =
        plan->step_dst == plan->dst ? plan->dst_name : hd_comm_export(plan->comm, plan->step_dst, step->dst_bytes);
    if (step->own.used && src == 0) {
        reach = plan->reach;
        if (reach == HD_REACH_STAGED) {
            hd_lanes_run(&step->own.pack, &(hd_bases){.src = plan->step_src, .dst = plan->buffer});
        }
    }
    for (int i = 0; i < step->nready; i++) {
        uint64_t words[3] = {(uint64_t)reach << 8, src, dst};
        int peer = step->ready[i];
        if (reach == HD_REACH_READV) {
            words[1] = (uint64_t)(uintptr_t)plan->step_src;
        } else if (reach == HD_REACH_STAGED) {
            words[1] = hd_comm_export(plan->comm, plan->buffer + step->own.piece_offset[peer], 1);
        }
        HD_TRY(hd_link_post(plan->link, peer, hd_plan_slot(plan, HD_SLOT_READY), plan->sequence, words, 3));
    }
    plan->src_at[plan->rank] = plan->step_src;
    plan->dst_at[plan->rank] = plan->step_dst;
    plan->reach_of[plan->rank] = HD_REACH_DIRECT;
out:
    return st;
}

static void clear(char *dst, const hd_copy *rows)
{
    int64_t index[HEDDLE_MAX_DIMS] = {0};
    for (int k = 0; k >= 0;) {
        memset(dst, 0, (size_t)rows->run_bytes);
        for (k = rows->nloops - 1; k >= 0; k--) {
            int64_t steps = ++index[k] < rows->count[k] ? 1 : 1 - rows->count[k];
            dst += steps * rows->dst_stride_bytes[k];
            if (index[k] < rows->count[k]) {
                break;
            }
            index[k] = 0;
        }
    }
}

static heddle_status begin_mail(heddle_reshard *plan, hd_step *step)
{
    hd_mail *mail = &step->mail;
    plan->mail_done = mail->exchange == NULL;
    if (plan->mail_done) {
        return HEDDLE_OK;
    }
    if (step->recv.zero_fill) {
        clear(plan->step_dst, &step->zero);
    }
    if (mail->pack.nlanes > 0) {
        hd_lanes_run(&mail->pack, &(hd_bases){.src = plan->step_src, .dst = mail->send_stage});
    }
    return hd_exchange_start(mail->exchange, mail->send_stage != NULL ? mail->send_stage : plan->step_src,
                             mail->recv_stage != NULL ? mail->recv_stage : plan->step_dst);
}

heddle_status hd_plan_begin(heddle_reshard *plan)
{
    hd_step *step = &plan->step[plan->at];
    heddle_status st = HEDDLE_OK;
    plan->sequence++;
    plan->step_src = hd_step_place(plan, step->phase->src, plan->src, plan->dst);
    plan->step_dst = (char *)(uintptr_t)hd_step_place(plan, step->phase->dst, plan->src, plan->dst);
    plan->waited = 0;
    HD_TRY(post_ready(plan, step));
    HD_TRY(begin_mail(plan, step));
    plan->state = HD_COLLECT;
out:
    return st;
}

static heddle_status take_ready(heddle_reshard *plan, const hd_step *step, int i, const uint64_t *words)
{
    int peer = step->ready[i], reason = (int)(words[0] & 255);
    if (reason != HD_REFUSED_NOT) {
        plan->refused_by = 1 + peer; /* collect the others first: all are told alike */
        plan->refusal = reason;
        return HEDDLE_OK;
    }
    plan->reach_of[peer] = (unsigned char)(words[0] >> 8);
    if (step->role[i] == HD_ROLE_READ) {
        plan->src_at[peer] = plan->reach_of[peer] == HD_REACH_READV ? (const void *)(uintptr_t)words[1]
                                                                    : hd_comm_import(plan->comm, peer, words[1]);
    } else if (step->role[i] == HD_ROLE_WRITE) {
        plan->dst_at[peer] = hd_comm_import(plan->comm, peer, words[2]);
    }
    return HEDDLE_OK;
}

static heddle_status collect(heddle_reshard *plan, int block, int *stuck)
{
    const hd_step *step = &plan->step[plan->at];
    heddle_status st = HEDDLE_OK;
    for (; plan->waited < step->nready; plan->waited++) {
        uint64_t words[3];
        int here;
        HD_TRY(
            hd_plan_await(plan, HD_SLOT_READY, step->ready[plan->waited], words, 3, block && plan->mail_done, &here));
        if (!here) {
            *stuck = 1;
            return HEDDLE_OK;
        }
        HD_TRY(take_ready(plan, step, plan->waited, words));
    }
    if (plan->refused_by > 0) {
        hd_plan_leave(plan);
        return hd_fail(HEDDLE_ERR_ARG, "rank %d refuses the execution: %s", plan->refused_by - 1,
                       hd_refusal_text(plan->refusal));
    }
    plan->state = HD_MOVE;
out:
    return st;
}

static heddle_status poll_mail(heddle_reshard *plan, hd_step *step, int *stuck)
{
    hd_mail *mail = &step->mail;
    heddle_status st = HEDDLE_OK;
    if (plan->mail_done) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_exchange_test(mail->exchange, &plan->mail_done));
    if (!plan->mail_done) {
        *stuck = 1;
        return HEDDLE_OK;
    }
    for (int i = 0; i < mail->nsends; i++) {
        plan->measured_to[mail->message[i].peer] += mail->message_bytes[i];
    }
    if (mail->unpack.nlanes > 0) {
        hd_lanes_run(&mail->unpack, &(hd_bases){.src = mail->recv_stage, .dst = plan->step_dst});
    }
out:
    return st;
}

static int all_direct(const heddle_reshard *plan, const hd_step *step)
{
    for (int i = 0; i < step->own.nfrom; i++) {
        if (plan->reach_of[step->own.from[i]] != HD_REACH_DIRECT) {
            return 0;
        }
    }
    return 1;
}

static heddle_status move(heddle_reshard *plan, int *stuck)
{
    hd_step *step = &plan->step[plan->at];
    heddle_status st = HEDDLE_OK;
    hd_bases bases = {0};
    int own_groups = 0;
    if (step->recv.sums) { /* terms may come as messages */
        HD_TRY(poll_mail(plan, step, stuck));
        if (*stuck) {
            return HEDDLE_OK;
        }
    }
    hd_comm_set_moving(plan->comm, 1);
    atomic_thread_fence(memory_order_seq_cst);
    if (hd_comm_is_aborted(plan->comm)) {
        HD_TRY(hd_comm_check(plan->comm));
    }
    for (int i = 0; i < step->nserved; i++) {
        plan->moved[step->served[i]] = 0;
    }
    if (step->recv.zero_fill && step->mail.exchange == NULL) {
        clear(plan->step_dst, &step->zero);
    }
    if (step->recv.sums) {
        hd_sums_run(&step->sum, plan);
    } else if (step->own.used && !all_direct(plan, step)) {
        HD_TRY(hd_private_move(step, plan));
    } else {
        bases = (hd_bases){.moved = plan->moved,
                           .src = step->push ? plan->step_src : NULL,
                           .src_at = step->push ? NULL : plan->src_at,
                           .dst = step->push ? NULL : plan->step_dst,
                           .dst_at = step->push ? plan->dst_at : NULL};
        own_groups = hd_lanes_own(&step->lanes, plan->rank);
        hd_lanes_run_groups(&step->lanes, &bases, own_groups, step->lanes.ngroups);
    }
    for (int i = 0; i < step->nserved; i++) {
        int peer = step->served[i];
        uint64_t bytes = (uint64_t)plan->moved[peer];
        plan->measured_to[peer] += step->push ? plan->moved[peer] : 0;
        HD_TRY(hd_link_post(plan->link, peer, hd_plan_slot(plan, HD_SLOT_DONE), plan->sequence, &bytes, 1));
    }
    /* What stays on this rank is copied while the flags travel. */
    hd_lanes_run_groups(&step->lanes, &bases, 0, own_groups);
    hd_comm_set_moving(plan->comm, 0);
    plan->waited = 0;
    plan->state = HD_MAIL;
out:
    return st;
}

static heddle_status finish(heddle_reshard *plan, int block, int *stuck)
{
    hd_step *step = &plan->step[plan->at];
    heddle_status st = HEDDLE_OK;
    for (; plan->waited < step->nmovers; plan->waited++) {
        uint64_t bytes;
        int here, peer = step->movers[plan->waited];
        HD_TRY(hd_plan_await(plan, HD_SLOT_DONE, peer, &bytes, 1, block, &here));
        if (!here) {
            *stuck = 1;
            return HEDDLE_OK;
        }
        plan->measured_to[peer] += step->push ? 0 : (int64_t)bytes;
    }
    if (++plan->at < plan->nsteps) {
        return hd_plan_begin(plan);
    }
    if (plan->dst_dense_offset >= 0) {
        hd_lanes_run(&plan->dst_dense, &(hd_bases){.src = plan->buffer + plan->dst_dense_offset, .dst = plan->dst});
    }
    plan->executions++;
    hd_plan_leave(plan);
out:
    return st;
}

/* As far as it goes without waiting (block: for anything but flags). */
heddle_status hd_plan_advance(heddle_reshard *plan, int block, int *stuck)
{
    heddle_status st = HEDDLE_OK;
    *stuck = 0;
    while (plan->state != HD_IDLE && !*stuck && st == HEDDLE_OK) {
        switch (plan->state) {
        case HD_COLLECT:
            st = collect(plan, block, stuck);
            break;
        case HD_MOVE:
            st = move(plan, stuck);
            break;
        case HD_MAIL:
            st = poll_mail(plan, &plan->step[plan->at], stuck);
            plan->state = st == HEDDLE_OK && !*stuck ? HD_FINISH : plan->state;
            break;
        default:
            st = finish(plan, block, stuck);
            break;
        }
    }
    if (st != HEDDLE_OK && plan->state != HD_IDLE) { /* idle: a refusal, which breaks nothing */
        st = hd_plan_give_up(plan, st);
    }
    return st;
}
