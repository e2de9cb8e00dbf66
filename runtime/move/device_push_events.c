/* Stores between devices without kernels that wait: ranks tell one another on the host what events their streams come
 * to, and streams go on behind those. For tools that let one kernel run at a time (compute-sanitizer, profilers,
 * CUDA_LAUNCH_BLOCKING), under which a kernel that waits for a peer's waits for ever. */
#include "runtime/move/device_push_inside.h"

#include <string.h>

/* What a rank tells all others of its stream. */
struct hd_push_news {
    uint64_t event; /* of it, behind which */
    uint64_t place; /* what is here may be written */
};

heddle_status hd_push_take_order(hd_push *p)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = p->device->library;
    const char *asked = hd_env("HEDDLE_DEVICE_SYNC");
    if (asked == NULL || strcmp(asked, "flags") == 0) {
        return HEDDLE_OK;
    }
    if (strcmp(asked, "events") != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "HEDDLE_DEVICE_SYNC is '%.40s', wanted flags or events", asked);
    }
    if (!hd_comm_shares_address_space(p->comm)) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "HEDDLE_DEVICE_SYNC=events is for ranks that are threads of one process");
    }
    HD_TRY(hd_alloc((void **)&p->news, (size_t)p->nranks, sizeof *p->news, "events of ranks"));
    HD_TRY(library->event_create(&p->ready, p->device->number));
    st = library->event_create(&p->moved, p->device->number);
out:
    return st;
}

void hd_push_end_order(hd_push *p)
{
    p->device->library->event_destroy(p->ready, p->device->number);
    p->device->library->event_destroy(p->moved, p->device->number);
    hd_free(p->news);
}

/* Collective. What the stream has from now on comes behind what all streams have by now. An event is recorded again
 * only when everybody has been here once more, and so has told its stream of the last time. */
static heddle_status go_together(hd_push *p, void *event, const void *place, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = p->device->library;
    const struct hd_push_news own = {(uintptr_t)event, (uintptr_t)place};
    HD_TRY(library->event_record(event, p->device->number, stream));
    HD_TRY(hd_comm_allgather_or_abort(p->comm, &own, p->news, sizeof own));
    for (int r = 0; r < p->nranks; r++) {
        if (r != p->rank) {
            HD_TRY(library->stream_wait(stream, (void *)(uintptr_t)p->news[r].event, p->device->number));
        }
    }
out:
    return st;
}

/* Enqueued so far, as kernels that meet report what they have moved. */
static void count(const hd_push *p, const hd_push_step *step)
{
    hd_device_report *report = step->meet.report;
    for (int r = 0; r < p->nranks; r++) {
        report->bytes_to[r] += (uint64_t)step->sent_bytes[r];
    }
    __atomic_store_n(&report->epoch, report->epoch + 1, __ATOMIC_RELEASE);
}

heddle_status hd_push_meet_by_events(hd_push *p, const hd_push_step *step, hd_device_move *move, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    void *at[HD_DEVICE_MAX_PEERS];
    HD_TRY(go_together(p, p->ready, move->dst[0], stream));
    for (int r = 0; r < p->nranks; r++) {
        at[r] = (void *)(uintptr_t)p->news[r].place;
    }
    move->dst = at;
    move->ndst = p->nranks;
    HD_TRY(p->device->library->status(p->kernels->push(move, stream), p->device->number, "a kernel's launch"));
    HD_TRY(go_together(p, p->moved, NULL, stream));
    count(p, step);
out:
    return st;
}
