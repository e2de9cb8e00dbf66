/* Waiting on the host for what a device has been given to do. */
#include "runtime/base/base.h"
#include "runtime/device/device.h"

heddle_status hd_device_await(int *done, const hd_device *device, void *event, int64_t deadline_ns,
                              hd_device_look_fn look, void *arg)
{
    heddle_status st = HEDDLE_OK;
    int is_late = 0;
    *done = 0;
    for (int turn = 0; !*done && !is_late; turn++) {
        HD_TRY(device->library->event_test(event, device->number, done));
        HD_TRY(!*done && look != NULL ? look(arg) : HEDDLE_OK);
        is_late = hd_now_ns() > deadline_ns;
        if (!*done && !is_late) {
            hd_nap(turn);
        }
    }
out:
    return st;
}
