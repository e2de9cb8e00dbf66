/* The first activation. */
#include "runtime/files/feed.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 512, SEED_EMBED = 101, SEED_INPUT = 102 };

float feed_uniform(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * UINT64_C(0x9e3779b97f4a7c15) + index * UINT64_C(0xbf58476d1ce4e5b9) + 1;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return (float)(int32_t)(z >> 32) * 0x1p-31f;
}

static int64_t channels_of(const feed *f)
{
    return f->shape.dim[f->shape.ndim - 1].extent;
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

float feed_load(const void *x, int64_t index, heddle_dtype dtype)
{
    return dtype == HEDDLE_BF16 ? from_bits((uint32_t)((const uint16_t *)x)[index] << 16) : ((const float *)x)[index];
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void store(void *x, int64_t first, const float *values, int64_t count, heddle_dtype dtype)
{
    if (dtype == HEDDLE_F32) {
        memcpy((float *)x + first, values, (size_t)count * sizeof(*values));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        ((uint16_t *)x)[first + i] = to_bf16(values[i]);
    }
}

/* --- weights of the first and the last layer --- */

static heddle_status optional_weight(float *out, const feed *f, const char *name, int ndim, int64_t rows,
                                     int64_t columns)
{
    char error[512];
    const int64_t extent[2] = {rows, columns};
    if (safetensors_find(&f->weights, name) != NULL &&
        safetensors_read_f32(out, &f->weights, name, ndim, extent, error, sizeof(error)) != 0) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s", f->weights_path, error);
    }
    return HEDDLE_OK;
}

/* W^T W is about the identity, so that the transposed layer at the end gives back what the blocks left of the clip. */
heddle_status feed_make_embedding(feed *f)
{
    const int64_t channels = channels_of(f), values = f->patches.values;
    if (f->kind != FEED_CLIP) {
        return HEDDLE_OK;
    }
    f->embed_weight = calloc((size_t)(channels * values), sizeof(float));
    f->final_weight = calloc((size_t)(channels * values), sizeof(float));
    f->embed_bias = calloc((size_t)channels, sizeof(float));
    f->final_bias = calloc((size_t)values, sizeof(float));
    if (f->embed_weight == NULL || f->final_weight == NULL || f->embed_bias == NULL || f->final_bias == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for an embedding of %" PRId64 " x %" PRId64 " weights",
                                channels, values);
    }
    const float scale = sqrtf(3.0F / (float)channels);
    for (int64_t i = 0; i < channels * values; i++) {
        f->embed_weight[i] = scale * feed_uniform(f->seed + SEED_EMBED, (uint64_t)i);
    }
    heddle_status st = optional_weight(f->embed_weight, f, "embed.weight", 2, channels, values);
    for (int64_t i = 0; i < channels * values; i++) {
        f->final_weight[i % values * channels + i / values] = f->embed_weight[i];
    }
    st = st != HEDDLE_OK ? st : optional_weight(f->embed_bias, f, "embed.bias", 1, channels, 0);
    st = st != HEDDLE_OK ? st : optional_weight(f->final_weight, f, "final.weight", 2, values, channels);
    return st != HEDDLE_OK ? st : optional_weight(f->final_bias, f, "final.bias", 1, values, 0);
}

/* --- rows --- */

/* Global coordinates of the box's row (all dims but the channels) number `row`. */
static void row_coords(int64_t *coords, const feed *f, const heddle_box *box, int64_t row)
{
    for (int d = box->ndim - 1; d >= 0; d--) {
        coords[d] = box->lo[d];
        if (d != f->shape.ndim - 1) {
            coords[d] += row % box->len[d];
            row /= box->len[d];
        }
    }
}

static void take_patch(float *out, const feed *f, const int64_t *coords)
{
    const feed_patches *p = &f->patches;
    const heddle_shape *shape = &f->shape;
    const int s = heddle_dim_index(shape, "s");
    const int64_t t = coords[heddle_dim_index(shape, "t")];
    const int64_t py = s >= 0 ? coords[s] / p->x : coords[heddle_dim_index(shape, "h")];
    const int64_t px = s >= 0 ? coords[s] % p->x : coords[heddle_dim_index(shape, "w")];
    for (int plane = 0; plane < Y4M_PLANES; plane++) {
        for (int64_t frame = 0; frame < p->frames; frame++) {
            for (int64_t y = 0; y < p->height; y++) {
                for (int64_t x = 0; x < p->width; x++) {
                    *out++ = (float)y4m_sample(&f->clip, t * p->frames + frame, plane, py * p->height + y,
                                               px * p->width + x) /
                                 127.5F -
                             1.0F;
                }
            }
        }
    }
}

static void take_row(float *out, const feed *f, const int64_t *coords, int64_t channels)
{
    int64_t first = 0;
    for (int d = 0; d < f->shape.ndim; d++) {
        first = first * f->shape.dim[d].extent + (d == f->shape.ndim - 1 ? 0 : coords[d]);
    }
    for (int64_t c = 0; c < channels; c++) {
        if (f->kind == FEED_SEEDED) {
            out[c] = 1.7320508F * feed_uniform(f->seed + SEED_INPUT, (uint64_t)(first + c));
        } else if (f->array.type[2] == '4') {
            out[c] = ((const float *)f->array.data)[first + c];
        } else if (f->array.type[2] == '8') {
            out[c] = (float)((const double *)f->array.data)[first + c];
        } else {
            out[c] = safetensors_half(((const uint16_t *)f->array.data)[first + c]);
        }
    }
}

heddle_status feed_fill(void *x, const feed *f, const heddle_box *box)
{
    const int64_t channels = channels_of(f), values = f->patches.values;
    const int64_t rows = channels == 0 ? 0 : heddle_box_elems(box) / channels;
    float *buffer = malloc((size_t)(ROWS_AT_ONCE * (channels + values)) * sizeof(float));
    heddle_status st = HEDDLE_OK;
    if (buffer == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %" PRId64 " bytes of input rows",
                                (int64_t)ROWS_AT_ONCE * (channels + values) * (int64_t)sizeof(float));
    }
    for (int64_t row = 0; row < rows && st == HEDDLE_OK; row += ROWS_AT_ONCE) {
        const int64_t count = rows - row < ROWS_AT_ONCE ? rows - row : ROWS_AT_ONCE;
        float *patches = buffer + ROWS_AT_ONCE * channels;
        for (int64_t i = 0; i < count; i++) {
            int64_t coords[HEDDLE_MAX_DIMS];
            row_coords(coords, f, box, row + i);
            if (f->kind == FEED_CLIP) {
                take_patch(patches + i * values, f, coords);
            } else {
                take_row(buffer + i * channels, f, coords, channels);
            }
        }
        if (f->kind == FEED_CLIP) {
            st = heddle_dense_forward(buffer, patches, count, values, f->embed_weight, f->embed_bias, channels,
                                      f->threads, HEDDLE_NO_STREAM);
        }
        store(x, row * channels, buffer, count * channels, f->shape.dtype);
    }
    free(buffer);
    return st;
}
