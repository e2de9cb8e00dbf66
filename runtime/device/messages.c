/* The library of messages that a wire needs. */
#include "runtime/device/messages.h"

#include "runtime/base/base.h"
#include "runtime/device/addon.h"

#include <string.h>

heddle_status hd_messages_load(hd_messages *out, const char *name, const char *folder, const hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    hd_module found;
    heddle_device_messages_fn entry = NULL;
    const heddle_device_messages *library = NULL;
    memset(out, 0, sizeof *out);
    HD_TRY(hd_addon_find(&found, name, folder, device, HEDDLE_DEVICE_MESSAGES_LIBRARY, &entry));
    HD_TRY(entry(&library, heddle_set_error));
    const hd_addon its = {library->struct_bytes, library->name, library->device, library->describe};
    HD_TRY(hd_addon_check(out->describe, sizeof out->describe, &its, &found, name, sizeof *library, device));
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
