/* The wire nccl: every phase is packed, exchanged and unpacked on the caller's stream. */
#include "runtime/device/enqueued.h"
#include "runtime/move/nccl_phase.h"

#include <stdio.h>

enum { END_NS = 1000000000 };

typedef struct nccl {
    hd_nccl_phase *phase[HD_MAX_LEGS];
    hd_nccl_info info; /* of all */
    int was_awaited;   /* after a failure */
} nccl;

static nccl *of(const hd_route *r)
{
    return r->own;
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

/* Its phases' memory is used by one execution after another, whichever streams they are on; those in graphs are the
 * caller's to order. */
static heddle_status enqueue(hd_route *r, const void *src, void *dst, heddle_stream stream, int is_captured)
{
    heddle_status st = HEDDLE_OK;
    nccl *n = of(r);
    HD_TRY(is_captured ? HEDDLE_OK : hd_enqueued_order(&r->enqueued, stream));
    HD_TRY(hd_route_before(r, src, stream));
    for (int p = 0; p < r->spec.nphases; p++) {
        const hd_route_phase *phase = &r->spec.phase[p];
        const void *const from[] = HD_SPOTS(r, &phase->src, src, dst);
        void *const to[] = HD_SPOTS(r, &phase->dst, NULL, dst);
        HD_TRY(hd_nccl_phase_run(n->phase[p], from[phase->src.in], to[phase->dst.in], stream, is_captured));
    }
    st = hd_route_after(r, dst, stream);
out:
    return st;
}

static heddle_status record(hd_route *r, heddle_stream stream, int is_captured, heddle_status st)
{
    hd_enqueued *e = &r->enqueued;
    e->is_captured |= is_captured;
    st = is_captured ? st : hd_enqueued_end(e, stream, st);
    r->executions += st == HEDDLE_OK;
    return st;
}

/* After a failure what is enqueued ends soon, unless the handle is the caller's. 0: it has not, or nobody knows. */
static int has_ended(hd_route *r)
{
    hd_enqueued *e = &r->enqueued;
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

static heddle_status look(hd_route *r, int waits)
{
    (void)waits;
    return hd_comm_nccl_check(r->comm);
}

static heddle_status fail_late(hd_route *r, heddle_status st)
{
    return await_end(r, st == HEDDLE_ERR_TIMEOUT ? hd_comm_nccl_give_up(r->comm, st) : st);
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status make_own(hd_route *r)
{
    heddle_status st;
    HD_TRY(hd_alloc(&r->own, 1, sizeof(nccl), "a route"));
    r->late = (hd_late){.look = look, .start = run, .fail = fail_late};
    r->enqueued.may_ask_again = 1; /* at once, as what could not be recorded has failed */
    HD_TRY(hd_route_make_locals(r));
    st = hd_route_take_memory(r);
out:
    return st;
}

static heddle_status make_phases(hd_route *r, int32_t adds)
{
    heddle_status st = HEDDLE_OK;
    nccl *n = of(r);
    HD_TRY(hd_route_open_enqueued(r, "end"));
    HD_TRY(hd_device_load_kernels(r->device));
    for (int p = 0; p < r->spec.nphases; p++) {
        HD_TRY(hd_nccl_phase_create(&n->phase[p], r, p, adds >> p & 1));
        hd_nccl_phase_inform(&n->info, n->phase[p]);
    }
out:
    return st;
}

/* Who sends to a rank that adds must know. */
static heddle_status make(hd_route *r, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    int32_t adds = 0; /* bit by phase */
    for (int p = 0; p < r->spec.nphases; p++) {
        adds |= (r->spec.phase[p].transfer.adds != 0) << p;
    }
    HD_TRY(hd_comm_agree_bits(r->comm, mine == HEDDLE_OK ? make_own(r) : mine, &adds));
    st = hd_comm_agree(r->comm, make_phases(r, adds));
out:
    return st;
}

/* --- what is known ------------------------------------------------------------------------------------------------ */

static const int64_t *sent(const hd_route *r)
{
    return r->sent;
}

static void inform(hd_route_info *out, const hd_route *r)
{
    const hd_nccl_info *all = &of(r)->info;
    out->bytes_messages = all->bytes;
    out->messages = all->messages;
    out->workspace_bytes += all->memory_bytes;
    out->is_capturable = 1;
    out->is_captured = r->enqueued.is_captured;
}

static void explain(hd_route_words *out, const hd_route *r)
{
    const hd_nccl_info *all = &of(r)->info;
    snprintf(out->path, sizeof out->path, "device messages");
    snprintf(out->kernel, sizeof out->kernel, "%s", all->packed_bytes > 0 ? "push" : "none");
    snprintf(out->why, sizeof out->why,
             "arrays of %s go as messages from device to device (wire nccl), %lld in %d phase%s; %lld bytes are packed "
             "or unpacked here, what lies together is not",
             r->device->name, (long long)all->messages, r->spec.nphases, r->spec.nphases == 1 ? "" : "s",
             (long long)all->packed_bytes);
}

static void destroy(hd_route *r)
{
    nccl *n = of(r);
    if (n == NULL) {
        return;
    }
    (void)hd_route_wait_late(r);
    if (!has_ended(r)) { /* somebody else has to end it: memory of the device stays from now on */
        hd_device_leave(r->device);
    }
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        hd_nccl_phase_destroy(n->phase[p]);
    }
    hd_free(n);
}

const hd_carrier hd_carrier_nccl = {
    .make = make,
    .run = run,
    .start = hd_route_start_late,
    .test = hd_route_test_late,
    .wait = hd_route_wait_late,
    .wait_on = hd_route_wait_on_late,
    .refuse = refuse,
    .sent = sent,
    .inform = inform,
    .explain = explain,
    .destroy = destroy,
};
