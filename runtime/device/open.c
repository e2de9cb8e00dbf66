/* A device by its name: the library that serves its kind is loaded when the first one of it is asked for. */
#include "runtime/base/base.h"
#include "runtime/base/module.h"
#include "runtime/device/device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KIND_BYTES = 32 };

/* "cuda:1": kind "cuda", *which "1". */
static heddle_status split(char *kind, const char **which, const char *where)
{
    size_t length = strcspn(where, ":");
    const char *rest = where[length] == ':' ? where + length + 1 : "";
    size_t digits = strspn(rest, "0123456789");
    int is_known = strcmp(rest, "current") == 0 || (digits < 6 && rest[digits] == 0);
    if (length >= KIND_BYTES || !is_known || (where[length] == ':' && rest[0] == 0)) {
        return hd_fail(HEDDLE_ERR_PARSE, "a device is 'KIND', 'KIND:NUMBER' or 'KIND:current' (cuda:1), not '%.60s'",
                       where);
    }
    memcpy(kind, where, length);
    kind[length] = 0;
    *which = rest;
    return hd_module_is_name(kind) ? HEDDLE_OK
                                   : hd_fail(HEDDLE_ERR_PARSE, "'%s' is no kind of device, as \"cuda\" is", kind);
}

static heddle_status say_missing(const hd_module *found, const char *kind)
{
    if (found->why[0] != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "devices of kind %s are not available: their library cannot be loaded: %s", kind, found->why);
    }
    return hd_fail(
        HEDDLE_ERR_UNSUPPORTED,
        "devices of kind %s are not available: there is no %s in %s (%sset HEDDLE_MODULE_PATH to its folder)", kind,
        found->file, found->looked,
        strcmp(kind, "cuda") == 0 ? "build heddle where there is a CUDA toolkit of 12.4 or later, or " : "");
}

/* libheddle_mpi is a library, too, but not of devices: only an entry point of the kind makes it one. */
static heddle_status load(const heddle_device **out, const char *kind, const char *folder)
{
    heddle_status st = HEDDLE_OK;
    hd_module found;
    heddle_device_library_fn entry = NULL;
    HD_TRY(hd_module_load(&found, kind, folder, 0));
    if (found.handle == NULL) {
        return say_missing(&found, kind);
    }
    HD_TRY(hd_module_entry(&found, HEDDLE_DEVICE_LIBRARY, &entry));
    HD_TRY(entry(out, heddle_set_error));
    if ((*out)->struct_bytes != sizeof **out || strcmp((*out)->name, kind) != 0) {
        st = hd_fail(HEDDLE_ERR_UNSUPPORTED,
                     "%s is of another version of heddle: its table of '%s' has %zu bytes, not %zu", found.file,
                     (*out)->name, (*out)->struct_bytes, sizeof **out);
    }
out:
    return st;
}

heddle_status hd_device_open(hd_device **out, const char *where, const char *folder, int local_rank)
{
    heddle_status st = HEDDLE_OK;
    char kind[KIND_BYTES];
    const char *which = "";
    hd_device *device = NULL;
    HD_TRY(split(kind, &which, where));
    HD_TRY(hd_alloc((void **)&device, 1, sizeof *device, "a device"));
    HD_TRY(load(&device->library, kind, folder));
    HD_TRY(device->library->open(&device->number, which, local_rank, device->describe, sizeof device->describe));
    device->opened_by = getpid();
    device->folder = folder;
    snprintf(device->name, sizeof device->name, "%s:%d", kind, device->number);
    *out = device;
    device = NULL;
out:
    hd_free(device);
    return st;
}
