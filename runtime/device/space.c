/* May something be asked for memory of a space, and what is said where it may not. */
#include "runtime/base/base.h"
#include "runtime/device/device.h"

static heddle_status check_place(heddle_space space, int device, const char *what)
{
    int is_host = space == HEDDLE_SPACE_HOST && device == 0;
    if (is_host || (space == HEDDLE_SPACE_DEVICE && device >= 0)) {
        return HEDDLE_OK;
    }
    return hd_fail(HEDDLE_ERR_ARG, "%s: space %d, device %d; wanted host memory (0, device 0) or a device's (1)", what,
                   (int)space, device);
}

heddle_status hd_device_host_only(heddle_space space, int device, const char *what)
{
    heddle_status st = check_place(space, device, what);
    if (st != HEDDLE_OK || space == HEDDLE_SPACE_HOST) {
        return st;
    }
    return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s: memory of device %d, but it works in host memory only", what, device);
}

heddle_status hd_device_need(const hd_device *own, heddle_space space, int device, const char *what,
                             const char *transport)
{
    heddle_status st = check_place(space, device, what);
    if (st != HEDDLE_OK || space == HEDDLE_SPACE_HOST) {
        return st;
    }
    if (own == NULL) {
        return hd_fail(
            HEDDLE_ERR_UNSUPPORTED,
            "%s: memory of device %d, but the communicator has no device (heddle_comm_attach_device) and the "
            "transport %s reaches host memory only",
            what, device, transport);
    }
    if (device != own->number) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: memory of device %d, the communicator's is %d (%s)", what, device,
                       own->number, own->name);
    }
    return HEDDLE_OK;
}
