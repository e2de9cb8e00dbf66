/* Model file -> heddle_model; the format is in docs/formats.md. One table of keys per map. */
#include "planner/model/model_read.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>

enum { PATCH_MAX = 64, GUIDANCE_MAX = 16, STEPS_MAX = 1000000, SOURCE_BYTES = 512 };

enum {
    MODEL_NAME,
    MODEL_SOURCE,
    MODEL_DTYPE,
    MODEL_DIMS,
    MODEL_TENSORS,
    MODEL_PATCH,
    MODEL_REPEAT,
    MODEL_STAGES,
    MODEL_GUIDANCE,
    MODEL_STEPS,
    MODEL_CACHE,
    MODEL_PATCH_CHANNELS,
    MODEL_FINAL,
    MODEL_SERIAL_FLOPS,
    MODEL_SERIAL_TOKEN_FLOPS,
    MODEL_WEIGHTS,
    MODEL_KEYS
};
static const hd_key model_keys[MODEL_KEYS] = {
    [MODEL_NAME] = {"model", 1},
    [MODEL_SOURCE] = {"source", 0},
    [MODEL_DTYPE] = {"dtype", 1},
    [MODEL_DIMS] = {"dims", 1},
    [MODEL_TENSORS] = {"tensors", 1},
    [MODEL_PATCH] = {"patch", 0},
    [MODEL_REPEAT] = {"repeat", 0},
    [MODEL_STAGES] = {"stages", 1},
    [MODEL_GUIDANCE] = {"guidance", 0},
    [MODEL_STEPS] = {"steps", 0},
    [MODEL_CACHE] = {"cache", 0},
    [MODEL_PATCH_CHANNELS] = {"patch_channels", 0},
    [MODEL_FINAL] = {"final", 0},
    [MODEL_SERIAL_FLOPS] = {"serial_flops", 0},
    [MODEL_SERIAL_TOKEN_FLOPS] = {"serial_token_flops", 0},
    [MODEL_WEIGHTS] = {"weights", 0},
};

enum { DIM_SIZE, DIM_ROLE, DIM_KEYS };
static const hd_key dim_keys[DIM_KEYS] = {[DIM_SIZE] = {"size", 1}, [DIM_ROLE] = {"role", 0}};
const char *const hd_role_names[] = {[HD_ROLE_SEQ] = "seq",
                                     [HD_ROLE_BATCH] = "batch",
                                     [HD_ROLE_CHANNEL] = "channel",
                                     [HD_ROLE_HEADS] = "heads",
                                     [HD_ROLE_TEXT] = "text"};

enum { TENSOR_DIMS, TENSOR_CONST, TENSOR_KEYS };
static const hd_key tensor_keys[TENSOR_KEYS] = {[TENSOR_DIMS] = {"dims", 1}, [TENSOR_CONST] = {"const", 0}};

hd_mark hd_mark_of(const hd_node *node)
{
    hd_mark mark = {node->line, node->column};
    return mark;
}

/* Dim names follow the text forms: [a-z][a-z0-9_]*. */
int hd_is_dim_name(const char *text)
{
    size_t length = strlen(text);
    return length > 0 && length < HEDDLE_NAME_BYTES && text[0] >= 'a' && text[0] <= 'z' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

static heddle_status read_dtype(heddle_dtype *out, const hd_node *node)
{
    const char *names[HEDDLE_DTYPE_COUNT];
    int choice = 0;
    for (int i = 0; i < HEDDLE_DTYPE_COUNT; i++) {
        names[i] = heddle_dtype_name((heddle_dtype)i);
    }
    heddle_status st = hd_node_choice(&choice, node, names, HEDDLE_DTYPE_COUNT, "dtype");
    if (st == HEDDLE_OK) {
        *out = (heddle_dtype)choice;
    }
    return st;
}

static heddle_status read_dim(hd_model_dim *out, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    char quoted[HD_NODE_QUOTE_BYTES];
    char what[HD_NODE_QUOTE_BYTES];
    const hd_node *value[DIM_KEYS] = {node, NULL};
    int role = HD_ROLE_SEQ;
    if (!hd_is_dim_name(node->key)) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "a dim's name is a lower-case word of up to %d letters, found '%s'",
                            HEDDLE_NAME_BYTES - 1, hd_quote(quoted, sizeof quoted, node->key));
    }
    snprintf(what, sizeof what, "dim '%s'", node->key);
    if (node->kind == HD_NODE_MAP) {
        HD_TRY(hd_map_read(value, node, dim_keys, DIM_KEYS, what));
    }
    snprintf(what, sizeof what, "size of %s", node->key);
    HD_TRY(hd_node_int(&out->extent, value[DIM_SIZE], 1, HD_EXTENT_MAX, what));
    if (value[DIM_ROLE] != NULL) {
        HD_TRY(hd_node_choice(&role, value[DIM_ROLE], hd_role_names, HD_ROLE_TEXT + 1, "role"));
    }
    memcpy(out->name, node->key, strlen(node->key) + 1);
    out->role = (hd_role)role;
    out->mark = hd_mark_of(node);
out:
    return st;
}

static heddle_status read_dims(heddle_model *m, const hd_node *node)
{
    if (node->kind != HD_NODE_MAP || node->count == 0 || node->count > HD_MODEL_MAX_DIMS) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'dims' must be a map of 1 to %d dims (name: size)",
                            HD_MODEL_MAX_DIMS);
    }
    for (const hd_node *child = node->child; child != NULL; child = child->next) {
        heddle_status st = read_dim(&m->dim[m->ndims], child);
        if (st != HEDDLE_OK) {
            return st;
        }
        m->ndims++;
    }
    return HEDDLE_OK;
}

heddle_status hd_read_dim_ref(int *out, const heddle_model *m, const hd_node *node, const char *what)
{
    const char *names[HD_MODEL_MAX_DIMS];
    for (int d = 0; d < m->ndims; d++) {
        names[d] = m->dim[d].name;
    }
    return hd_node_choice(out, node, names, m->ndims, what);
}

static heddle_status read_tensor_dims(int *out, int *count, const heddle_model *m, const hd_node *list,
                                      const char *what)
{
    heddle_status st = hd_node_list(list, 1, HEDDLE_MAX_DIMS, what);
    unsigned seen = 0;
    *count = 0;
    for (const hd_node *child = list->child; st == HEDDLE_OK && child != NULL; child = child->next) {
        st = hd_read_dim_ref(&out[*count], m, child, what);
        if (st == HEDDLE_OK && (seen & 1U << out[*count]) != 0) {
            st = hd_node_fail(HEDDLE_ERR_PARSE, child, "dim '%s' appears twice in '%s'", child->text, what);
        }
        if (st == HEDDLE_OK) {
            seen |= 1U << out[*count];
            ++*count;
        }
    }
    return st;
}

/* One batch dim at most and in front, sequence dims, the channels last. */
static heddle_status check_activation(const heddle_model *m, const hd_node *node)
{
    int seqs = 0;
    for (int i = 0; i < m->activation_ndim; i++) {
        const hd_model_dim *d = &m->dim[m->activation_dim[i]];
        int is_last = i == m->activation_ndim - 1;
        if ((d->role == HD_ROLE_CHANNEL) != is_last || (d->role == HD_ROLE_BATCH && i != 0) ||
            d->role == HD_ROLE_HEADS || d->role == HD_ROLE_TEXT) {
            return hd_node_fail(HEDDLE_ERR_LAYOUT, node,
                                "tensor '%s' must be a batch dim (if any), sequence dims, then the channels; dim '%s' "
                                "in place %d is %s",
                                node->key, d->name, i + 1, hd_role_names[d->role]);
        }
        seqs += d->role == HD_ROLE_SEQ;
    }
    if (seqs == 0) {
        return hd_node_fail(HEDDLE_ERR_LAYOUT, node, "tensor '%s' has no sequence dim", node->key);
    }
    return HEDDLE_OK;
}

static heddle_status read_activation(hd_model_reader *r, const hd_node *node, const hd_node *list)
{
    heddle_model *m = r->m;
    heddle_status st = HEDDLE_OK;
    if (r->activation != NULL) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node,
                            "a second activation tensor '%s' besides '%s': one is supported (const: true for inputs "
                            "that do not change)",
                            node->key, r->activation);
    }
    r->activation = node->key;
    m->activation_mark = hd_mark_of(list);
    HD_TRY(read_tensor_dims(m->activation_dim, &m->activation_ndim, m, list, node->key));
    st = check_activation(m, node);
out:
    return st;
}

static heddle_status read_const(hd_model_reader *r, const hd_node *node, const hd_node *list)
{
    heddle_status st = HEDDLE_OK;
    int dims[HEDDLE_MAX_DIMS];
    int ndims = 0;
    int text_dim = -1;
    if (r->text != NULL) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "a second constant tensor '%s' besides '%s': one is supported",
                            node->key, r->text);
    }
    r->text = node->key;
    HD_TRY(read_tensor_dims(dims, &ndims, r->m, list, node->key));
    for (int i = 0; i < ndims; i++) {
        const hd_model_dim *d = &r->m->dim[dims[i]];
        if (d->role == HD_ROLE_SEQ || d->role == HD_ROLE_HEADS || (d->role == HD_ROLE_TEXT && text_dim >= 0) ||
            (d->role == HD_ROLE_BATCH && i != 0) || ((d->role == HD_ROLE_CHANNEL) != (i == ndims - 1))) {
            st = hd_node_fail(HEDDLE_ERR_LAYOUT, node,
                              "constant tensor '%s' must be a batch dim (if any), one text dim, then the channels; dim "
                              "'%s' in place %d is %s",
                              node->key, d->name, i + 1, hd_role_names[d->role]);
            goto out;
        }
        text_dim = d->role == HD_ROLE_TEXT ? dims[i] : text_dim;
    }
    if (text_dim < 0) {
        st = hd_node_fail(HEDDLE_ERR_LAYOUT, node, "constant tensor '%s' has no dim with the role text", node->key);
        goto out;
    }
    r->m->text_dim = text_dim;
out:
    return st;
}

static heddle_status read_tensors(hd_model_reader *r, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    char what[HD_NODE_QUOTE_BYTES];
    if (node->kind != HD_NODE_MAP) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'tensors' must be a map (name: [dims])");
    }
    for (const hd_node *child = node->child; child != NULL; child = child->next) {
        const hd_node *value[TENSOR_KEYS] = {child, NULL};
        int is_const = 0;
        if (!hd_is_dim_name(child->key)) {
            return hd_node_fail(HEDDLE_ERR_PARSE, child, "a tensor's name is a lower-case word of up to %d letters",
                                HEDDLE_NAME_BYTES - 1);
        }
        if (child->kind == HD_NODE_MAP) {
            snprintf(what, sizeof what, "tensor '%s'", child->key);
            HD_TRY(hd_map_read(value, child, tensor_keys, TENSOR_KEYS, what));
        }
        if (value[TENSOR_CONST] != NULL) {
            HD_TRY(hd_node_bool(&is_const, value[TENSOR_CONST], "const"));
        }
        HD_TRY(is_const ? read_const(r, child, value[TENSOR_DIMS]) : read_activation(r, child, value[TENSOR_DIMS]));
    }
    if (r->activation == NULL) {
        st = hd_node_fail(HEDDLE_ERR_PARSE, node, "'tensors' names no activation tensor (x: [b, t, s, c])");
    }
out:
    return st;
}

static heddle_status read_patch(heddle_model *m, const hd_node *node)
{
    heddle_status st = hd_node_list(node, 3, 3, "patch");
    int i = 0;
    for (const hd_node *child = node->child; st == HEDDLE_OK && child != NULL; child = child->next) {
        int64_t value = 0;
        st = hd_node_int(&value, child, 1, PATCH_MAX, "patch");
        m->patch[i++] = (int)value;
    }
    return st;
}

/* "cache: {every: 2}": a map of one whole number. */
static heddle_status read_only_number(int64_t *out, const hd_node *node, const char *map, const char *key, int64_t high)
{
    const hd_key keys[] = {{key, 1}};
    const hd_node *value[1];
    heddle_status st = hd_map_read(value, node, keys, 1, map);
    return st == HEDDLE_OK ? hd_node_int(out, value[0], 1, high, key) : st;
}

static heddle_status read_source(heddle_model *m, const hd_node *node)
{
    const char *text = NULL;
    heddle_status st = hd_node_text(&text, node, "source");
    if (st == HEDDLE_OK && (text[0] == '\0' || strlen(text) >= SOURCE_BYTES)) {
        st = hd_node_fail(HEDDLE_ERR_PARSE, node, "'source' must be a sentence of 1 to %d bytes, found %zu",
                          SOURCE_BYTES - 1, strlen(text));
    }
    return st == HEDDLE_OK ? hd_strdup(&m->source, text) : st;
}

/* What surrounds the stages. */
static heddle_status read_around(heddle_model *m, const hd_node *const *value)
{
    static const char *const placements[] = {"replicated", "sharded"};
    heddle_status st = HEDDLE_OK;
    int64_t guidance = 0, steps = 0, every = 0;
    HD_TRY(value[MODEL_SOURCE] ? read_source(m, value[MODEL_SOURCE]) : HEDDLE_OK);
    HD_TRY(value[MODEL_GUIDANCE] ? hd_node_int(&guidance, value[MODEL_GUIDANCE], 1, GUIDANCE_MAX, "guidance")
                                 : HEDDLE_OK);
    HD_TRY(value[MODEL_STEPS] ? hd_node_int(&steps, value[MODEL_STEPS], 1, STEPS_MAX, "steps") : HEDDLE_OK);
    HD_TRY(value[MODEL_CACHE] ? read_only_number(&every, value[MODEL_CACHE], "cache", "every", STEPS_MAX) : HEDDLE_OK);
    HD_TRY(value[MODEL_PATCH_CHANNELS]
               ? hd_node_int(&m->patch_channels, value[MODEL_PATCH_CHANNELS], 1, HD_EXTENT_MAX, "patch_channels")
               : HEDDLE_OK);
    HD_TRY(value[MODEL_FINAL]
               ? read_only_number(&m->final_channels, value[MODEL_FINAL], "final", "channels", HD_EXTENT_MAX)
               : HEDDLE_OK);
    HD_TRY(value[MODEL_SERIAL_FLOPS]
               ? hd_node_int(&m->serial_flops, value[MODEL_SERIAL_FLOPS], 1, INT64_MAX, "serial_flops")
               : HEDDLE_OK);
    HD_TRY(value[MODEL_SERIAL_TOKEN_FLOPS] ? hd_node_int(&m->serial_token_flops, value[MODEL_SERIAL_TOKEN_FLOPS], 1,
                                                         INT64_MAX, "serial_token_flops")
                                           : HEDDLE_OK);
    HD_TRY(value[MODEL_WEIGHTS] ? hd_node_choice(&m->weights_sharded, value[MODEL_WEIGHTS], placements, 2, "weights")
                                : HEDDLE_OK);
    m->guidance = (int)guidance;
    m->steps = (int)steps;
    m->cache_every = (int)every;
out:
    return st;
}

static const hd_other others[] = {
    {"schema", "this is a schedule or an answer, no model: a model is wanted, and its schedule behind --schedule"},
    {"machine", "this is a machine, no model: it is wanted behind --machine"},
    {"_class_name", "this is a configuration of diffusers, no model: heddle import makes a model of it"},
};

static heddle_status read_all(heddle_model *m, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[MODEL_KEYS];
    hd_model_reader r = {.m = m};
    int64_t repeat = 1;
    HD_TRY(hd_map_refuse(root, others, sizeof others / sizeof others[0]));
    HD_TRY(hd_map_read(value, root, model_keys, MODEL_KEYS, "the model"));
    HD_TRY(hd_node_label(m->name, value[MODEL_NAME], "model"));
    HD_TRY(read_dtype(&m->dtype, value[MODEL_DTYPE]));
    HD_TRY(read_dims(m, value[MODEL_DIMS]));
    HD_TRY(read_tensors(&r, value[MODEL_TENSORS]));
    HD_TRY(value[MODEL_PATCH] ? read_patch(m, value[MODEL_PATCH]) : HEDDLE_OK);
    HD_TRY(value[MODEL_REPEAT] ? hd_node_int(&repeat, value[MODEL_REPEAT], 1, HD_MODEL_MAX_RUNS, "repeat") : HEDDLE_OK);
    m->repeat = (int)repeat;
    HD_TRY(read_around(m, value));
    HD_TRY(hd_read_stages(&r, value[MODEL_STAGES]));
    st = hd_model_derive(m, 1);
out:
    return st;
}

heddle_status hd_model_read(void *out, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    heddle_model *model = NULL;
    HD_TRY(hd_alloc((void **)&model, 1, sizeof *model, "a model"));
    model->text_dim = -1;
    model->patch[0] = model->patch[1] = model->patch[2] = 1;
    HD_TRY(hd_strdup(&model->file, root->document->name));
    HD_TRY(read_all(model, root));
    *(heddle_model **)out = model;
    model = NULL;
out:
    heddle_model_destroy(model);
    return st;
}
