/* "STAGE=METHOD,...": which methods the caller wants. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>

typedef struct request {
    char stage[HD_NODE_LABEL_BYTES], method[HD_NODE_LABEL_BYTES];
} request;

/* One entry of `text`, which ends at *end. */
static heddle_status read_request(request *out, const char *text, const char **end)
{
    size_t stage = strcspn(text, "=,");
    size_t method = text[stage] == '=' ? strcspn(text + stage + 1, "=,") : 0;
    if (stage == 0 || stage >= sizeof out->stage || method == 0 || method >= sizeof out->method ||
        text[stage + 1 + method] == '=') {
        return hd_fail(HEDDLE_ERR_ARG,
                       "methods must look like s.attn=ring,t.attn=local, or *=ring for every stage, found '%.60s'",
                       text);
    }
    memcpy(out->stage, text, stage);
    out->stage[stage] = '\0';
    memcpy(out->method, text + stage + 1, method);
    out->method[method] = '\0';
    *end = text + stage + 1 + method;
    if (**end == ',' && *++*end == '\0') {
        return hd_fail(HEDDLE_ERR_ARG, "methods end with a comma: '%.60s'", text);
    }
    return HEDDLE_OK;
}

static void list_methods(char *out, size_t out_bytes, const hd_method_stage *stage)
{
    const hd_method *method = NULL;
    size_t n = (size_t)snprintf(out, out_bytes, "auto");
    for (int i = 0; (method = hd_method_of(stage, i)) != NULL && n < out_bytes; i++) {
        n += (size_t)snprintf(out + n, out_bytes - n, ", %s", method->name);
    }
}

static void list_stages(char *out, size_t out_bytes, const heddle_model *m)
{
    size_t n = 0;
    out[0] = '\0';
    for (int k = 0; k < m->nstages && n < out_bytes; k++) {
        if (m->stage[k].mixed_dim >= 0) {
            n += (size_t)snprintf(out + n, out_bytes - n, "%s%s", n > 0 ? ", " : "", m->stage[k].name);
        }
    }
}

static heddle_status refuse(const hd_search *s, const request *r, int stage, int takers)
{
    char names[512];
    if (stage >= 0 && s->mixes[stage].dim < 0) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "stage '%s' is of kind %s, which has no method; attention and linear-attention have", r->stage,
                       hd_stage_kind_names[s->mixes[stage].kind]);
    }
    if (stage >= 0) {
        list_methods(names, sizeof names, &s->mixes[stage]);
        return hd_fail(HEDDLE_ERR_ARG, "stage '%s' of kind %s has no method '%s'; there are %s", r->stage,
                       hd_stage_kind_names[s->mixes[stage].kind], r->method, names);
    }
    if (takers == 0 && strcmp(r->stage, "*") == 0) {
        return hd_fail(HEDDLE_ERR_ARG, "no stage of model '%s' has a method '%s'", s->m->name, r->method);
    }
    list_stages(names, sizeof names, s->m);
    return hd_fail(HEDDLE_ERR_ARG, "model '%s' has no stage '%s'; those with a method are %s", s->m->name, r->stage,
                   names[0] != '\0' ? names : "none");
}

static heddle_status take_request(hd_search *s, const request *r)
{
    int takers = 0;
    int is_auto = strcmp(r->method, "auto") == 0;
    int is_any = strcmp(r->stage, "*") == 0;
    for (int k = 0; k < s->m->nstages; k++) {
        if (!is_any && strcmp(s->m->stage[k].name, r->stage) != 0) {
            continue;
        }
        const hd_method *method = hd_method_find_of(&s->mixes[k], r->method);
        if (s->mixes[k].dim >= 0 && (is_auto || method != NULL)) {
            s->wanted[k] = is_auto ? NULL : method;
            takers++;
        } else if (!is_any) {
            return refuse(s, r, k, 0);
        }
    }
    int is_vacuous = is_any && (is_auto || strcmp(r->method, hd_method_local.name) == 0);
    return takers > 0 || is_vacuous ? HEDDLE_OK : refuse(s, r, -1, takers);
}

heddle_status hd_search_methods(hd_search *s, const char *methods)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    HD_TRY(hd_alloc(&memory, (size_t)s->m->nstages, sizeof *s->mixes, "stages"));
    s->mixes = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->m->nstages, sizeof *s->wanted, "stages"));
    s->wanted = memory;
    for (int k = 0; k < s->m->nstages; k++) {
        s->mixes[k] = hd_model_stage_mixes(&s->m->stage[k]);
    }
    methods = methods != NULL ? methods : s->pricer.machine != NULL ? "" : "*=local";
    while (*methods != '\0') {
        request r;
        HD_TRY(read_request(&r, methods, &methods));
        HD_TRY(take_request(s, &r));
    }
    for (int k = 0; k < s->m->nstages && heddle_mesh_size(&s->mesh) == 1; k++) {
        s->wanted[k] = NULL; /* nothing can be sharded, all of them are local */
    }
out:
    return st;
}
