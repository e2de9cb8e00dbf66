/* Which tensor of the files is which parameter: by the names that diffusers gives them. */
#include "latte.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- blocks ------------------------------------------------------------------------------------------------------- */

typedef struct source {
    const char *param;   /* of the block, before ".weight" and ".bias" */
    int count;           /* tensors that make it, one below the other */
    const char *from[3]; /* behind the layer's name */
    int may_lack_bias;
} source;

typedef struct origin {
    const char *list; /* of layers */
    source sources[3];
} origin;

#define SELF_ATTENTION                                                                                                 \
    {                                                                                                                  \
        {"qkv", 3, {"attn1.to_q", "attn1.to_k", "attn1.to_v"}, 1},                                                     \
        {                                                                                                              \
            "proj", 1, {"attn1.to_out.0"}, 0                                                                           \
        }                                                                                                              \
    }
#define FEED_FORWARD                                                                                                   \
    {                                                                                                                  \
        {"fc1", 1, {"ff.net.0.proj"}, 0},                                                                              \
        {                                                                                                              \
            "fc2", 1, {"ff.net.2"}, 0                                                                                  \
        }                                                                                                              \
    }
static const origin origins[STAGES_PER_LAYER] = {
    {"transformer_blocks", SELF_ATTENTION},
    {"transformer_blocks",
     {{"q_linear", 1, {"attn2.to_q"}, 1},
      {"kv_linear", 2, {"attn2.to_k", "attn2.to_v"}, 1},
      {"proj", 1, {"attn2.to_out.0"}, 0}}},
    {"transformer_blocks", FEED_FORWARD},
    {"temporal_transformer_blocks", SELF_ATTENTION},
    {"temporal_transformer_blocks", FEED_FORWARD},
};

static const source *source_of(const heddle_param *param, int stage)
{
    const size_t length = strcspn(param->name, ".");
    for (int i = 0; i < 3; i++) {
        const source *s = &origins[stage].sources[i];
        if (s->param != NULL && strlen(s->param) == length && strncmp(s->param, param->name, length) == 0) {
            return s;
        }
    }
    return NULL;
}

static heddle_status take_param(weights *w, const config *cfg, const heddle_param *param, int stage, int64_t layer,
                                int only_look)
{
    const source *s = source_of(param, stage);
    const char *suffix = strchr(param->name, '.');
    if (s == NULL) {
        return heddle_set_error(HEDDLE_ERR_INTERNAL, "a block has a parameter '%s' that the files know nothing of",
                                param->name);
    }
    const int64_t extent[2] = {param->extent[0] / s->count, param->extent[1]};
    const int64_t elems = extent[0] * (param->ndim == 2 ? extent[1] : 1);
    if (param->ndim == 1 && s->may_lack_bias && !cfg->attention_bias) {
        memset(param->data, 0, (size_t)(param->extent[0]) * sizeof(float));
        return HEDDLE_OK;
    }
    heddle_status st = HEDDLE_OK;
    for (int i = 0; st == HEDDLE_OK && i < s->count; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof(name), "%s.%" PRId64 ".%s%s", origins[stage].list, layer, s->from[i], suffix);
        st = weights_take(only_look ? NULL : param->data + i * elems, w, name, param->ndim, extent);
    }
    return st;
}

static heddle_status take_params(heddle_block *block, weights *w, const config *cfg, int stage, int64_t layer,
                                 int only_look)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; st == HEDDLE_OK && i < heddle_block_nparams(block); i++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        st = heddle_block_param(&param, block, i);
        st = st ? st : take_param(w, cfg, &param, stage, layer, only_look);
    }
    return st;
}

heddle_status block_take(heddle_block *block, weights *w, const config *cfg, int stage, int64_t layer)
{
    heddle_status st = take_params(block, w, cfg, stage, layer, 0);
    return st ? st : heddle_block_commit(block);
}

heddle_status table_take(float *out, weights *w, const config *cfg, int stage, int64_t layer)
{
    char name[NAME_BYTES];
    const int64_t extent[2] = {ROWS_OF_VECTOR, cfg->channels};
    snprintf(name, sizeof(name), "%s.%" PRId64 ".scale_shift_table", origins[stage].list, layer);
    return weights_take(out, w, name, 2, extent);
}

/* --- all others --------------------------------------------------------------------------------------------------- */

/* patch > 0: the weight is that of a convolution, [out, in / patch^2, patch, patch]; the same numbers. */
static heddle_status take_dense(dense *layer, weights *w, const char *name, int64_t in, int64_t out, int64_t patch,
                                int only_look)
{
    char full[NAME_BYTES];
    const int64_t plain[2] = {out, in}, convolution[4] = {out, patch > 0 ? in / (patch * patch) : 0, patch, patch};
    layer->in = in;
    layer->out = out;
    if (!only_look) {
        layer->weight = malloc((size_t)(in * out) * sizeof(float));
        layer->bias = malloc((size_t)out * sizeof(float));
        if (layer->weight == NULL || layer->bias == NULL) {
            return no_memory(name, in * out);
        }
    }
    snprintf(full, sizeof(full), "%s.weight", name);
    heddle_status st = weights_take(layer->weight, w, full, patch > 0 ? 4 : 2, patch > 0 ? convolution : plain);
    snprintf(full, sizeof(full), "%s.bias", name);
    return st ? st : weights_take(layer->bias, w, full, 1, plain);
}

static heddle_status take_layers(layers *l, weights *w, const config *cfg, int only_look)
{
    const int64_t c = cfg->channels, p = cfg->patch, table[2] = {2, c};
    heddle_status st = take_dense(&l->patch, w, "pos_embed.proj", cfg->in_channels * p * p, c, p, only_look);
    st = st ? st
            : take_dense(&l->time1, w, "adaln_single.emb.timestep_embedder.linear_1", TIME_FEATURES, c, 0, only_look);
    st = st ? st : take_dense(&l->time2, w, "adaln_single.emb.timestep_embedder.linear_2", c, c, 0, only_look);
    st = st ? st : take_dense(&l->vector, w, "adaln_single.linear", c, ROWS_OF_VECTOR * c, 0, only_look);
    st = st ? st : take_dense(&l->caption1, w, "caption_projection.linear_1", cfg->caption_channels, c, 0, only_look);
    st = st ? st : take_dense(&l->caption2, w, "caption_projection.linear_2", c, c, 0, only_look);
    st = st ? st : take_dense(&l->final, w, "proj_out", c, cfg->out_channels * p * p, 0, only_look);
    if (st == HEDDLE_OK && !only_look && (l->final_table = malloc((size_t)(2 * c) * sizeof(float))) == NULL) {
        st = no_memory("scale_shift_table", 2 * c);
    }
    return st ? st : weights_take(l->final_table, w, "scale_shift_table", 2, table);
}

heddle_status layers_take(layers *out, weights *w, const config *cfg)
{
    memset(out, 0, sizeof(*out));
    return take_layers(out, w, cfg, 0);
}

void layers_free(layers *l)
{
    dense *const all[] = {&l->patch, &l->time1, &l->time2, &l->vector, &l->caption1, &l->caption2, &l->final};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        free(all[i]->weight);
        free(all[i]->bias);
    }
    free(l->final_table);
    memset(l, 0, sizeof(*l));
}

heddle_status dense_forward(float *y, const dense *layer, const float *x, int64_t rows, int64_t threads)
{
    return rows == 0 ? HEDDLE_OK
                     : heddle_dense_forward(y, x, rows, layer->in, layer->weight, layer->bias, layer->out, (int)threads,
                                            HEDDLE_NO_STREAM);
}

/* --- before anything runs ----------------------------------------------------------------------------------------- */

/* A block of one row, for the names and extents of its parameters. */
static heddle_status check_stage(weights *w, const config *cfg, int stage)
{
    static const heddle_stage_kind kinds[STAGES_PER_LAYER] = {
        HEDDLE_STAGE_ATTENTION, HEDDLE_STAGE_CROSS, HEDDLE_STAGE_MLP, HEDDLE_STAGE_ATTENTION, HEDDLE_STAGE_MLP};
    heddle_block_options want;
    heddle_block *block = NULL;
    heddle_block_options_init(&want);
    want.kind = kinds[stage];
    want.shape = (heddle_shape){HEDDLE_F32, 3, {{"b", 1}, {"s", 1}, {"c", cfg->channels}}};
    want.mixed_dim = 1;
    want.heads = (int)cfg->heads;
    want.mlp_channels = 4 * cfg->channels;
    want.text_tokens = 1;
    heddle_status st = heddle_block_create(&block, &want);
    for (int64_t layer = 0; st == HEDDLE_OK && layer < cfg->layers; layer++) {
        st = take_params(block, w, cfg, stage, layer, 1);
        if (st == HEDDLE_OK && kinds[stage] == HEDDLE_STAGE_ATTENTION) {
            st = table_take(NULL, w, cfg, stage, layer);
        }
    }
    heddle_block_destroy(block);
    return st;
}

heddle_status weights_check(weights *w, const config *cfg)
{
    layers none = {0};
    heddle_status st = take_layers(&none, w, cfg, 1);
    /* What is missing here makes the extents of config.json a guess: no block is made of them. */
    const int nstages = w->nmissing == 0 ? STAGES_PER_LAYER : 0;
    for (int stage = 0; st == HEDDLE_OK && stage < nstages; stage++) {
        st = check_stage(w, cfg, stage);
    }
    return st ? st : weights_all_used(w);
}
