/* What has been enqueued on a stream of a device, and whether it has ended. */
#include "runtime/device/enqueued.h"
#include "runtime/base/base.h"

enum { MOST_ERRORS = 3 /* in a wait that nobody hears of */ };

heddle_status hd_enqueued_open(hd_enqueued *out, const hd_device *device)
{
    out->device = device;
    return device->library->event_create(&out->event, device->number);
}

void hd_enqueued_close(hd_enqueued *e)
{
    if (e->device != NULL) {
        e->device->library->event_destroy(e->event, e->device->number);
    }
}

void hd_enqueued_begin(hd_enqueued *e)
{
    e->last_mark += 2;
    if (atomic_exchange(&e->mark, e->last_mark - 1) == 0 && e->count != NULL) {
        atomic_fetch_add(e->count, 1);
    }
}

void hd_enqueued_end_none(hd_enqueued *e)
{
    if (!e->is_lost) {
        atomic_store(&e->mark, e->last_mark);
    }
}

static heddle_status record(hd_enqueued *e)
{
    heddle_status st = e->device->library->event_record(e->event, e->device->number, e->stream);
    e->is_lost = st != HEDDLE_OK;
    hd_enqueued_end_none(e);
    return st;
}

static void set_end(hd_enqueued *e, heddle_stream stream)
{
    if (atomic_load(&e->mark) % 2 == 0) {
        hd_enqueued_begin(e);
    }
    e->stream = stream;
}

heddle_status hd_enqueued_end(hd_enqueued *e, heddle_stream stream, heddle_status st)
{
    set_end(e, stream);
    if (st == HEDDLE_OK) {
        return record(e);
    }
    const hd_sentence why = hd_sentence_keep();
    heddle_ignore(record(e));
    return hd_sentence_say(&why, st);
}

void hd_enqueued_end_later(hd_enqueued *e, heddle_stream stream)
{
    set_end(e, stream);
    e->is_lost = e->may_ask_again = 1;
}

/* Is there an event to ask for? */
static heddle_status find(hd_enqueued *e)
{
    const hd_enqueued_names *n = &e->names;
    if (!e->is_lost || e->may_ask_again) {
        return e->is_lost ? record(e) : HEDDLE_OK;
    }
    return hd_fail(HEDDLE_ERR_DEVICE,
                   "rank %d: no event could be recorded on device %s behind the %s of a %s: nobody knows when they are "
                   "done; %s %s",
                   n->rank, e->device->name, n->end, n->what, n->what, n->line);
}

static heddle_status ask(int *done, hd_enqueued *e)
{
    uint64_t mark = atomic_load(&e->mark);
    *done = mark == 0;
    heddle_status st = *done ? HEDDLE_OK : e->device->library->event_test(e->event, e->device->number, done);
    if (st == HEDDLE_OK && *done && mark != 0 && atomic_compare_exchange_strong(&e->mark, &mark, 0) &&
        e->count != NULL) {
        atomic_fetch_sub(e->count, 1);
    }
    return st;
}

void hd_enqueued_look_beside(hd_enqueued *e)
{
    int done = 0;
    if (atomic_load(&e->mark) % 2 == 0) {
        heddle_ignore(ask(&done, e));
    }
}

heddle_status hd_enqueued_test(int *done, hd_enqueued *e)
{
    *done = 0;
    heddle_status st = find(e);
    return st == HEDDLE_OK ? ask(done, e) : st;
}

heddle_status hd_enqueued_await(int *done, hd_enqueued *e, int64_t deadline_ns, hd_device_look_fn look, void *arg)
{
    heddle_status st = HEDDLE_OK;
    int is_late = 0;
    *done = 0;
    for (int turn = 0; !*done && !is_late; turn++) {
        HD_TRY(hd_enqueued_test(done, e));
        HD_TRY(!*done && look != NULL ? look(arg) : HEDDLE_OK);
        is_late = hd_now_ns() > deadline_ns;
        if (!*done && !is_late) {
            hd_nap(turn);
        }
    }
out:
    return st;
}

heddle_status hd_enqueued_wait(hd_enqueued *e, int64_t deadline_ns, hd_device_look_fn look, void *arg)
{
    int done = 0;
    const hd_enqueued_names *n = &e->names;
    heddle_status st = hd_enqueued_await(&done, e, deadline_ns, look, arg);
    return st != HEDDLE_OK || done
               ? st
               : hd_fail(HEDDLE_ERR_TIMEOUT,
                         "rank %d: the stream of device %s did not come to the %s of a %s before the deadline; %s %s",
                         n->rank, e->device->name, n->end, n->what, n->what, n->line);
}

int hd_enqueued_has_ended(hd_enqueued *e, int64_t deadline_ns)
{
    int done = 0;
    for (int n = 0; n < MOST_ERRORS && hd_enqueued_await(&done, e, deadline_ns, NULL, NULL) != HEDDLE_OK; n++) {
        hd_nap(n);
    }
    return done;
}

int hd_enqueued_lets_free(hd_enqueued *e, hd_device *device, int64_t deadline_ns)
{
    if (!device->is_left && !hd_enqueued_has_ended(e, deadline_ns)) {
        hd_device_leave(device);
    }
    return !device->is_left && !e->is_captured;
}

heddle_status hd_enqueued_upload(hd_enqueued *e, void *dst, const void *src, int64_t bytes, heddle_stream stream,
                                 int64_t deadline_ns)
{
    heddle_status st = e->device->library->copy(dst, bytes, src, bytes, bytes, 1, e->device->number, stream);
    const hd_sentence why = hd_sentence_keep();
    heddle_status ended = hd_enqueued_end(e, stream, HEDDLE_OK);
    ended = ended == HEDDLE_OK ? hd_enqueued_wait(e, deadline_ns, NULL, NULL) : ended;
    return st == HEDDLE_OK ? ended : hd_sentence_say(&why, st);
}

/* Of its own stream, too: a handle says nothing, as that of a stream which is gone may be given out again. But where no
 * event says more, that is all there is: what could not be recorded is, when its stream comes again. */
heddle_status hd_enqueued_order(hd_enqueued *e, heddle_stream stream)
{
    heddle_status st = e->is_lost && stream == e->stream ? record(e) : find(e);
    return st == HEDDLE_OK && atomic_load(&e->mark) != 0
               ? e->device->library->stream_wait(stream, e->event, e->device->number)
               : st;
}
