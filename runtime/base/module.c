#include "runtime/base/module.h"

#include "runtime/base/base.h"

#include <dlfcn.h>
#include <heddle/sys/device_messages.h>
#include <heddle/sys/device_products.h>
#include <heddle/sys/transport.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 64 };

/* The folder of the file that some code, or data, is in: of libheddle.so, or of a program that has it linked in. A name
 * without a folder, or relative to a folder that may be another one by now, says nothing (a program found through PATH
 * has one): then it is the program. Empty: not known. Never the current folder. */
static void folder_of(char *folder, size_t bytes, const void *code)
{
    Dl_info info;
    folder[0] = 0;
    if (dladdr(code, &info) != 0 && info.dli_fname != NULL && info.dli_fname[0] == '/') {
        snprintf(folder, bytes, "%s", info.dli_fname);
    } else {
        ssize_t length = readlink("/proc/self/exe", folder, bytes - 1);
        folder[length > 0 ? length : 0] = 0;
    }
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        *slash = 0;
    }
}

/* Folders are absolute, and the loader is always given a path: what lies in the current folder, or anywhere on the
 * loader's own search path, is nobody's choice. */
static void try_folder(hd_module *m, const char *folder, int is_global)
{
    char path[PATH_MAX];
    if (m->handle != NULL || folder[0] == 0 || snprintf(path, sizeof path, "%s/%s", folder, m->file) >= PATH_MAX) {
        return;
    }
    if (access(path, F_OK) != 0) {
        size_t at = strlen(m->looked);
        snprintf(m->looked + at, sizeof m->looked - at, "%s%s", at > 0 ? ", " : "", folder);
        return;
    }
    m->handle = dlopen(path, RTLD_NOW | (is_global ? RTLD_GLOBAL : RTLD_LOCAL));
    const char *error = m->handle == NULL ? dlerror() : NULL;
    if (error != NULL && m->why[0] == 0) {
        snprintf(m->why, sizeof m->why, "%s: %s", path, error);
    }
}

int hd_module_is_name(const char *name)
{
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return length > 0 && length <= NAME_BYTES && name[length] == 0;
}

heddle_status hd_module_load_beside(hd_module *out, const char *name, const char *folder, const void *code,
                                    int is_global)
{
    char beside[PATH_MAX];
    const char *wanted = folder != NULL ? folder : hd_env("HEDDLE_MODULE_PATH");
    memset(out, 0, sizeof *out);
    snprintf(out->file, sizeof out->file, "libheddle_%s.so", name);
    if (wanted != NULL && wanted[0] != '/') {
        return hd_fail(HEDDLE_ERR_ARG, "%s is '%s', wanted the absolute path of the folder of %s",
                       folder != NULL ? "module_folder" : "HEDDLE_MODULE_PATH", wanted, out->file);
    }
    try_folder(out, wanted != NULL ? wanted : "", is_global);
    folder_of(beside, sizeof beside, code);
    if (wanted == NULL || strcmp(wanted, beside) != 0) {
        try_folder(out, beside, is_global);
    }
    return HEDDLE_OK;
}

heddle_status hd_module_load(hd_module *out, const char *name, const char *folder, int is_global)
{
    return hd_module_load_beside(out, name, folder, (const void *)&hd_module_load, is_global);
}

/* What else it is, by the entry point that it has; NULL: nothing that is known. */
static const char *other_kind(const hd_module *module)
{
    static const struct {
        const char *symbol, *kind;
    } known[] = {{HEDDLE_TRANSPORT_OPEN, "a transport (heddle_comm_open)"},
                 {HEDDLE_DEVICE_LIBRARY, "a library of devices (heddle_comm_attach_device)"},
                 {HEDDLE_DEVICE_MESSAGES_LIBRARY, "a library of messages between devices (HEDDLE_WIRE_NCCL)"},
                 {HEDDLE_DEVICE_PRODUCTS_LIBRARY, "a library of products on devices"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (dlsym(module->handle, known[i].symbol) != NULL) {
            return known[i].kind;
        }
    }
    return NULL;
}

heddle_status hd_module_entry(const hd_module *module, const char *symbol, void *entry)
{
    void *found = dlsym(module->handle, symbol);
    const char *kind = found == NULL ? other_kind(module) : NULL;
    if (kind != NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s is %s, it has no %s", module->file, kind, symbol);
    }
    if (found == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s is of another version of heddle: it has no %s", module->file,
                       symbol);
    }
    memcpy(entry, &found, sizeof found);
    return HEDDLE_OK;
}
