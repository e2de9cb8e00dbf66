/* Switches of an executor in a device's memory. Where blocks work in host memory what they made is copied to the
 * device, switched there and copied back, in the order of the stream, and the rank waits for the last copy. */
#include "runtime/base/base.h"
#include "runtime/block/inner.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/device/enqueued.h"
#include "runtime/layout/algebra.h"
#include "runtime/model/executor_internal.h"
#include "runtime/session/inner.h"

#include <stdio.h>

/* A switch that is late has a deadline of its own, and knows which rank it is. */
struct hd_executor_device {
    heddle_comm *comm;
    const hd_device *device;
    void *host, *there; /* parts that blocks work on, and that are switched; NULL: blocks work on the device */
    size_t host_bytes, there_bytes;
    int is_pinned;
    hd_enqueued copies;
};

/* --- copies ------------------------------------------------------------------------------------------------------- */

static heddle_status copy(hd_executor_device *d, void *dst, const void *src, size_t bytes, heddle_stream stream)
{
    const int64_t run_bytes = (int64_t)bytes;
    if (bytes == 0) {
        return HEDDLE_OK;
    }
    hd_enqueued_begin(&d->copies);
    d->copies.stream = stream;
    return d->device->library->copy(dst, run_bytes, src, run_bytes, run_bytes, 1, d->device->number, stream);
}

static heddle_status look(void *comm)
{
    return heddle_comm_poll(comm);
}

/* Until the stream is through. ask: as hd_enqueued_wait has it, for the communicator. */
static heddle_status settle(hd_executor_device *d, heddle_stream stream, hd_device_look_fn ask)
{
    heddle_status st;
    HD_TRY(hd_enqueued_end(&d->copies, stream, HEDDLE_OK));
    HD_TRY(hd_enqueued_wait(&d->copies, hd_comm_deadline_ns(d->comm, 0) + HD_DEVICE_GRACE_NS, ask, d->comm));
    st = ask != NULL ? ask(d->comm) : HEDDLE_OK; /* what failed has ended, too */
out:
    return st;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status part_of(heddle_box *box, size_t *bytes, const heddle_executor *e, const heddle_layout *layout)
{
    heddle_status st = heddle_layout_box(box, &e->info.shape, &e->info.mesh, layout, heddle_comm_rank(e->comm));
    *bytes = st == HEDDLE_OK ? (size_t)heddle_box_elems(box) * heddle_dtype_bytes(e->info.shape.dtype) : 0;
    return st;
}

/* This rank's largest part over all layouts of the schedule. */
static heddle_status largest_part(size_t *out, const heddle_executor *e)
{
    heddle_status st = HEDDLE_OK;
    *out = 1; /* an address even where it has none */
    for (int i = 0; i < e->info.nedges; i++) {
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_box box;
        size_t from = 0, to = 0;
        HD_TRY(heddle_schedule_edge_at(&edge, e->schedule, i));
        HD_TRY(part_of(&box, &from, e, &edge.from));
        HD_TRY(part_of(&box, &to, e, &edge.to));
        *out = from > *out ? from : *out;
        *out = to > *out ? to : *out;
    }
out:
    return st;
}

/* Only a layout that is none of the schedule's may want more. */
static heddle_status make_room(hd_executor_device *d, size_t bytes)
{
    void *memory = NULL;
    heddle_status st = HEDDLE_OK;
    if (d->there_bytes < bytes) {
        HD_TRY(heddle_buffer_alloc(&memory, d->comm, bytes, HEDDLE_SPACE_DEVICE));
        heddle_buffer_free(d->comm, d->there);
        d->there = memory;
        d->there_bytes = bytes;
    }
out:
    return st;
}

heddle_status hd_executor_device_make(heddle_executor *e)
{
    heddle_status st;
    hd_executor_device *d = NULL;
    size_t bytes = 0;
    HD_TRY(largest_part(&bytes, e));
    HD_TRY(hd_alloc((void **)&d, 1, sizeof *d, "an executor's copies to and from a device"));
    e->device = d;
    d->comm = e->comm;
    d->device = hd_comm_device(e->comm);
    d->copies.names = (hd_enqueued_names){hd_comm_rank_name(e->comm, heddle_comm_rank(e->comm)), "end", "switch",
                                          "between a device and blocks"};
    HD_TRY(hd_enqueued_open(&d->copies, d->device));
    if (e->options.blocks == HEDDLE_SPACE_DEVICE) {
        return HEDDLE_OK;
    }
    HD_TRY(make_room(d, bytes));
    HD_TRY(heddle_buffer_alloc(&d->host, e->comm, bytes, HEDDLE_SPACE_HOST));
    d->host_bytes = bytes;
    /* It works without, only slower. */
    d->is_pinned = d->device->library->pin(d->host, bytes, d->device->number) == HEDDLE_OK;
out:
    return st;
}

/* The sentence that says why the executor ends stays. */
static int has_ended(hd_executor_device *d)
{
    const hd_sentence why = hd_sentence_keep();
    return hd_sentence_say(&why, d->copies.mark != 0 ? settle(d, d->copies.stream, NULL) : HEDDLE_OK) == HEDDLE_OK;
}

void hd_executor_device_free(hd_executor_device *d)
{
    if (d == NULL) {
        return;
    }
    if (has_ended(d)) { /* else a copy may come yet: the communicator keeps both */
        if (d->is_pinned) {
            d->device->library->unpin(d->host, d->device->number);
        }
        heddle_buffer_free(d->comm, d->host);
        heddle_buffer_free(d->comm, d->there);
    }
    hd_enqueued_close(&d->copies);
    hd_free(d);
}

/* --- switching ---------------------------------------------------------------------------------------------------- */

/* x can be copied as one piece. dense: the same on the device. */
static heddle_status check(const heddle_executor *e, const heddle_tensor *x, const heddle_box *box, size_t bytes,
                           const heddle_tensor *dense)
{
    const char *name = e->device->device->name;
    if (x->space != HEDDLE_SPACE_HOST || (x->data == NULL && bytes > 0) || x->capacity_bytes < bytes) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "blocks work in host memory, also where switches are on device %s: x is %s, with room for %zu "
                       "bytes, its part has %zu",
                       name,
                       x->data == NULL                 ? "NULL"
                       : x->space == HEDDLE_SPACE_HOST ? "there"
                                                       : "on a device",
                       x->capacity_bytes, bytes);
    }
    for (int d = 0; d < box->ndim && bytes > 0; d++) {
        if (box->len[d] > 1 && x->stride_elems[d] != dense->stride_elems[d]) {
            return hd_fail(HEDDLE_ERR_LAYOUT,
                           "elements of x along dim %s lie %lld apart; what is switched on device %s is dense, %lld",
                           x->shape.dim[d].name, (long long)x->stride_elems[d], name,
                           (long long)dense->stride_elems[d]);
        }
    }
    return HEDDLE_OK;
}

/* x as it will lie on the device, and its bytes. */
static heddle_status place(heddle_tensor *there, size_t *bytes, heddle_executor *e, const heddle_tensor *x)
{
    heddle_status st;
    heddle_box box;
    HD_TRY(hd_shape_need(&x->shape, &e->info.shape, 1, "x", "the schedule is for"));
    HD_TRY(part_of(&box, bytes, e, &x->layout));
    HD_TRY(make_room(e->device, *bytes));
    HD_TRY(heddle_tensor_init(there, e->device->there, &e->info.shape, &e->info.mesh, &x->layout, NULL,
                              heddle_comm_rank(e->comm)));
    there->space = e->options.space;
    there->device = e->options.device;
    st = check(e, x, &box, *bytes, there);
out:
    return st;
}

/* What was switched, to where blocks work. */
static heddle_status bring_back(heddle_tensor *x, size_t *copied, heddle_executor *e, const heddle_tensor *there,
                                heddle_stream stream)
{
    hd_executor_device *d = e->device;
    heddle_status st;
    heddle_box box;
    size_t bytes = 0;
    HD_TRY(part_of(&box, &bytes, e, &there->layout));
    if (bytes > d->host_bytes) {
        return hd_fail(HEDDLE_ERR_INTERNAL, "a part of %zu bytes, the schedule's largest has %zu", bytes,
                       d->host_bytes);
    }
    HD_TRY(copy(d, d->host, there->data, bytes, stream));
    HD_TRY(settle(d, stream, look)); /* nothing to copy: there is the switch all the same */
    *copied = bytes;
    *x = *there;
    x->data = d->host;
    x->space = HEDDLE_SPACE_HOST;
    x->device = 0;
out:
    return st;
}

/* Up to the session's call, whose sentences name the stage. */
static heddle_status bring(heddle_tensor *there, size_t *copied, heddle_executor *e, const char *stage,
                           const heddle_tensor *x, int backward, heddle_stream stream)
{
    hd_executor_device *d = e->device;
    heddle_tensor like;
    heddle_status st;
    size_t bytes = 0;
    HD_TRY((backward ? heddle_session_expect_backward : heddle_session_expect)(&like, NULL, e->session, stage));
    HD_TRY(place(there, &bytes, e, x));
    if (!heddle_layout_equal(&x->layout, &like.layout, &e->info.mesh)) {
        HD_TRY(copy(d, there->data, x->data, bytes, stream));
        HD_TRY(x->data != d->host && bytes > 0 ? settle(d, stream, look)
                                               : HEDDLE_OK); /* the caller's again, whatever comes */
        *copied = bytes;
    }
out:
    return st;
}

heddle_status hd_executor_settle(heddle_executor *e, heddle_stream stream)
{
    if (e->options.blocks != HEDDLE_SPACE_DEVICE || !e->options.timed) {
        return HEDDLE_OK;
    }
    return settle(e->device, stream, look);
}

void hd_executor_leave(heddle_executor *e, int step, const heddle_tensor *x)
{
    const int leaves =
        e->options.blocks == HEDDLE_SPACE_DEVICE && !e->options.unfused && hd_session_takes_gate(e->session, x);
    hd_block_leave_gate(e->block[step], leaves ? &e->left : NULL);
}

/* With what the stage before has left to do. */
static heddle_status enter_gated(heddle_executor *e, const char *stage, heddle_tensor *x, heddle_stream stream)
{
    const hd_device_gate gate = e->left;
    heddle_status st = HEDDLE_OK;
    e->left.y = NULL;
    HD_TRY(hd_session_enter_gated(e->session, stage, x, &gate, stream));
    st = hd_executor_tell(e, hd_block_gate_is_enqueued(e->block[0], stream)); /* all blocks have one workspace */
out:
    return st;
}

static heddle_status go(heddle_executor *e, const char *stage, heddle_tensor *x, int backward, heddle_stream stream)
{
    return backward            ? heddle_session_backward(e->session, stage, x, NULL, stream)
           : e->left.y != NULL ? enter_gated(e, stage, x, stream)
                               : heddle_session_enter(e->session, stage, x, NULL, stream);
}

heddle_status hd_executor_switch(heddle_executor *e, const char *stage, heddle_tensor *x, int backward, int64_t *copied,
                                 heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    heddle_tensor there;
    size_t in = 0, out = 0;
    if (e->device == NULL || e->options.blocks == HEDDLE_SPACE_DEVICE) {
        HD_TRY(hd_executor_tell(e, go(e, stage, x, backward, stream))); /* names rank and stage */
        st = hd_executor_settle(e, stream);
        return hd_executor_tell(e, st == HEDDLE_OK ? st : hd_fail_prefix(st, "entering '%s'", stage));
    }
    st = bring(&there, &in, e, stage, x, backward, stream);
    if (st == HEDDLE_OK) {
        const void *before = there.data;
        HD_TRY(hd_executor_tell(e, go(e, stage, &there, backward, stream)));
        st = there.data != before ? bring_back(x, &out, e, &there, stream) : HEDDLE_OK;
    }
    *copied = (int64_t)(in + out);
    st = st == HEDDLE_OK ? st : hd_fail_prefix(st, "%s '%s'", backward ? "leaving backward from" : "entering", stage);
    st = hd_executor_tell(e, st);
out:
    return st;
}
