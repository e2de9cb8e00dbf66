/* The library of messages that a wire needs. */
#include "runtime/device/messages.h"

#include "runtime/base/base.h"
#include "runtime/base/module.h"

#include <string.h>

static heddle_status say_missing(const hd_module *found, const char *name)
{
    if (found->why[0] != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s cannot be loaded: %s", found->file, found->why);
    }
    return hd_fail(HEDDLE_ERR_UNSUPPORTED, "there is no %s in %s (heddle was built without %s)", found->file,
                   found->looked, name);
}

heddle_status hd_messages_load(hd_messages *out, const char *name, const char *folder, const hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    hd_module found;
    heddle_device_messages_fn entry = NULL;
    const heddle_device_messages *library = NULL;
    memset(out, 0, sizeof *out);
    HD_TRY(hd_module_load(&found, name, folder, 0));
    if (found.handle == NULL) {
        return say_missing(&found, name);
    }
    HD_TRY(hd_module_entry(&found, HEDDLE_DEVICE_MESSAGES_LIBRARY, &entry));
    HD_TRY(entry(&library, heddle_set_error));
    if (library->struct_bytes != sizeof *library || strcmp(library->name, name) != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "%s is of another version of heddle: its table of '%s' has %zu bytes, not %zu", found.file,
                       library->name, library->struct_bytes, sizeof *library);
    }
    if (strcmp(library->device, device->library->name) != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s is for devices of kind %s, not %s", found.file, library->device,
                       device->library->name);
    }
    HD_TRY(library->describe(out->describe, sizeof out->describe));
    out->table = library;
out:
    return st;
}

void hd_messages_end(hd_messages *messages, int gives_up)
{
    if (messages->handle != NULL) {
        messages->table->end(messages->handle, gives_up);
        messages->handle = NULL;
    }
}
