#include "planner/model/preset.h"

#include "runtime/document/node.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { PRESETS_MAX = 128 };

/* Cards of models write names in their own way: capitals, hyphens, dots and underscores do not count. The rest of the
 * preset's name behind the letters and digits of `name`, *missing of which it does not have. */
static const char *rest_of(int *missing, const char *preset, const char *name)
{
    *missing = 0;
    for (; *name != '\0'; name++) {
        const char *p = preset;
        while (*p != '\0' && !isalnum((unsigned char)*p)) {
            p++;
        }
        if (!isalnum((unsigned char)*name)) {
            continue;
        }
        if (*missing == 0 && tolower((unsigned char)*p) == tolower((unsigned char)*name)) {
            preset = p + 1;
        } else {
            ++*missing;
        }
    }
    return preset;
}

static int begins(const hd_model_preset *preset, const char *name)
{
    int missing = 0;
    return rest_of(&missing, preset->name, name) != preset->name && missing == 0;
}

static int goes_on(const hd_model_preset *preset, const char *name)
{
    int missing = 0;
    const char *rest = rest_of(&missing, preset->name, name);
    return rest != preset->name && missing == 0 && strchr("-.", *rest) != NULL;
}

/* The first preset that shares most letters from the beginning on, three at least, and half the name. */
static const char *shares_most(const char *name)
{
    const char *best = NULL;
    int most = 2, missing = 0;
    for (const hd_model_preset *p = hd_model_presets; p->name != NULL; p++) {
        const int shared = (int)(rest_of(&missing, p->name, name) - p->name);
        if (shared > most && shared >= missing) {
            most = shared;
            best = p->name;
        }
    }
    return best;
}

const hd_model_preset *hd_model_preset_find(const char *name)
{
    const hd_model_preset *found = NULL;
    int several = 0;
    for (const hd_model_preset *p = hd_model_presets; p->name != NULL; p++) {
        int missing = 0;
        if (rest_of(&missing, p->name, name)[0] == '\0' && missing == 0) {
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
    near = near != NULL ? near : shares_most(name);
    if (n == 0 && near != NULL) {
        n = (size_t)snprintf(out, out_bytes, "did you mean %s", near);
    }
    if (n > 0 && n < out_bytes) {
        snprintf(out + n, out_bytes - n, "?");
    }
    return out;
}
