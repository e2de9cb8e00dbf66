/* JSON -> schedule. Nothing is believed: layouts are parsed against shape and mesh, the chain of edges is checked
 * against the stages, bytes and messages are computed anew and compared. */
#include "runtime/schedule/read_internal.h"

#include "runtime/base/base.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOP_SCHEMA,
    TOP_MODEL,
    TOP_SHAPE,
    TOP_MESH,
    TOP_PERIOD,
    TOP_REPEAT,
    TOP_STAGES,
    TOP_EDGES,
    TOP_SWITCHES,
    TOP_BYTES_MAX,
    TOP_BYTES_TOTAL,
    TOP_BACKWARD_MAX,
    TOP_BACKWARD_TOTAL,
    TOP_NOTE,
    TOP_MACHINE,
    TOP_OBJECTIVE,
    TOP_VALUE,
    TOP_LOWER_BOUND,
    TOP_RUNNER_UP,
    TOP_PREDICTED,
    TOP_KEYS
};
static const hd_key top_keys[TOP_KEYS] = {
    [TOP_SCHEMA] = {"schema", 1},
    [TOP_MODEL] = {"model", 1},
    [TOP_SHAPE] = {"shape", 1},
    [TOP_MESH] = {"mesh", 1},
    [TOP_PERIOD] = {"period", 1},
    [TOP_REPEAT] = {"repeat", 1},
    [TOP_STAGES] = {"stages", 1},
    [TOP_EDGES] = {"edges", 1},
    [TOP_SWITCHES] = {"switches", 1},
    [TOP_BYTES_MAX] = {"bytes_per_rank_max", 1},
    [TOP_BYTES_TOTAL] = {"bytes_total", 1},
    [TOP_BACKWARD_MAX] = {"backward_bytes_per_rank_max", 0},
    [TOP_BACKWARD_TOTAL] = {"backward_bytes_total", 0},
    [TOP_NOTE] = {"note", 0},
    [TOP_MACHINE] = {"machine", 0},
    [TOP_OBJECTIVE] = {"objective", 0},
    [TOP_VALUE] = {"value", 0},
    [TOP_LOWER_BOUND] = {"lower_bound", 0},
    [TOP_RUNNER_UP] = {"runner_up", 0},
    [TOP_PREDICTED] = {"predicted_s", 0},
};

enum {
    EDGE_FROM,
    EDGE_TO,
    EDGE_KIND,
    EDGE_BYTES_MAX,
    EDGE_RECEIVED_MAX,
    EDGE_BYTES_TOTAL,
    EDGE_MESSAGES,
    EDGE_PREDICTED,
    EDGE_KEYS
};
static const hd_key edge_keys[EDGE_KEYS] = {
    [EDGE_FROM] = {"from", 1},
    [EDGE_TO] = {"to", 1},
    [EDGE_KIND] = {"kind", 1},
    [EDGE_BYTES_MAX] = {"bytes_per_rank_max", 1},
    [EDGE_RECEIVED_MAX] = {"bytes_received_max", 0},
    [EDGE_BYTES_TOTAL] = {"bytes_total", 1},
    [EDGE_MESSAGES] = {"messages", 1},
    [EDGE_PREDICTED] = {"predicted_s", 0},
};
/* A text form inside the file: its own sentence gets the place in front. */
heddle_status hd_read_at(heddle_status st, const hd_node *node)
{
    if (st == HEDDLE_OK) {
        return st;
    }
    return hd_fail_prefix(st, "%s:%d:%d", node->document->name, node->line, node->column);
}

heddle_status hd_read_layout(int *out, heddle_schedule *s, const hd_node *node, const char *what)
{
    heddle_status st = HEDDLE_OK;
    const char *text = NULL;
    heddle_layout layout;
    HD_TRY(hd_node_text(&text, node, what));
    HD_TRY(hd_read_at(heddle_layout_parse(&layout, text, &s->shape, &s->mesh), node));
    st = hd_schedule_layout(out, s, &layout);
out:
    return st;
}
heddle_status hd_read_check(const hd_node *node, int64_t computed, const char *what)
{
    int64_t found = computed;
    heddle_status st = node == NULL ? HEDDLE_OK : hd_node_int(&found, node, 0, INT64_MAX, what);
    if (st == HEDDLE_OK && found != computed) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, node, "'%s' says %lld, but the layouts give %lld", what,
                          (long long)found, (long long)computed);
    }
    return st;
}

heddle_status hd_read_number(double *out, const hd_node *node, const char *what)
{
    heddle_status st = HEDDLE_OK;
    const char *text = NULL;
    char *end = NULL;
    if (node == NULL) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_node_text(&text, node, what));
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || strpbrk(text, "xXnN") != NULL || !(value >= 0 && value <= DBL_MAX)) {
        char quoted[HD_NODE_QUOTE_BYTES];
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be a number of at least 0, found '%s'", what,
                            hd_quote(quoted, sizeof quoted, text));
    }
    *out = value;
out:
    return st;
}

/* What the planner said is kept, not computed anew: neither machine nor model is here. */
static heddle_status read_plan(heddle_schedule *s, const hd_node *const *value)
{
    heddle_status st = HEDDLE_OK;
    char label[HD_NODE_LABEL_BYTES];
    const char *machine = NULL; /* "2x8xh100-nvlink+ib400", or a file's name */
    if (value[TOP_OBJECTIVE] != NULL) {
        HD_TRY(hd_node_label(label, value[TOP_OBJECTIVE], "objective"));
        HD_TRY(hd_strdup(&s->objective, label));
    }
    if (value[TOP_MACHINE] != NULL) {
        HD_TRY(hd_node_text(&machine, value[TOP_MACHINE], "machine"));
        HD_TRY(hd_strdup(&s->machine, machine));
    }
    HD_TRY(hd_read_number(&s->value, value[TOP_VALUE], "value"));
    HD_TRY(hd_read_number(&s->lower_bound, value[TOP_LOWER_BOUND], "lower_bound"));
    HD_TRY(hd_read_number(&s->runner_up, value[TOP_RUNNER_UP], "runner_up"));
    HD_TRY(hd_read_number(&s->predicted_s, value[TOP_PREDICTED], "predicted_s"));
out:
    return st;
}

/* An edge leads from the stage before to the stage behind it; the two ends are the schedule's own. */
static heddle_status read_edge(heddle_schedule *s, const hd_node *node, int index)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[EDGE_KEYS];
    int nstages = s->period * s->repeat;
    int from = 0;
    int to = 0;
    int kind = 0;
    HD_TRY(hd_map_read(value, node, edge_keys, EDGE_KEYS, "an edge"));
    HD_TRY(hd_read_layout(&from, s, value[EDGE_FROM], "from"));
    HD_TRY(hd_read_layout(&to, s, value[EDGE_TO], "to"));
    if (index > 0 && from != s->run[index - 1].layout) {
        st =
            hd_node_fail(HEDDLE_ERR_MISMATCH, value[EDGE_FROM], "edge %d starts in '%s', not in the layout of stage %d",
                         index, value[EDGE_FROM]->text, index - 1);
        goto out;
    }
    if (index < nstages && to != s->run[index].layout) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, value[EDGE_TO], "edge %d ends in '%s', not in the layout of stage %d",
                          index, value[EDGE_TO]->text, index);
        goto out;
    }
    HD_TRY(hd_node_choice(&kind, value[EDGE_KIND], hd_edge_kind_names, HD_EDGE_GENERAL + 1, "kind"));
    int is_free = kind == HD_EDGE_FREE;
    if (is_free && (from != to || (index > 0 && index < nstages))) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, value[EDGE_KIND],
                          "only the first and the last edge may be free, and they keep the layout");
        goto out;
    }
    HD_TRY(hd_schedule_set_edge(s, index, from, to, is_free));
    if (kind != (int)s->edge[index].kind) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, value[EDGE_KIND], "'kind' says %s, but the layouts give %s",
                          hd_edge_kind_names[kind], hd_edge_kind_names[s->edge[index].kind]);
        goto out;
    }
    HD_TRY(hd_read_check(value[EDGE_BYTES_MAX], s->edge[index].cost.bytes_per_rank_max, "bytes_per_rank_max"));
    HD_TRY(hd_read_check(value[EDGE_RECEIVED_MAX], s->edge[index].cost.bytes_received_max, "bytes_received_max"));
    HD_TRY(hd_read_check(value[EDGE_BYTES_TOTAL], s->edge[index].cost.bytes_total, "bytes_total"));
    HD_TRY(hd_read_check(value[EDGE_MESSAGES], s->edge[index].cost.messages, "messages"));
    s->edge[index].predicted_s = 0;
    HD_TRY(hd_read_number(&s->edge[index].predicted_s, value[EDGE_PREDICTED], "predicted_s"));
out:
    return st;
}

/* Shape, mesh and counts: an empty schedule of the right size. */
static heddle_status read_frame(heddle_schedule **out, const hd_node *const *value)
{
    heddle_status st = HEDDLE_OK;
    char quoted[HD_NODE_QUOTE_BYTES];
    const char *text = NULL;
    char model[HD_NODE_LABEL_BYTES];
    int64_t period = 0;
    int64_t repeat = 0;
    heddle_shape shape;
    heddle_mesh mesh;
    HD_TRY(hd_node_text(&text, value[TOP_SCHEMA], "schema"));
    if (strcmp(text, HD_SCHEDULE_SCHEMA) != 0) {
        st = hd_node_fail(HEDDLE_ERR_PARSE, value[TOP_SCHEMA], "'schema' is '%s'; this version reads %s",
                          hd_quote(quoted, sizeof quoted, text), HD_SCHEDULE_SCHEMA);
        goto out;
    }
    HD_TRY(hd_node_label(model, value[TOP_MODEL], "model"));
    HD_TRY(hd_node_text(&text, value[TOP_SHAPE], "shape"));
    HD_TRY(hd_read_at(heddle_shape_parse(&shape, text), value[TOP_SHAPE]));
    HD_TRY(hd_node_text(&text, value[TOP_MESH], "mesh"));
    HD_TRY(hd_read_at(heddle_mesh_parse(&mesh, text), value[TOP_MESH]));
    HD_TRY(hd_node_int(&period, value[TOP_PERIOD], 1, STAGES_MAX, "period"));
    HD_TRY(hd_node_int(&repeat, value[TOP_REPEAT], 1, STAGES_MAX / period, "repeat"));
    int nstages = (int)(period * repeat);
    HD_TRY(hd_node_list(value[TOP_STAGES], nstages, nstages, "stages"));
    HD_TRY(hd_node_list(value[TOP_EDGES], nstages + 1, nstages + 1, "edges"));
    HD_TRY(hd_schedule_new(out, model, (int)period, (int)repeat));
    (*out)->shape = shape;
    (*out)->mesh = mesh;
out:
    return st;
}

static const hd_node *find_child(const hd_node *node, const char *key)
{
    const hd_node *child = node->kind == HD_NODE_MAP ? node->child : NULL;
    while (child != NULL && strcmp(child->key, key) != 0) {
        child = child->next;
    }
    return child;
}

/* What heddle plan --json prints has the schedule in it. */
static heddle_status find_schedule(const hd_node **root)
{
    const hd_node *schema = find_child(*root, "schema");
    if (schema == NULL || schema->kind != HD_NODE_SCALAR || strcmp(schema->text, HD_PLAN_SCHEMA) != 0) {
        return HEDDLE_OK;
    }
    const hd_node *schedule = find_child(*root, "schedule");
    if (schedule == NULL) {
        return hd_node_fail(HEDDLE_ERR_PARSE, *root, "a report of " HD_PLAN_SCHEMA " has no 'schedule'");
    }
    *root = schedule;
    return HEDDLE_OK;
}

static heddle_status read_schedule(void *out, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    heddle_schedule *s = NULL;
    const hd_node *value[TOP_KEYS];
    const char *note = "";
    int index = 0;
    HD_TRY(find_schedule(&root));
    HD_TRY(hd_map_read(value, root, top_keys, TOP_KEYS, "the schedule"));
    HD_TRY(read_frame(&s, value));
    for (const hd_node *child = value[TOP_STAGES]->child; child != NULL; child = child->next) {
        HD_TRY(hd_read_stage(s, child, index++));
        HD_TRY(index == s->period ? hd_read_check_names(s, value[TOP_STAGES]) : HEDDLE_OK);
    }
    index = 0;
    for (const hd_node *child = value[TOP_EDGES]->child; child != NULL; child = child->next) {
        HD_TRY(read_edge(s, child, index++));
    }
    HD_TRY(hd_schedule_sum(s));
    HD_TRY(hd_read_check(value[TOP_SWITCHES], s->switches, "switches"));
    HD_TRY(hd_read_check(value[TOP_BYTES_MAX], s->bytes_per_rank_max, "bytes_per_rank_max"));
    HD_TRY(hd_read_check(value[TOP_BYTES_TOTAL], s->bytes_total, "bytes_total"));
    HD_TRY(hd_read_check(value[TOP_BACKWARD_MAX], s->backward_bytes_per_rank_max, "backward_bytes_per_rank_max"));
    HD_TRY(hd_read_check(value[TOP_BACKWARD_TOTAL], s->backward_bytes_total, "backward_bytes_total"));
    HD_TRY(value[TOP_NOTE] != NULL ? hd_node_text(&note, value[TOP_NOTE], "note") : HEDDLE_OK);
    HD_TRY(hd_schedule_set_note(s, note));
    HD_TRY(read_plan(s, value));
    *(heddle_schedule **)out = s;
    s = NULL;
out:
    heddle_schedule_destroy(s);
    return st;
}

heddle_status heddle_schedule_parse(heddle_schedule **out, const char *text, size_t text_bytes, const char *name)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, text, name));
    st = hd_document_read(read_schedule, out, text, text_bytes, name, HD_SCHEDULE_LIMIT_BYTES);
out:
    return st;
}

heddle_status heddle_schedule_load(heddle_schedule **out, const char *path)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, path));
    st = hd_document_load(read_schedule, out, path, HD_SCHEDULE_LIMIT_BYTES);
out:
    return st;
}
