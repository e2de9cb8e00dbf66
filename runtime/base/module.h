/* Libraries that are loaded when they are asked for: libheddle_NAME.so, from a folder that somebody chose. */
#ifndef HD_MODULE_H
#define HD_MODULE_H

#include <heddle/status.h>

typedef struct hd_module {
    void *handle;     /* NULL: not found, or it cannot be loaded */
    char file[96];    /* libheddle_NAME.so */
    char why[768];    /* the first reason why a library that is there cannot be loaded; "": there is none */
    char looked[512]; /* folders without it: "A, B" */
} hd_module;

/* Part of a file's name. */
int hd_module_is_name(const char *name);
/* Looks in `folder` (absolute; NULL: what HEDDLE_MODULE_PATH says), then in libheddle's own. What is found stays
 * loaded. is_global: what it loads itself looks for symbols of what it is linked to. HEDDLE_ERR_ARG: the folder is
 * relative. */
heddle_status hd_module_load(hd_module *out, const char *name, const char *folder, int is_global);
/* The same, then in the folder of the file that `code`, or data, is in: of another library. */
heddle_status hd_module_load_beside(hd_module *out, const char *name, const char *folder, const void *code,
                                    int is_global);
/* Its function `symbol` into *entry, a pointer to a function. HEDDLE_ERR_UNSUPPORTED: it has none. */
heddle_status hd_module_entry(const hd_module *module, const char *symbol, void *entry);

#endif
