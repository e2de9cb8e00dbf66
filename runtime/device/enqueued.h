/* What has been enqueued on a stream of a device, and has it ended? An event behind the last of it says so. */
#ifndef HD_DEVICE_ENQUEUED_H
#define HD_DEVICE_ENQUEUED_H

#include "runtime/device/device.h"

#include <stdatomic.h>

/* For "the stream of device cuda:0 did not come to the END of a WHAT before the deadline; WHAT LINE". */
typedef struct hd_enqueued_names {
    int rank;
    const char *end, *what, *line; /* borrowed */
} hd_enqueued_names;

enum { HD_DEVICE_GRACE_NS = 1000000000 }; /* of the host behind the device's own deadlines */

/* Of one thread, but for hd_enqueued_look_beside. Begins as zeros. */
typedef struct hd_enqueued {
    const hd_device *device;
    void *event;
    heddle_stream stream; /* of the last of it */
    _Atomic uint64_t
        mark; /* 0: nothing is under way, as far as is known. Odd: being enqueued; even: the event is behind
                            * it. Each time another one, so that what the event says is never taken for a later time */
    uint64_t last_mark;
    _Atomic int *count;      /* one more while it is under way; NULL: nobody counts */
    int is_lost;             /* the event could not be recorded behind it */
    int may_ask_again;       /* so it is when somebody asks; else nobody knows: the stream may be gone with its owner */
    int is_captured;         /* some is in graphs as well, of which the event says nothing */
    hd_enqueued_names names; /* of hd_enqueued_wait, and of what is lost */
} hd_enqueued;

heddle_status hd_enqueued_open(hd_enqueued *out, const hd_device *device);
void hd_enqueued_close(hd_enqueued *e); /* waits for nothing */

/* Something is under way from now on, which only those who count have to hear before its end. */
void hd_enqueued_begin(hd_enqueued *e);
/* It is all in `stream`. st, of enqueuing it, is returned, with its sentence: where some
 * could not be the rest is under way. */
heddle_status hd_enqueued_end(hd_enqueued *e, heddle_stream stream, heddle_status st);
/* As end, but that the event is recorded when somebody asks for it, or by an end behind more of it. Until then the
 * stream does not go. */
void hd_enqueued_end_later(hd_enqueued *e, heddle_stream stream);
void hd_enqueued_end_none(hd_enqueued *e); /* nothing has come since hd_enqueued_begin */

void hd_enqueued_look_beside(hd_enqueued *e); /* on any thread: is it over? */
heddle_status hd_enqueued_test(int *done, hd_enqueued *e);
/* Every wait of a thread for a device. Until it has ended (*done 1), `look`, which is asked between looks at the event
 * and may be NULL, fails, or the time is over (*done 0: the caller says what was late). Errors: the device's, and
 * look's; *done is 0 then. */
typedef heddle_status (*hd_device_look_fn)(void *arg);
heddle_status hd_enqueued_await(int *done, hd_enqueued *e, int64_t deadline_ns, hd_device_look_fn look, void *arg);
/* The same; HEDDLE_ERR_TIMEOUT says what was late. */
heddle_status hd_enqueued_wait(hd_enqueued *e, int64_t deadline_ns, hd_device_look_fn look, void *arg);
/* The same, however it goes. 0: it has not, or the device does not say. */
int hd_enqueued_has_ended(hd_enqueued *e, int64_t deadline_ns);
/* The same of memory that is to be freed, for which a device waits until all it has is done, and without a deadline:
 * where it has not ended the device is left (hd_device_leave), and nobody waits. 0 also, but waited for: graphs have
 * some of it, which may be used at any time; the device keeps it until the communicator ends. */
int hd_enqueued_lets_free(hd_enqueued *e, hd_device *device, int64_t deadline_ns);
/* A copy to the device, and its end: src is the caller's again, however it goes. */
heddle_status hd_enqueued_upload(hd_enqueued *e, void *dst, const void *src, int64_t bytes, heddle_stream stream,
                                 int64_t deadline_ns);
heddle_status hd_enqueued_order(hd_enqueued *e, heddle_stream stream); /* what `stream` has from now on comes behind */

#endif
