/* Why a stage does not run otherwise: the best plan in which it does, beside the best of all. */
#include "planner/draw/draw.h"

#include <stdlib.h>
#include <string.h>

typedef struct search {
    const draw_plan *plan;
    const heddle_plan_options *options;
    draw_alternative *out;
    int count;
} search;

/* Does stage i run so in the plan that was found? "" is anything. */
static int runs_so(const heddle_schedule *found, const heddle_schedule_info *info, const char *name, const char *layout,
                   const char *method)
{
    char text[HEDDLE_LINE_BYTES];
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    return heddle_schedule_stage_at(&stage, found, heddle_schedule_find(found, name, 0)) == HEDDLE_OK &&
           heddle_layout_format(text, sizeof text, &stage.layout, &info->shape, &info->mesh) == HEDDLE_OK &&
           (layout[0] == '\0' || strcmp(layout, text) == 0) && (method[0] == '\0' || strcmp(method, stage.method) == 0);
}

/* One row: the stage in this layout by this method; "" is any. */
static void ask(search *s, const heddle_schedule_stage *stage, const char *layout, const char *method)
{
    draw_alternative *a = &s->out[s->count];
    heddle_plan_options options = *s->options;
    char force[512];
    heddle_schedule *found = NULL;
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    if (s->count == DRAW_ALTERNATIVES) {
        return;
    }
    snprintf(a->stage, sizeof a->stage, "%s", stage->name);
    snprintf(a->otherwise, sizeof a->otherwise, "%s%s%s", layout, method[0] != '\0' ? " by " : "", method);
    snprintf(a->method, sizeof a->method, "%s", method);
    snprintf(force, sizeof force, "%s=%s%s%s", stage->name, layout, method[0] != '\0' ? "/" : "", method);
    options.force = force;
    heddle_status st = heddle_plan(&found, s->plan->view.model, &s->plan->view.info.mesh, &options);
    st = st == HEDDLE_OK ? heddle_schedule_get_info(&info, found) : st;
    a->outcome[0] = '\0';
    if (st != HEDDLE_OK) {
        snprintf(a->outcome, sizeof a->outcome, "%s", heddle_last_error());
    }
    a->value = draw_value(&info);
    s->count += st != HEDDLE_OK || runs_so(found, &info, stage->name, layout, method);
    heddle_schedule_destroy(found);
}

/* Every dim over the first axis that shards one, where the rest stays as it is. */
static void ask_layouts(search *s, const heddle_schedule_stage *stage)
{
    const heddle_schedule_info *info = &s->plan->view.info;
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    char text[HEDDLE_LINE_BYTES];
    if (heddle_model_get_info(&model, s->plan->view.model) != HEDDLE_OK) {
        return;
    }
    for (int a = 0; a < info->mesh.naxes; a++) {
        for (int d = HEDDLE_REPLICATED; d < info->shape.ndim; d++) {
            heddle_layout layout = stage->layout;
            if (info->mesh.axis[a].size < 2 || d == model.channel_dim || d == layout.dim_of_axis[a]) {
                continue;
            }
            layout.dim_of_axis[a] = d;
            if (heddle_layout_format(text, sizeof text, &layout, &info->shape, &info->mesh) == HEDDLE_OK &&
                strlen(text) < 100) {
                ask(s, stage, text, "");
            }
        }
    }
}

static void ask_methods(search *s, const heddle_schedule_stage *stage)
{
#define METHOD_NAME(name, text) text,
    static const char *const softmax[] = {HEDDLE_ATTENTION_METHOD_LIST(METHOD_NAME) NULL};
    static const char *const linear[] = {HEDDLE_LINEAR_METHOD_LIST(METHOD_NAME) NULL};
    if (stage->mixed_dim < 0 || (stage->kind != HEDDLE_STAGE_ATTENTION && stage->kind != HEDDLE_STAGE_LINEAR)) {
        return;
    }
    for (const char *const *m = stage->kind == HEDDLE_STAGE_LINEAR ? linear : softmax; *m != NULL; m++) {
        if (strcmp(*m, stage->method) != 0) {
            ask(s, stage, "", *m);
        }
    }
}

heddle_status draw_alternatives(draw_alternative **out, int *count, const draw_plan *plan,
                                const heddle_plan_options *options)
{
    search s = {.plan = plan, .options = options, .out = calloc(DRAW_ALTERNATIVES, sizeof **out)};
    if (s.out == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %d alternatives", DRAW_ALTERNATIVES);
    }
    /* Those that mix a dim: token-wise ones go along. */
    for (int i = 0; i < plan->view.info.period; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        if (heddle_schedule_stage_at(&stage, plan->view.schedule, i) == HEDDLE_OK && stage.mixed_dim >= 0) {
            ask_layouts(&s, &stage);
            ask_methods(&s, &stage);
        }
    }
    *out = s.out;
    *count = s.count;
    return HEDDLE_OK;
}
