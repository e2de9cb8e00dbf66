/* The config.json of a diffusers transformer -> a model file. What a config does not say (the VAE, the usual clip and
 * text) is in the table of classes. */
#include "planner/model/import.h"
#include "planner/model/model_read.h"
#include "runtime/base/base.h"

#include <string.h>

enum {
    CONFIG_LIMIT_BYTES = 1 << 20,
    HEAD_CHANNELS_MAX = 65536,
    LAYERS_MAX = 65536,
    CHANNELS_MAX = 1 << 20,
    PATCH_MAX = 64,
    SIZE_MAX_PIXELS = 1000000
};

/* Patches are those that diffusers' classes have where the config says none; 0: it must (Latte).
 * Without sources of their own the usual clips, texts and steps are from memory of the models' cards; what the VAEs
 * take is counted of diffusers' classes, as in the presets. */
static const hd_import_class classes[] = {
    {"CogVideoXTransformer3DModel", "cogvideox", HD_IMPORT_SHARED, 2, 4, 8, 1, 49, 480, 720, 226, 2, 50, 1, 0,
     4487577600},
    {"ConsisIDTransformer3DModel", "consisid", HD_IMPORT_SHARED, 2, 4, 8, 1, 49, 480, 720, 226, 2, 50, 1, 1,
     4487577600},
    {"FluxTransformer2DModel", "flux.1", HD_IMPORT_JOINED, 1, 0, 8, 2, 1, 1024, 1024, 512, 1, 50, 1, 1, 605618176},
    {"HunyuanVideoTransformer3DModel", "hunyuanvideo", HD_IMPORT_JOINED, 2, 4, 8, 1, 129, 720, 1280, 256, 2, 50, 1, 1,
     4231932106},
    {"LTXVideoTransformer3DModel", "ltx-video", HD_IMPORT_CROSS, 1, 8, 32, 1, 161, 512, 704, 128, 2, 50, 1, 1,
     6835073999},
    {"LatteTransformer3DModel", "latte", HD_IMPORT_DIVIDED, 0, 1, 8, 1, 16, 512, 512, 120, 2, 50, 0, 0, 605507616},
    {"MochiTransformer3DModel", "mochi", HD_IMPORT_NARROWER, 2, 6, 8, 1, 163, 480, 848, 256, 2, 64, 1, 1, 6069209088},
    {"QwenImageTransformer2DModel", "qwen-image", HD_IMPORT_JOINED, 2, 0, 8, 2, 1, 1328, 1328, 512, 2, 50, 1, 1,
     687882752},
    {"SD3Transformer2DModel", "sd3", HD_IMPORT_JOINED, 2, 0, 8, 1, 1, 1024, 1024, 333, 2, 28, 0, 0, 605618176},
    {"WanTransformer3DModel", "wan", HD_IMPORT_CROSS, 2, 4, 8, 1, 81, 720, 1280, 512, 2, 50, 1, 1, 2091698981},
};
enum { CLASSES = sizeof classes / sizeof classes[0] };

/* --- what the config says ----------------------------------------------------------------------------------------- */

static const hd_node *value_of(const hd_node *root, const char *key)
{
    for (const hd_node *child = root->child; child != NULL; child = child->next) {
        if (strcmp(child->key, key) == 0) {
            return child->kind == HD_NODE_SCALAR && !child->quoted && strcmp(child->text, "null") == 0 ? NULL : child;
        }
    }
    return NULL;
}

/* Absent or null: *out stays; 0 there: the key is needed. */
static heddle_status take(int64_t *out, const hd_node *root, const char *key, int64_t high)
{
    const hd_node *value = value_of(root, key);
    if (value == NULL) {
        return *out != 0 ? HEDDLE_OK : hd_node_fail(HEDDLE_ERR_PARSE, root, "the config has no '%s'", key);
    }
    return hd_node_int(out, value, 1, high, key);
}

static heddle_status take_class(const hd_import_class **out, const hd_node *root)
{
    const char *names[CLASSES], *name = NULL;
    const hd_node *value = root->kind == HD_NODE_MAP ? value_of(root, "_class_name") : NULL;
    int choice = 0;
    if (value == NULL) {
        return hd_node_fail(HEDDLE_ERR_PARSE, root,
                            "there is no '_class_name'; what is read is the config.json of a diffusers transformer");
    }
    heddle_status st = hd_node_text(&name, value, "_class_name");
    if (st == HEDDLE_OK && strstr(name, "Pipeline") != NULL) {
        return hd_node_fail(HEDDLE_ERR_PARSE, value,
                            "this describes a whole pipeline; its model is described in transformer/config.json");
    }
    for (int i = 0; i < CLASSES; i++) {
        names[i] = classes[i].name;
    }
    st = st == HEDDLE_OK ? hd_node_choice(&choice, value, names, CLASSES, "_class_name") : st;
    *out = st == HEDDLE_OK ? &classes[choice] : NULL;
    return st;
}

/* One number, or those of frames, height and width, the last two alike. */
static heddle_status take_patch(hd_import *c, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value = value_of(root, "patch_size");
    int64_t width = 0;
    c->patch_t = 1;
    c->patch = c->of->patch; /* of height and width; of frames every class has 1 */
    if (value == NULL || value->kind != HD_NODE_LIST) {
        HD_TRY(take(&c->patch, root, "patch_size", PATCH_MAX));
        HD_TRY(take(&c->patch_t, root, "patch_size_t", PATCH_MAX));
        goto out;
    }
    HD_TRY(hd_node_list(value, 3, 3, "patch_size"));
    HD_TRY(hd_node_int(&c->patch_t, value->child, 1, PATCH_MAX, "patch_size"));
    HD_TRY(hd_node_int(&c->patch, value->child->next, 1, PATCH_MAX, "patch_size"));
    HD_TRY(hd_node_int(&width, value->child->next->next, 1, PATCH_MAX, "patch_size"));
    if (width != c->patch) {
        st = hd_node_fail(HEDDLE_ERR_PARSE, value, "'patch_size' is %lld high and %lld wide; patches are square",
                          (long long)c->patch, (long long)width);
    }
out:
    return st;
}

static heddle_status take_truth(int *out, const hd_node *root, const char *key)
{
    const hd_node *value = value_of(root, key);
    return value != NULL ? hd_node_bool(out, value, key) : HEDDLE_OK;
}

/* How a layer computes. */
static heddle_status take_ways(hd_import *c, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value = value_of(root, "ffn_dim");
    int is_input = 0;
    HD_TRY(value != NULL ? hd_node_int(&c->ffn, value, 1, HD_EXTENT_MAX, "ffn_dim") : HEDDLE_OK);
    value = value_of(root, "mlp_ratio");
    c->ratio_millionths = 4000000;
    HD_TRY(value != NULL ? hd_read_ratio(&c->ratio_millionths, value) : HEDDLE_OK);
    HD_TRY(take_truth(&is_input, root, "guidance_embeds"));
    c->guidance = is_input ? 1 : c->of->guidance;
    c->rope = c->of->rope;
    HD_TRY(take_truth(&c->rope, root, "use_rotary_positional_embeddings"));
    c->qk_norm = c->of->qk_norm || value_of(root, "qk_norm") != NULL;
out:
    return st;
}

static heddle_status take_config(hd_import *c, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    int64_t width = 0;
    const hd_node *value = NULL;
    HD_TRY(take_class(&c->of, root));
    HD_TRY(take(&c->heads, root, "num_attention_heads", HD_MODEL_MAX_HEADS));
    HD_TRY(take(&width, root, "attention_head_dim", HEAD_CHANNELS_MAX));
    HD_TRY(take(&c->layers, root, "num_layers", LAYERS_MAX));
    HD_TRY(take(&c->in_channels, root, "in_channels", CHANNELS_MAX));
    c->channels = c->heads * width;
    value = value_of(root, "num_single_layers");
    HD_TRY(value != NULL ? hd_node_int(&c->singles, value, 0, LAYERS_MAX, "num_single_layers") : HEDDLE_OK);
    HD_TRY(take_patch(c, root));
    c->out_channels = c->in_channels;
    HD_TRY(take(&c->out_channels, root, "out_channels", CHANNELS_MAX));
    c->text = c->of->text;
    HD_TRY(take(&c->text, root, "max_text_seq_length", HD_EXTENT_MAX));
    c->time_channels = 512;
    HD_TRY(take(&c->time_channels, root, "time_embed_dim", CHANNELS_MAX));
    c->narrow = 1536;
    HD_TRY(take(&c->narrow, root, "pooled_projection_dim", CHANNELS_MAX));
    c->interval = strstr(c->of->name, "ConsisID") != NULL ? 2 : 1;
    HD_TRY(c->interval > 1 ? take(&c->interval, root, "cross_attn_interval", LAYERS_MAX) : HEDDLE_OK);
    HD_TRY(take_ways(c, root));
    if (c->layers % c->interval != 0) {
        st = hd_node_fail(HEDDLE_ERR_PARSE, root, "%lld layers are no multiple of 'cross_attn_interval' %lld",
                          (long long)c->layers, (long long)c->interval);
    }
out:
    return st;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

static heddle_status count_pixels(int64_t *out, const hd_import *c, const char *what, int64_t asked, int64_t usual)
{
    const int64_t pixels = asked > 0 ? asked : usual;
    const int64_t unit = (int64_t)c->of->vae_pixels * (c->of->packs > 1 ? c->of->packs : c->patch);
    if (pixels % unit != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: a %s of %lld pixels is no multiple of the %lld of a token", c->of->name,
                       what, (long long)pixels, (long long)unit);
    }
    *out = pixels / unit;
    return HEDDLE_OK;
}

/* A causal VAE keeps the first frame and then makes one of so many. */
static heddle_status count_tokens(hd_import *c)
{
    heddle_status st = HEDDLE_OK;
    const heddle_import_options *o = &c->options;
    const int64_t frames = o->frames > 0 ? o->frames : c->of->frames;
    const int64_t step = c->of->vae_frames > 0 ? c->of->vae_frames : 1;
    if (c->of->vae_frames == 0 && frames != 1) {
        st = hd_fail(HEDDLE_ERR_ARG, "%s makes pictures; %lld frames were asked for", c->of->name, (long long)frames);
        goto out;
    }
    if ((frames - 1) % step != 0) {
        st = hd_fail(HEDDLE_ERR_ARG,
                     "%s: its VAE makes one frame and then one of every %lld: %lld frames are not "
                     "1 + a multiple of %lld (%lld are)",
                     c->of->name, (long long)step, (long long)frames, (long long)step,
                     (long long)((frames - 1) / step * step + 1));
        goto out;
    }
    c->frames = ((frames - 1) / step + c->patch_t) / c->patch_t; /* frames are repeated to fill a patch */
    HD_TRY(count_pixels(&c->height, c, "height", o->height, c->of->height));
    HD_TRY(count_pixels(&c->width, c, "width", o->width, c->of->width));
out:
    return st;
}

static heddle_status read_config(void *out, const hd_node *root)
{
    heddle_status st = HEDDLE_OK;
    hd_import *c = out;
    heddle_model *model = NULL;
    HD_TRY(take_config(c, root));
    HD_TRY(count_tokens(c));
    hd_import_write(c);
    if (c->used >= c->out_bytes) {
        st = hd_fail(HEDDLE_ERR_ARG, "the model file of %s is longer than the %zu bytes that there is room for",
                     root->document->name, c->out_bytes);
        goto out;
    }
    st = heddle_model_parse(&model, c->out, c->used, c->of->model);
    heddle_model_destroy(model);
out:
    return st;
}

void heddle_import_options_init(heddle_import_options *options)
{
    if (options != NULL) {
        *options = (heddle_import_options){.struct_bytes = sizeof *options};
    }
}

heddle_status heddle_model_import(char *out, size_t out_bytes, const char *path, const heddle_import_options *options)
{
    heddle_status st = HEDDLE_OK;
    hd_import c = {.out = out, .out_bytes = out_bytes};
    HD_TRY(HD_NEED(out, path));
    heddle_import_options_init(&c.options);
    HD_TRY(hd_struct_take(&c.options, options, HD_STRUCT(heddle_import_options, width)));
    const int64_t asked[] = {c.options.frames, c.options.height, c.options.width};
    for (int i = 0; i < 3; i++) {
        if (asked[i] < 0 || asked[i] > SIZE_MAX_PIXELS) {
            st = hd_fail(HEDDLE_ERR_ARG, "a clip has 1 to %d frames and pixels each way, asked for %lld",
                         SIZE_MAX_PIXELS, (long long)asked[i]);
            goto out;
        }
    }
    st = hd_document_load(read_config, &c, path, CONFIG_LIMIT_BYTES);
out:
    return st;
}
