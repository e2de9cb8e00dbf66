#include "runtime/document/preset.h"

#include "runtime/document/node.h"

#include <stdio.h>
#include <string.h>

enum { PRESETS_MAX = 128 };

static int goes_on(const hd_preset *preset, const char *name, size_t length)
{
    return strncmp(preset->name, name, length) == 0 && preset->name[length] == '-';
}

const hd_preset *hd_preset_find(const hd_preset *presets, const char *name)
{
    const hd_preset *found = NULL;
    int several = 0;
    for (const hd_preset *p = presets; p->name != NULL; p++) {
        if (strcmp(p->name, name) == 0) {
            return p;
        }
        several = several || (found != NULL && goes_on(p, name, strlen(name)));
        found = goes_on(p, name, strlen(name)) ? p : found;
    }
    return several ? NULL : found;
}

const char *hd_preset_hint(char *out, size_t out_bytes, const hd_preset *presets, const char *name)
{
    const char *names[PRESETS_MAX] = {0};
    size_t n = 0;
    int count = 0;
    out[0] = '\0';
    for (const hd_preset *p = presets; p->name != NULL && count < PRESETS_MAX; p++) {
        names[count++] = p->name;
        if (name[0] != '\0' && strncmp(p->name, name, strlen(name)) == 0 && n < out_bytes) {
            n += (size_t)snprintf(out + n, out_bytes - n, "%s%s", n > 0 ? " or " : "did you mean ", p->name);
        }
    }
    const char *near = hd_nearest(name, names, count);
    if (n == 0 && near != NULL) {
        n = (size_t)snprintf(out, out_bytes, "did you mean %s", near);
    }
    if (n > 0 && n < out_bytes) {
        snprintf(out + n, out_bytes - n, "?");
    }
    return out;
}
