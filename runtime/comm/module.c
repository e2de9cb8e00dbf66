/* Transports that live in a library of their own, loaded when asked for: libheddle_NAME.so with one entry point. */
#include "runtime/comm/comm_private.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef heddle_status (*transport_open)(heddle_comm **out, const heddle_comm_options *options);

static const char entry_name[] = "heddle_transport_open_v1";

/* Beside this library, where a build folder or an installation has it. */
static void *open_beside(const char *file)
{
    char path[PATH_MAX];
    Dl_info info;
    if (dladdr((void *)&heddle_comm_open, &info) == 0 || info.dli_fname == NULL) {
        return NULL;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash != NULL ? (int)(slash - info.dli_fname) : 0;
    snprintf(path, sizeof path, "%.*s%s%s", folder, info.dli_fname, slash != NULL ? "/" : "./", file);
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

/* MPI libraries load plugins that look for their symbols globally. */
static void *open_library(const char *name, char *why, size_t why_bytes)
{
    char file[256];
    char path[PATH_MAX];
    const char *folder = hd_env("HEDDLE_MODULE_PATH");
    void *library = NULL;
    snprintf(why, why_bytes, "no reason given");
    snprintf(file, sizeof file, "libheddle_%s.so", name);
    if (folder != NULL) {
        snprintf(path, sizeof path, "%s/%s", folder, file);
        library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    library = library != NULL ? library : open_beside(file);
    if (library == NULL) {
        library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
        const char *error = library == NULL ? dlerror() : NULL;
        if (error != NULL) {
            snprintf(why, why_bytes, "%s", error);
        }
    }
    return library;
}

/* The library stays loaded: MPI cannot be started twice. */
heddle_status hd_open_module(heddle_comm **out, const char *name, const heddle_comm_options *options)
{
    char why[512];
    void *library = open_library(name, why, sizeof why);
    if (library == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "the transport %s is not available: %s (build heddle with Open MPI: on Debian, apt-get install "
                       "libopenmpi-dev openmpi-bin; or set HEDDLE_MODULE_PATH to the folder of libheddle_%s.so)",
                       name, why, name);
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
