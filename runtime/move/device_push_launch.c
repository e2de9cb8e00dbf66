/* What one execution by stores between devices puts into a stream. */
#include "runtime/move/device_push_inside.h"

#include <string.h>

/* On the plan's device as the current one, up to the last. */
static heddle_status launch(const hd_push *p, const hd_device_move *move, heddle_stream stream)
{
    const hd_device_gate *gate = p->route->gate;
    const int code = gate != NULL ? p->kernels->push_gated(move, gate, stream) : p->kernels->push(move, stream);
    return p->device->library->status(code, p->device->number, "a kernel's launch");
}

/* --- without kernels that wait ------------------------------------------------------------------------------------ */

/* For tools that let one kernel run at a time (compute-sanitizer, profilers, CUDA_LAUNCH_BLOCKING), under which what
 * waits for a peer's waits for ever: ranks tell one another on the host what events their streams come to, and streams
 * go on behind those. */

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

/* Collective. The launch of a phase, whose move has this rank's own destination. */
static heddle_status meet_by_events(hd_push *p, const hd_push_step *step, hd_device_move *move, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    void *at[HD_DEVICE_MAX_PEERS];
    HD_TRY(go_together(p, p->ready, move->dst[0], stream));
    for (int r = 0; r < p->nranks; r++) {
        at[r] = (void *)(uintptr_t)p->news[r].place;
    }
    move->dst = at;
    move->ndst = p->nranks;
    HD_TRY(launch(p, move, stream));
    HD_TRY(go_together(p, p->moved, NULL, stream));
    count(p, step);
out:
    return st;
}

/* --- with them ---------------------------------------------------------------------------------------------------- */

/* *all 0: there is a rank that cannot store to all of it. Ranks of one process have one address for it; on other
 * devices they reach what those reach. */
static heddle_status tell(int *all, const hd_push *p, hd_push_step *step, const void *at, int64_t bytes)
{
    heddle_status st = HEDDLE_OK;
    *all = 1;
    if (p->sharers.any_together && p->sharers.all < p->sharers.ranks) {
        HD_TRY(p->device->library->ask_reached(all, at, p->device->number));
    }
    for (int r = 0; r < p->nranks; r++) {
        step->meet.place[r] = hd_comm_at_peer(p->comm, r, at, bytes);
        *all &= step->meet.place[r] != 0 || (step->meet.heard >> r & 1) == 0;
    }
out:
    return st;
}

/* What stays begins at `at`, and so does what peers store here, where they reach it; they may have mapped it since. */
static heddle_status tell_where(hd_push *p, hd_push_step *step, const void *at)
{
    heddle_status st = HEDDLE_OK;
    const int64_t bytes = step->land.list != NULL ? p->spec->dst_bytes : 0; /* else it is memory of the plan */
    int is_told = 0;
    HD_TRY(tell(&is_told, p, step, at, bytes));
    step->lands = !is_told;
    if (step->lands && step->land.list != NULL) {
        HD_TRY(tell(&is_told, p, step, p->memory + step->slots_at, bytes));
    }
    if (!is_told) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "rank %d: dst at %p is memory that the devices of its peers do not reach, as that of "
                       "cudaMallocAsync, of other pools and of cuMemMap (torch: expandable_segments) is: take "
                       "cudaMalloc's, heddle_buffer_alloc's or the wire nccl; %s %s",
                       hd_comm_rank_name(p->comm, p->rank), at, p->spec->options.what, p->spec->options.line);
    }
    step->told = at;
out:
    return st;
}

static heddle_status meet(hd_push *p, hd_push_step *step, const void *src, void *at, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_device_list *push = &step->push;
    hd_device_move move = {
        .list = push->list, .list_on_device = push->on_device, .nsrc = 1, .ndst = 1, .src = &src, .dst = &at};
    if (p->news != NULL) {
        return meet_by_events(p, step, &move, stream);
    }
    HD_TRY(step->told != at || step->lands ? tell_where(p, step, at) : HEDDLE_OK);
    move.meet = &step->meet;
    HD_TRY(launch(p, &move, stream));
    st = step->lands ? hd_device_list_run(&step->land, HD_DEVICE_COPY, at, p->memory + step->slots_at, NULL, stream)
                     : HEDDLE_OK;
out:
    return st;
}

static heddle_status enqueue_all(hd_push *p, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(p->route->before.is_there ? hd_route_before(p->route, src, stream) : HEDDLE_OK);
    for (int i = 0; i < p->spec->nphases; i++) {
        hd_push_step *step = &p->step[i];
        const hd_route_phase *phase = &p->spec->phase[i];
        const void *const spots[] = HD_SPOTS(p->route, &phase->src, src, dst), *from = spots[phase->src.in];
        void *const ends[] = HD_SPOTS(p->route, &phase->dst, NULL, dst), *to = ends[phase->dst.in];
        if (step->clear.list != NULL) {
            HD_TRY(hd_device_list_run(&step->clear, HD_DEVICE_CLEAR, to, NULL, NULL, stream));
        }
        HD_TRY(meet(p, step, from, phase->transfer.adds ? p->memory + step->slots_at : to, stream));
        if (step->sums.nsums > 0) {
            HD_TRY(hd_device_sums_run(&step->sums, p->device, p->memory, to, p->spec->dtype, stream));
            HD_TRY(hd_device_list_run(&step->unpack, HD_DEVICE_COPY, to, p->memory, NULL, stream));
        }
    }
    st = p->route->after.is_there ? hd_route_after(p->route, dst, stream) : HEDDLE_OK;
out:
    return st;
}

heddle_status hd_push_enqueue(hd_push *p, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    int before = 0;
    HD_TRY(p->device->library->enter(&before, p->device->number));
    st = enqueue_all(p, src, dst, stream);
    p->device->library->leave(before);
out:
    return st;
}
