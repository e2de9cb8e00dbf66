#include "planner/model/preset.h"

#include "runtime/document/node.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { PRESETS_MAX = 128, NOISE = 14 /* letters that a name may have besides */ };

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

/* The letters and digits of `part` stand in `whole`, in their order, from the first on. */
static int stands_in(const char *part, const char *whole)
{
    int missing = 0;
    for (; *part != '\0'; part++) {
        if (!isalnum((unsigned char)*part)) {
            continue;
        }
        while (*whole != '\0' && tolower((unsigned char)*whole) != tolower((unsigned char)*part)) {
            missing += isalnum((unsigned char)*whole) != 0;
            whole++;
        }
        if (*whole == '\0') {
            return 0;
        }
        whole++;
    }
    return missing < NOISE;
}

static size_t letters(const char *name)
{
    size_t n = 0;
    while (isalpha((unsigned char)name[n])) {
        n++;
    }
    return n;
}

/* One whose name begins with the same word and is within `name`, or the other way round: wan2.1-14b of Wan2.1-T2V-14B
 * or of wan-14b. The longest. */
static const char *within(const char *name)
{
    const char *best = NULL;
    const size_t word = letters(name);
    for (const hd_model_preset *p = hd_model_presets; p->name != NULL; p++) {
        const int is_like = word > 1 && letters(p->name) == word && strncasecmp(name, p->name, word) == 0 &&
                            (stands_in(p->name, name) || stands_in(name, p->name));
        best = is_like && (best == NULL || strlen(p->name) > strlen(best)) ? p->name : best;
    }
    return best;
}

/* Those whose source names a model so: stdit3-xl2 is of Open-Sora 1.2. */
static int is_source(const hd_model_preset *preset, const char *name)
{
    int missing = 1;
    const char *line = strstr(preset->text, "\nsource: \"");
    for (line = line != NULL ? line + 10 : ""; missing > 0 && *line != '\0' && *line != '\n'; line++) {
        if (isupper((unsigned char)*line) && !isalnum((unsigned char)line[-1])) {
            rest_of(&missing, line, name);
        }
    }
    return missing == 0;
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

static size_t list(char *out, size_t out_bytes, const char *name,
                   int (*is_meant)(const hd_model_preset *, const char *))
{
    size_t n = 0;
    for (const hd_model_preset *p = hd_model_presets; p->name != NULL && n < out_bytes; p++) {
        if (is_meant(p, name)) {
            n += (size_t)snprintf(out + n, out_bytes - n, "%s%s", n > 0 ? " or " : "did you mean ", p->name);
        }
    }
    return n;
}

const char *hd_model_preset_hint(char *out, size_t out_bytes, const char *name)
{
    const char *names[PRESETS_MAX] = {0};
    int count = 0;
    const char *slash = strrchr(name, '/'); /* behind it: OWNER/MODEL, as hubs write it */
    name = slash != NULL ? slash + 1 : name;
    out[0] = '\0';
    for (const hd_model_preset *p = hd_model_presets; p->name != NULL && count < PRESETS_MAX; p++) {
        names[count++] = p->name;
    }
    size_t n = list(out, out_bytes, name, begins);
    n = n == 0 && strlen(name) > 3 ? list(out, out_bytes, name, is_source) : n;
    const char *near = hd_nearest(name, names, count);
    near = near != NULL ? near : within(name);
    near = near != NULL ? near : shares_most(name);
    if (n == 0 && near != NULL) {
        n = (size_t)snprintf(out, out_bytes, "did you mean %s", near);
    }
    if (n > 0 && n < out_bytes) {
        snprintf(out + n, out_bytes - n, "?");
    }
    return out;
}
