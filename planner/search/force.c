/* "STAGE=LAYOUT/METHOD;STAGE#3=...": what the caller wants to be so, whatever it costs. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static heddle_status refuse_form(const char *entry)
{
    return hd_fail(HEDDLE_ERR_ARG,
                   "a force must look like s.attn=t@sp/local, s.attn=/ring or s.attn#3=t@sp, found '%.80s'", entry);
}

/* "STAGE" or "STAGE#3": repetitions count from 1, as tables have them. */
static heddle_status read_stage(hd_force *f, const hd_search *s, char *name, const char *entry)
{
    char *number = strchr(name, '#');
    char *end = NULL;
    f->repetition = -1;
    if (number != NULL) {
        long value = strtol(number + 1, &end, 10);
        if (end == number + 1 || *end != '\0' || value < 1) {
            return refuse_form(entry);
        }
        if (value > s->m->repeat) {
            return hd_fail(HEDDLE_ERR_ARG, "'%.80s': model '%s' has repetitions 1 to %d", entry, s->m->name,
                           s->m->repeat);
        }
        f->repetition = (int)value - 1;
        *number = '\0';
    }
    for (f->stage = 0; f->stage < s->m->nstages; f->stage++) {
        if (strcmp(s->m->stage[f->stage].name, name) == 0) {
            return HEDDLE_OK;
        }
    }
    return hd_fail(HEDDLE_ERR_ARG, "'%.80s': model '%s' has no stage '%s'; the first is '%s'", entry, s->m->name, name,
                   s->m->stage[0].name);
}

static heddle_status read_method(hd_force *f, const hd_search *s, const char *name)
{
    const hd_method_stage *mixes = &s->mixes[f->stage];
    f->any_method = strcmp(name, "auto") == 0;
    f->method = f->any_method ? NULL : hd_method_find_of(mixes, name);
    if (f->method == NULL && !f->any_method) {
        char names[256] = "auto";
        const hd_method *method = NULL;
        for (int i = 0; (method = hd_method_of(mixes, i)) != NULL; i++) {
            hd_add_text(names, sizeof names, ", ");
            hd_add_text(names, sizeof names, method->name);
        }
        return hd_fail(HEDDLE_ERR_ARG, "'%.80s': stage '%s' of kind %s has no method '%s'; there are %s", f->text,
                       s->m->stage[f->stage].name, hd_stage_kind_names[mixes->kind], name, names);
    }
    return HEDDLE_OK;
}

static heddle_status read_layout(hd_force *f, hd_search *s, const char *text)
{
    int known = s->nlayouts;
    heddle_status st = hd_search_end(&f->state, s, "a forced layout", text);
    if (st == HEDDLE_OK && f->state >= s->nstates) {
        s->nlayouts = known;
        st =
            hd_fail(HEDDLE_ERR_INFEASIBLE,
                    "stage '%s' cannot run as '%s': stages run in balanced layouts of batch and sequence dims, without "
                    "explicit lengths and partial sums",
                    s->m->stage[f->stage].name, f->text);
    }
    return st;
}

static heddle_status read_entry(hd_search *s, char *entry)
{
    heddle_status st = HEDDLE_OK;
    hd_force f = {.state = -1};
    char *equals = strchr(entry, '=');
    snprintf(f.text, sizeof f.text, "%s", entry);
    if (equals == NULL || equals == entry || equals[1] == '\0' || strlen(entry) >= sizeof f.text) {
        return refuse_form(f.text);
    }
    *equals = '\0';
    HD_TRY(read_stage(&f, s, entry, f.text));
    char *slash = strchr(equals + 1, '/');
    if (slash != NULL) {
        *slash = '\0';
        HD_TRY(read_method(&f, s, slash + 1));
    }
    if (equals[1] != '\0') {
        HD_TRY(read_layout(&f, s, equals + 1));
    }
    HD_TRY(hd_grow((void **)&s->force, &s->forces_capacity, s->nforces, sizeof *s->force, "forced stages"));
    s->force[s->nforces++] = f;
out:
    return st;
}

heddle_status hd_search_force(hd_search *s, const char *text)
{
    heddle_status st = HEDDLE_OK;
    char *copy = NULL;
    char *rest = NULL;
    if (text == NULL || text[0] == '\0') {
        return HEDDLE_OK;
    }
    HD_TRY(hd_strdup(&copy, text));
    for (char *entry = strtok_r(copy, ";", &rest); entry != NULL; entry = strtok_r(NULL, ";", &rest)) {
        HD_TRY(read_entry(s, entry));
    }
out:
    hd_free(copy);
    return st;
}

/* The later entry wins, one for a repetition over one for all. */
int hd_search_forced(const hd_search *s, int step)
{
    int found = -1;
    for (int i = 0; i < s->nforces; i++) {
        const hd_force *f = &s->force[i];
        if (f->stage == step % s->m->nstages && (f->repetition < 0 || f->repetition == step / s->m->nstages) &&
            (found < 0 || f->repetition >= 0 || s->force[found].repetition < 0)) {
            found = i;
        }
    }
    return found;
}

int hd_search_repeats(const hd_search *s)
{
    for (int i = 0; i < s->nforces; i++) {
        if (s->force[i].repetition >= 0) {
            return 0;
        }
    }
    return 1;
}
