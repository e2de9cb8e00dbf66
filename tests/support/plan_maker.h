/* Models in one line, and what schedules say of themselves. */
#ifndef PLAN_MAKER_H
#define PLAN_MAKER_H

#include "case.h"

#include <heddle/planner.h>
#include <stdio.h>

enum { TEXT_BYTES = 8192 };

/* A model with a stage per letter of `order`: attention over a lower-case dim, linear attention over an upper-case one,
 * '-' an MLP. */
static inline heddle_model *make_model(const char *dtype, const char *dims, const char *tensor, const char *order,
                                       int repeat, int heads, const char *linear)
{
    char text[TEXT_BYTES];
    heddle_model *model = NULL;
    int n = snprintf(text, sizeof text, "model: m\ndtype: %s\ndims: {%s}\ntensors: {x: [%s]}\nrepeat: %d\nstages:\n",
                     dtype, dims, tensor, repeat);
    for (int i = 0; order[i] != '\0'; i++) {
        if (order[i] == '-') {
            n += snprintf(text + n, sizeof text - (size_t)n, "  - {name: m%d, kind: mlp, ratio: 4}\n", i);
        } else if (order[i] < 'a') {
            n += snprintf(text + n, sizeof text - (size_t)n,
                          "  - {name: l%d, kind: linear-attention, over: %c, heads: %d%s}\n", i, order[i] + 32, heads,
                          linear);
        } else {
            n += snprintf(text + n, sizeof text - (size_t)n, "  - {name: a%d, kind: attention, over: %c, heads: %d}\n",
                          i, order[i], heads);
        }
    }
    HD_OK(heddle_model_parse(&model, text, (size_t)n, "test"));
    return model;
}

/* The same in bf16, with one head. */
static inline heddle_model *attention_model(const char *dims, const char *tensor, const char *order, int repeat)
{
    return make_model("bf16", dims, tensor, order, repeat, 1, "");
}

static inline heddle_schedule_stage stage_at(const heddle_schedule *schedule, int stage)
{
    heddle_schedule_stage s = HEDDLE_EMPTY(heddle_schedule_stage);
    HD_OK(heddle_schedule_stage_at(&s, schedule, stage));
    return s;
}

static inline heddle_schedule_info info_of(const heddle_schedule *schedule)
{
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    HD_OK(heddle_schedule_get_info(&info, schedule));
    return info;
}

/* Every layout of a shape by whole axes, its last dim whole: returns how many. elems: of its largest part. */
static inline int all_layouts(heddle_layout *layout, int64_t *elems, const heddle_shape *shape, const heddle_mesh *mesh)
{
    int choices = shape->ndim; /* every dim but the channels, and replicated */
    int count = 1;
    for (int a = 0; a < mesh->naxes; a++) {
        count *= choices;
    }
    for (int i = 0; i < count; i++) {
        layout[i] = heddle_layout_replicated();
        for (int a = 0, rest = i; a < mesh->naxes; a++, rest /= choices) {
            layout[i].dim_of_axis[a] = rest % choices == 0 ? HEDDLE_REPLICATED : rest % choices - 1;
        }
        elems[i] = 0;
        for (int rank = 0; rank < heddle_mesh_size(mesh); rank++) {
            heddle_box box;
            HD_OK(heddle_layout_box(&box, shape, mesh, &layout[i], rank));
            elems[i] = heddle_box_elems(&box) > elems[i] ? heddle_box_elems(&box) : elems[i];
        }
    }
    return count;
}

/* Every stage by whole dims. */
static inline heddle_schedule *plan_local(const heddle_model *model, const char *mesh_text, const char *prologue,
                                          const char *epilogue)
{
    heddle_schedule *schedule = NULL;
    heddle_plan_options options;
    heddle_mesh mesh;
    heddle_plan_options_init(&options);
    options.prologue = prologue;
    options.epilogue = epilogue;
    options.methods = "*=local";
    HD_OK(heddle_mesh_parse(&mesh, mesh_text));
    HD_OK(heddle_plan(&schedule, model, &mesh, &options));
    return schedule;
}

static inline heddle_schedule_edge edge_at(const heddle_schedule *schedule, int edge)
{
    heddle_schedule_edge e = HEDDLE_EMPTY(heddle_schedule_edge);
    HD_OK(heddle_schedule_edge_at(&e, schedule, edge));
    return e;
}

#endif
