/* Options, parameters and life of a block. */
#include "runtime/base/base.h"
#include "runtime/base/threads.h"
#include "runtime/block/back_internal.h"

#include <heddle/linear_attention.h>
#include <math.h>
#include <string.h>

static const float ROPE_BASE = 10000.0f;

void heddle_block_options_init(heddle_block_options *options)
{
    if (options != NULL) {
        *options = (heddle_block_options){
            .struct_bytes = sizeof *options, .mixed_dim = -1, .heads = 1, .modulate = 1, .threads = 1, .decay = 1};
    }
}

static heddle_status check_heads(const heddle_block_options *options, int64_t channels)
{
    if (options->heads < 1 || channels % options->heads != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "%lld channels cannot be divided into %d heads", (long long)channels,
                       options->heads);
    }
    if (options->kind != HEDDLE_STAGE_CROSS && options->rope && channels / options->heads % 2 != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "rotary positions need an even number of channels per head, not %lld",
                       (long long)(channels / options->heads));
    }
    return HEDDLE_OK;
}

/* Options that are not of this kind of stage are ignored, those of it are checked here, before any memory is taken. */
static heddle_status check_kind(const heddle_block_options *options, int64_t channels)
{
    const heddle_shape *shape = &options->shape;
    switch (options->kind) {
    case HEDDLE_STAGE_LINEAR:
        if (!(options->decay >= 0 && options->decay <= 1)) {
            return hd_fail(HEDDLE_ERR_ARG,
                           "decay %g of a linear attention stage: must be above 0 and at most 1, or 0 for the slopes",
                           options->decay);
        }
        if (options->qk_norm) {
            return hd_fail(HEDDLE_ERR_ARG, "a linear attention stage norms its result, it has no qk_norm");
        }
        __attribute__((fallthrough));
    case HEDDLE_STAGE_ATTENTION:
        if (options->mixed_dim < 1 || options->mixed_dim > shape->ndim - 2) {
            return hd_fail(HEDDLE_ERR_ARG, "mixed_dim %d of an attention stage must be a sequence dim, 1 to %d",
                           options->mixed_dim, shape->ndim - 2);
        }
        return check_heads(options, channels);
    case HEDDLE_STAGE_CROSS:
        if (options->text_tokens < 1) {
            return hd_fail(HEDDLE_ERR_ARG, "a cross-attention stage needs text_tokens >= 1, not %lld",
                           (long long)options->text_tokens);
        }
        return check_heads(options, channels);
    case HEDDLE_STAGE_MLP:
        if (options->mlp_channels < 1) {
            return hd_fail(HEDDLE_ERR_ARG, "an MLP stage needs mlp_channels >= 1, not %lld",
                           (long long)options->mlp_channels);
        }
        return HEDDLE_OK;
    case HEDDLE_STAGE_MODULE:
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "a stage of kind module is planned, not run: a framework computes it");
    }
    return hd_fail(HEDDLE_ERR_ARG, "there is no stage kind %d", (int)options->kind);
}

static heddle_status check_space(const heddle_block_options *options)
{
    const heddle_dtype dtype = options->shape.dtype;
    if (options->space != HEDDLE_SPACE_HOST && options->space != HEDDLE_SPACE_DEVICE) {
        return hd_fail(HEDDLE_ERR_ARG, "space %d of a block: host memory is 0, a device's is 1", (int)options->space);
    }
    if (dtype != HEDDLE_F32 && dtype != HEDDLE_BF16 && (dtype != HEDDLE_F16 || options->space == HEDDLE_SPACE_HOST)) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "blocks work on f32 and bf16, on devices on f16 too, not on %s",
                       heddle_dtype_name(dtype));
    }
    return HEDDLE_OK;
}

static heddle_status check_options(const heddle_block_options *options)
{
    heddle_status st = HEDDLE_OK;
    const heddle_shape *shape = &options->shape;
    HD_TRY(heddle_shape_check(shape));
    if (shape->ndim < 2) {
        return hd_fail(HEDDLE_ERR_ARG, "a block needs a batch dim and a channel dim, the shape has %d dim",
                       shape->ndim);
    }
    HD_TRY(check_space(options));
    if (shape->dim[shape->ndim - 1].extent < 1) {
        return hd_fail(HEDDLE_ERR_ARG, "the channel dim %s is empty", shape->dim[shape->ndim - 1].name);
    }
    if (options->threads < 0 || options->threads > HD_MAX_THREADS) {
        return hd_fail(HEDDLE_ERR_ARG, "%d threads: must be 0 to %d", options->threads, HD_MAX_THREADS);
    }
    return check_kind(options, shape->dim[shape->ndim - 1].extent);
out:
    return st;
}

/* columns 0: a vector. Parameters stay f32, whatever the activation is; layers pack a copy in their own type. */
static heddle_status add_param(heddle_block *block, const char *name, int64_t rows, int64_t columns)
{
    heddle_param *param = &block->param[block->nparams];
    param->name = name;
    param->ndim = columns > 0 ? 2 : 1;
    param->extent[0] = rows;
    param->extent[1] = columns;
    int64_t count = columns > 0 ? columns : 1;
    heddle_status st = HEDDLE_OK;
    if (rows > INT32_MAX || count > INT32_MAX) {
        return hd_fail(HEDDLE_ERR_ARG, "parameter %s would be %lld x %lld", name, (long long)rows, (long long)count);
    }
    HD_TRY(hd_alloc((void **)&param->data, (size_t)rows, (size_t)count * sizeof(float), name));
    block->nparams++;
out:
    return st;
}

/* y = x W^T + b, from k to n channels. Parameters 2i and 2i + 1 are weight and bias of layer i: commit, the tape and
 * the gradients rely on it. */
static heddle_status add_layer(heddle_block *block, const char *weight, const char *bias, int64_t k, int64_t n,
                               heddle_dtype dst_dtype)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(add_param(block, weight, n, k));
    HD_TRY(add_param(block, bias, n, 0));
    if (block->options.space == HEDDLE_SPACE_HOST) {
        HD_TRY(hd_gemm_create(&block->layer[block->nlayers], block->kernels, k, n, block->options.shape.dtype,
                              dst_dtype, block->seats));
    }
    block->nlayers++;
out:
    return st;
}

static heddle_status make_decay(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    int heads = block->options.heads;
    HD_TRY(hd_alloc((void **)&block->decay, (size_t)heads, sizeof(double), "decay of the heads"));
    if (block->options.decay == 0) {
        return heddle_linear_attention_slopes(block->decay, heads);
    }
    for (int h = 0; h < heads; h++) {
        block->decay[h] = block->options.decay;
    }
out:
    return st;
}

/* The order of the parameters is part of the interface (heddle/block.h): weights files and buckets go by it. Layers
 * in front of f32 arithmetic (the sum with the residual, GELU) give f32, so that a result is rounded once, behind
 * it. */
static heddle_status make_layers(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    int64_t c = block->channels;
    int64_t hidden = block->options.mlp_channels;
    heddle_dtype dtype = block->options.shape.dtype;
    switch (block->options.kind) {
    case HEDDLE_STAGE_LINEAR:
        HD_TRY(add_layer(block, "qkv.weight", "qkv.bias", c, 3 * c, HEDDLE_F32)); /* see hd_mixer_dtype */
        if (block->layer[HD_LAYER_QKV] != NULL) {
            hd_gemm_whole_weights(block->layer[HD_LAYER_QKV]);
        }
        HD_TRY(add_layer(block, "proj.weight", "proj.bias", c, c, HEDDLE_F32));
        HD_TRY(make_decay(block));
        break;
    case HEDDLE_STAGE_ATTENTION:
        HD_TRY(add_layer(block, "qkv.weight", "qkv.bias", c, 3 * c, dtype));
        HD_TRY(add_layer(block, "proj.weight", "proj.bias", c, c, HEDDLE_F32));
        if (block->options.qk_norm) {
            HD_TRY(add_param(block, "q_norm.weight", block->head_channels, 0));
            HD_TRY(add_param(block, "k_norm.weight", block->head_channels, 0));
        }
        break;
    case HEDDLE_STAGE_CROSS:
        HD_TRY(add_layer(block, "q_linear.weight", "q_linear.bias", c, c, dtype));
        HD_TRY(add_layer(block, "proj.weight", "proj.bias", c, c, HEDDLE_F32));
        HD_TRY(add_layer(block, "kv_linear.weight", "kv_linear.bias", c, 2 * c, dtype));
        break;
    case HEDDLE_STAGE_MLP:
        HD_TRY(add_layer(block, "fc1.weight", "fc1.bias", c, hidden, HEDDLE_F32));
        HD_TRY(add_layer(block, "fc2.weight", "fc2.bias", hidden, c, HEDDLE_F32));
        break;
    case HEDDLE_STAGE_MODULE: /* there is no such block */
        break;
    }
out:
    return st;
}

/* Tables for the whole dim, not for this rank's part: a position has the same angles wherever its row lies. */
static heddle_status make_rope(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    int64_t t_extent = block->options.shape.dim[block->options.mixed_dim].extent;
    int64_t d = block->head_channels;
    HD_TRY(hd_alloc((void **)&block->cos_sin, (size_t)t_extent, (size_t)d * sizeof(float), "rotary positions"));
    for (int64_t t = 0; t < t_extent; t++) {
        for (int64_t i = 0; i < d; i += 2) {
            double angle = (double)t * pow((double)ROPE_BASE, -(double)i / (double)d);
            block->cos_sin[t * d + i] = (float)cos(angle);
            block->cos_sin[t * d + i + 1] = (float)sin(angle);
        }
    }
out:
    return st;
}

heddle_status heddle_block_create(heddle_block **out, const heddle_block_options *given)
{
    heddle_status st = HEDDLE_OK;
    heddle_block *block = NULL;
    heddle_block_options taken;
    const heddle_block_options *options = &taken;
    HD_TRY(HD_NEED(out));
    HD_TRY(hd_need(given, __func__, "options"));
    heddle_block_options_init(&taken);
    HD_TRY(hd_struct_take(&taken, given, HD_STRUCT(heddle_block_options, mixed_dim)));
    HD_TRY(check_options(options));
    HD_TRY(hd_alloc((void **)&block, 1, sizeof *block, "a block"));
    block->options = *options;
    block->channels = options->shape.dim[options->shape.ndim - 1].extent;
    if (options->kind != HEDDLE_STAGE_MLP) {
        block->head_channels = block->channels / options->heads;
    }
    HD_TRY(hd_kernels_cpu(&block->kernels));
    block->seats = options->threads > 0 ? options->threads : 1;
    HD_TRY(hd_alloc((void **)&block->scratch, 1,
                    sizeof *block->scratch + (size_t)block->seats * sizeof block->scratch->seat[0],
                    "a block's threads"));
    block->scratch->owners = 1;
    block->scratch->seats = block->seats;
    HD_TRY(make_layers(block));
    block->mixer = options->kind == HEDDLE_STAGE_ATTENTION ? &hd_mixer_softmax
                   : options->kind == HEDDLE_STAGE_LINEAR  ? &hd_mixer_linear
                                                           : NULL;
    if (block->mixer != NULL && options->rope) {
        HD_TRY(make_rope(block));
    }
    HD_TRY(options->space == HEDDLE_SPACE_DEVICE ? hd_on_make(block) : HEDDLE_OK);
    *out = block;
    block = NULL;
out:
    heddle_block_destroy(block);
    return st;
}

void heddle_block_destroy(heddle_block *block)
{
    if (block == NULL) {
        return;
    }
    if (block->mixer != NULL && block->mixer->destroy != NULL) {
        block->mixer->destroy(block);
    }
    hd_back_destroy(block);
    for (int i = 0; i < HD_BLOCK_PARAMS; i++) {
        hd_free(block->param[i].data);
    }
    for (int i = 0; i < HD_BLOCK_LAYERS; i++) {
        hd_gemm_destroy(block->layer[i]);
    }
    hd_block_leave_scratch(block->scratch);
    hd_on_free(block->on);
    hd_sharded_destroy(block->sharded);
    HD_FREE_ALL(block->cos_sin, block->decay, block);
}

int heddle_block_nparams(const heddle_block *block)
{
    return block != NULL ? block->nparams : 0;
}

heddle_status heddle_block_param(heddle_param *out, heddle_block *block, int index)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, block));
    if (index < 0 || index >= block->nparams) {
        return hd_fail(HEDDLE_ERR_ARG, "parameter %d: the block has %d", index, block->nparams);
    }
    st = hd_struct_give(out, &block->param[index], HD_STRUCT(heddle_param, name));
out:
    return st;
}

heddle_status heddle_block_agree(heddle_block *block, heddle_comm *comm)
{
    heddle_status st;
    HD_TRY(HD_NEED(block, comm));
    st = block->on != NULL ? hd_on_agree(block, comm) : HEDDLE_OK;
out:
    return st;
}

/* splitmix64's finaliser */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* -1 <= u < 1 from 24 bits */
static float uniform(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-23f - 1.0f;
}

/* Elements 2i and 2i+1 come from counter i of the parameter's stream: the same on every rank and machine. */
static void fill(float *x, int64_t elems, uint64_t key, float base, float scale)
{
    for (int64_t i = 0; i < elems; i += 2) {
        uint64_t bits = mix(key + ((uint64_t)i / 2 + 1) * 0x9e3779b97f4a7c15u);
        x[i] = base + scale * uniform((uint32_t)bits);
        if (i + 1 < elems) {
            x[i + 1] = base + scale * uniform((uint32_t)(bits >> 32));
        }
    }
}

/* Uniform and scaled by the sizes of the layer; norms begin at 1, biases near 0. */
heddle_status heddle_block_seed(heddle_block *block, uint64_t seed)
{
    heddle_status st = HD_NEED(block);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int p = 0; p < block->nparams; p++) {
        heddle_param *param = &block->param[p];
        uint64_t key = mix(seed + 0x632be59bd9b4e019u * (uint64_t)(p + 1));
        int64_t columns = param->ndim == 2 ? param->extent[1] : 1;
        float scale = param->ndim == 2 ? sqrtf(6.0f / (float)(param->extent[0] + columns)) : 0.02f;
        float base = block->options.kind == HEDDLE_STAGE_ATTENTION && p >= HD_PARAM_Q_NORM ? 1.0f : 0.0f;
        fill(param->data, param->extent[0] * columns, key, base, scale);
    }
    return heddle_block_commit(block);
}

/* Packs the weights for the kernels. Until all are packed the block counts as not committed. */
heddle_status heddle_block_commit(heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(block));
    block->committed = 0;
    HD_TRY(block->on != NULL ? hd_on_commit(block) : HEDDLE_OK);
    for (int i = 0; i < block->nlayers && block->on == NULL; i++) {
        HD_TRY(hd_gemm_pack(block->layer[i], block->param[2 * i].data, block->param[2 * i + 1].data));
    }
    block->committed = 1;
    block->commits++;
out:
    return st;
}

int64_t heddle_block_workspace_bytes(const heddle_block *block)
{
    if (block == NULL) {
        return 0;
    }
    int64_t bytes = hd_back_bytes(block);
    bytes += hd_sharded_bytes(block) + hd_on_bytes(block->on);
    for (int i = 0; i < block->nlayers && block->on == NULL; i++) {
        bytes += hd_gemm_bytes(block->layer[i]);
    }
    return bytes + hd_block_scratch_bytes(block->scratch);
}
