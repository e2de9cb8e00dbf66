/* Host memory on the way to and from a device's, and the order of what is enqueued against what the host does. */
#include "runtime/move/stage.h"

#include <sched.h>
#include <time.h>

enum { PAGE_BYTES = 4096, YIELDS = 256, NAP_NS = 20000 };

struct hd_stage {
    heddle_comm *comm;
    const hd_device *device;
    hd_stage_spec spec;
    char *memory; /* image of src, then that of dst */
    int64_t bytes, dst_at;
    int is_pinned;
    heddle_stream stream; /* of the execution that is under way */
    void *event;          /* behind the last copies */
    int is_recorded;      /* they may still be under way */
};

void *hd_stage_src(const hd_stage *stage)
{
    return stage->memory;
}

void *hd_stage_dst(const hd_stage *stage)
{
    return stage->memory + stage->dst_at;
}

int64_t hd_stage_bytes(const hd_stage *stage)
{
    return stage->bytes;
}

int hd_stage_is_pinned(const hd_stage *stage)
{
    return stage->is_pinned;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

heddle_status hd_stage_test(hd_stage *stage, int *done)
{
    heddle_status st = HEDDLE_OK;
    *done = 1;
    if (stage->is_recorded) {
        st = stage->device->library->event_test(stage->event, stage->device->number, done);
        stage->is_recorded = st == HEDDLE_OK && !*done;
    }
    return st;
}

static void nap(int turn)
{
    const struct timespec some = {.tv_nsec = NAP_NS};
    if (turn < YIELDS) {
        sched_yield();
    } else {
        nanosleep(&some, NULL);
    }
}

/* What the stream has to do before may be anything, and never end. looks: whether somebody has given up. */
static heddle_status await(hd_stage *stage, int looks)
{
    heddle_status st = HEDDLE_OK;
    const hd_stage_spec *s = &stage->spec;
    int64_t deadline_ns = hd_comm_deadline_ns(stage->comm, s->deadline_ms);
    for (int turn = 0;; turn++) {
        int done;
        HD_TRY(hd_stage_test(stage, &done));
        if (done) {
            return HEDDLE_OK;
        }
        HD_TRY(looks ? hd_comm_check(stage->comm) : HEDDLE_OK);
        if (hd_now_ns() > deadline_ns) {
            return hd_fail(HEDDLE_ERR_TIMEOUT,
                           "rank %d: the stream of device %s did not come to the copies of a %s before the deadline; "
                           "%s %s",
                           hd_comm_rank_name(stage->comm, heddle_comm_rank(stage->comm)), stage->device->name, s->what,
                           s->what, s->line);
        }
        nap(turn);
    }
out:
    return st;
}

heddle_status hd_stage_wait(hd_stage *stage)
{
    return await(stage, 1);
}

heddle_status hd_stage_wait_on(const hd_stage *stage, heddle_stream stream)
{
    return stage->is_recorded ? stage->device->library->stream_wait(stream, stage->event, stage->device->number)
                              : HEDDLE_OK;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static int64_t pages(size_t bytes)
{
    return (int64_t)(bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

heddle_status hd_stage_create(hd_stage **out, heddle_comm *comm, const hd_stage_spec *spec)
{
    heddle_status st = HEDDLE_OK;
    hd_stage *stage = NULL;
    HD_TRY(hd_alloc((void **)&stage, 1, sizeof *stage, "staging of a device's arrays"));
    stage->comm = comm;
    stage->device = hd_comm_device(comm);
    stage->spec = *spec;
    stage->dst_at = pages(spec->src_bytes);
    stage->bytes = stage->dst_at + pages(spec->dst_bytes);
    HD_TRY(heddle_buffer_alloc((void **)&stage->memory, comm, (size_t)stage->bytes, HEDDLE_SPACE_HOST));
    /* It works without, only slower. */
    stage->is_pinned = stage->bytes > 0 && stage->device->library->pin(stage->memory, (size_t)stage->bytes,
                                                                       stage->device->number) == HEDDLE_OK;
    HD_TRY(stage->device->library->event_create(&stage->event, stage->device->number));
    *out = stage;
    stage = NULL;
out:
    hd_stage_destroy(stage);
    return st;
}

void hd_stage_destroy(hd_stage *stage)
{
    if (stage == NULL) {
        return;
    }
    if (await(stage, 0) == HEDDLE_OK) { /* else a copy may come yet: its memory stays the communicator's */
        if (stage->is_pinned) {
            stage->device->library->unpin(stage->memory, stage->device->number);
        }
        heddle_buffer_free(stage->comm, stage->memory);
    }
    stage->device->library->event_destroy(stage->event, stage->device->number);
    hd_free(stage);
}

/* --- copying ------------------------------------------------------------------------------------------------------ */

/* Also behind copies some of which could not be enqueued: the others are under way. */
static heddle_status record(hd_stage *stage, heddle_status copied)
{
    heddle_status st = stage->device->library->event_record(stage->event, stage->device->number, stage->stream);
    stage->is_recorded = st == HEDDLE_OK;
    return copied != HEDDLE_OK ? copied : st;
}

heddle_status hd_stage_in(hd_stage *stage, const void *src, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_stage_wait(stage)); /* the last execution's image of dst is still read */
    stage->stream = stream;
    HD_TRY(record(stage, hd_device_copy(stage->device, &stage->spec.in, stage->memory, src, stream)));
    st = hd_stage_wait(stage);
out:
    return st;
}

heddle_status hd_stage_out(hd_stage *stage, void *dst)
{
    return record(stage, hd_device_copy(stage->device, &stage->spec.out, dst, hd_stage_dst(stage), stage->stream));
}
