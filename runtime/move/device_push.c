/* Executions by stores between devices: what is enqueued, and how its end is noticed. */
#include "runtime/move/device_push_inside.h"

#include <stdio.h>

enum { GRACE_NS = 1000000000 }; /* of the host behind the device's own deadlines */

/* --- launches; on the plan's device as the current one ------------------------------------------------------------ */

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

/* 0: there is a rank that cannot store to it. */
static int tell(const hd_push *p, hd_push_step *step, const void *at)
{
    int all = 1;
    for (int r = 0; r < p->nranks; r++) {
        step->meet.place[r] = hd_comm_at_peer(p->comm, r, at);
        all &= step->meet.place[r] != 0 || (step->meet.heard >> r & 1) == 0;
    }
    return all;
}

/* What stays begins at `at`, and so does what peers store here, where they reach it. */
static heddle_status meet(const hd_push *p, hd_push_step *step, const void *src, void *at, heddle_stream stream)
{
    if (step->told != at) {
        step->lands = !tell(p, step, at);
        if (step->lands && (step->land.list == NULL || !tell(p, step, p->memory + step->slots_at))) {
            return hd_fail(HEDDLE_ERR_INTERNAL, "rank %d has memory that peers have not mapped",
                           hd_comm_rank_name(p->comm, p->rank));
        }
        step->told = at;
    }
    hd_device_move move = move_of(p, &step->push, &src, &at);
    move.meet = &step->meet;
    heddle_status st = launched(p, p->kernels->push(&move, stream));
    return st == HEDDLE_OK && step->lands ? copy(p, &step->land, p->memory + step->slots_at, at, stream) : st;
}

static heddle_status add(const hd_push *p, const hd_push_step *step, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < step->nsums; i++) {
        const hd_push_sum *sum = &step->sum[i];
        const void *term[HD_DEVICE_MAX_PEERS];
        for (int k = 0; k < sum->nterms; k++) {
            term[k] = p->memory + sum->term_at[k];
        }
        char *result = (sum->is_direct ? (char *)dst : p->memory) + sum->result_at;
        HD_TRY(launched(p, p->kernels->sum(result, term, sum->nterms, sum->elems, p->spec.dtype, stream)));
    }
    st = copy(p, &step->unpack, p->memory, dst, stream);
out:
    return st;
}

static void *place(const hd_push *p, const hd_push_place *at, const void *src, void *dst)
{
    return at->array == HD_PUSH_SRC   ? (void *)(uintptr_t)src
           : at->array == HD_PUSH_DST ? dst
                                      : p->memory + at->offset_bytes;
}

static heddle_status enqueue_all(hd_push *p, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_push_local *before = &p->spec.before, *after = &p->spec.after;
    HD_TRY(copy(p, &p->before, place(p, &before->src, src, dst), place(p, &before->dst, src, dst), stream));
    for (int i = 0; i < p->spec.nphases; i++) {
        hd_push_step *step = &p->step[i];
        void *from = place(p, &step->src, src, dst), *to = place(p, &step->dst, src, dst);
        HD_TRY(clear(p, &step->clear, to, stream));
        HD_TRY(meet(p, step, from, step->adds ? p->memory + step->slots_at : to, stream));
        HD_TRY(add(p, step, to, stream));
    }
    st = copy(p, &p->after, place(p, &after->src, src, dst), place(p, &after->dst, src, dst), stream);
out:
    return st;
}

static heddle_status enqueue(hd_push *p, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    int before = 0;
    HD_TRY(p->device->library->enter(&before, p->device->number));
    st = enqueue_all(p, src, dst, stream);
    p->device->library->leave(before);
out:
    return st;
}

/* --- what went wrong ---------------------------------------------------------------------------------------------- */

/* The first failure stays: launches move nothing any more. */
static heddle_status give_up(hd_push *p, heddle_status st)
{
    if (p->broken == HEDDLE_OK) {
        hd_comm_abort_with(p->comm, st);
        snprintf(p->broken_why, sizeof p->broken_why, "%s", heddle_last_error());
        p->broken = st;
    }
    return hd_fail(p->broken, "%s", p->broken_why);
}

heddle_status hd_push_look(void *arg)
{
    hd_push *p = arg;
    if (p->broken != HEDDLE_OK) {
        return hd_fail(p->broken, "%s", p->broken_why);
    }
    for (int i = 0; i < p->spec.nphases && p->report != NULL; i++) {
        uint64_t status = __atomic_load_n(&p->report[i].status, __ATOMIC_ACQUIRE);
        if (status == HD_DEVICE_LATE) {
            return give_up(p,
                           hd_fail(HEDDLE_ERR_TIMEOUT, "rank %d: a %s on device %s is overdue, missing: rank %d; %s %s",
                                   hd_comm_rank_name(p->comm, p->rank), p->spec.what, p->device->name,
                                   hd_comm_rank_name(p->comm, (int)p->report[i].peer), p->spec.what, p->spec.line));
        }
        if (status != HD_DEVICE_CAME) {
            heddle_status st = hd_comm_check(p->comm);
            return give_up(p, st != HEDDLE_OK ? st : hd_fail(HEDDLE_ERR_PEER, "a rank gave up"));
        }
    }
    return HEDDLE_OK;
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

/* Whoever frees memory that peers store to after somebody has given up waits until nothing is under way
 * (hd_comm_quiesce_devices). So this is said before anything is enqueued, and behind it the alarm is looked at. */
static void set_under_way(hd_push *p, int is_under_way)
{
    if (p->is_under_way != is_under_way) {
        atomic_fetch_add(p->view.on_device, is_under_way ? 1 : -1);
        p->is_under_way = is_under_way;
    }
}

heddle_status hd_push_test(hd_push *p, int *done)
{
    heddle_status st = HEDDLE_OK;
    *done = 1;
    if (p->is_under_way) {
        HD_TRY(p->device->library->event_test(p->ended, p->device->number, done));
        set_under_way(p, !*done);
        p->is_started = p->is_started && !*done;
    }
    st = hd_push_look(p);
out:
    return st;
}

/* Of what is enqueued, however it goes: launches end by the device's own deadlines, and at once after an abort. */
static int await_end(hd_push *p)
{
    const heddle_device *library = p->device->library;
    int64_t deadline_ns = hd_comm_deadline_ns(p->comm, p->spec.deadline_ms) + GRACE_NS;
    int done = !p->is_under_way;
    for (int turn = 0; !done && hd_now_ns() < deadline_ns; turn++) {
        hd_nap(turn);
        done = library->event_test(p->ended, p->device->number, &done) != HEDDLE_OK || done;
    }
    set_under_way(p, !done);
    return done;
}

heddle_status hd_push_wait(hd_push *p)
{
    heddle_status st = HEDDLE_OK;
    int64_t deadline_ns = hd_comm_deadline_ns(p->comm, p->spec.deadline_ms) + GRACE_NS;
    for (int turn = 0;; turn++) {
        int done;
        HD_TRY(hd_push_test(p, &done));
        if (done) {
            return HEDDLE_OK;
        }
        st = hd_comm_check(p->comm);
        if (st != HEDDLE_OK) {
            st = give_up(p, st);
            await_end(p);
            hd_comm_quiesce_devices(p->comm); /* the arrays are the caller's again */
            return hd_fail(st, "%s", p->broken_why);
        }
        if (hd_now_ns() > deadline_ns) {
            return give_up(p, hd_fail(HEDDLE_ERR_TIMEOUT,
                                      "rank %d: the stream of device %s did not come to the end of a %s before the "
                                      "deadline; %s %s",
                                      hd_comm_rank_name(p->comm, p->rank), p->device->name, p->spec.what, p->spec.what,
                                      p->spec.line));
        }
        hd_nap(turn);
    }
out:
    return st;
}

heddle_status hd_push_wait_on(hd_push *p, heddle_stream stream)
{
    heddle_status st = hd_push_look(p);
    return st == HEDDLE_OK && p->is_under_way ? p->device->library->stream_wait(stream, p->ended, p->device->number)
                                              : st;
}

/* --- executions --------------------------------------------------------------------------------------------------- */

/* Behind the last execution, whichever stream that one is in. */
static heddle_status begin(hd_push *p, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    if (p->is_started) {
        int done;
        HD_TRY(hd_push_test(p, &done));
        if (!done) {
            return hd_fail(HEDDLE_ERR_ARG, "an execution of this %s is already in flight", p->spec.what);
        }
    }
    HD_TRY(hd_push_look(p));
    if (p->is_under_way && stream != p->last) {
        HD_TRY(p->device->library->stream_wait(stream, p->ended, p->device->number));
    }
    set_under_way(p, 1);
    if (atomic_load(p->view.alarm) != 0) {
        st = give_up(p, hd_comm_check(p->comm));
    }
out:
    return st;
}

/* Also behind launches some of which could not be enqueued: the others are under way. */
static heddle_status end(hd_push *p, heddle_stream stream, heddle_status enqueued)
{
    p->last = stream;
    heddle_status st = p->device->library->event_record(p->ended, p->device->number, stream);
    return enqueued != HEDDLE_OK ? enqueued : st;
}

heddle_status hd_push_start(hd_push *p, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = begin(p, p->stream);
    if (st != HEDDLE_OK) {
        return st;
    }
    const heddle_device *library = p->device->library;
    HD_TRY(library->event_record(p->begun, p->device->number, stream));
    HD_TRY(library->stream_wait(p->stream, p->begun, p->device->number));
    HD_TRY(end(p, p->stream, enqueue(p, src, dst, p->stream)));
    p->is_started = 1;
out:
    return st == HEDDLE_OK ? st : give_up(p, st);
}

/* A default stream that other ranks have, too, cannot wait for them: the host does. */
static heddle_status execute_waiting(hd_push *p, const void *src, void *dst)
{
    heddle_status st = hd_push_start(p, src, dst, HEDDLE_NO_STREAM);
    return st == HEDDLE_OK ? hd_push_wait(p) : st;
}

heddle_status hd_push_execute(hd_push *p, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    int captures = 0;
    if (stream == HEDDLE_NO_STREAM && hd_comm_sharers(p->comm).in_process > 1) {
        return execute_waiting(p, src, dst);
    }
    HD_TRY(p->device->library->stream_captures(&captures, p->device->number, stream));
    if (captures) { /* events from outside would be an order that the graph cannot have */
        HD_TRY(hd_push_look(p));
        st = enqueue(p, src, dst, stream);
        return st == HEDDLE_OK ? st : give_up(p, st);
    }
    st = begin(p, stream);
    if (st != HEDDLE_OK) {
        return st;
    }
    st = end(p, stream, enqueue(p, src, dst, stream));
out:
    return st == HEDDLE_OK ? st : give_up(p, st);
}

/* --- what the device has reported --------------------------------------------------------------------------------- */

/* A later launch may be writing. */
static int64_t read_now(const uint64_t *value)
{
    return (int64_t)__atomic_load_n(value, __ATOMIC_RELAXED);
}

void hd_push_get_report(hd_push_report *out, int64_t *bytes_to, const hd_push *p)
{
    const hd_device_report *last = &p->report[p->spec.nphases - 1];
    out->executions = (int64_t)__atomic_load_n(&last->epoch, __ATOMIC_ACQUIRE);
    out->device_ns = read_now(&last->end_ns) - read_now(&p->report[0].begin_ns);
    out->lands = 0;
    for (int i = 0; i < p->spec.nphases; i++) {
        out->lands |= p->step[i].lands;
    }
    out->memory_bytes = p->memory_bytes + p->lists_bytes;
    for (int r = 0; r < p->nranks; r++) {
        bytes_to[r] = 0;
        for (int i = 0; i < p->spec.nphases && r != p->rank; i++) {
            bytes_to[r] += read_now(&p->report[i].bytes_to[r]);
        }
    }
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

static void free_list(hd_push_list *list)
{
    hd_free(list->list);
}

/* Here, or in another rank; without a sentence, which stays that of what failed. */
static int has_failed(const hd_push *p)
{
    int failed = p->broken != HEDDLE_OK || atomic_load(p->view.alarm) != 0;
    for (int i = 0; i < p->spec.nphases && p->report != NULL; i++) {
        failed |= __atomic_load_n(&p->report[i].status, __ATOMIC_ACQUIRE) != HD_DEVICE_CAME;
    }
    return failed;
}

/* What a kernel may still touch stays the communicator's. Kernels of peers have ended when all went well. */
static void free_memory(hd_push *p)
{
    if (!await_end(p)) {
        return;
    }
    if (has_failed(p)) {
        hd_comm_quiesce_devices(p->comm);
    }
    hd_device_release(p->device, p->memory);
    hd_device_release(p->device, p->lists);
    if (p->report != NULL) {
        hd_device_page_back(p->device, p->report);
    }
}

void hd_push_destroy(hd_push *p)
{
    if (p == NULL) {
        return;
    }
    const heddle_device *library = p->device->library;
    free_memory(p);
    library->event_destroy(p->begun, p->device->number);
    library->event_destroy(p->ended, p->device->number);
    library->stream_destroy(p->stream, p->device->number);
    for (int i = 0; i < HD_MAX_LEGS; i++) {
        free_list(&p->step[i].clear);
        free_list(&p->step[i].push);
        free_list(&p->step[i].unpack);
        free_list(&p->step[i].land);
        hd_free(p->step[i].sum);
    }
    free_list(&p->before);
    free_list(&p->after);
    hd_comm_outlook_remove(p->comm, &p->outlook);
    hd_free(p);
}
