/* Weights of the blocks: from a seed, or from a safetensors file with the keys blocks.LAYER.STAGE.PARAMETER. */
#include "run.h"

#include <stdio.h>
#include <string.h>

enum { KEY_BYTES = 256 };

heddle_status run_block_options(heddle_block_options *options, const run_job *job, int stage)
{
    heddle_stage_info info = {.struct_bytes = sizeof info};
    heddle_status st = heddle_model_stage(&info, job->model, stage);
    if (st != HEDDLE_OK) {
        return st;
    }
    heddle_block_options_init(options);
    options->kind = info.kind;
    options->shape = job->info.shape;
    options->mixed_dim = info.mixed_dim;
    options->heads = info.heads;
    options->mlp_channels = info.mlp_channels;
    options->text_tokens = job->info.text_tokens;
    options->modulate = info.modulate;
    options->rope = info.rope;
    options->qk_norm = info.qk_norm;
    options->causal = info.causal;
    options->decay = info.decay;
    options->threads = (int)job->options->threads;
    return HEDDLE_OK;
}

heddle_status run_make_block(heddle_block **out, const run_job *job, int stage)
{
    heddle_block_options options;
    heddle_status st = run_block_options(&options, job, stage);
    return st == HEDDLE_OK ? heddle_block_create(out, &options) : st;
}

static heddle_status load(heddle_block *block, const run_job *job, const char *stage, int repetition, int only_check)
{
    for (int i = 0; i < heddle_block_nparams(block); i++) {
        char key[KEY_BYTES], error[512];
        heddle_param param = {.struct_bytes = sizeof param};
        heddle_status st = heddle_block_param(&param, block, i);
        if (st != HEDDLE_OK) {
            return st;
        }
        snprintf(key, sizeof(key), "blocks.%d.%s.%s", repetition, stage, param.name);
        if (safetensors_read_f32(only_check ? NULL : param.data, &job->weights, key, param.ndim, param.extent, error,
                                 sizeof(error)) != 0) {
            return heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s", job->options->weights, error);
        }
    }
    return only_check ? HEDDLE_OK : heddle_block_commit(block);
}

heddle_status run_set_weights(heddle_block *block, const run_job *job, int stage, int repetition)
{
    heddle_stage_info info = {.struct_bytes = sizeof info};
    heddle_status st = heddle_model_stage(&info, job->model, stage);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (job->options->weights != NULL) {
        return load(block, job, info.name, repetition, 0);
    }
    return heddle_block_seed(block, (uint64_t)job->options->seed * 1000003U +
                                        (uint64_t)(repetition * job->info.nstages + stage));
}

/* Every tensor that will be read is there and has the right shape, before any rank starts. */
int run_open_weights(run_job *job)
{
    char error[512];
    const char *path = job->options->weights;
    if (path == NULL) {
        return CLI_OK;
    }
    int code = run_read_file(&job->weights_file, path, "{", 8);
    if (code != CLI_OK) {
        return code;
    }
    if (safetensors_parse(&job->weights, job->weights_file.bytes, job->weights_file.size, error, sizeof(error)) != 0) {
        return cli_usage_error("%s: %s", path, error);
    }
    for (int stage = 0; stage < job->info.nstages; stage++) {
        heddle_stage_info info = {.struct_bytes = sizeof info};
        heddle_block *block = NULL;
        heddle_status st = heddle_model_stage(&info, job->model, stage);
        st = st != HEDDLE_OK ? st : run_make_block(&block, job, stage);
        for (int r = 0; r < job->info.repeat && st == HEDDLE_OK; r++) {
            st = load(block, job, info.name, r, 1);
        }
        heddle_block_destroy(block);
        if (st != HEDDLE_OK) {
            return cli_report(st);
        }
    }
    return CLI_OK;
}
