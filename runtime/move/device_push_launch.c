/* What one execution by stores between devices puts into a stream. */
#include "runtime/move/device_push_inside.h"

/* On the plan's device as the current one, up to the last. */
static heddle_status launched(const hd_push *p, int code)
{
    return p->device->library->status(code, p->device->number, "a kernel's launch");
}

static hd_device_move move_of(const hd_push *p, const hd_push_list *list, const void *const *src, void *const *dst)
{
    return (hd_device_move){
        .list = list->list, .list_on_device = p->lists + list->at, .nsrc = 1, .ndst = 1, .src = src, .dst = dst};
}

static heddle_status copy(const hd_push *p, const hd_push_list *list, const void *src, void *dst, heddle_stream stream)
{
    if (list->list == NULL) {
        return HEDDLE_OK;
    }
    const hd_device_move move = move_of(p, list, &src, &dst);
    return launched(p, p->kernels->push(&move, stream));
}

static heddle_status clear(const hd_push *p, const hd_push_list *list, void *dst, heddle_stream stream)
{
    if (list->list == NULL) {
        return HEDDLE_OK;
    }
    const hd_device_move move = move_of(p, list, NULL, &dst);
    return launched(p, p->kernels->clear(&move, stream));
}

/* 0: there is a rank that cannot store to all of it. Ranks of one process have one address for it; on other devices
 * they reach what those reach. */
static int tell(const hd_push *p, hd_push_step *step, const void *at, int64_t bytes)
{
    int all = 1;
    if (p->sharers.any_together && p->sharers.all < p->sharers.ranks &&
        p->device->library->ask_reached(&all, at, p->device->number) != HEDDLE_OK) {
        return 0;
    }
    for (int r = 0; r < p->nranks; r++) {
        step->meet.place[r] = hd_comm_at_peer(p->comm, r, at, bytes);
        all &= step->meet.place[r] != 0 || (step->meet.heard >> r & 1) == 0;
    }
    return all;
}

/* What stays begins at `at`, and so does what peers store here, where they reach it; they may have mapped it since. */
static heddle_status meet(hd_push *p, hd_push_step *step, const void *src, void *at, heddle_stream stream)
{
    hd_device_move move = move_of(p, &step->push, &src, &at);
    if (p->news != NULL) {
        return hd_push_meet_by_events(p, step, &move, stream);
    }
    if (step->told != at || step->lands) {
        const int64_t bytes = step->land.list != NULL ? p->spec->dst_bytes : 0; /* else it is memory of the plan */
        step->lands = !tell(p, step, at, bytes);
        if (step->lands && (step->land.list == NULL || !tell(p, step, p->memory + step->slots_at, bytes))) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                           "rank %d: dst at %p is memory that the devices of its peers do not reach, as that of "
                           "cudaMallocAsync, of other pools and of cuMemMap (torch: expandable_segments) is: take "
                           "cudaMalloc's, heddle_buffer_alloc's or the wire nccl; %s %s",
                           hd_comm_rank_name(p->comm, p->rank), at, p->spec->options.what, p->spec->options.line);
        }
        step->told = at;
    }
    move.meet = &step->meet;
    heddle_status st = launched(p, p->kernels->push(&move, stream));
    return st == HEDDLE_OK && step->lands ? copy(p, &step->land, p->memory + step->slots_at, at, stream) : st;
}

static heddle_status enqueue_all(hd_push *p, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    if (p->route->before.is_there) {
        HD_TRY(hd_route_before(p->route, src, stream));
    }
    for (int i = 0; i < p->spec->nphases; i++) {
        hd_push_step *step = &p->step[i];
        const hd_route_phase *phase = &p->spec->phase[i];
        const void *const spots[] = HD_SPOTS(p->route, &phase->src, src, dst), *from = spots[phase->src.in];
        void *const ends[] = HD_SPOTS(p->route, &phase->dst, NULL, dst), *to = ends[phase->dst.in];
        HD_TRY(clear(p, &step->clear, to, stream));
        HD_TRY(meet(p, step, from, phase->transfer.adds ? p->memory + step->slots_at : to, stream));
        if (step->sums.nsums > 0) {
            HD_TRY(hd_device_sums_run(&step->sums, p->device, p->memory, to, p->spec->dtype, stream));
        }
        HD_TRY(copy(p, &step->unpack, p->memory, to, stream));
    }
    if (p->route->after.is_there) {
        st = hd_route_after(p->route, dst, stream);
    }
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
