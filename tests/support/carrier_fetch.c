/* A carrier as docs/extending.md describes one, with all that heddle's move room needs of a wire "fetch": ranks are
 * threads, tell one another where the sources of a phase lie, and each copies what it receives from there. */
#include "runtime/move/carrier.h"

#include <stdio.h>

typedef struct fetched {
    hd_local copy;
    int from;
} fetched;

typedef struct fetch {
    fetched *item[HD_MAX_LEGS];
    int nitems[HD_MAX_LEGS];
    int64_t *bytes;      /* [nranks] sent by an execution */
    const void **source; /* [nranks] of the phase */
} fetch;

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status make_phase(const hd_route *r, int p)
{
    heddle_status st = HEDDLE_OK;
    fetch *f = r->own;
    const hd_transfer_spec *spec = &r->spec.phase[p].transfer;
    if (spec->adds || spec->clear != NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the wire fetch neither adds nor clears");
    }
    HD_TRY(hd_alloc((void **)&f->item[p], (size_t)spec->recv.count, sizeof(fetched), "what is fetched"));
    for (int i = 0; i < spec->recv.count; i++) {
        fetched *item = &f->item[p][f->nitems[p]++];
        item->from = spec->recv.item[i].peer;
        HD_TRY(hd_local_make(&item->copy, &spec->recv.item[i].copy, r->comm, r->device, hd_route_deadline_ns(r)));
    }
    for (int i = 0; i < spec->send.count; i++) {
        const hd_item *item = &spec->send.item[i];
        f->bytes[item->peer] += item->peer != r->rank ? hd_copy_bytes(&item->copy) : 0;
    }
out:
    return st;
}

static heddle_status make_alone(hd_route *r)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_alloc(&r->own, 1, sizeof(fetch), "a route"));
    fetch *f = r->own;
    HD_TRY(hd_alloc((void **)&f->bytes, (size_t)r->nranks, sizeof *f->bytes, "a route"));
    HD_TRY(hd_alloc((void **)&f->source, (size_t)r->nranks, sizeof *f->source, "a route"));
    HD_TRY(hd_route_take_memory(r));
    HD_TRY(hd_route_make_locals(r));
    HD_TRY(r->device != NULL ? hd_route_open_enqueued(r, "copies") : HEDDLE_OK);
    for (int p = 0; p < r->spec.nphases; p++) {
        HD_TRY(make_phase(r, p));
    }
out:
    return st;
}

static heddle_status make(hd_route *r, heddle_status mine)
{
    return hd_comm_agree(r->comm, mine == HEDDLE_OK ? make_alone(r) : mine);
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

static heddle_status refuse(hd_route *r, int reason, heddle_status st)
{
    return hd_comm_abort_with(r->comm, st == HEDDLE_OK ? hd_route_say_refusal(r, reason) : st);
}

static heddle_status wait_here(hd_route *r)
{
    return r->device != NULL ? hd_enqueued_wait(&r->enqueued, hd_route_deadline_ns(r), hd_comm_look, r->comm)
                             : HEDDLE_OK;
}

/* Returns when the stream of every rank has come so far; `source` is this rank's for what follows. */
static heddle_status meet(hd_route *r, const void *source, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    fetch *f = r->own;
    HD_TRY(r->device != NULL ? hd_enqueued_end(&r->enqueued, stream, HEDDLE_OK) : HEDDLE_OK);
    HD_TRY(wait_here(r));
    st = hd_comm_allgather_or_abort(r->comm, &source, f->source, sizeof source);
out:
    return st;
}

static heddle_status run_phase(hd_route *r, int p, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const fetch *f = r->own;
    const hd_route_phase *phase = &r->spec.phase[p];
    const void *const from[] = HD_SPOTS(r, &phase->src, src, dst);
    void *const to[] = HD_SPOTS(r, &phase->dst, NULL, dst);
    HD_TRY(meet(r, from[phase->src.in], stream));
    for (int i = 0; i < f->nitems[p]; i++) {
        const fetched *item = &f->item[p][i];
        HD_TRY(hd_local_run(&item->copy, to[phase->dst.in], f->source[item->from], stream));
    }
out:
    return st;
}

static heddle_status execute(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const fetch *f = r->own;
    HD_TRY(hd_route_before(r, src, stream));
    for (int p = 0; p < r->spec.nphases; p++) {
        HD_TRY(run_phase(r, p, src, dst, stream));
    }
    HD_TRY(hd_route_after(r, dst, stream));
    HD_TRY(meet(r, NULL, stream)); /* nobody reads this rank's source any more */
    for (int peer = 0; peer < r->nranks; peer++) {
        r->sent[peer] += f->bytes[peer];
    }
    r->executions++;
out:
    return st;
}

/* A rank that cannot go on would be waited for. */
static heddle_status run(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    int captures = 0;
    heddle_status st = hd_route_look_at(&captures, r, stream);
    if (st != HEDDLE_OK || captures) {
        return refuse(r, HD_REFUSED_CAPTURE, st);
    }
    st = execute(r, src, dst, stream);
    return st == HEDDLE_OK ? st : hd_comm_abort_with(r->comm, st);
}

static heddle_status test(hd_route *r, int *done)
{
    (void)r;
    *done = 1;
    return HEDDLE_OK;
}

static heddle_status wait_on(hd_route *r, heddle_stream stream)
{
    (void)stream;
    return wait_here(r);
}

/* --- what is known ------------------------------------------------------------------------------------------------ */

static const int64_t *sent(const hd_route *r)
{
    return r->sent;
}

static void inform(hd_route_info *out, const hd_route *r)
{
    const fetch *f = r->own;
    for (int peer = 0; peer < r->nranks; peer++) {
        out->bytes_near += f->bytes[peer];
    }
}

static void explain(hd_route_words *out, const hd_route *r)
{
    snprintf(out->path, sizeof out->path, "fetched");
    snprintf(out->why, sizeof out->why, "%d ranks fetch what they receive (wire fetch)", r->nranks);
}

static void destroy(hd_route *r)
{
    fetch *f = r->own;
    for (int p = 0; f != NULL && p < HD_MAX_LEGS; p++) {
        for (int i = 0; i < f->nitems[p]; i++) {
            hd_device_list_free(&f->item[p][i].copy.list);
        }
        hd_free(f->item[p]);
    }
    if (f != NULL) {
        HD_FREE_ALL(f->bytes, f->source, f);
    }
}

extern const hd_carrier hd_carrier_fetch;
const hd_carrier hd_carrier_fetch = {
    .make = make,
    .run = run,
    .start = run,
    .test = test,
    .wait = wait_here,
    .wait_on = wait_on,
    .refuse = refuse,
    .sent = sent,
    .inform = inform,
    .explain = explain,
    .destroy = destroy,
};
