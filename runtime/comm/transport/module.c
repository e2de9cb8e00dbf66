/* Transports that live in a library of their own, loaded when asked for: libheddle_NAME.so with one entry point. */
#include "runtime/comm/transport/transport.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 64 };

/* The folder of the file that this code is in: of libheddle.so, or of a program that has it linked in. A name without a
 * folder, or relative to a folder that may be another one by now, says nothing (a program found through PATH has one):
 * then it is the program. Empty: not known. Never the current folder. */
static void own_folder(char *folder, size_t bytes)
{
    Dl_info info;
    folder[0] = 0;
    if (dladdr((void *)&heddle_comm_open, &info) != 0 && info.dli_fname != NULL && info.dli_fname[0] == '/') {
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
typedef struct search {
    void *handle;
    char why[768];    /* the first reason why a library that is there cannot be loaded */
    char looked[512]; /* folders without it: "A, B" */
} search;

static void try_folder(search *s, const char *folder, const char *file)
{
    char path[PATH_MAX];
    if (s->handle != NULL || folder[0] == 0 || snprintf(path, sizeof path, "%s/%s", folder, file) >= PATH_MAX) {
        return;
    }
    if (access(path, F_OK) != 0) {
        size_t at = strlen(s->looked);
        snprintf(s->looked + at, sizeof s->looked - at, "%s%s", at > 0 ? ", " : "", folder);
        return;
    }
    s->handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* MPI libraries load plugins that look for their symbols */
    const char *error = s->handle == NULL ? dlerror() : NULL;
    if (error != NULL && s->why[0] == 0) {
        snprintf(s->why, sizeof s->why, "%s: %s", path, error);
    }
}

static heddle_status look_for(search *found, const char *file, const char *given)
{
    char own[PATH_MAX];
    const char *wanted = given != NULL ? given : hd_env("HEDDLE_MODULE_PATH");
    if (wanted != NULL && wanted[0] != '/') {
        return hd_fail(HEDDLE_ERR_ARG, "%s is '%s', wanted the absolute path of the folder of %s",
                       given != NULL ? "module_folder" : "HEDDLE_MODULE_PATH", wanted, file);
    }
    try_folder(found, wanted != NULL ? wanted : "", file);
    own_folder(own, sizeof own);
    try_folder(found, own, file);
    return HEDDLE_OK;
}

static heddle_status say_missing(const search *found, const char *name, const char *file, const char *build)
{
    char known[256];
    if (found->why[0] != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the transport %s is not available: its library cannot be loaded: %s",
                       name, found->why);
    }
    if (build != NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "the transport %s is not available: it was not built, there is no %s in %s (%s; or set "
                       "HEDDLE_MODULE_PATH to the folder of %s)",
                       name, file, found->looked, build, file);
    }
    hd_transport_names(known, sizeof known, HD_TRANSPORTS_TO_OPEN);
    return hd_fail(HEDDLE_ERR_ARG, "no transport '%s': wanted %s or fault(SPEC):..., and there is no %s in %s", name,
                   known, file, found->looked);
}

/* Part of a file's name. */
static int is_word(const char *name)
{
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return length > 0 && length <= NAME_BYTES && name[length] == 0;
}

/* The library stays loaded: MPI cannot be started twice. */
heddle_status hd_open_module(heddle_comm **out, const char *name, const heddle_comm_options *options, const char *build)
{
    heddle_status st = HEDDLE_OK;
    char file[NAME_BYTES + 32];
    search found = {.handle = NULL};
    heddle_comm_options checked;
    HD_TRY(hd_options_check(&checked, options));
    if (!is_word(name)) {
        char known[256];
        hd_transport_names(known, sizeof known, HD_TRANSPORTS_TO_OPEN);
        return hd_fail(HEDDLE_ERR_ARG, "no transport '%s': wanted %s, fault(SPEC):... or the name of a plug-in", name,
                       known);
    }
    snprintf(file, sizeof file, "libheddle_%s.so", name);
    HD_TRY(look_for(&found, file, checked.module_folder));
    if (found.handle == NULL) {
        return say_missing(&found, name, file, build);
    }
    heddle_transport_open_fn entry = NULL;
    void *symbol = dlsym(found.handle, HEDDLE_TRANSPORT_OPEN);
    memcpy(&entry, &symbol, sizeof entry);
    if (entry == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s is of another version of heddle: it has no %s", file,
                       HEDDLE_TRANSPORT_OPEN);
    }
    st = entry(out, options);
out:
    return st;
}
