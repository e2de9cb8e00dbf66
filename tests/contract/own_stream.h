/* A plan whose arrays lie on an emulated device, in the order of a stream of the rank's own. */
#ifndef HD_TEST_OWN_STREAM_H
#define HD_TEST_OWN_STREAM_H

#include "on_device.h"

typedef struct own_stream {
    device_fixture f;
    device_sim sim;
    const hd_device *device;
    heddle_stream stream;
} own_stream;

/* text: NULL: that of device_set_up */
static inline heddle_status own_set_up_line(own_stream *o, heddle_comm *comm, const char *text, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    memset(o, 0, sizeof *o);
    o->device = hd_comm_device(comm);
    HD_TRY(device_sim_get(&o->sim));
    HD_TRY(text != NULL ? device_set_up_line(&o->f, comm, text, deadline_ms) : device_set_up(&o->f, comm, deadline_ms));
    st = o->device->library->stream_create(&o->stream, o->device->number);
out:
    return st;
}

static inline heddle_status own_set_up(own_stream *o, heddle_comm *comm, int64_t deadline_ms)
{
    return own_set_up_line(o, comm, NULL, deadline_ms);
}

/* All zeros: it was not set up. */
static inline void own_tear_down(own_stream *o)
{
    if (o->device == NULL) {
        return;
    }
    device_tear_down(&o->f);
    o->device->library->stream_destroy(o->stream, o->device->number);
}

static inline heddle_status enqueue_round(own_stream *o, int round)
{
    heddle_status st = HEDDLE_OK;
    device_fixture *f = &o->f;
    device_fill(f, round);
    HD_TRY(device_copy(f->comm, f->src, f->sent, sizeof f->sent, o->stream));
    HD_TRY(heddle_reshard_execute(f->reshard, f->src, f->dst, o->stream));
    st = device_copy(f->comm, f->got, f->dst, sizeof f->got, o->stream);
out:
    return st;
}

#endif
