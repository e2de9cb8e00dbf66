/* The wire host: a device's arrays by way of images of them in host memory that peers reach. An inner route carries
 * those; src is copied to its image before, the image of dst to dst after, in the order of the stream. */
#include "runtime/device/enqueued.h"
#include "runtime/move/carrier.h"

#include <stdio.h>

enum { PAGE_BYTES = 4096 };

typedef struct images {
    hd_route *inner;
    char *memory; /* image of src, then that of dst */
    int64_t bytes, dst_at;
    int is_pinned;
    void *dst;     /* of the execution under way */
    int is_behind; /* its image is still to be copied there */
} images;

static images *of(const hd_route *r)
{
    return r->own;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static int64_t pages(int64_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static heddle_status make_images(hd_route *r)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_alloc(&r->own, 1, sizeof(images), "images of a device's arrays"));
    images *i = of(r);
    const heddle_device *library = r->device->library;
    i->dst_at = pages(r->spec.src_bytes);
    i->bytes = i->dst_at + pages(r->spec.dst_bytes);
    HD_TRY(heddle_buffer_alloc((void **)&i->memory, r->comm, (size_t)i->bytes, HEDDLE_SPACE_HOST));
    /* It works without, only slower. */
    i->is_pinned = i->bytes > 0 && library->pin(i->memory, (size_t)i->bytes, r->device->number) == HEDDLE_OK;
    st = hd_route_open_enqueued(r, "copies");
out:
    return st;
}

static heddle_status make(hd_route *r, heddle_status mine)
{
    hd_route *inner = NULL;
    hd_route_spec spec = r->spec;
    spec.space = HEDDLE_SPACE_HOST;
    spec.any_memory = 0;
    for (int p = 0; p < HD_MAX_LEGS; p++) {
        spec.phase[p].transfer.any_src = spec.phase[p].transfer.any_dst = 0;
    }
    mine = mine == HEDDLE_OK ? make_images(r) : mine;
    heddle_status st = hd_route_create_by(&inner, r->comm, &hd_carrier_flags, &spec, mine);
    if (r->own != NULL) {
        of(r)->inner = inner;
        r->bare = inner;
    }
    return st;
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

/* What the stream has to do before may be anything, and never end. */
static heddle_status await_copies(hd_route *r)
{
    return hd_enqueued_wait(&r->enqueued, hd_route_deadline_ns(r), hd_comm_look, r->comm);
}

/* Returns when the image of src is there, which is when the stream has come so far, and that of dst is free. */
static heddle_status copy_in(hd_route *r, const void *src, heddle_stream stream)
{
    images *i = of(r);
    heddle_status st;
    HD_TRY(await_copies(r)); /* the last execution's image of dst is still read */
    HD_TRY(
        hd_enqueued_end(&r->enqueued, stream, hd_device_copy(r->device, &r->spec.whole_src, i->memory, src, stream)));
    st = await_copies(r);
out:
    return st;
}

static heddle_status refuse(hd_route *r, int reason, heddle_status st)
{
    return of(r)->inner->carrier->refuse(of(r)->inner, reason, st);
}

/* The inner route may begin. */
static heddle_status begin(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    int captures = 0;
    heddle_status st = hd_route_look_at(&captures, r, stream);
    if (st == HEDDLE_OK && captures) {
        return refuse(r, HD_REFUSED_CAPTURE, st);
    }
    st = st == HEDDLE_OK ? copy_in(r, src, stream) : st;
    if (st != HEDDLE_OK) {
        return hd_comm_abort_with(r->comm, st); /* the others would wait for this rank */
    }
    of(r)->dst = dst;
    of(r)->is_behind = 1;
    return HEDDLE_OK;
}

/* st: how it went. Its image to dst behind what the stream of the beginning has by now, once. */
static heddle_status end(hd_route *r, heddle_status st)
{
    images *i = of(r);
    const heddle_stream stream = r->enqueued.stream;
    if (st == HEDDLE_OK && i->is_behind) {
        st = hd_enqueued_end(&r->enqueued, stream,
                             hd_device_copy(r->device, &r->spec.whole_dst, i->dst, i->memory + i->dst_at, stream));
    }
    i->is_behind = 0;
    return st;
}

static heddle_status run(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    images *i = of(r);
    heddle_status st = begin(r, src, dst, stream);
    return st == HEDDLE_OK
               ? end(r, i->inner->carrier->run(i->inner, i->memory, i->memory + i->dst_at, HEDDLE_NO_STREAM))
               : st;
}

static heddle_status start(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    images *i = of(r);
    heddle_status st = begin(r, src, dst, stream);
    if (st == HEDDLE_OK) {
        st = i->inner->carrier->start(i->inner, i->memory, i->memory + i->dst_at, HEDDLE_NO_STREAM);
        i->is_behind = st == HEDDLE_OK;
    }
    return st;
}

static heddle_status test(hd_route *r, int *done)
{
    heddle_status st = of(r)->inner->carrier->test(of(r)->inner, done);
    if (*done || st != HEDDLE_OK) {
        st = end(r, st);
    }
    return st == HEDDLE_OK && *done ? hd_enqueued_test(done, &r->enqueued) : st;
}

static heddle_status wait(hd_route *r)
{
    heddle_status st = end(r, of(r)->inner->carrier->wait(of(r)->inner));
    return st == HEDDLE_OK ? await_copies(r) : st;
}

static heddle_status wait_on(hd_route *r, heddle_stream stream)
{
    heddle_status st = end(r, of(r)->inner->carrier->wait(of(r)->inner));
    return st == HEDDLE_OK ? hd_enqueued_order(&r->enqueued, stream) : st;
}

/* --- what is known ------------------------------------------------------------------------------------------------ */

static const int64_t *sent(const hd_route *r)
{
    return of(r)->inner->carrier->sent(of(r)->inner);
}

static void inform(hd_route_info *out, const hd_route *r)
{
    const char *wire = out->wire;
    hd_route_get_info(out, of(r)->inner);
    out->wire = wire;
    out->workspace_bytes += of(r)->bytes;
}

static void explain(hd_route_words *out, const hd_route *r)
{
    snprintf(out->why, sizeof out->why, "arrays of %s are carried through %s host memory (wire host); ",
             r->device->name, of(r)->is_pinned ? "pinned" : "pageable");
}

/* Waits for what is enqueued, until the deadline. Memory that copies may still read then, or of which the device does
 * not say, is neither freed nor unpinned: it stays the communicator's. */
static void destroy(hd_route *r)
{
    images *i = of(r);
    if (i == NULL) {
        return;
    }
    hd_route_destroy(i->inner);
    if (hd_enqueued_has_ended(&r->enqueued, hd_route_deadline_ns(r))) {
        if (i->is_pinned) {
            r->device->library->unpin(i->memory, r->device->number);
        }
        heddle_buffer_free(r->comm, i->memory);
    }
    hd_free(i);
}

const hd_carrier hd_carrier_host = {
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
