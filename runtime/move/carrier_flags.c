/* Arrays of the host: the phases are transfers of one channel. */
#include "runtime/move/carrier.h"

#include <string.h>

typedef struct flags {
    hd_channel *channel;
    hd_transfer *transfer[HD_MAX_LEGS];
    hd_leg leg[HD_MAX_LEGS]; /* on src and dst */
    const void *src;
    void *dst;
    int is_listed;
    int is_unfinished; /* dst is still to be filled from its dense copy */
} flags;

static flags *of(const hd_route *r)
{
    return r->own;
}

static heddle_status make(hd_route *r, heddle_status mine)
{
    hd_transfer_spec spec[HD_MAX_LEGS];
    mine = mine == HEDDLE_OK ? hd_alloc(&r->own, 1, sizeof(flags), "a route") : mine;
    mine = mine == HEDDLE_OK ? hd_channel_create(&of(r)->channel, r->comm, &r->spec.options) : mine;
    if (mine != HEDDLE_OK) {
        return hd_comm_agree(r->comm, mine);
    }
    mine = hd_route_make_locals(r);
    mine = mine == HEDDLE_OK ? hd_route_take_memory(r) : mine;
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        spec[p] = r->spec.phase[p].transfer;
    }
    r->bare = r;
    return hd_transfers_create(of(r)->transfer, of(r)->channel, spec, r->spec.nphases, mine);
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

static void list_legs(hd_route *r, const void *src, void *dst)
{
    flags *f = of(r);
    for (int p = 0; p < r->spec.nphases; p++) {
        const hd_route_phase *phase = &r->spec.phase[p];
        f->leg[p] =
            (hd_leg){f->transfer[p], hd_route_at(r, &phase->src, src, dst), hd_route_at(r, &phase->dst, src, dst)};
    }
    f->src = src;
    f->dst = dst;
    f->is_listed = 1;
}

static heddle_status begin(hd_route *r, const void *src, void *dst)
{
    heddle_status st = HEDDLE_OK;
    flags *f = of(r);
    if (!f->is_listed || src != f->src || dst != f->dst) {
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
    return st == HEDDLE_OK ? end(r, hd_channel_run(of(r)->channel, of(r)->leg, r->spec.nphases)) : st;
}

static heddle_status start(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    (void)stream;
    heddle_status st = begin(r, src, dst);
    if (st == HEDDLE_OK) {
        st = hd_channel_start(of(r)->channel, of(r)->leg, r->spec.nphases);
        of(r)->is_unfinished = st == HEDDLE_OK;
    }
    return st;
}

static heddle_status test(hd_route *r, int *done)
{
    heddle_status st = hd_channel_test(of(r)->channel, done);
    return *done || st != HEDDLE_OK ? end(r, st) : st;
}

static heddle_status wait(hd_route *r)
{
    return end(r, hd_channel_wait(of(r)->channel));
}

static heddle_status wait_on(hd_route *r, heddle_stream stream)
{
    (void)stream;
    return wait(r);
}

static heddle_status refuse(hd_route *r, int reason, heddle_status st)
{
    return st != HEDDLE_OK ? hd_comm_abort_with(r->comm, st) : hd_channel_refuse(of(r)->channel, reason);
}

/* --- what is known ------------------------------------------------------------------------------------------------ */

static const int64_t *sent(const hd_route *r)
{
    return hd_channel_sent(of(r)->channel);
}

static void inform(hd_route_info *out, const hd_route *r)
{
    for (int p = 0; p < r->spec.nphases; p++) {
        hd_transfer_info t;
        hd_transfer_get_info(&t, of(r)->transfer[p]);
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
    flags *f = of(r);
    if (f == NULL) {
        return;
    }
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        hd_transfer_destroy(f->transfer[p]);
    }
    hd_channel_destroy(f->channel);
    hd_free(f);
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

/* --- of a bare route ---------------------------------------------------------------------------------------------- */

hd_channel *hd_route_channel(hd_route *r)
{
    return of(r)->channel;
}

hd_transfer *hd_route_transfer(const hd_route *r, int phase)
{
    return of(r)->transfer[phase];
}

int hd_route_can_travel(const hd_route *r, const void *memory, size_t bytes)
{
    return hd_channel_can_travel(of(r)->channel, memory, bytes);
}

void hd_route_forget(hd_route *r)
{
    r->executions = 0;
    memset(hd_channel_sent(of(r)->channel), 0, (size_t)r->nranks * sizeof(int64_t));
}
