/* Libraries beside a device's own, which serve devices of its kind: loaded when the first one asks. */
#ifndef HD_DEVICE_ADDON_H
#define HD_DEVICE_ADDON_H

#include "runtime/base/module.h"
#include "runtime/device/device.h"

/* libheddle_NAME.so, with its function `symbol` into *entry; folder: as for hd_module_load, then beside the device's
 * library. HEDDLE_ERR_UNSUPPORTED: there is none, it cannot be loaded, or it has no such function; the sentence says
 * which. */
heddle_status hd_addon_find(hd_module *found, const char *name, const char *folder, const hd_device *device,
                            const char *symbol, void *entry);

/* What its table says of itself: each begins with these. */
typedef struct hd_addon {
    size_t struct_bytes;
    const char *name, *device;
    heddle_status (*describe)(char *out, size_t bytes);
} hd_addon;

/* HEDDLE_ERR_UNSUPPORTED: it is of another version of heddle, or for another kind of device, or its own library is of a
 * version that does not fit. out: gets its description. */
heddle_status hd_addon_check(char *out, size_t out_bytes, const hd_addon *its, const hd_module *found, const char *name,
                             size_t struct_bytes, const hd_device *device);

#endif
