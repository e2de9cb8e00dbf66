/* A machine by its name: a preset's, or a file's. */
#include "planner/machine/preset.h"
#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_BYTES = 512 }; /* longer ones are no preset's */

static heddle_status make_preset(heddle_machine **out, const char *name, const hd_preset *preset)
{
    heddle_status st = HEDDLE_OK;
    heddle_machine *machine = NULL;
    HD_TRY(hd_alloc((void **)&machine, 1, sizeof *machine, "a machine"));
    snprintf(machine->name, sizeof machine->name, "%s", name);
    HD_TRY(preset != NULL ? hd_preset_fill(machine, preset) : hd_preset_fill_cpu(machine, NULL));
    *out = machine;
    machine = NULL;
out:
    heddle_machine_destroy(machine);
    return st;
}

/* What is there as a file, or can only be meant as one. */
static int is_file(const char *name)
{
    struct stat about;
    const size_t length = strlen(name);
    return strchr(name, '/') != NULL || stat(name, &about) == 0 ||
           (length > 5 && (strcmp(name + length - 5, ".yaml") == 0 || strcmp(name + length - 5, ".json") == 0)) ||
           (length > 4 && strcmp(name + length - 4, ".yml") == 0);
}

heddle_status heddle_machine_load(heddle_machine **out, const char *name)
{
    heddle_status st = HEDDLE_OK;
    hd_preset preset;
    char lower[NAME_BYTES];
    HD_TRY(HD_NEED(out, name));
    hd_preset_lower(lower, sizeof lower, name);
    const int may_be_file = is_file(name);
    if (strcmp(lower, name) == 0 || !may_be_file) { /* a file may have a name in capitals */
        if (strcmp(lower, "cpu") == 0) {
            return make_preset(out, lower, NULL);
        }
        st = hd_preset_parse(&preset, name);
        if (st == HEDDLE_OK) {
            return make_preset(out, lower, &preset);
        }
    }
    if (may_be_file) {
        st = hd_document_load(hd_machine_read, out, name, HD_MACHINE_LIMIT_BYTES);
    }
out:
    return st;
}

heddle_status heddle_machine_parse(heddle_machine **out, const char *text, size_t text_bytes, const char *name)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, text, name));
    st = hd_document_read(hd_machine_read, out, text, text_bytes, name, HD_MACHINE_LIMIT_BYTES);
out:
    return st;
}
