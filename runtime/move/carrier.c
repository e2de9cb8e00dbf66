/* Routes: which carrier, and what all carriers need of one. */
#include "runtime/move/carrier.h"

#include <stdio.h>
#include <string.h>

#define CARRIER_OF(name, wire) [HEDDLE_WIRE_##name] = &hd_carrier_##wire,
static const hd_carrier *const carriers[] = {HD_WIRES(CARRIER_OF)};
#undef CARRIER_OF

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status alloc_route(hd_route **out, heddle_comm *comm, const hd_carrier *carrier,
                                 const hd_route_spec *spec)
{
    heddle_status st;
    hd_route *r = NULL;
    const size_t n = (size_t)heddle_comm_size(comm);
    HD_TRY(hd_alloc((void **)out, 1, sizeof **out, "a route"));
    r = *out;
    r->comm = comm;
    r->device = spec->space == HEDDLE_SPACE_DEVICE ? hd_comm_device(comm) : NULL;
    r->carrier = carrier;
    r->rank = heddle_comm_rank(comm);
    r->nranks = (int)n;
    r->spec = *spec;
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        r->spec.phase[p].transfer.space = spec->space;
    }
    st = hd_alloc((void **)&r->sent, n, sizeof *r->sent, "a route");
out:
    return st;
}

heddle_status hd_route_create_by(hd_route **out, heddle_comm *comm, const hd_carrier *carrier,
                                 const hd_route_spec *spec, heddle_status mine)
{
    hd_route *r = NULL;
    mine = mine == HEDDLE_OK ? alloc_route(&r, comm, carrier, spec) : mine;
    heddle_status st = mine == HEDDLE_OK ? carrier->make(r, mine) : hd_comm_agree(comm, mine);
    if (st != HEDDLE_OK) {
        hd_route_destroy(r);
        r = NULL;
    }
    *out = r;
    return st;
}

/* A space that no device is attached for is refused by those who ask for it. */
heddle_status hd_route_create(hd_route **out, heddle_comm *comm, const hd_route_spec *spec, heddle_status mine)
{
    const int is_host = spec->space != HEDDLE_SPACE_DEVICE || hd_comm_device(comm) == NULL;
    return hd_route_create_by(out, comm, is_host ? &hd_carrier_flags : carriers[hd_comm_wire(comm)], spec, mine);
}

static heddle_status make_local(hd_local *out, const hd_route *r, const hd_copy *copy)
{
    return hd_copy_bytes(copy) == 0 ? HEDDLE_OK : hd_local_make(out, copy, r->comm, r->device, hd_route_deadline_ns(r));
}

heddle_status hd_route_make_locals(hd_route *r)
{
    heddle_status st = make_local(&r->before, r, &r->spec.before.copy);
    return st == HEDDLE_OK ? make_local(&r->after, r, &r->spec.after.copy) : st;
}

heddle_status hd_route_take_memory(hd_route *r)
{
    heddle_status st = HEDDLE_OK;
    if (r->spec.work_bytes > 0) {
        HD_TRY(heddle_buffer_alloc((void **)&r->work, r->comm, (size_t)r->spec.work_bytes, r->spec.space));
        r->owns_work = 1;
    }
out:
    return st;
}

void hd_route_destroy(hd_route *r)
{
    if (r == NULL) {
        return;
    }
    const hd_sentence why = hd_sentence_keep(); /* of who is about to say why it ends */
    r->carrier->destroy(r);
    heddle_ignore(hd_sentence_say(&why, HEDDLE_OK));
    hd_enqueued_close(&r->enqueued);
    hd_device_list_free(&r->before.list);
    hd_device_list_free(&r->after.list);
    if (r->owns_work) {
        heddle_buffer_free(r->comm, r->work);
    }
    hd_free(r->sent);
    hd_free(r);
}

int hd_route_adds(const hd_route *r)
{
    int adds = 0;
    for (int p = 0; p < r->spec.nphases; p++) {
        adds |= r->spec.phase[p].transfer.adds;
    }
    return adds;
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

heddle_status hd_route_need_eager(const hd_route *r, heddle_stream stream)
{
    int captures = 0;
    heddle_status st = hd_route_look_at(&captures, r, stream);
    return st == HEDDLE_OK && captures ? hd_route_say_refusal(r, HD_REFUSED_NOT_EXECUTE) : st;
}

heddle_status hd_route_look_at(int *captures, const hd_route *r, heddle_stream stream)
{
    *captures = 0;
    return r->device == NULL ? HEDDLE_OK : r->device->library->stream_captures(captures, r->device->number, stream);
}

heddle_status hd_route_say_refusal(const hd_route *r, int reason)
{
    const hd_channel_options *o = &r->spec.options;
    return hd_fail(HEDDLE_ERR_ARG, "rank %d: %s; %s %s", hd_comm_rank_name(r->comm, r->rank),
                   hd_refusal_text(o, reason), o->what, o->line);
}

heddle_status hd_route_before(const hd_route *r, const void *src, heddle_stream stream)
{
    return hd_local_run(&r->before, r->work + r->spec.before.at, src, stream);
}

heddle_status hd_route_after(const hd_route *r, void *dst, heddle_stream stream)
{
    return hd_local_run(&r->after, dst, r->work + r->spec.after.at, stream);
}

/* --- what is only enqueued ---------------------------------------------------------------------------------------- */

heddle_status hd_route_open_enqueued(hd_route *r, const char *end)
{
    const hd_channel_options *o = &r->spec.options;
    r->enqueued.names = (hd_enqueued_names){hd_comm_rank_name(r->comm, r->rank), end, o->what, o->line};
    return hd_enqueued_open(&r->enqueued, r->device);
}

int64_t hd_route_deadline_ns(const hd_route *r)
{
    return hd_comm_deadline_ns(r->comm, r->spec.options.deadline_ms);
}

/* Whoever waits for the end of what is started would wait for a graph. */
heddle_status hd_route_start_late(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    int captures = 0;
    heddle_status st = hd_route_look_at(&captures, r, stream);
    return st != HEDDLE_OK || captures ? r->carrier->refuse(r, HD_REFUSED_NOT_EXECUTE, st)
                                       : r->late.start(r, src, dst, stream);
}

/* What failed has ended, too. */
heddle_status hd_route_test_late(hd_route *r, int *done)
{
    heddle_status st;
    *done = 0;
    HD_TRY(r->late.look(r, 0));
    HD_TRY(hd_enqueued_test(done, &r->enqueued));
    st = *done ? r->late.look(r, 0) : HEDDLE_OK;
out:
    *done |= st != HEDDLE_OK;
    return st == HEDDLE_OK ? st : r->late.fail(r, st);
}

static heddle_status look_around(void *route)
{
    hd_route *r = route;
    return r->late.look(r, 1);
}

heddle_status hd_route_wait_late(hd_route *r)
{
    int done = 0;
    heddle_status st = hd_enqueued_wait(&r->enqueued, hd_route_deadline_ns(r) + r->late.grace_ns, look_around, r);
    return st == HEDDLE_OK ? hd_route_test_late(r, &done) : r->late.fail(r, st);
}

heddle_status hd_route_wait_on_late(hd_route *r, heddle_stream stream)
{
    heddle_status st = r->late.look(r, 0);
    st = st == HEDDLE_OK ? hd_enqueued_order(&r->enqueued, stream) : st;
    return st == HEDDLE_OK ? st : r->late.fail(r, st);
}

/* --- what is known ------------------------------------------------------------------------------------------------ */

void hd_route_forget(hd_route *r)
{
    r->executions = 0;
    memset(hd_channel_sent(r->channel), 0, (size_t)r->nranks * sizeof(int64_t));
}

void hd_route_get_info(hd_route_info *out, const hd_route *r)
{
    *out = (hd_route_info){.wire = r->device != NULL ? hd_comm_wire_name(r->comm) : "",
                           .workspace_bytes = r->owns_work ? r->spec.work_bytes : 0,
                           .executions = r->executions};
    r->carrier->inform(out, r);
}

void hd_route_explain(hd_route_words *out, const hd_route *r)
{
    memset(out, 0, sizeof *out);
    r->carrier->explain(out, r);
}
