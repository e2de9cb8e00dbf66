/* The stages of a schedule file: what each is, the layout and the method it runs by. */
#include "runtime/schedule/read_internal.h"

#include "runtime/base/base.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_MAX = 1 << 30, ROWS_MAX = 1 << 30 };

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
    STAGE_MIXES,
    STAGE_KV_HEADS,
    STAGE_JOINED_ROWS,
    STAGE_WINDOW,
    STAGE_FORWARD_MAX,
    STAGE_FORWARD_TOTAL,
    STAGE_FORWARD_MESSAGES,
    STAGE_BACKWARD_MAX,
    STAGE_BACKWARD_TOTAL,
    STAGE_BACKWARD_MESSAGES,
    STAGE_PREDICTED,
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
    [STAGE_MIXES] = {"mixes", 0},
    [STAGE_KV_HEADS] = {"kv_heads", 0},
    [STAGE_JOINED_ROWS] = {"joined_rows", 0},
    [STAGE_WINDOW] = {"window", 0},
    [STAGE_FORWARD_MAX] = {"forward_bytes_per_rank_max", 0},
    [STAGE_FORWARD_TOTAL] = {"forward_bytes_total", 0},
    [STAGE_FORWARD_MESSAGES] = {"forward_messages", 0},
    [STAGE_BACKWARD_MAX] = {"backward_bytes_per_rank_max", 0},
    [STAGE_BACKWARD_TOTAL] = {"backward_bytes_total", 0},
    [STAGE_BACKWARD_MESSAGES] = {"backward_messages", 0},
    [STAGE_PREDICTED] = {"predicted_s", 0},
};
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
heddle_status hd_read_check_names(const heddle_schedule *s, const hd_node *stages)
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

/* All dims that a stage mixes; 'over' is the first of them. */
static heddle_status read_dims(unsigned *out, const heddle_schedule *s, int over, const hd_node *list)
{
    heddle_status st = hd_node_list(list, 2, HEDDLE_MAX_DIMS, "mixes");
    unsigned dims = 0;
    for (const hd_node *node = list->child; st == HEDDLE_OK && node != NULL; node = node->next) {
        int dim = -1;
        st = read_over(&dim, s, node);
        if (st == HEDDLE_OK && (dim < 0 || (dims >> dim & 1) != 0)) {
            st = hd_node_fail(HEDDLE_ERR_PARSE, node, "'mixes' has no such dim, or has it twice");
        }
        dims |= dim >= 0 ? 1U << dim : 0;
    }
    if (st == HEDDLE_OK && (over < 0 || dims == 0 || __builtin_ctz(dims) != over)) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, list, "'over' is not the first dim of 'mixes'");
    }
    *out = dims;
    return st;
}

/* Tokens each way, of every dim that is mixed. */
static heddle_status read_window(hd_method_stage *out, const hd_node *list)
{
    const unsigned dims = out->dims != 0 ? out->dims : out->dim >= 0 ? 1U << out->dim : 0;
    const int count = __builtin_popcount(dims);
    heddle_status st = hd_node_list(list, count, count, "window");
    const hd_node *node = st == HEDDLE_OK && count > 0 ? list->child : NULL;
    for (int d = 0; node != NULL && d < HEDDLE_MAX_DIMS && st == HEDDLE_OK; d++) {
        if ((dims >> d & 1) != 0) {
            st = hd_node_int(&out->window[d], node, 0, ROWS_MAX, "window");
            node = node->next;
        }
    }
    return st;
}

/* What the bytes of a method follow from; needed where there is one. */
static heddle_status read_mixing(hd_method_stage *out, const heddle_schedule *s, const hd_method *method,
                                 const hd_node *node, const hd_node *const *value)
{
    heddle_status st = HEDDLE_OK;
    int has_method = method != &hd_method_local;
    int is_linear = out->kind == HEDDLE_STAGE_LINEAR;
    for (int k = STAGE_HEADS; k < STAGE_KEYS; k++) {
        int wanted = has_method && (k == STAGE_HEADS || (is_linear && (k == STAGE_CAUSAL || k == STAGE_DECAYS)));
        if (wanted && value[k] == NULL) {
            return hd_node_fail(HEDDLE_ERR_PARSE, node, "a stage of kind %s and method %s has no '%s'",
                                hd_stage_kind_names[out->kind], method->name, stage_keys[k].name);
        }
        if (value[k] != NULL && k != STAGE_PREDICTED && (!has_method || (!is_linear && k == STAGE_DECAYS))) {
            return hd_node_fail(HEDDLE_ERR_PARSE, value[k], "a stage of kind %s and method %s takes no '%s'",
                                hd_stage_kind_names[out->kind], method->name, stage_keys[k].name);
        }
    }
    HD_TRY(has_method ? hd_node_int(&out->heads, value[STAGE_HEADS], 1, HEADS_MAX, "heads") : HEDDLE_OK);
    HD_TRY(value[STAGE_MIXES] ? read_dims(&out->dims, s, out->dim, value[STAGE_MIXES]) : HEDDLE_OK);
    HD_TRY(value[STAGE_KV_HEADS] ? hd_node_int(&out->kv_heads, value[STAGE_KV_HEADS], 1, out->heads, "kv_heads")
                                 : HEDDLE_OK);
    HD_TRY(value[STAGE_JOINED_ROWS]
               ? hd_node_int(&out->joined_rows, value[STAGE_JOINED_ROWS], 1, ROWS_MAX, "joined_rows")
               : HEDDLE_OK);
    HD_TRY(value[STAGE_WINDOW] ? read_window(out, value[STAGE_WINDOW]) : HEDDLE_OK);
    if (out->kv_heads > 0 && out->heads % out->kv_heads != 0) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, value[STAGE_KV_HEADS], "%" PRId64 " key heads do not divide %" PRId64,
                          out->kv_heads, out->heads);
        goto out;
    }
    HD_TRY(value[STAGE_CAUSAL] ? hd_node_bool(&out->causal, value[STAGE_CAUSAL], "causal") : HEDDLE_OK);
    HD_TRY(value[STAGE_DECAYS] ? hd_node_bool(&out->decays, value[STAGE_DECAYS], "decays") : HEDDLE_OK);
out:
    return st;
}

/* The layout and the method in it, and what that costs. */
static heddle_status read_run(heddle_schedule *s, const hd_method *method, const hd_node *const *value, int index)
{
    heddle_status st = HEDDLE_OK;
    hd_schedule_run *run = &s->run[index];
    const hd_schedule_stage *stage = &s->stage[index % s->period];
    HD_TRY(hd_read_layout(&run->layout, s, value[STAGE_LAYOUT], "layout"));
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
    HD_TRY(hd_read_at(hd_schedule_set_method(s, index, method), value[STAGE_METHOD]));
    const hd_method_cost *cost = &run->cost;
    HD_TRY(hd_read_check(value[STAGE_FORWARD_MAX], cost->forward.bytes_per_rank_max, "forward_bytes_per_rank_max"));
    HD_TRY(hd_read_check(value[STAGE_FORWARD_TOTAL], cost->forward.bytes_total, "forward_bytes_total"));
    HD_TRY(hd_read_check(value[STAGE_FORWARD_MESSAGES], cost->forward.messages, "forward_messages"));
    HD_TRY(hd_read_check(value[STAGE_BACKWARD_MAX], cost->backward.bytes_per_rank_max, "backward_bytes_per_rank_max"));
    HD_TRY(hd_read_check(value[STAGE_BACKWARD_TOTAL], cost->backward.bytes_total, "backward_bytes_total"));
    HD_TRY(hd_read_check(value[STAGE_BACKWARD_MESSAGES], cost->backward.messages, "backward_messages"));
    HD_TRY(hd_read_number(&run->predicted_s, value[STAGE_PREDICTED], "predicted_s"));
out:
    return st;
}

heddle_status hd_read_stage(heddle_schedule *s, const hd_node *node, int index)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[STAGE_KEYS];
    hd_schedule_stage stage = {.mixes = {.dim = -1}};
    const hd_method *method = NULL;
    int64_t repetition = 0;
    int choice = 0;
    HD_TRY(hd_map_read(value, node, stage_keys, STAGE_KEYS, "a stage"));
    HD_TRY(hd_node_label(stage.name, value[STAGE_NAME], "name"));
    HD_TRY(hd_node_int(&repetition, value[STAGE_REPETITION], 0, STAGES_MAX, "repetition"));
    if (repetition != index / s->period) {
        st = hd_node_fail(HEDDLE_ERR_MISMATCH, value[STAGE_REPETITION],
                          "stage %d with %d stages in a repetition belongs to repetition %d, found %lld", index,
                          s->period, index / s->period, (long long)repetition);
        goto out;
    }
    HD_TRY(hd_node_choice(&choice, value[STAGE_KIND], hd_stage_kind_names, HD_STAGE_KINDS, "kind"));
    stage.mixes.kind = (heddle_stage_kind)choice;
    HD_TRY(read_over(&stage.mixes.dim, s, value[STAGE_OVER]));
    HD_TRY(read_method(&method, stage.mixes.kind, value[STAGE_METHOD]));
    HD_TRY(read_mixing(&stage.mixes, s, method, node, value));
    HD_TRY(take_stage(s, value, index, &stage));
    HD_TRY(read_run(s, method, value, index));
out:
    return st;
}
