/* Weights of the blocks: from a seed, or from a safetensors file with the keys blocks.LAYER.STAGE.PARAMETER. */
#include "runtime/files/feed.h"

#include <stdio.h>

enum { KEY_BYTES = 256 };

static heddle_status load(const feed *f, heddle_block *block, const char *stage, int repetition, int only_check)
{
    for (int i = 0; i < heddle_block_nparams(block); i++) {
        char key[KEY_BYTES], error[512];
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        heddle_status st = heddle_block_param(&param, block, i);
        if (st != HEDDLE_OK) {
            return st;
        }
        snprintf(key, sizeof(key), "blocks.%d.%s.%s", repetition, stage, param.name);
        if (safetensors_read_f32(only_check ? NULL : param.data, &f->weights, key, param.ndim, param.extent, error,
                                 sizeof(error)) != 0) {
            return heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s", f->weights_path, error);
        }
    }
    return only_check ? HEDDLE_OK : heddle_block_commit(block);
}

heddle_status feed_check_weights(const feed *f, heddle_block *block, const char *stage, int repetition)
{
    return load(f, block, stage, repetition, 1);
}

heddle_status feed_set_weights(const feed *f, heddle_block *block, const char *stage, int repetition, int number)
{
    if (f->weights_path != NULL) {
        return load(f, block, stage, repetition, 0);
    }
    return heddle_block_seed(block, f->seed * 1000003U + (uint64_t)number);
}

heddle_status feed_open_weights(feed *out, const char *path)
{
    char error[512];
    out->weights_path = path;
    heddle_status st = feed_file_read(&out->weights_file, path, "{", 8);
    if (st == HEDDLE_OK &&
        safetensors_parse(&out->weights, out->weights_file.bytes, out->weights_file.size, error, sizeof(error)) != 0) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s", path, error);
    }
    return st;
}
