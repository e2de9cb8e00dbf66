/* The wire peer: what is enqueued, and how its end is noticed. */
#include "runtime/move/device_push_inside.h"

#include <stdio.h>

static const int64_t END_NS = 3000000000; /* for launches that move nothing any more */

/* --- what went wrong ---------------------------------------------------------------------------------------------- */

/* Here, or in another rank; without a sentence, which stays that of what failed. */
static int has_failed(const hd_push *p)
{
    int failed = p->broken.status != HEDDLE_OK || atomic_load(p->view.alarm) != 0;
    for (int i = 0; i < p->spec->nphases && p->report != NULL; i++) {
        failed |= __atomic_load_n(&p->report[i].status, __ATOMIC_ACQUIRE) != HD_DEVICE_CAME;
    }
    return failed;
}

/* The first failure stays: launches move nothing any more. */
static heddle_status give_up(hd_push *p, heddle_status st)
{
    if (p->broken.status == HEDDLE_OK) {
        heddle_ignore(hd_comm_abort_with(p->comm, st));
        hd_broken_keep(&p->broken, st);
    }
    return hd_broken_say(&p->broken);
}

heddle_status hd_push_look(void *arg)
{
    hd_push *p = arg;
    heddle_status st = p->broken.status == HEDDLE_OK ? HEDDLE_OK : hd_broken_say(&p->broken);
    for (int i = 0; st == HEDDLE_OK && i < p->spec->nphases && p->report != NULL; i++) {
        uint64_t status = __atomic_load_n(&p->report[i].status, __ATOMIC_ACQUIRE);
        if (status == HD_DEVICE_LATE) {
            int missing = (int)__atomic_load_n(&p->report[i].peer, __ATOMIC_RELAXED); /* later launches say it again */
            return give_up(p,
                           hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: a %s on device %s is overdue, missing: rank %d; %s %s",
                                   hd_comm_rank_name(p->comm, p->rank), p->spec->options.what, p->device->name,
                                   hd_comm_rank_name(p->comm, missing), p->spec->options.what, p->spec->options.line));
        }
        if (status != HD_DEVICE_CAME) {
            st = hd_comm_check(p->comm);
            st = give_up(p, st != HEDDLE_OK ? st : hd_fail(HEDDLE_ERR_PEER, "a rank gave up"));
        }
    }
    return st;
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

/* Peers wait for the mark, and this rank's own thread may be busy with something else for long. */
void hd_push_look_beside(void *arg)
{
    hd_push *p = arg;
    hd_enqueued_look_beside(&p->route->enqueued);
}

/* Of what is enqueued, however it goes: launches end by the device's own deadlines, and at once after an abort. A
 * device that no longer answers is not waited for, and nothing is known of what it does. */
static int await_end(hd_push *p)
{
    const int64_t deadline_ns =
        p->broken.status == HEDDLE_OK ? hd_route_deadline_ns(p->route) + HD_DEVICE_GRACE_NS : hd_now_ns() + END_NS;
    return hd_enqueued_has_ended(&p->route->enqueued, deadline_ns);
}

/* Gives up. src and dst are the caller's again, unless the sentence says otherwise: this rank's launches have come to
 * their end, those behind a meeting that failed too, and nobody stores there any more. */
static heddle_status fail_with(hd_push *p, heddle_status st)
{
    st = give_up(p, st);
    if (!p->is_settled) {
        p->is_settled = await_end(p) & hd_comm_quiesce_devices(p->comm);
    }
    return hd_fail(st, "%s%s", p->broken.why,
                   p->is_settled ? "" : "; launches did not come to their end, and may still write dst");
}

static heddle_status look(hd_route *r, int waits)
{
    heddle_status st = hd_push_look(r->own);
    return st == HEDDLE_OK && waits ? hd_comm_check(r->comm) : st;
}

static heddle_status fail_late(hd_route *r, heddle_status st)
{
    return fail_with(r->own, st);
}

/* --- executions --------------------------------------------------------------------------------------------------- */

/* Behind the last execution, whichever stream that one is in. Whoever frees memory that peers store to after somebody
 * has given up waits until nothing is under way (hd_comm_quiesce_devices). So this is said before anything is enqueued,
 * and behind it the alarm is looked at. */
static heddle_status begin(hd_push *p, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_push_look(p));
    HD_TRY(hd_enqueued_order(&p->route->enqueued, stream));
    hd_enqueued_begin(&p->route->enqueued);
    if (atomic_load(p->view.alarm) != 0) {
        st = hd_comm_check(p->comm);
        if (st != HEDDLE_OK) {
            hd_enqueued_end_none(&p->route->enqueued);
        }
    }
out:
    return st;
}

/* On a stream of the plan's own, behind what `stream` has so far and behind the last execution. */
static heddle_status go_beside(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    hd_push *p = r->own;
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = p->device->library;
    HD_TRY(begin(p, p->stream));
    HD_TRY(library->event_record(p->begun, p->device->number, stream));
    HD_TRY(library->stream_wait(p->stream, p->begun, p->device->number));
    st = hd_enqueued_end(&p->route->enqueued, p->stream, hd_push_enqueue(p, src, dst, p->stream));
out:
    return st == HEDDLE_OK ? st : fail_with(p, st);
}

/* A default stream that other ranks have, too, cannot wait for them: the host does. */
static heddle_status execute_waiting(hd_route *r, const void *src, void *dst)
{
    heddle_status st = go_beside(r, src, dst, HEDDLE_NO_STREAM);
    return st == HEDDLE_OK ? hd_route_wait_late(r) : st;
}

static heddle_status run_in(hd_push *p, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    int captures = 0;
    HD_TRY(p->device->library->stream_captures(&captures, p->device->number, stream));
    if (captures && p->news != NULL) {
        return fail_with(p, hd_fail(HEDDLE_ERR_ARG,
                                    "rank %d: its stream is being captured, and HEDDLE_DEVICE_SYNC=events orders "
                                    "executions on the host; %s %s",
                                    hd_comm_rank_name(p->comm, p->rank), p->spec->options.what, p->spec->options.line));
    }
    if (captures) { /* events from outside would be an order that the graph cannot have */
        p->route->enqueued.is_captured = 1;
        HD_TRY(hd_push_look(p));
        st = hd_push_enqueue(p, src, dst, stream);
    } else {
        HD_TRY(begin(p, stream));
        st = hd_enqueued_end(&p->route->enqueued, stream, hd_push_enqueue(p, src, dst, stream));
    }
out:
    return st == HEDDLE_OK ? st : fail_with(p, st);
}

static heddle_status run(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    hd_push *p = r->own;
    int before = 0;
    if (stream == HEDDLE_NO_STREAM && p->sharers.in_process > 1) {
        return execute_waiting(r, src, dst);
    }
    heddle_status st = p->device->library->enter(&before, p->device->number);
    if (st != HEDDLE_OK) {
        return fail_with(p, st);
    }
    st = run_in(p, src, dst, stream);
    p->device->library->leave(before);
    return st;
}

/* A rank that cannot take part would be waited for: it gives up. */
static heddle_status refuse(hd_route *r, int reason, heddle_status st)
{
    return hd_comm_abort_with(r->comm, st == HEDDLE_OK ? hd_route_say_refusal(r, reason) : st);
}

const hd_late hd_push_late = {look, go_beside, fail_late, HD_DEVICE_GRACE_NS};

/* --- what the device has reported --------------------------------------------------------------------------------- */

/* A later launch may be writing. */
static int64_t read_now(const uint64_t *value)
{
    return (int64_t)__atomic_load_n(value, __ATOMIC_RELAXED);
}

static const int64_t *sent(const hd_route *r)
{
    const hd_push *p = r->own;
    for (int k = 0; k < p->nranks; k++) {
        r->sent[k] = 0;
        for (int i = 0; i < p->spec->nphases && k != p->rank; i++) {
            r->sent[k] += read_now(&p->report[i].bytes_to[k]);
        }
    }
    return r->sent;
}

static void inform(hd_route_info *out, const hd_route *r)
{
    const hd_push *p = r->own;
    const hd_device_report *last = &p->report[p->spec->nphases - 1];
    int lands = 0;
    out->executions = (int64_t)__atomic_load_n(&last->epoch, __ATOMIC_ACQUIRE);  /* finished */
    out->device_ns = read_now(&last->end_ns) - read_now(&p->report[0].begin_ns); /* of the last one */
    out->workspace_bytes = p->memory_bytes + r->before.list.bytes + r->after.list.bytes;
    out->is_capturable = p->news == NULL;
    out->is_captured = p->route->enqueued.is_captured;
    for (int i = 0; i < p->spec->nphases; i++) {
        const hd_push_step *step = &p->step[i];
        lands |= step->lands;
        out->workspace_bytes += step->clear.bytes + step->push.bytes + step->unpack.bytes + step->land.bytes;
        out->bytes_near += step->all_bytes - step->sent_bytes[p->rank];
    }
    if (p->news != NULL) {
        out->why = "wire peer, whose streams wait for events of the others' and whose kernels wait for nobody "
                   "(HEDDLE_DEVICE_SYNC=events): every call waits until all ranks have come to it";
    } else if (lands) {
        out->why = "wire peer between processes, which had not mapped this dst when a plan was last made "
                   "(heddle_buffer_alloc or heddle_cuda_malloc before heddle_reshard_create, heddle_comm_lend_peers): "
                   "they store into the plan's memory, and a copy takes it to dst";
    }
}

static void explain(hd_route_words *out, const hd_route *r)
{
    snprintf(out->path, sizeof out->path, "device push");
    snprintf(out->kernel, sizeof out->kernel, "push");
    snprintf(out->why, sizeof out->why,
             "one launch per rank and phase stores every part of arrays of %s at its place in the peers' memory (wire "
             "peer), in %d phase%s%s",
             r->device->name, r->spec.nphases, r->spec.nphases == 1 ? "" : "s",
             hd_route_adds(r) ? "; partial sums go into slots of the receiver, which adds them in rank order" : "");
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

/* What a kernel may still touch stays the communicator's. Kernels of peers have ended when all went well; after a
 * failure nobody says so of graphs that peers replay. */
static void free_memory(hd_push *p)
{
    if (!await_end(p)) {
        hd_device_leave(p->device);
        return;
    }
    int is_touched = has_failed(p) && p->route->enqueued.is_captured;
    if (has_failed(p)) {
        hd_comm_quiesce_devices(p->comm);
    }
    if (!is_touched) {
        hd_device_release(p->device, p->memory);
    }
    if (p->report != NULL) {
        hd_device_page_back(p->device, p->report);
    }
}

static void destroy(hd_route *r)
{
    hd_push *p = r->own;
    if (p == NULL) {
        return;
    }
    const heddle_device *library = p->device->library;
    free_memory(p);
    hd_push_end_order(p);
    library->event_destroy(p->begun, p->device->number);
    library->stream_destroy(p->stream, p->device->number);
    for (int i = 0; i < HD_MAX_LEGS; i++) {
        hd_device_list_free(&p->step[i].clear);
        hd_device_list_free(&p->step[i].push);
        hd_device_list_free(&p->step[i].unpack);
        hd_device_list_free(&p->step[i].land);
        hd_device_sums_free(&p->step[i].sums);
    }
    hd_comm_outlook_remove(p->comm, &p->outlook);
    hd_free(p);
}

const hd_carrier hd_carrier_peer = {
    .counts_late = 1,
    .make = hd_push_make,
    .run = run,
    .start = hd_route_start_late,
    .test = hd_route_test_late,
    .wait = hd_route_wait_late,
    .wait_on = hd_route_wait_on_late,
    .refuse = refuse,
    .sent = sent,
    .inform = inform,
    .explain = explain,
    .destroy = destroy,
};
