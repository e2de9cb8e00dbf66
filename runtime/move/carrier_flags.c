/* Arrays of the host: the phases are transfers of one channel. */
#include "runtime/move/carrier.h"

typedef struct flags {
    hd_leg leg[HD_MAX_LEGS]; /* on src and dst */
    const void *src;
    void *dst;
    int is_unfinished; /* dst is still to be filled from its dense copy */
} flags;

static flags *of(const hd_route *r)
{
    return r->own;
}

static void list_legs(hd_route *r, const void *src, void *dst)
{
    flags *f = of(r);
    for (int p = 0; p < r->spec.nphases; p++) {
        const hd_route_phase *phase = &r->spec.phase[p];
        const void *from[] = HD_SPOTS(r, &phase->src, src, dst);
        void *to[] = HD_SPOTS(r, &phase->dst, NULL, dst);
        f->leg[p] = (hd_leg){r->transfer[p], from[phase->src.in], to[phase->dst.in]};
    }
    f->src = src;
    f->dst = dst;
}

static heddle_status make(hd_route *r, heddle_status mine)
{
    hd_transfer_spec spec[HD_MAX_LEGS];
    mine = mine == HEDDLE_OK ? hd_alloc(&r->own, 1, sizeof(flags), "a route") : mine;
    mine = mine == HEDDLE_OK ? hd_channel_create(&r->channel, r->comm, &r->spec.options) : mine;
    if (mine != HEDDLE_OK) {
        return hd_comm_agree(r->comm, mine);
    }
    mine = hd_route_make_locals(r);
    mine = mine == HEDDLE_OK ? hd_route_take_memory(r) : mine;
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        spec[p] = r->spec.phase[p].transfer;
    }
    r->bare = r;
    mine = hd_transfers_create(r->transfer, r->channel, spec, r->spec.nphases, mine);
    if (mine == HEDDLE_OK) {
        list_legs(r, NULL, NULL);
    }
    return mine;
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

static heddle_status begin(hd_route *r, const void *src, void *dst)
{
    heddle_status st = HEDDLE_OK;
    flags *f = of(r);
    if (src != f->src || dst != f->dst) {
        list_legs(r, src, dst);
    }
    if (r->before.is_there) {
        HD_TRY(hd_route_before(r, src, HEDDLE_NO_STREAM));
    }
    f->is_unfinished = 1;
out:
    return st;
}

static heddle_status end(hd_route *r, heddle_status st)
{
    flags *f = of(r);
    if (st == HEDDLE_OK && f->is_unfinished) {
        if (r->after.is_there) {
            st = hd_route_after(r, f->dst, HEDDLE_NO_STREAM);
        }
        r->executions++;
    }
    f->is_unfinished = 0;
    return st;
}

static heddle_status run(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    (void)stream; /* done on return */
    heddle_status st = begin(r, src, dst);
    return st == HEDDLE_OK ? end(r, hd_channel_run(r->channel, of(r)->leg, r->spec.nphases)) : st;
}

static heddle_status start(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    (void)stream;
    heddle_status st = begin(r, src, dst);
    if (st == HEDDLE_OK) {
        st = hd_channel_start(r->channel, of(r)->leg, r->spec.nphases);
        of(r)->is_unfinished = st == HEDDLE_OK;
    }
    return st;
}

static heddle_status test(hd_route *r, int *done)
{
    heddle_status st = hd_channel_test(r->channel, done);
    return *done || st != HEDDLE_OK ? end(r, st) : st;
}

static heddle_status wait(hd_route *r)
{
    return end(r, hd_channel_wait(r->channel));
}

static heddle_status wait_on(hd_route *r, heddle_stream stream)
{
    (void)stream;
    return wait(r);
}

static heddle_status refuse(hd_route *r, int reason, heddle_status st)
{
    return st != HEDDLE_OK ? hd_comm_abort_with(r->comm, st) : hd_channel_refuse(r->channel, reason);
}

/* --- what is known ------------------------------------------------------------------------------------------------ */

static const int64_t *sent(const hd_route *r)
{
    return hd_channel_sent(r->channel);
}

static void inform(hd_route_info *out, const hd_route *r)
{
    for (int p = 0; p < r->spec.nphases; p++) {
        hd_transfer_info t;
        hd_transfer_get_info(&t, r->transfer[p]);
        out->workspace_bytes += t.workspace_bytes;
        out->bytes_near += t.bytes_near;
        out->bytes_messages += t.bytes_messages;
        out->messages += t.messages;
    }
}

static void explain(hd_route_words *out, const hd_route *r)
{
    (void)out; /* transfers say it */
    (void)r;
}

static void destroy(hd_route *r)
{
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        hd_transfer_destroy(r->transfer[p]);
    }
    hd_channel_destroy(r->channel);
    hd_free(r->own);
}

const hd_carrier hd_carrier_flags = {
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
