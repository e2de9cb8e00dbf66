/* Host memory on the way to and from a device's, and the order of what is enqueued against what the host does. */
#include "runtime/move/device_staging.h"
#include "runtime/device/enqueued.h"

enum { PAGE_BYTES = 4096 };

struct hd_staging {
    heddle_comm *comm;
    const hd_device *device;
    hd_staging_spec spec;
    char *memory; /* image of src, then that of dst */
    int64_t bytes, dst_at;
    int is_pinned;
    hd_enqueued copies;
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

heddle_status hd_staging_test(hd_staging *staging, int *done)
{
    return hd_enqueued_test(done, &staging->copies);
}

/* Has somebody given up? */
static heddle_status look(void *comm)
{
    return hd_comm_check(comm);
}

/* What the stream has to do before may be anything, and never end. */
heddle_status hd_staging_wait(hd_staging *staging)
{
    return hd_enqueued_wait(&staging->copies, hd_comm_deadline_ns(staging->comm, staging->spec.deadline_ms), look,
                            staging->comm);
}

heddle_status hd_staging_wait_on(hd_staging *staging, heddle_stream stream)
{
    return hd_enqueued_order(&staging->copies, stream);
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
    staging->copies.names =
        (hd_enqueued_names){hd_comm_rank_name(comm, heddle_comm_rank(comm)), "copies", spec->what, spec->line};
    HD_TRY(hd_enqueued_open(&staging->copies, staging->device));
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
    const int64_t deadline_ns = hd_comm_deadline_ns(staging->comm, staging->spec.deadline_ms);
    /* Else a copy may come yet: the memory stays the communicator's. */
    if (hd_enqueued_has_ended(&staging->copies, deadline_ns)) {
        if (staging->is_pinned) {
            staging->device->library->unpin(staging->memory, staging->device->number);
        }
        heddle_buffer_free(staging->comm, staging->memory);
    }
    hd_enqueued_close(&staging->copies);
    hd_free(staging);
}

/* --- copying ------------------------------------------------------------------------------------------------------ */

heddle_status hd_staging_in(hd_staging *staging, const void *src, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_staging_wait(staging)); /* the last execution's image of dst is still read */
    HD_TRY(hd_enqueued_end(&staging->copies, stream,
                           hd_device_copy(staging->device, &staging->spec.in, staging->memory, src, stream)));
    st = hd_staging_wait(staging);
out:
    return st;
}

heddle_status hd_staging_out(hd_staging *staging, void *dst)
{
    const heddle_stream stream = staging->copies.stream;
    return hd_enqueued_end(&staging->copies, stream,
                           hd_device_copy(staging->device, &staging->spec.out, dst, hd_staging_dst(staging), stream));
}
