/* What a stage admits: the methods that were asked for, the layouts in which they run, and the division of work. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>

enum { LOCAL_PERCENT = 150 };

/* --- "STAGE=METHOD,..." ------------------------------------------------------------------------------------------- */

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
        return hd_fail(HEDDLE_ERR_ARG, "methods must look like s.attn=ring,t.attn=local, found '%.60s'", text);
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

static void list_methods(char *out, size_t out_bytes, heddle_stage_kind kind)
{
    const hd_method *method = NULL;
    size_t n = (size_t)snprintf(out, out_bytes, "auto");
    for (int i = 0; (method = hd_method_at(kind, i)) != NULL && n < out_bytes; i++) {
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
        list_methods(names, sizeof names, s->mixes[stage].kind);
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
        const hd_method *method = hd_method_find(s->mixes[k].kind, r->method);
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
        const hd_model_stage *stage = &s->m->stage[k];
        int is_linear = stage->kind == HEDDLE_STAGE_LINEAR;
        s->mixes[k] = (hd_method_stage){.kind = stage->kind,
                                        .dim = stage->mixed_dim,
                                        .heads = stage->mixed_dim >= 0 ? stage->heads : 0,
                                        .causal = is_linear && stage->causal,
                                        .decays = is_linear && stage->decay != 1};
    }
    methods = methods != NULL ? methods : "*=local";
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

/* --- layouts ------------------------------------------------------------------------------------------------------ */

static int is_cheaper(const hd_search_node *a, const hd_search_node *b)
{
    return a->bytes_per_rank_max != b->bytes_per_rank_max ? a->bytes_per_rank_max < b->bytes_per_rank_max
                                                          : a->bytes_total < b->bytes_total;
}

/* The cheapest method of stage k in the group's layout; reason: why there is none. */
static void choose_method(hd_search_node *out, char *reason, const hd_search *s, int k, const hd_method_group *group)
{
    const hd_method *method = NULL;
    const hd_method *wanted = s->wanted[k];
    out->method = NULL;
    for (int i = 0; (method = hd_method_at(s->mixes[k].kind, i)) != NULL; i++) {
        char buffer[HD_METHOD_REASON_BYTES];
        hd_method_cost cost;
        if (wanted != NULL ? wanted != method : method->only_named) {
            continue;
        }
        const char *why_not = hd_method_why_not(buffer, method, group);
        if (why_not != NULL) {
            if (group->naxes > 0 || reason[0] == '\0') {
                snprintf(reason, HD_METHOD_REASON_BYTES, "%s", why_not);
            }
            continue;
        }
        if (wanted == NULL && hd_method_head_waste_percent(method, group) > s->slack_percent) {
            continue;
        }
        hd_method_price(&cost, method, group);
        hd_search_node node = {method, cost.forward.bytes_per_rank_max, cost.forward.bytes_total};
        if (s->backward) {
            node.bytes_per_rank_max = hd_add_saturated(node.bytes_per_rank_max, cost.backward.bytes_per_rank_max);
            node.bytes_total = hd_add_saturated(node.bytes_total, cost.backward.bytes_total);
        }
        if (out->method == NULL || is_cheaper(&node, out)) {
            *out = node;
        }
    }
}

/* What the ranks together hold more than the tensor, when each works as long as the busiest one. */
static double waste_percent(const hd_search *s, int64_t elems)
{
    double total = 1.0;
    for (int d = 0; d < s->m->shape.ndim; d++) {
        total *= (double)s->m->shape.dim[d].extent;
    }
    return total > 0 ? ((double)elems * heddle_mesh_size(&s->mesh) / total - 1.0) * 100.0 : 0.0;
}

static heddle_status refuse_stage(const hd_search *s, int k, int64_t best, const char *reason)
{
    char shape[HEDDLE_LINE_BYTES];
    char mesh[256];
    heddle_ignore(heddle_shape_format(shape, sizeof shape, &s->m->shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &s->mesh));
    if (best == INT64_MAX) {
        return hd_fail(HEDDLE_ERR_INFEASIBLE, "stage '%s': no layout of %s on %s lets it run by method %s: %s",
                       s->m->stage[k].name, shape, mesh, s->wanted[k] != NULL ? s->wanted[k]->name : "auto", reason);
    }
    return hd_fail(HEDDLE_ERR_INFEASIBLE,
                   "stage '%s': the most even layout of %s on %s leaves the ranks %.1f%% more work than an even "
                   "split; at most %d%% is allowed",
                   s->m->stage[k].name, shape, mesh, waste_percent(s, best), s->max_waste_percent);
}

static int wastes_too_much(const hd_search *s, int64_t elems)
{
    return s->max_waste_percent > 0 && waste_percent(s, elems) > s->max_waste_percent + 1e-9;
}

/* Layouts too uneven go: by the slack, and by the limit on waste. Those with the whole dim are measured against one
 * another: local results are those of one rank bit for bit, so a method must be worth it. Where even the best of them
 * leaves half as much work again as a sharded dim would, or more waste than is allowed, they go too. */
static void divide_work(hd_search *s, hd_search_node *node, int64_t best_local, int64_t best)
{
    int drop_local = (__int128)best_local * 100 >= (__int128)best * LOCAL_PERCENT || wastes_too_much(s, best_local);
    for (int i = 0; i < s->nstates; i++) {
        int is_local = node[i].method == &hd_method_local;
        int64_t measure = is_local && (best_local == best || !drop_local) ? best_local : best;
        if ((double)s->elems[i] * 100.0 > (double)measure * (100.0 + s->slack_percent) ||
            wastes_too_much(s, s->elems[i])) {
            node[i].method = NULL;
        }
    }
}

static heddle_status admit_stage(hd_search *s, int k)
{
    hd_search_node *node = s->node + (size_t)k * (size_t)s->nstates;
    char reason[HD_METHOD_REASON_BYTES] = "";
    int64_t best_local = INT64_MAX;
    int64_t best = INT64_MAX;
    for (int i = 0; i < s->nstates; i++) {
        hd_method_group group;
        heddle_status st = hd_method_group_make(&group, &s->m->shape, &s->mesh, &s->layout[i], &s->mixes[k]);
        if (st != HEDDLE_OK) {
            return st;
        }
        choose_method(&node[i], reason, s, k, &group);
        hd_method_group_free(&group);
        best = node[i].method != NULL && s->elems[i] < best ? s->elems[i] : best;
        best_local = node[i].method == &hd_method_local && s->elems[i] < best_local ? s->elems[i] : best_local;
    }
    if (best == INT64_MAX || wastes_too_much(s, best)) {
        return refuse_stage(s, k, best, reason);
    }
    divide_work(s, node, best_local, best);
    return HEDDLE_OK;
}

/* An earlier stage with the same answers, or -1. */
static int twin_of(const hd_search *s, int k)
{
    for (int i = 0; i < k; i++) {
        if (memcmp(&s->mixes[i], &s->mixes[k], sizeof s->mixes[k]) == 0 && s->wanted[i] == s->wanted[k]) {
            return i;
        }
    }
    return -1;
}

heddle_status hd_search_admit(hd_search *s)
{
    for (int k = 0; k < s->m->nstages; k++) {
        int twin = twin_of(s, k);
        size_t row = (size_t)s->nstates;
        if (twin >= 0) {
            memcpy(s->node + (size_t)k * row, s->node + (size_t)twin * row, row * sizeof *s->node);
            continue;
        }
        heddle_status st = admit_stage(s, k);
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}
