/* The wire nccl: every phase is packed, exchanged and unpacked on the caller's stream. */
#include "runtime/device/enqueued.h"
#include "runtime/move/nccl_phase.h"

#include <stdio.h>

enum { END_NS = 1000000000 };

typedef struct nccl {
    hd_nccl_phase *phase[HD_MAX_LEGS];
    hd_enqueued executions;
    int was_awaited; /* after a failure */
} nccl;

static nccl *of(const hd_route *r)
{
    return r->own;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status make_own(hd_route *r)
{
    heddle_status st;
    HD_TRY(hd_alloc(&r->own, 1, sizeof(nccl), "a route"));
    HD_TRY(hd_route_make_locals(r));
    st = hd_route_take_memory(r);
out:
    return st;
}

static heddle_status make_phases(hd_route *r, const int *any_adds)
{
    heddle_status st = HEDDLE_OK;
    nccl *n = of(r);
    n->executions.may_ask_again = 1; /* at once, as what could not be recorded has failed */
    n->executions.names = hd_route_names(r, "end");
    HD_TRY(hd_enqueued_open(&n->executions, r->device));
    HD_TRY(hd_device_load_kernels(r->device));
    for (int p = 0; p < r->spec.nphases; p++) {
        HD_TRY(hd_nccl_phase_create(&n->phase[p], r, p, any_adds[p]));
    }
out:
    return st;
}

/* Collective: does any rank add in a phase? Those who send to it must know. */
static heddle_status gather_adds(int *any, const hd_route *r)
{
    heddle_status st = HEDDLE_OK;
    int mine[HD_MAX_LEGS] = {0}, *all = NULL;
    HD_TRY(hd_comm_agree(r->comm, hd_alloc((void **)&all, (size_t)r->nranks, sizeof mine, "phases of a route")));
    for (int p = 0; p < r->spec.nphases; p++) {
        mine[p] = r->spec.phase[p].transfer.adds;
    }
    HD_TRY(hd_comm_allgather_or_abort(r->comm, mine, all, sizeof mine));
    for (int i = 0; i < r->nranks * HD_MAX_LEGS; i++) {
        any[i % HD_MAX_LEGS] |= all[i];
    }
out:
    hd_free(all);
    return st;
}

static heddle_status make(hd_route *r, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    int any_adds[HD_MAX_LEGS] = {0};
    HD_TRY(hd_comm_agree(r->comm, mine == HEDDLE_OK ? make_own(r) : mine));
    HD_TRY(gather_adds(any_adds, r));
    st = hd_comm_agree(r->comm, make_phases(r, any_adds));
out:
    return st;
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

/* Its staging is used by one execution after another, whichever streams they are on; those in graphs are the caller's
 * to order. */
static heddle_status enqueue(hd_route *r, const void *src, void *dst, heddle_stream stream, int is_captured)
{
    heddle_status st = HEDDLE_OK;
    nccl *n = of(r);
    HD_TRY(is_captured ? HEDDLE_OK : hd_enqueued_order(&n->executions, stream));
    HD_TRY(hd_route_before(r, src, stream));
    for (int p = 0; p < r->spec.nphases; p++) {
        const hd_route_phase *phase = &r->spec.phase[p];
        const void *const from[] = HD_SPOTS(r, &phase->src, src, dst);
        void *const to[] = HD_SPOTS(r, &phase->dst, NULL, dst);
        HD_TRY(hd_nccl_phase_run(n->phase[p], from[phase->src.in], to[phase->dst.in], stream, is_captured, r->sent));
    }
    st = hd_route_after(r, dst, stream);
out:
    return st;
}

static heddle_status record(hd_route *r, heddle_stream stream, int is_captured, heddle_status st)
{
    hd_enqueued *e = &of(r)->executions;
    e->is_captured |= is_captured;
    st = is_captured ? st : hd_enqueued_end(e, stream, st);
    r->executions += st == HEDDLE_OK;
    return st;
}

/* After a failure what is enqueued ends soon, unless the handle is the caller's. 0: it has not, or nobody knows. */
static int has_ended(const hd_route *r)
{
    hd_enqueued *e = &of(r)->executions;
    return hd_enqueued_has_ended(e, hd_now_ns() + END_NS) && !(e->is_captured && hd_comm_nccl_is_left(r->comm));
}

/* The sentence stays. src and dst are the caller's again, or the device's memory is left alone. */
static heddle_status await_end(hd_route *r, heddle_status st)
{
    if (st == HEDDLE_OK || of(r)->was_awaited) {
        return st;
    }
    const hd_sentence why = hd_sentence_keep();
    of(r)->was_awaited = 1;
    if (!has_ended(r)) {
        hd_device_leave(r->device);
    }
    return hd_sentence_say(&why, st);
}

/* A rank that cannot take part would be waited for: it gives up. */
static heddle_status refuse(hd_route *r, int reason, heddle_status st)
{
    heddle_status known = hd_comm_nccl_check(r->comm);
    if (known == HEDDLE_OK) {
        known = hd_comm_nccl_give_up(r->comm, st == HEDDLE_OK ? hd_route_say_refusal(r, reason) : st);
    }
    return await_end(r, known);
}

static heddle_status run(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    int captures = 0;
    HD_TRY(hd_comm_nccl_check(r->comm));
    st = hd_route_look_at(&captures, r, stream);
    st = st == HEDDLE_OK ? record(r, stream, captures, enqueue(r, src, dst, stream, captures)) : st;
    st = st == HEDDLE_OK ? st : hd_comm_nccl_give_up(r->comm, st);
out:
    return await_end(r, st);
}

static heddle_status start(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    int captures = 0;
    heddle_status st = hd_route_look_at(&captures, r, stream);
    return st != HEDDLE_OK || captures ? refuse(r, HD_REFUSED_NOT_EXECUTE, st) : run(r, src, dst, stream);
}

static heddle_status test(hd_route *r, int *done)
{
    heddle_status st = HEDDLE_OK;
    *done = 1;
    HD_TRY(hd_comm_nccl_check(r->comm));
    HD_TRY(hd_enqueued_test(done, &of(r)->executions));
    st = *done ? hd_comm_nccl_check(r->comm) : HEDDLE_OK; /* what was aborted has ended, too */
out:
    *done |= st != HEDDLE_OK;
    return await_end(r, st);
}

static heddle_status look(void *comm)
{
    return hd_comm_nccl_check(comm);
}

static heddle_status wait(hd_route *r)
{
    int done = 0;
    const int64_t deadline_ns = hd_comm_deadline_ns(r->comm, r->spec.options.deadline_ms);
    heddle_status st = hd_enqueued_wait(&of(r)->executions, deadline_ns, look, r->comm);
    st = st == HEDDLE_ERR_TIMEOUT ? hd_comm_nccl_give_up(r->comm, st) : st;
    return st == HEDDLE_OK ? test(r, &done) : await_end(r, st);
}

static heddle_status wait_on(hd_route *r, heddle_stream stream)
{
    heddle_status st = hd_comm_nccl_check(r->comm);
    return st == HEDDLE_OK ? hd_enqueued_order(&of(r)->executions, stream) : st;
}

/* --- what is known ------------------------------------------------------------------------------------------------ */

static const int64_t *sent(const hd_route *r)
{
    return r->sent;
}

static hd_nccl_info sum_up(const hd_route *r)
{
    hd_nccl_info all = {0};
    for (int p = 0; p < r->spec.nphases; p++) {
        hd_nccl_phase_inform(&all, of(r)->phase[p]);
    }
    return all;
}

static void inform(hd_route_info *out, const hd_route *r)
{
    const hd_nccl_info all = sum_up(r);
    out->bytes_messages = all.bytes;
    out->messages = all.messages;
    out->workspace_bytes += all.memory_bytes;
    out->is_capturable = 1;
    out->is_captured = of(r)->executions.is_captured;
}

static void explain(hd_route_words *out, const hd_route *r)
{
    const hd_nccl_info all = sum_up(r);
    snprintf(out->path, sizeof out->path, "device messages");
    snprintf(out->kernel, sizeof out->kernel, "%s", all.packed_bytes > 0 ? "push" : "none");
    snprintf(out->why, sizeof out->why,
             "arrays of %s go as messages from device to device (wire nccl), %lld in %d phase%s; %lld bytes are packed "
             "or unpacked here, what lies together is not",
             r->device->name, (long long)all.messages, r->spec.nphases, r->spec.nphases == 1 ? "" : "s",
             (long long)all.packed_bytes);
}

static void destroy(hd_route *r)
{
    nccl *n = of(r);
    if (n == NULL) {
        return;
    }
    (void)wait(r);
    if (!has_ended(r)) { /* somebody else has to end it: memory of the device stays from now on */
        hd_device_leave(r->device);
    }
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        hd_nccl_phase_destroy(n->phase[p]);
    }
    hd_enqueued_close(&n->executions);
    hd_free(n);
}

const hd_carrier hd_carrier_nccl = {
    .make = make,
    .run = run,
    .start = start,
    .test = test,
    .wait = wait,
    .wait_on = wait_on,
    .refuse = refuse,
    .sent = sent,
    .inform = inform,
    .explain = explain,
    .destroy = destroy,
};
