/* JSON -> schedule. Nothing is believed: layouts are parsed against shape and mesh, the chain of edges is checked
 * against the stages, bytes and messages are computed anew and compared. */
#include "planner/model/model_read.h"
#include "planner/search/schedule_internal.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES_MAX = 1 << 16, HEADS_MAX = 1 << 30 };

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
};

enum {
    STAGE_NAME,
    STAGE_REPETITION,
    STAGE_KIND,
    STAGE_OVER,
    STAGE_METHOD,
    STAGE_LAYOUT,
    STAGE_HEADS,
    STAGE_CAUSAL,
    STAGE_DECAYS,
    STAGE_FORWARD_MAX,
    STAGE_FORWARD_TOTAL,
    STAGE_FORWARD_MESSAGES,
    STAGE_BACKWARD_MAX,
    STAGE_BACKWARD_TOTAL,
    STAGE_BACKWARD_MESSAGES,
    STAGE_KEYS
};
static const hd_key stage_keys[STAGE_KEYS] = {
    [STAGE_NAME] = {"name", 1},
    [STAGE_REPETITION] = {"repetition", 1},
    [STAGE_KIND] = {"kind", 1},
    [STAGE_OVER] = {"over", 1},
    [STAGE_METHOD] = {"method", 1},
    [STAGE_LAYOUT] = {"layout", 1},
    [STAGE_HEADS] = {"heads", 0},
    [STAGE_CAUSAL] = {"causal", 0},
    [STAGE_DECAYS] = {"decays", 0},
    [STAGE_FORWARD_MAX] = {"forward_bytes_per_rank_max", 0},
    [STAGE_FORWARD_TOTAL] = {"forward_bytes_total", 0},
    [STAGE_FORWARD_MESSAGES] = {"forward_messages", 0},
    [STAGE_BACKWARD_MAX] = {"backward_bytes_per_rank_max", 0},
    [STAGE_BACKWARD_TOTAL] = {"backward_bytes_total", 0},
    [STAGE_BACKWARD_MESSAGES] = {"backward_messages", 0},
};
static const char *const stage_kinds[] = {[HEDDLE_STAGE_ATTENTION] = "attention",
                                          [HEDDLE_STAGE_CROSS] = "cross",
                                          [HEDDLE_STAGE_MLP] = "mlp",
                                          [HEDDLE_STAGE_LINEAR] = "linear-attention"};

enum { EDGE_FROM, EDGE_TO, EDGE_KIND, EDGE_BYTES_MAX, EDGE_RECEIVED_MAX, EDGE_BYTES_TOTAL, EDGE_MESSAGES, EDGE_KEYS };
static const hd_key edge_keys[EDGE_KEYS] = {
    [EDGE_FROM] = {"from", 1},
    [EDGE_TO] = {"to", 1},
    [EDGE_KIND] = {"kind", 1},
    [EDGE_BYTES_MAX] = {"bytes_per_rank_max", 1},
    [EDGE_RECEIVED_MAX] = {"bytes_received_max", 0},
    [EDGE_BYTES_TOTAL] = {"bytes_total", 1},
    [EDGE_MESSAGES] = {"messages", 1},
};
static const char *const edge_kinds[] = {"keep", "split", "switch", "gather", "free", "general"};

/* A text form inside the file: its own sentence gets the place in front. */
static heddle_status at_node(heddle_status st, const hd_node *node)
{
    if (st == HEDDLE_OK) {
        return st;
    }
    return hd_fail_prefix(st, "%s:%d:%d", node->document->name, node->line, node->column);
}

static heddle_status read_layout(int *out, heddle_schedule *s, const hd_node *node, const char *what)
{
    heddle_status st = HEDDLE_OK;
    const char *text = NULL;
    heddle_layout layout;
    HD_TRY(hd_node_text(&text, node, what));
    HD_TRY(at_node(heddle_layout_parse(&layout, text, &s->shape, &s->mesh), node));
    st = hd_schedule_layout(out, s, &layout);
out:
    return st;
}

static heddle_status read_over(int *out, const heddle_schedule *s, const hd_node *node)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    const char *text = NULL;
    heddle_status st = hd_node_text(&text, node, "over");
    if (st != HEDDLE_OK) {
        return st;
    }
    *out = -1;
    if (!node->quoted && (strcmp(text, "null") == 0)) {
        return HEDDLE_OK;
    }
    *out = heddle_dim_index(&s->shape, text);
    if (*out < 0) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'over' names no dim of the shape: '%s'",
                            hd_quote(quoted, sizeof quoted, text));
    }
    return HEDDLE_OK;
}

static heddle_status compare(const hd_node *node, int64_t computed, const char *what)
{
    int64_t found = computed;
    heddle_status st = node == NULL ? HEDDLE_OK : hd_node_int(&found, node, 0, INT64_MAX, what);
    if (st == HEDDLE_OK && found != computed) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, node, "'%s' says %lld, but the layouts give %lld", what,
                          (long long)found, (long long)computed);
    }
    return st;
}

/* The stage of the first repetition defines name, kind and dim; the others must agree with it. Heads and the like are
 * known from the first repetition that has them. */
static heddle_status take_stage(heddle_schedule *s, const hd_node *const *value, int index,
                                const hd_schedule_stage *new)
{
    hd_schedule_stage *known = &s->stage[index % s->period];
    hd_method_stage *mixes = &known->mixes;
    if (index >= s->period) {
        if (strcmp(known->name, new->name) != 0 || mixes->kind != new->mixes.kind || mixes->dim != new->mixes.dim ||
            (mixes->heads > 0 && new->mixes.heads > 0 &&
             (mixes->heads != new->mixes.heads || mixes->causal != new->mixes.causal ||
              mixes->decays != new->mixes.decays))) {
            return hd_node_fail(HEDDLE_ERR_MISMATCH, value[STAGE_NAME],
                                "stage %d is '%s' where the first repetition has '%s', or differs in kind, over or "
                                "heads",
                                index, new->name, known->name);
        }
        if (new->mixes.heads > 0) {
            *mixes = new->mixes;
        }
        return HEDDLE_OK;
    }
    *known = *new;
    return HEDDLE_OK;
}

static int by_name(const void *a, const void *b)
{
    const hd_schedule_stage *x = *(hd_schedule_stage *const *)a, *y = *(hd_schedule_stage *const *)b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x > y) - (x < y);
}

/* Every stage of a repetition has a name of its own. Sorted, since a file may have 65536 of them. */
static heddle_status check_names(const heddle_schedule *s, const hd_node *stages)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    HD_TRY(hd_alloc(&memory, (size_t)s->period, sizeof(hd_schedule_stage *), "names of stages"));
    hd_schedule_stage **order = memory;
    for (int i = 0; i < s->period; i++) {
        order[i] = &s->stage[i];
    }
    qsort(order, (size_t)s->period, sizeof *order, by_name);
    for (int i = 1; i < s->period; i++) {
        if (strcmp(order[i - 1]->name, order[i]->name) == 0) {
            const hd_node *node = stages->child;
            for (int k = (int)(order[i] - s->stage); k > 0; k--) {
                node = node->next;
            }
            st = hd_node_fail(HEDDLE_ERR_PARSE, node, "stage name '%s' is taken by stage %d", order[i]->name,
                              (int)(order[i - 1] - s->stage));
            goto out;
        }
    }
out:
    hd_free(memory);
    return st;
}

static heddle_status read_method(const hd_method **out, heddle_stage_kind kind, const hd_node *node)
{
    const char *names[HD_METHODS_MAX];
    const hd_method *method = NULL;
    int count = 0;
    int choice = 0;
    while ((method = hd_method_at(kind, count)) != NULL) {
        names[count++] = method->name;
    }
    heddle_status st = hd_node_choice(&choice, node, names, count, "method");
    *out = hd_method_at(kind, choice);
    return st;
}

/* What the bytes of a method follow from; needed where there is one. */
static heddle_status read_mixing(hd_method_stage *out, const hd_method *method, const hd_node *node,
                                 const hd_node *const *value)
{
    heddle_status st = HEDDLE_OK;
    int has_method = method != &hd_method_local;
    int is_linear = out->kind == HEDDLE_STAGE_LINEAR;
    for (int k = STAGE_HEADS; k < STAGE_KEYS; k++) {
        int wanted = has_method && (k == STAGE_HEADS || (is_linear && (k == STAGE_CAUSAL || k == STAGE_DECAYS)));
        if (wanted && value[k] == NULL) {
            return hd_node_fail(HEDDLE_ERR_PARSE, node, "a stage of kind %s and method %s has no '%s'",
                                stage_kinds[out->kind], method->name, stage_keys[k].name);
        }
        if (value[k] != NULL && (!has_method || (!is_linear && (k == STAGE_CAUSAL || k == STAGE_DECAYS)))) {
            return hd_node_fail(HEDDLE_ERR_PARSE, value[k], "a stage of kind %s and method %s takes no '%s'",
                                stage_kinds[out->kind], method->name, stage_keys[k].name);
        }
    }
    HD_TRY(has_method ? hd_node_int(&out->heads, value[STAGE_HEADS], 1, HEADS_MAX, "heads") : HEDDLE_OK);
    if (has_method && is_linear) {
        HD_TRY(hd_node_bool(&out->causal, value[STAGE_CAUSAL], "causal"));
        HD_TRY(hd_node_bool(&out->decays, value[STAGE_DECAYS], "decays"));
    }
out:
    return st;
}

/* The layout and the method in it, and what that costs. */
static heddle_status read_run(heddle_schedule *s, const hd_method *method, const hd_node *const *value, int index)
{
    heddle_status st = HEDDLE_OK;
    hd_schedule_run *run = &s->run[index];
    const hd_schedule_stage *stage = &s->stage[index % s->period];
    HD_TRY(read_layout(&run->layout, s, value[STAGE_LAYOUT], "layout"));
    const heddle_layout *layout = &s->layout[run->layout];
    for (int a = 0; a < s->mesh.naxes; a++) {
        int d = layout->dim_of_axis[a];
        if (d == HEDDLE_PARTIAL ||
            (method == &hd_method_local && d >= 0 && d == stage->mixes.dim && s->mesh.axis[a].size > 1)) {
            st = hd_node_fail(HEDDLE_ERR_LAYOUT, value[STAGE_LAYOUT],
                              "stage '%s' cannot run in layout '%s': its dim must be whole and its values complete",
                              stage->name, value[STAGE_LAYOUT]->text);
            goto out;
        }
    }
    HD_TRY(at_node(hd_schedule_set_method(s, index, method), value[STAGE_METHOD]));
    const hd_method_cost *cost = &run->cost;
    HD_TRY(compare(value[STAGE_FORWARD_MAX], cost->forward.bytes_per_rank_max, "forward_bytes_per_rank_max"));
    HD_TRY(compare(value[STAGE_FORWARD_TOTAL], cost->forward.bytes_total, "forward_bytes_total"));
    HD_TRY(compare(value[STAGE_FORWARD_MESSAGES], cost->forward.messages, "forward_messages"));
    HD_TRY(compare(value[STAGE_BACKWARD_MAX], cost->backward.bytes_per_rank_max, "backward_bytes_per_rank_max"));
    HD_TRY(compare(value[STAGE_BACKWARD_TOTAL], cost->backward.bytes_total, "backward_bytes_total"));
    HD_TRY(compare(value[STAGE_BACKWARD_MESSAGES], cost->backward.messages, "backward_messages"));
out:
    return st;
}

static heddle_status read_stage(heddle_schedule *s, const hd_node *node, int index)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[STAGE_KEYS];
    hd_schedule_stage stage = {.mixes = {.dim = -1}};
    const hd_method *method = NULL;
    int64_t repetition = 0;
    int choice = 0;
    HD_TRY(hd_map_read(value, node, stage_keys, STAGE_KEYS, "a stage"));
    HD_TRY(hd_read_label(stage.name, value[STAGE_NAME], "name"));
    HD_TRY(hd_node_int(&repetition, value[STAGE_REPETITION], 0, STAGES_MAX, "repetition"));
    if (repetition != index / s->period) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, value[STAGE_REPETITION],
                          "stage %d with %d stages in a repetition belongs to repetition %d, found %lld", index,
                          s->period, index / s->period, (long long)repetition);
        goto out;
    }
    HD_TRY(hd_node_choice(&choice, value[STAGE_KIND], stage_kinds, HEDDLE_STAGE_LINEAR + 1, "kind"));
    stage.mixes.kind = (heddle_stage_kind)choice;
    HD_TRY(read_over(&stage.mixes.dim, s, value[STAGE_OVER]));
    HD_TRY(read_method(&method, stage.mixes.kind, value[STAGE_METHOD]));
    HD_TRY(read_mixing(&stage.mixes, method, node, value));
    HD_TRY(take_stage(s, value, index, &stage));
    HD_TRY(read_run(s, method, value, index));
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
    HD_TRY(read_layout(&from, s, value[EDGE_FROM], "from"));
    HD_TRY(read_layout(&to, s, value[EDGE_TO], "to"));
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
    HD_TRY(hd_node_choice(&kind, value[EDGE_KIND], edge_kinds, HD_EDGE_GENERAL + 1, "kind"));
    int is_free = kind == HD_EDGE_FREE;
    if (is_free && (from != to || (index > 0 && index < nstages))) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, value[EDGE_KIND],
                          "only the first and the last edge may be free, and they keep the layout");
        goto out;
    }
    HD_TRY(hd_schedule_set_edge(s, index, from, to, is_free));
    if (kind != (int)s->edge[index].kind) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, value[EDGE_KIND], "'kind' says %s, but the layouts give %s",
                          edge_kinds[kind], hd_edge_kind_name(s->edge[index].kind));
        goto out;
    }
    HD_TRY(compare(value[EDGE_BYTES_MAX], s->edge[index].cost.bytes_per_rank_max, "bytes_per_rank_max"));
    HD_TRY(compare(value[EDGE_RECEIVED_MAX], s->edge[index].cost.bytes_received_max, "bytes_received_max"));
    HD_TRY(compare(value[EDGE_BYTES_TOTAL], s->edge[index].cost.bytes_total, "bytes_total"));
    HD_TRY(compare(value[EDGE_MESSAGES], s->edge[index].cost.messages, "messages"));
out:
    return st;
}

/* Shape, mesh and counts: an empty schedule of the right size. */
static heddle_status read_frame(heddle_schedule **out, const hd_node *const *value)
{
    heddle_status st = HEDDLE_OK;
    char quoted[HD_NODE_QUOTE_BYTES];
    const char *text = NULL;
    char model[HD_MODEL_TEXT_BYTES];
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
    HD_TRY(hd_read_label(model, value[TOP_MODEL], "model"));
    HD_TRY(hd_node_text(&text, value[TOP_SHAPE], "shape"));
    HD_TRY(at_node(heddle_shape_parse(&shape, text), value[TOP_SHAPE]));
    HD_TRY(hd_node_text(&text, value[TOP_MESH], "mesh"));
    HD_TRY(at_node(heddle_mesh_parse(&mesh, text), value[TOP_MESH]));
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

static heddle_status read_schedule(heddle_schedule **out, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    heddle_schedule *s = NULL;
    const hd_node *value[TOP_KEYS];
    const char *note = "";
    int index = 0;
    HD_TRY(hd_map_read(value, root, top_keys, TOP_KEYS, "the schedule"));
    HD_TRY(read_frame(&s, value));
    for (const hd_node *child = value[TOP_STAGES]->child; child != NULL; child = child->next) {
        HD_TRY(read_stage(s, child, index++));
        HD_TRY(index == s->period ? check_names(s, value[TOP_STAGES]) : HEDDLE_OK);
    }
    index = 0;
    for (const hd_node *child = value[TOP_EDGES]->child; child != NULL; child = child->next) {
        HD_TRY(read_edge(s, child, index++));
    }
    HD_TRY(hd_schedule_sum(s));
    HD_TRY(compare(value[TOP_SWITCHES], s->switches, "switches"));
    HD_TRY(compare(value[TOP_BYTES_MAX], s->bytes_per_rank_max, "bytes_per_rank_max"));
    HD_TRY(compare(value[TOP_BYTES_TOTAL], s->bytes_total, "bytes_total"));
    HD_TRY(compare(value[TOP_BACKWARD_MAX], s->backward_bytes_per_rank_max, "backward_bytes_per_rank_max"));
    HD_TRY(compare(value[TOP_BACKWARD_TOTAL], s->backward_bytes_total, "backward_bytes_total"));
    HD_TRY(value[TOP_NOTE] != NULL ? hd_node_text(&note, value[TOP_NOTE], "note") : HEDDLE_OK);
    HD_TRY(hd_schedule_set_note(s, note));
    *out = s;
    s = NULL;
out:
    heddle_schedule_destroy(s);
    return st;
}

heddle_status heddle_schedule_parse(heddle_schedule **out, const char *text, size_t text_bytes, const char *name)
{
    heddle_status st = HEDDLE_OK;
    hd_document *document = NULL;
    HD_TRY(HD_NEED(out));
    HD_TRY(HD_NEED(name));
    if (text_bytes > 0) {
        HD_TRY(HD_NEED(text));
    }
    HD_TRY(hd_document_parse(&document, text, text_bytes, name, HD_SCHEDULE_LIMIT_BYTES));
    st = read_schedule(out, document->root);
out:
    hd_document_free(document);
    return st;
}

heddle_status heddle_schedule_load(heddle_schedule **out, const char *path)
{
    heddle_status st = HEDDLE_OK;
    char *text = NULL;
    size_t text_bytes = 0;
    HD_TRY(HD_NEED(out));
    HD_TRY(HD_NEED(path));
    HD_TRY(hd_file_read(&text, &text_bytes, path, HD_SCHEDULE_LIMIT_BYTES));
    st = heddle_schedule_parse(out, text, text_bytes, path);
out:
    hd_free(text);
    return st;
}
