/* Transports that live in a library of their own, loaded when asked for: libheddle_NAME.so with one entry point. */
#include "runtime/comm/transport/transport.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef heddle_status (*transport_open)(heddle_comm **out, const heddle_comm_options *options);

static const char entry_name[] = "heddle_transport_open_v1";

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

/* why: the first reason why a library that is there cannot be loaded; stays empty when there is none. */
typedef struct search {
    void *handle;
    char why[768];
} search;

/* MPI libraries load plugins that look for their symbols globally. */
static void try_path(search *s, const char *path, int there)
{
    s->handle = s->handle != NULL ? s->handle : dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    const char *error = s->handle == NULL ? dlerror() : NULL;
    if (error != NULL && s->why[0] == 0) {
        /* the loader says first which file it did not find: this one, or one that this one needs */
        if (there || strncmp(error, path, strlen(path)) != 0 || strstr(error, "No such file") == NULL) {
            snprintf(s->why, sizeof s->why, "%s: %s", path, error);
        }
    }
}

static void try_folder(search *s, const char *folder, const char *file)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", folder, file);
    if (folder[0] != 0 && length < (int)sizeof path && access(path, F_OK) == 0) {
        try_path(s, path, 1);
    }
}

/* The library stays loaded: MPI cannot be started twice. */
heddle_status hd_open_module(heddle_comm **out, const char *name, const heddle_comm_options *options)
{
    char file[256];
    char folder[PATH_MAX];
    search found = {.handle = NULL};
    const char *wanted = hd_env("HEDDLE_MODULE_PATH");
    snprintf(file, sizeof file, "libheddle_%s.so", name);
    try_folder(&found, wanted != NULL ? wanted : "", file);
    own_folder(folder, sizeof folder);
    try_folder(&found, folder, file);
    try_path(&found, file, 0);
    void *library = found.handle;
    if (library == NULL && found.why[0] != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the transport %s is not available: its library cannot be loaded: %s",
                       name, found.why);
    }
    if (library == NULL) {
        return hd_fail(
            HEDDLE_ERR_UNSUPPORTED,
            "the transport %s is not available: it was not built, there is no %s (build heddle with Open MPI: "
            "on Debian, apt-get install libopenmpi-dev openmpi-bin; or set HEDDLE_MODULE_PATH to the folder "
            "of %s)",
            name, file, file);
    }
    transport_open entry = NULL;
    void *symbol = dlsym(library, entry_name);
    memcpy(&entry, &symbol, sizeof entry);
    if (entry == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "libheddle_%s.so is of another version of heddle: it has no %s", name,
                       entry_name);
    }
    return entry(out, options);
}
