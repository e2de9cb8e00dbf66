/* The stages of a model file: one table says which keys there are, another which kind takes which. */
#include "planner/model/model_read.h"

#include "runtime/base/base.h"
#include "runtime/schedule/schedule_internal.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    STAGE_NAME,
    STAGE_KIND,
    STAGE_IN,
    STAGE_OVER,
    STAGE_READS,
    STAGE_JOINS,
    STAGE_HEADS,
    STAGE_KV_HEADS,
    STAGE_WIDTH,
    STAGE_RATIO,
    STAGE_CHANNELS,
    STAGE_MODULATE,
    STAGE_ROPE,
    STAGE_QK_NORM,
    STAGE_CAUSAL,
    STAGE_PLACEMENT,
    STAGE_WINDOW,
    STAGE_DECAY,
    STAGE_METHODS,
    STAGE_TOKEN_FLOPS,
    STAGE_TOKEN_BYTES,
    STAGE_CORE,
    STAGE_WEIGHTS,
    STAGE_KEYS
};
static const hd_key stage_keys[STAGE_KEYS] = {
    [STAGE_NAME] = {"name", 1},
    [STAGE_KIND] = {"kind", 1},
    [STAGE_IN] = {"in", 0},
    [STAGE_OVER] = {"over", 0},
    [STAGE_READS] = {"reads", 0},
    [STAGE_JOINS] = {"joins", 0},
    [STAGE_HEADS] = {"heads", 0},
    [STAGE_KV_HEADS] = {"kv_heads", 0},
    [STAGE_WIDTH] = {"width", 0},
    [STAGE_RATIO] = {"ratio", 0},
    [STAGE_CHANNELS] = {"channels", 0},
    [STAGE_MODULATE] = {"modulate", 0},
    [STAGE_ROPE] = {"rope", 0},
    [STAGE_QK_NORM] = {"qk_norm", 0},
    [STAGE_CAUSAL] = {"causal", 0},
    [STAGE_PLACEMENT] = {"placement", 0},
    [STAGE_WINDOW] = {"window", 0},
    [STAGE_DECAY] = {"decay", 0},
    [STAGE_METHODS] = {"methods", 0},
    [STAGE_TOKEN_FLOPS] = {"token_flops", 0},
    [STAGE_TOKEN_BYTES] = {"token_bytes", 0},
    [STAGE_CORE] = {"core", 0},
    [STAGE_WEIGHTS] = {"weights", 0},
};
/* Which keys a kind takes besides name, kind and in: 1 = may, 2 = must. */
static const char stage_takes[][STAGE_KEYS] = {
    [HEDDLE_STAGE_ATTENTION] = {[STAGE_OVER] = 2,
                                [STAGE_HEADS] = 2,
                                [STAGE_JOINS] = 1,
                                [STAGE_KV_HEADS] = 1,
                                [STAGE_MODULATE] = 1,
                                [STAGE_ROPE] = 1,
                                [STAGE_QK_NORM] = 1,
                                [STAGE_CAUSAL] = 1,
                                [STAGE_PLACEMENT] = 1,
                                [STAGE_WINDOW] = 1,
                                [STAGE_CORE] = 1,
                                [STAGE_WEIGHTS] = 1},
    [HEDDLE_STAGE_CROSS] = {[STAGE_READS] = 2, [STAGE_HEADS] = 2, [STAGE_WEIGHTS] = 1},
    [HEDDLE_STAGE_MLP] = {[STAGE_WIDTH] = 1,
                          [STAGE_RATIO] = 1,
                          [STAGE_CHANNELS] = 1,
                          [STAGE_JOINS] = 1,
                          [STAGE_MODULATE] = 1,
                          [STAGE_WEIGHTS] = 1},
    [HEDDLE_STAGE_LINEAR] = {[STAGE_OVER] = 2,
                             [STAGE_HEADS] = 2,
                             [STAGE_MODULATE] = 1,
                             [STAGE_ROPE] = 1,
                             [STAGE_CAUSAL] = 1,
                             [STAGE_DECAY] = 1,
                             [STAGE_CORE] = 1,
                             [STAGE_WEIGHTS] = 1},
    [HEDDLE_STAGE_MODULE] = {[STAGE_OVER] = 1,
                             [STAGE_HEADS] = 1,
                             [STAGE_KV_HEADS] = 1,
                             [STAGE_JOINS] = 1,
                             [STAGE_CHANNELS] = 1,
                             [STAGE_WINDOW] = 1,
                             [STAGE_METHODS] = 1,
                             [STAGE_TOKEN_FLOPS] = 2,
                             [STAGE_TOKEN_BYTES] = 1,
                             [STAGE_WEIGHTS] = 1},
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

/* One dim that may be mixed. */
static heddle_status read_over_dim(hd_model_stage *s, const heddle_model *m, const hd_node *node)
{
    int d = 0;
    heddle_status st = hd_read_dim_ref(&d, m, node, "over");
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int i = 0; i < m->activation_ndim; i++) {
        if (m->activation_dim[i] != d || m->dim[d].role != HD_ROLE_SEQ) {
            continue;
        }
        if ((s->mixed_dims & 1U << i) != 0) {
            return hd_node_fail(HEDDLE_ERR_LAYOUT, node, "dim '%s' appears twice in 'over'", m->dim[d].name);
        }
        s->mixed_dims |= 1U << i;
        s->mixed_dim = s->mixed_dim < 0 || i < s->mixed_dim ? i : s->mixed_dim;
        return HEDDLE_OK;
    }
    return hd_node_fail(HEDDLE_ERR_LAYOUT, node, "attention runs over a sequence dim of the activation; '%s' is %s",
                        m->dim[d].name, hd_role_names[m->dim[d].role]);
}

static heddle_status read_over(hd_model_stage *s, hd_model_reader *r, const hd_node *node)
{
    if (node->kind != HD_NODE_LIST) {
        return read_over_dim(s, r->m, node);
    }
    heddle_status st = hd_node_list(node, 1, HEDDLE_MAX_DIMS, "over");
    for (const hd_node *child = node->child; st == HEDDLE_OK && child != NULL; child = child->next) {
        st = read_over_dim(s, r->m, child);
    }
    return st;
}

/* Tokens each way: of the dim in 'over', or of every one of them in their order. */
static heddle_status read_window(hd_model_stage *s, const heddle_model *m, const hd_node *node, const hd_node *over)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *dim = over->kind == HD_NODE_LIST ? over->child : over;
    const int count = over->kind == HD_NODE_LIST ? over->count : 1;
    if (over->kind == HD_NODE_LIST || node->kind == HD_NODE_LIST) {
        HD_TRY(hd_node_list(node, count, count, "window"));
    }
    const hd_node *value = node->kind == HD_NODE_LIST ? node->child : node;
    for (; value != NULL && dim != NULL; value = node == value ? NULL : value->next, dim = dim->next) {
        for (int i = 0; i < m->activation_ndim; i++) {
            if (strcmp(m->dim[m->activation_dim[i]].name, dim->text) == 0) {
                HD_TRY(hd_node_int(&s->window[i], value, 0, HD_EXTENT_MAX, "window"));
            }
        }
    }
out:
    return st;
}

static heddle_status read_heads(hd_model_stage *s, hd_model_reader *r, const hd_node *node)
{
    const heddle_model *m = r->m;
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

static heddle_status read_in(hd_model_stage *s, hd_model_reader *r, const hd_node *node)
{
    (void)s;
    return read_tensor_ref(node, r->activation, "in");
}

static heddle_status read_reads(hd_model_stage *s, hd_model_reader *r, const hd_node *node)
{
    (void)s;
    return read_tensor_ref(node, r->text, "reads");
}

static heddle_status read_joins(hd_model_stage *s, hd_model_reader *r, const hd_node *node)
{
    s->joins = 1;
    return read_tensor_ref(node, r->text, "joins");
}

static heddle_status read_placement(hd_model_stage *s, hd_model_reader *r, const hd_node *node)
{
    static const char *const names[] = {"contiguous", "zigzag"};
    (void)r;
    return hd_node_choice(&s->zigzag, node, names, 2, "placement");
}

static heddle_status read_methods(hd_model_stage *s, hd_model_reader *r, const hd_node *node)
{
    const char *names[HD_METHODS_MAX];
    const hd_method *method = NULL;
    int count = 0, choice = 0;
    (void)r;
    while ((method = hd_method_at(HEDDLE_STAGE_MODULE, count)) != NULL) {
        names[count++] = method->name;
    }
    heddle_status st = hd_node_list(node, 1, HD_METHODS_MAX, "methods");
    for (const hd_node *child = node->child; st == HEDDLE_OK && child != NULL; child = child->next) {
        st = hd_node_choice(&choice, child, names, count, "methods");
        s->methods |= st == HEDDLE_OK ? 1U << choice : 0;
    }
    return st;
}

static heddle_status read_ratio(hd_model_stage *s, hd_model_reader *r, const hd_node *node)
{
    (void)r;
    return hd_read_ratio(&s->ratio_millionths, node);
}

static heddle_status read_decay(hd_model_stage *s, hd_model_reader *r, const hd_node *node)
{
    (void)r;
    return hd_read_decay(&s->decay, node);
}

/* What is done with a key's value: `read`; else it is a number from 1 to `high`, or, where that is 0, a truth. */
static const struct {
    heddle_status (*read)(hd_model_stage *, hd_model_reader *, const hd_node *);
    size_t at;
    int64_t high;
} stage_values[STAGE_KEYS] = {
    [STAGE_IN] = {read_in},
    [STAGE_OVER] = {read_over},
    [STAGE_READS] = {read_reads},
    [STAGE_JOINS] = {read_joins},
    [STAGE_HEADS] = {read_heads},
    [STAGE_KV_HEADS] = {NULL, offsetof(hd_model_stage, kv_heads_fixed), HD_MODEL_MAX_HEADS},
    [STAGE_WIDTH] = {NULL, offsetof(hd_model_stage, width), HD_EXTENT_MAX},
    [STAGE_RATIO] = {read_ratio},
    [STAGE_CHANNELS] = {NULL, offsetof(hd_model_stage, channels_fixed), HD_EXTENT_MAX},
    [STAGE_MODULATE] = {NULL, offsetof(hd_model_stage, modulate)},
    [STAGE_ROPE] = {NULL, offsetof(hd_model_stage, rope)},
    [STAGE_QK_NORM] = {NULL, offsetof(hd_model_stage, qk_norm)},
    [STAGE_CAUSAL] = {NULL, offsetof(hd_model_stage, causal)},
    [STAGE_PLACEMENT] = {read_placement},
    [STAGE_DECAY] = {read_decay},
    [STAGE_CORE] = {NULL, offsetof(hd_model_stage, core)},
    [STAGE_METHODS] = {read_methods},
    [STAGE_TOKEN_FLOPS] = {NULL, offsetof(hd_model_stage, token_flops), INT64_MAX},
    [STAGE_TOKEN_BYTES] = {NULL, offsetof(hd_model_stage, token_bytes), INT64_MAX},
    [STAGE_WEIGHTS] = {NULL, offsetof(hd_model_stage, weights), INT64_MAX},
};

static heddle_status read_values(hd_model_stage *s, hd_model_reader *r, const hd_node *const *value)
{
    heddle_status st = HEDDLE_OK;
    for (int k = STAGE_IN; k < STAGE_KEYS; k++) {
        void *at = (char *)s + stage_values[k].at;
        if (value[k] == NULL || k == STAGE_WINDOW) {
            continue;
        }
        HD_TRY(stage_values[k].read != NULL ? stage_values[k].read(s, r, value[k])
               : stage_values[k].high > 0   ? hd_node_int(at, value[k], 1, stage_values[k].high, stage_keys[k].name)
                                            : hd_node_bool(at, value[k], stage_keys[k].name));
    }
    HD_TRY(value[STAGE_WINDOW] ? read_window(s, r->m, value[STAGE_WINDOW], value[STAGE_OVER]) : HEDDLE_OK);
out:
    return st;
}

/* One key without another that it needs. */
static heddle_status want_key(const hd_model_stage *s, const hd_node *const *value, int has, int wants)
{
    return value[has] == NULL || value[wants] != NULL
               ? HEDDLE_OK
               : hd_node_fail(HEDDLE_ERR_PARSE, value[has], "stage '%s' has '%s', which needs '%s'", s->name,
                              stage_keys[has].name, stage_keys[wants].name);
}

/* What the values say together. */
static heddle_status check_values(const hd_model_stage *s, const hd_node *const *value)
{
    const hd_method *method = NULL;
    if (s->kind == HEDDLE_STAGE_ATTENTION && s->causal && (s->mixed_dims & (s->mixed_dims - 1)) != 0) {
        return hd_node_fail(HEDDLE_ERR_LAYOUT, value[STAGE_CAUSAL],
                            "stage '%s': 'causal' is along one dim, 'over' has %d", s->name,
                            __builtin_popcount(s->mixed_dims));
    }
    if (s->zigzag && !s->causal) {
        return hd_node_fail(HEDDLE_ERR_LAYOUT, value[STAGE_PLACEMENT],
                            "stage '%s': placement zigzag balances causal attention, and 'causal' is not true",
                            s->name);
    }
    for (int i = 0; (method = hd_method_at(HEDDLE_STAGE_MODULE, i)) != NULL; i++) {
        if (s->kind == HEDDLE_STAGE_MODULE && (s->methods & 1U << i) != 0 && method->heads_over != NULL &&
            value[STAGE_HEADS] == NULL) {
            return hd_node_fail(HEDDLE_ERR_LAYOUT, value[STAGE_METHODS],
                                "stage '%s': method %s deals out heads, and there is no 'heads'", s->name,
                                method->name);
        }
    }
    return HEDDLE_OK;
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
    heddle_status st = want_key(s, value, STAGE_WINDOW, STAGE_OVER);
    st = st == HEDDLE_OK ? want_key(s, value, STAGE_METHODS, STAGE_OVER) : st;
    return st == HEDDLE_OK ? want_key(s, value, STAGE_PLACEMENT, STAGE_CAUSAL) : st;
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
    s->heads_fixed = s->kind == HEDDLE_STAGE_MODULE;
    s->methods = s->kind == HEDDLE_STAGE_MODULE;
    HD_TRY(check_stage_keys(s, node, value));
    HD_TRY(read_values(s, r, value));
    HD_TRY(check_values(s, value));
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
