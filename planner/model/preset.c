#include "planner/model/preset.h"

#include "runtime/document/node.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { PRESETS_MAX = 128 };

/* Cards of models write names in their own way. */
static int begins(const hd_model_preset *preset, const char *name)
{
    return name[0] != '\0' && strncasecmp(preset->name, name, strlen(name)) == 0;
}

static int goes_on(const hd_model_preset *preset, const char *name)
{
    return begins(preset, name) && strchr("-.", preset->name[strlen(name)]) != NULL;
}

const hd_model_preset *hd_model_preset_find(const char *name)
{
    const hd_model_preset *found = NULL;
    int several = 0;
    for (const hd_model_preset *p = hd_model_presets; p->name != NULL; p++) {
        if (strcasecmp(p->name, name) == 0) {
            return p;
        }
        several = several || (found != NULL && goes_on(p, name));
        found = goes_on(p, name) ? p : found;
    }
    return several ? NULL : found;
}

const char *hd_model_preset_hint(char *out, size_t out_bytes, const char *name)
{
    const char *names[PRESETS_MAX] = {0};
    size_t n = 0;
    int count = 0;
    out[0] = '\0';
    for (const hd_model_preset *p = hd_model_presets; p->name != NULL && count < PRESETS_MAX; p++) {
        names[count++] = p->name;
        if (begins(p, name) && n < out_bytes) {
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
