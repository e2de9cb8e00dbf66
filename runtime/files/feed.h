/* What a model takes from files, and gives to them: the first activation (patches of a clip through a linear layer, an
 * array, or seeded numbers), the blocks' weights, and the output as an array or a clip. Every rank makes exactly its
 * own part, and element by element the same as any other rank would. */
#ifndef HD_FILES_FEED_H
#define HD_FILES_FEED_H

#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/files/y4m.h"

#include <heddle/heddle.h>

/* A whole file in memory. */
typedef struct feed_file {
    uint8_t *bytes;
    size_t size;
} feed_file;

/* "-" is standard input. A file without `start` at byte start_at is not read to its end: who reads it complains of it.
 */
heddle_status feed_file_read(feed_file *out, const char *path, const char *start, size_t start_at);
void feed_file_free(feed_file *file);

/* How a clip is cut into tokens. Patches that would stick out of the clip are left away. */
typedef struct feed_patches {
    int64_t t, y, x;               /* patches along time, height, width */
    int64_t frames, height, width; /* samples per patch */
    int64_t values;                /* of one patch: 3 planes */
} feed_patches;

typedef enum feed_kind { FEED_SEEDED, FEED_CLIP, FEED_ARRAY } feed_kind;

typedef struct feed {
    heddle_shape shape; /* of the activation, in the dtype it is made in; batch first, channels last */
    uint64_t seed;
    int threads;
    feed_kind kind;
    feed_file clip_file, weights_file;
    y4m_clip clip;
    feed_patches patches;
    npy_array array;
    const char *weights_path; /* NULL: seeded */
    safetensors_file weights;
    float *embed_weight, *embed_bias; /* of a clip: [c, values], [c] */
    float *final_weight, *final_bias; /* its transpose or the file's, [values, c]; [values] */
} feed;

/* HEDDLE_ERR_ARG or HEDDLE_ERR_PARSE where the file is none, or (clip) smaller than a patch of patch[3] = frames,
 * height, width, each at least 1; HEDDLE_ERR_IO where it cannot be read. The feed is zeroed at first; feed_close frees
 * it after a failure, too. */
heddle_status feed_open_clip(feed *out, const char *path, const int patch[3]);
heddle_status feed_open_array(feed *out, const char *path);
heddle_status feed_open_weights(feed *out, const char *path);
void feed_close(feed *out);

/* After shape, seed and clip are known: the layers before and behind the blocks, from the weights file where it has
 * them. Nothing without a clip. */
heddle_status feed_make_embedding(feed *out);
/* A rank's part of the first activation. */
heddle_status feed_fill(void *x, const feed *f, const heddle_box *box);

/* Every parameter of the block is in the weights file under blocks.REPETITION.STAGE.PARAMETER, with its extents. */
heddle_status feed_check_weights(const feed *f, heddle_block *block, const char *stage, int repetition);
/* Weights of one repetition of a stage, the number-th that runs, from the file or the seed. */
heddle_status feed_set_weights(const feed *f, heddle_block *block, const char *stage, int repetition, int number);

/* The whole output, row-major in the shape's dtype: PATH.y4m as the clip that the first sample makes, else as f32
 * array. */
heddle_status feed_write(const feed *f, const char *path, const void *output);

float feed_uniform(uint64_t seed, uint64_t index); /* -1..1, a function of its arguments */
float feed_load(const void *x, int64_t index, heddle_dtype dtype);

#endif
