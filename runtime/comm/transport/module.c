/* Transports that live in a library of their own, loaded when asked for: libheddle_NAME.so with one entry point. */
#include "runtime/base/module.h"
#include "runtime/comm/transport/transport.h"

static heddle_status say_missing(const hd_module *found, const char *name, const char *build)
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
                       name, found->file, found->looked, build, found->file);
    }
    hd_transport_names(known, sizeof known, HD_TRANSPORTS_TO_OPEN);
    return hd_fail(HEDDLE_ERR_ARG, "no transport '%s': wanted %s or fault(SPEC):..., and there is no %s in %s", name,
                   known, found->file, found->looked);
}

/* The library stays loaded: MPI cannot be started twice. */
heddle_status hd_open_module(heddle_comm **out, const char *name, const heddle_comm_options *options, const char *build)
{
    heddle_status st = HEDDLE_OK;
    hd_module found;
    heddle_comm_options checked;
    heddle_transport_open_fn entry = NULL;
    HD_TRY(hd_options_check(&checked, options));
    if (!hd_module_is_name(name)) {
        char known[256];
        hd_transport_names(known, sizeof known, HD_TRANSPORTS_TO_OPEN);
        return hd_fail(HEDDLE_ERR_ARG, "no transport '%s': wanted %s, fault(SPEC):... or the name of a plug-in", name,
                       known);
    }
    HD_TRY(hd_module_load(&found, name, checked.module_folder, 1)); /* MPI loads plug-ins that look for its symbols */
    if (found.handle == NULL) {
        return say_missing(&found, name, build);
    }
    HD_TRY(hd_module_entry(&found, HEDDLE_TRANSPORT_OPEN, &entry));
    st = entry(out, options);
out:
    return st;
}
