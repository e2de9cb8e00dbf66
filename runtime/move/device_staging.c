/* Host memory on the way to and from a device's, and the order of what is enqueued against what the host does. */
#include "runtime/move/device_staging.h"

enum { PAGE_BYTES = 4096, MOST_ERRORS = 3 /* in a wait that nobody hears of */ };

struct hd_staging {
    heddle_comm *comm;
    const hd_device *device;
    hd_staging_spec spec;
    char *memory; /* image of src, then that of dst */
    int64_t bytes, dst_at;
    int is_pinned;
    heddle_stream stream; /* of the execution that is under way */
    void *event;          /* behind the last copies */
    int is_recorded;      /* they may still be under way */
    int is_lost;          /* likewise, and no event says until when */
};

void *hd_staging_src(const hd_staging *staging)
{
    return staging->memory;
}

void *hd_staging_dst(const hd_staging *staging)
{
    return staging->memory + staging->dst_at;
}

int64_t hd_staging_bytes(const hd_staging *staging)
{
    return staging->bytes;
}

int hd_staging_is_pinned(const hd_staging *staging)
{
    return staging->is_pinned;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static heddle_status check_lost(const hd_staging *staging)
{
    const hd_staging_spec *s = &staging->spec;
    return !staging->is_lost ? HEDDLE_OK
                             : hd_fail(HEDDLE_ERR_DEVICE,
                                       "rank %d: no event could be recorded on device %s behind the copies of a %s: "
                                       "nobody knows when they are done; %s %s",
                                       hd_comm_rank_name(staging->comm, heddle_comm_rank(staging->comm)),
                                       staging->device->name, s->what, s->what, s->line);
}

heddle_status hd_staging_test(hd_staging *staging, int *done)
{
    heddle_status st = HEDDLE_OK;
    *done = 0;
    HD_TRY(check_lost(staging));
    *done = !staging->is_recorded;
    if (staging->is_recorded) {
        HD_TRY(staging->device->library->event_test(staging->event, staging->device->number, done));
        staging->is_recorded = !*done;
    }
out:
    return st;
}

/* Has somebody given up? */
static heddle_status look(void *comm)
{
    return hd_comm_check(comm);
}

/* What the stream has to do before may be anything, and never end. */
heddle_status hd_staging_wait(hd_staging *staging)
{
    heddle_status st = HEDDLE_OK;
    const hd_staging_spec *s = &staging->spec;
    int done = !staging->is_recorded;
    HD_TRY(check_lost(staging));
    if (!done) {
        HD_TRY(hd_device_await(&done, staging->device, staging->event,
                               hd_comm_deadline_ns(staging->comm, s->deadline_ms), look, staging->comm));
    }
    staging->is_recorded = !done;
    if (!done) {
        st = hd_fail(HEDDLE_ERR_TIMEOUT,
                     "rank %d: the stream of device %s did not come to the copies of a %s before the deadline; %s %s",
                     hd_comm_rank_name(staging->comm, heddle_comm_rank(staging->comm)), staging->device->name, s->what,
                     s->what, s->line);
    }
out:
    return st;
}

/* However it goes. A device that does not say is asked again; where there is nothing to ask for the stream cannot be
 * asked either: its owner may have destroyed it. */
static int await_end(const hd_staging *staging)
{
    const int64_t deadline_ns = hd_comm_deadline_ns(staging->comm, staging->spec.deadline_ms);
    int done = !staging->is_recorded;
    for (int errors = 0; errors < MOST_ERRORS && !done && hd_now_ns() < deadline_ns; errors++) {
        heddle_ignore(hd_device_await(&done, staging->device, staging->event, deadline_ns, NULL, NULL));
    }
    return done && !staging->is_lost;
}

heddle_status hd_staging_wait_on(const hd_staging *staging, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(check_lost(staging));
    if (staging->is_recorded) {
        st = staging->device->library->stream_wait(stream, staging->event, staging->device->number);
    }
out:
    return st;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static int64_t pages(size_t bytes)
{
    return (int64_t)(bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

heddle_status hd_staging_create(hd_staging **out, heddle_comm *comm, const hd_staging_spec *spec)
{
    heddle_status st = HEDDLE_OK;
    hd_staging *staging = NULL;
    HD_TRY(hd_alloc((void **)&staging, 1, sizeof *staging, "staging of a device's arrays"));
    staging->comm = comm;
    staging->device = hd_comm_device(comm);
    staging->spec = *spec;
    staging->dst_at = pages(spec->src_bytes);
    staging->bytes = staging->dst_at + pages(spec->dst_bytes);
    HD_TRY(heddle_buffer_alloc((void **)&staging->memory, comm, (size_t)staging->bytes, HEDDLE_SPACE_HOST));
    /* It works without, only slower. */
    staging->is_pinned = staging->bytes > 0 && staging->device->library->pin(staging->memory, (size_t)staging->bytes,
                                                                             staging->device->number) == HEDDLE_OK;
    HD_TRY(staging->device->library->event_create(&staging->event, staging->device->number));
    *out = staging;
    staging = NULL;
out:
    hd_staging_destroy(staging);
    return st;
}

void hd_staging_destroy(hd_staging *staging)
{
    if (staging == NULL) {
        return;
    }
    if (await_end(staging)) { /* else a copy may come yet: its memory stays the communicator's */
        if (staging->is_pinned) {
            staging->device->library->unpin(staging->memory, staging->device->number);
        }
        heddle_buffer_free(staging->comm, staging->memory);
    }
    staging->device->library->event_destroy(staging->event, staging->device->number);
    hd_free(staging);
}

/* --- copying ------------------------------------------------------------------------------------------------------ */

/* Also behind copies some of which could not be enqueued: the others are under way. */
static heddle_status record(hd_staging *staging, heddle_status copied)
{
    heddle_status st = staging->device->library->event_record(staging->event, staging->device->number, staging->stream);
    staging->is_recorded = st == HEDDLE_OK;
    staging->is_lost = st != HEDDLE_OK;
    return copied != HEDDLE_OK ? copied : st;
}

heddle_status hd_staging_in(hd_staging *staging, const void *src, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_staging_wait(staging)); /* the last execution's image of dst is still read */
    staging->stream = stream;
    HD_TRY(record(staging, hd_device_copy(staging->device, &staging->spec.in, staging->memory, src, stream)));
    st = hd_staging_wait(staging);
out:
    return st;
}

heddle_status hd_staging_out(hd_staging *staging, void *dst)
{
    return record(staging,
                  hd_device_copy(staging->device, &staging->spec.out, dst, hd_staging_dst(staging), staging->stream));
}
