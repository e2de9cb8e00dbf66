#include "runtime/device/addon.h"

#include "runtime/base/base.h"

#include <string.h>

heddle_status hd_addon_find(hd_module *found, const char *name, const char *folder, const hd_device *device,
                            const char *symbol, void *entry)
{
    heddle_status st = hd_module_load_beside(found, name, folder, device->library, 0);
    if (st != HEDDLE_OK || found->handle != NULL) {
        return st == HEDDLE_OK ? hd_module_entry(found, symbol, entry) : st;
    }
    if (found->why[0] != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s cannot be loaded: %s", found->file, found->why);
    }
    return hd_fail(HEDDLE_ERR_UNSUPPORTED, "there is no %s in %s (heddle was built without %s)", found->file,
                   found->looked, name);
}

heddle_status hd_addon_check(char *out, size_t out_bytes, const hd_addon *its, const hd_module *found, const char *name,
                             size_t struct_bytes, const hd_device *device)
{
    if (its->struct_bytes != struct_bytes || strcmp(its->name, name) != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "%s is of another version of heddle: its table of '%s' has %zu bytes, not %zu", found->file,
                       its->name, its->struct_bytes, struct_bytes);
    }
    if (strcmp(its->device, device->library->name) != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s is for devices of kind %s, not %s", found->file, its->device,
                       device->library->name);
    }
    return its->describe(out, out_bytes);
}
