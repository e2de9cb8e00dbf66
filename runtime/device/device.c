#include "runtime/device/device.h"
#include "runtime/base/base.h"

heddle_status hd_device_need(heddle_space space, int device, const char *what, const char *transport)
{
    if (space == HEDDLE_SPACE_HOST && device == 0) {
        return HEDDLE_OK;
    }
    if (space != HEDDLE_SPACE_DEVICE || device < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: space %d, device %d; wanted host memory (0, device 0) or a device's (1)",
                       what, (int)space, device);
    }
    return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                   "%s: memory of device %d, but no device library is loaded and the transport %s reaches host memory "
                   "only",
                   what, device, transport);
}
