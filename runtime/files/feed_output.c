/* What comes out, as files. */
#include "runtime/files/feed.h"
#include "runtime/files/output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int64_t elems_of(const heddle_shape *shape)
{
    int64_t elems = 1;
    for (int d = 0; d < shape->ndim; d++) {
        elems *= shape->dim[d].extent;
    }
    return elems;
}

static heddle_status write_npy(const feed *f, const char *path, const void *output)
{
    const heddle_shape *shape = &f->shape;
    const int64_t elems = elems_of(shape);
    int64_t extent[HEDDLE_MAX_DIMS];
    for (int d = 0; d < shape->ndim; d++) {
        extent[d] = shape->dim[d].extent;
    }
    if (shape->dtype == HEDDLE_F32) {
        return npy_write(path, "<f4", shape->ndim, extent, output);
    }
    float *values = malloc((size_t)elems * sizeof(float) + 1);
    if (values == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %" PRId64 " bytes of output",
                                elems * (int64_t)sizeof(float));
    }
    for (int64_t i = 0; i < elems; i++) {
        values[i] = feed_load(output, i, shape->dtype);
    }
    heddle_status st = npy_write(path, "<f4", shape->ndim, extent, values);
    free(values);
    return st;
}

static uint8_t to_sample(float value)
{
    const float scaled = (value + 1.0F) * 127.5F + 0.5F;
    return scaled >= 255.0F ? 255 : scaled > 0.0F ? (uint8_t)scaled : 0; /* NaN gives 0 */
}

/* Tokens of one time step through the last layer, and every patch to its place in the frames. */
static heddle_status unpatch(uint8_t *frames, float *tokens, float *patches, const feed *f, const void *output,
                             int64_t t)
{
    const feed_patches *p = &f->patches;
    const int64_t channels = f->shape.dim[f->shape.ndim - 1].extent, count = p->y * p->x;
    const int64_t width = p->x * p->width, height = p->y * p->height;
    for (int64_t i = 0; i < count * channels; i++) { /* the first sample; dims b t s c or b t h w c */
        tokens[i] = feed_load(output, t * count * channels + i, f->shape.dtype);
    }
    heddle_status st = heddle_dense_forward(patches, tokens, count, channels, f->final_weight, f->final_bias, p->values,
                                            f->threads, HEDDLE_NO_STREAM);
    for (int64_t i = 0; i < count * p->values && st == HEDDLE_OK; i++) {
        int64_t rest = i % p->values;
        const int64_t x = rest % p->width, y = rest / p->width % p->height;
        rest /= p->width * p->height;
        const int64_t frame = rest % p->frames, plane = rest / p->frames, token = i / p->values;
        frames[((frame * Y4M_PLANES + plane) * height + token / p->x * p->height + y) * width +
               token % p->x * p->width + x] = to_sample(patches[i]);
    }
    return st;
}

static heddle_status write_frames(FILE *file, const feed *f, const void *output)
{
    const feed_patches *p = &f->patches;
    const int64_t channels = f->shape.dim[f->shape.ndim - 1].extent, count = p->y * p->x;
    const int64_t width = p->x * p->width, height = p->y * p->height;
    uint8_t *frames = malloc((size_t)(p->frames * Y4M_PLANES * width * height));
    float *tokens = malloc((size_t)(count * channels) * sizeof(float));
    float *patches = malloc((size_t)(count * p->values) * sizeof(float));
    heddle_status st = HEDDLE_OK;
    int bad = y4m_write_header(file, width, height, f->clip.rate_num, f->clip.rate_den);
    if (frames == NULL || tokens == NULL || patches == NULL) {
        st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for frames of %" PRId64 " x %" PRId64, width, height);
    }
    for (int64_t t = 0; t < p->t && st == HEDDLE_OK && bad == 0; t++) {
        st = unpatch(frames, tokens, patches, f, output, t);
        for (int64_t i = 0; i < p->frames && st == HEDDLE_OK && bad == 0; i++) {
            bad = y4m_write_frame(file, frames + i * Y4M_PLANES * width * height, width, height);
        }
    }
    free(frames);
    free(tokens);
    free(patches);
    return st; /* bytes that were lost are seen when the file is closed */
}

static heddle_status write_y4m(const feed *f, const char *path, const void *output)
{
    file_output file;
    heddle_status st = file_output_open(&file, path);
    return st != HEDDLE_OK ? st : file_output_close(&file, write_frames(file.file, f, output));
}

heddle_status feed_write(const feed *f, const char *path, const void *output)
{
    const size_t length = strlen(path);
    const int is_clip = length > 4 && strcmp(path + length - 4, ".y4m") == 0;
    return is_clip ? write_y4m(f, path, output) : write_npy(f, path, output);
}
