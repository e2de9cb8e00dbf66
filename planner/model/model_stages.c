/* The stages of a model file: one table says which keys there are, another which kind takes which. */
#include "planner/model/model_read.h"

#include "runtime/base/base.h"
#include "runtime/schedule/schedule_internal.h"

#include <stdio.h>
#include <string.h>

enum {
    STAGE_NAME,
    STAGE_KIND,
    STAGE_IN,
    STAGE_OVER,
    STAGE_READS,
    STAGE_HEADS,
    STAGE_WIDTH,
    STAGE_RATIO,
    STAGE_MODULATE,
    STAGE_ROPE,
    STAGE_QK_NORM,
    STAGE_CAUSAL,
    STAGE_DECAY,
    STAGE_KEYS
};
static const hd_key stage_keys[STAGE_KEYS] = {
    [STAGE_NAME] = {"name", 1},   [STAGE_KIND] = {"kind", 1},       [STAGE_IN] = {"in", 0},
    [STAGE_OVER] = {"over", 0},   [STAGE_READS] = {"reads", 0},     [STAGE_HEADS] = {"heads", 0},
    [STAGE_WIDTH] = {"width", 0}, [STAGE_RATIO] = {"ratio", 0},     [STAGE_MODULATE] = {"modulate", 0},
    [STAGE_ROPE] = {"rope", 0},   [STAGE_QK_NORM] = {"qk_norm", 0}, [STAGE_CAUSAL] = {"causal", 0},
    [STAGE_DECAY] = {"decay", 0},
};
/* Which keys a kind takes besides name, kind and in: 1 = may, 2 = must. */
static const char stage_takes[][STAGE_KEYS] = {
    [HEDDLE_STAGE_ATTENTION] =
        {[STAGE_OVER] = 2, [STAGE_HEADS] = 2, [STAGE_MODULATE] = 1, [STAGE_ROPE] = 1, [STAGE_QK_NORM] = 1},
    [HEDDLE_STAGE_CROSS] = {[STAGE_READS] = 2, [STAGE_HEADS] = 2},
    [HEDDLE_STAGE_MLP] = {[STAGE_WIDTH] = 1, [STAGE_RATIO] = 1, [STAGE_MODULATE] = 1},
    [HEDDLE_STAGE_LINEAR] = {[STAGE_OVER] = 2,
                             [STAGE_HEADS] = 2,
                             [STAGE_MODULATE] = 1,
                             [STAGE_ROPE] = 1,
                             [STAGE_CAUSAL] = 1,
                             [STAGE_DECAY] = 1},
};

/* The name of a tensor that must be `wanted`. */
static heddle_status read_tensor_ref(const hd_node *node, const char *wanted, const char *what)
{
    int choice = 0;
    if (wanted == NULL) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s': 'tensors' has no such tensor (const: true)", what);
    }
    return hd_node_choice(&choice, node, &wanted, 1, what);
}

/* "12.345": how many digits before and behind the point; returns how far the number goes. */
static size_t scan_decimal(const char *text, size_t *whole, size_t *places)
{
    *whole = strspn(text, "0123456789");
    *places = text[*whole] == '.' ? strspn(text + *whole + 1, "0123456789") : 0;
    return *whole + (text[*whole] == '.' ? 1 + *places : 0);
}

/* "4" or "2.6875", up to six places. */
static heddle_status read_ratio(int64_t *out, const hd_node *node)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    const char *text = NULL;
    heddle_status st = hd_node_text(&text, node, "ratio");
    if (st != HEDDLE_OK) {
        return st;
    }
    size_t whole, places, length = scan_decimal(text, &whole, &places);
    int64_t value = 0;
    if (!node->quoted && whole > 0 && whole <= 4 && (whole == 1 || text[0] != '0') && places <= 6 &&
        (text[whole] != '.' || places > 0) && text[length] == '\0') {
        for (size_t i = 0; i < whole + 6; i++) {
            size_t at = i < whole ? i : i + 1;
            value = value * 10 + (i < whole + places ? text[at] - '0' : 0);
        }
    }
    if (value == 0) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node,
                            "'ratio' must be a number from 0.000001 to 9999 with up to six places, found '%s'",
                            hd_quote(quoted, sizeof quoted, text));
    }
    *out = value;
    return HEDDLE_OK;
}

/* "0.99", or "slopes": every head its own. */
static heddle_status read_decay(double *out, const hd_node *node)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    const char *text = NULL;
    heddle_status st = hd_node_text(&text, node, "decay");
    if (st != HEDDLE_OK) {
        return st;
    }
    if (strcmp(text, "slopes") == 0) {
        *out = 0;
        return HEDDLE_OK;
    }
    size_t whole, places, length = scan_decimal(text, &whole, &places);
    double value = 0;
    double unit = 1;
    for (size_t i = 0; i < length && length <= 20; i++) {
        unit *= i > whole ? 10 : 1;
        value = text[i] == '.' ? value : value * 10 + (text[i] - '0');
    }
    value /= unit;
    if (node->quoted || whole != 1 || length > 20 || (text[whole] == '.' && places == 0) || text[length] != '\0' ||
        !(value > 0 && value <= 1)) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node,
                            "'decay' must be a number above 0 and at most 1, like 0.99, or slopes, found '%s'",
                            hd_quote(quoted, sizeof quoted, text));
    }
    *out = value;
    return HEDDLE_OK;
}

static heddle_status read_over(hd_model_stage *s, const heddle_model *m, const hd_node *node)
{
    int d = 0;
    heddle_status st = hd_read_dim_ref(&d, m, node, "over");
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int i = 0; i < m->activation_ndim; i++) {
        if (m->activation_dim[i] == d && m->dim[d].role == HD_ROLE_SEQ) {
            s->mixed_dim = i;
            return HEDDLE_OK;
        }
    }
    return hd_node_fail(HEDDLE_ERR_LAYOUT, node, "attention runs over a sequence dim of the activation; '%s' is %s",
                        m->dim[d].name, hd_role_names[m->dim[d].role]);
}

static heddle_status read_heads(hd_model_stage *s, const heddle_model *m, const hd_node *node)
{
    if (node->kind == HD_NODE_SCALAR && hd_is_dim_name(node->text)) {
        heddle_status st = hd_read_dim_ref(&s->heads_dim, m, node, "heads");
        if (st == HEDDLE_OK && m->dim[s->heads_dim].role != HD_ROLE_HEADS) {
            st = hd_node_fail(HEDDLE_ERR_LAYOUT, node, "'heads' names dim '%s', whose role is %s, not heads",
                              node->text, hd_role_names[m->dim[s->heads_dim].role]);
        }
        return st;
    }
    return hd_node_int(&s->heads_fixed, node, 1, HD_MODEL_MAX_HEADS, "heads");
}

/* Keys that the stage's kind does not take, or wants and does not get. */
static heddle_status check_stage_keys(const hd_model_stage *s, const hd_node *node, const hd_node *const *value)
{
    for (int k = STAGE_OVER; k < STAGE_KEYS; k++) {
        char takes = stage_takes[s->kind][k];
        if (takes == 0 && value[k] != NULL) {
            return hd_node_fail(HEDDLE_ERR_PARSE, value[k], "stage '%s' is of kind %s, which takes no '%s'", s->name,
                                hd_stage_kind_names[s->kind], stage_keys[k].name);
        }
        if (takes == 2 && value[k] == NULL) {
            return hd_node_fail(HEDDLE_ERR_PARSE, node, "stage '%s' is of kind %s and has no '%s'", s->name,
                                hd_stage_kind_names[s->kind], stage_keys[k].name);
        }
    }
    if (s->kind == HEDDLE_STAGE_MLP && (value[STAGE_WIDTH] == NULL) == (value[STAGE_RATIO] == NULL)) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "stage '%s' needs either 'width' or 'ratio'", s->name);
    }
    return HEDDLE_OK;
}

static heddle_status read_stage(hd_model_reader *r, const hd_node *node, int index)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[STAGE_KEYS];
    hd_model_stage *s = &r->m->stage[index];
    char what[32];
    int kind = 0;
    snprintf(what, sizeof what, "stage %d", index + 1);
    s->mixed_dim = -1;
    s->heads_dim = -1;
    s->decay = 1;
    s->mark = hd_mark_of(node);
    HD_TRY(hd_map_read(value, node, stage_keys, STAGE_KEYS, what));
    HD_TRY(hd_node_label(s->name, value[STAGE_NAME], "name"));
    HD_TRY(hd_node_choice(&kind, value[STAGE_KIND], hd_stage_kind_names, HD_STAGE_KINDS, "kind"));
    s->kind = (heddle_stage_kind)kind;
    HD_TRY(check_stage_keys(s, node, value));
    HD_TRY(value[STAGE_IN] ? read_tensor_ref(value[STAGE_IN], r->activation, "in") : HEDDLE_OK);
    HD_TRY(value[STAGE_READS] ? read_tensor_ref(value[STAGE_READS], r->text, "reads") : HEDDLE_OK);
    HD_TRY(value[STAGE_OVER] ? read_over(s, r->m, value[STAGE_OVER]) : HEDDLE_OK);
    HD_TRY(value[STAGE_HEADS] ? read_heads(s, r->m, value[STAGE_HEADS]) : HEDDLE_OK);
    HD_TRY(value[STAGE_WIDTH] ? hd_node_int(&s->width, value[STAGE_WIDTH], 1, HD_EXTENT_MAX, "width") : HEDDLE_OK);
    HD_TRY(value[STAGE_RATIO] ? read_ratio(&s->ratio_millionths, value[STAGE_RATIO]) : HEDDLE_OK);
    HD_TRY(value[STAGE_MODULATE] ? hd_node_bool(&s->modulate, value[STAGE_MODULATE], "modulate") : HEDDLE_OK);
    HD_TRY(value[STAGE_ROPE] ? hd_node_bool(&s->rope, value[STAGE_ROPE], "rope") : HEDDLE_OK);
    HD_TRY(value[STAGE_QK_NORM] ? hd_node_bool(&s->qk_norm, value[STAGE_QK_NORM], "qk_norm") : HEDDLE_OK);
    HD_TRY(value[STAGE_CAUSAL] ? hd_node_bool(&s->causal, value[STAGE_CAUSAL], "causal") : HEDDLE_OK);
    HD_TRY(value[STAGE_DECAY] ? read_decay(&s->decay, value[STAGE_DECAY]) : HEDDLE_OK);
    if (strcmp(s->name, "end") == 0) {
        st = hd_node_fail(HEDDLE_ERR_PARSE, value[STAGE_NAME], "the name 'end' is taken: it means the epilogue");
        goto out;
    }
    for (int i = 0; i < index; i++) {
        if (strcmp(r->m->stage[i].name, s->name) == 0) {
            st = hd_node_fail(HEDDLE_ERR_PARSE, value[STAGE_NAME], "stage name '%s' is taken by stage %d", s->name,
                              i + 1);
            goto out;
        }
    }
out:
    return st;
}

heddle_status hd_read_stages(hd_model_reader *r, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    HD_TRY(hd_node_list(node, 1, HD_MODEL_MAX_STAGES, "stages"));
    HD_TRY(hd_alloc(&memory, (size_t)node->count, sizeof(hd_model_stage), "stages of a model"));
    r->m->stage = memory;
    for (const hd_node *child = node->child; child != NULL; child = child->next) {
        HD_TRY(read_stage(r, child, r->m->nstages));
        r->m->nstages++;
    }
out:
    return st;
}
