/* Layers that work token by token, or sample by sample, forward and backward. None of them communicates. */
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static heddle_status no_memory(const char *what)
{
    return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %s", what);
}

heddle_status dense_create(dense *layer, int64_t in, int64_t out, double range, uint64_t seed)
{
    layer->in = in;
    layer->out = out;
    layer->weight = calloc((size_t)(in * out), sizeof(float));
    layer->dweight = calloc((size_t)(in * out), sizeof(float));
    layer->bias = calloc((size_t)out, sizeof(float));
    layer->dbias = calloc((size_t)out, sizeof(float));
    if (layer->weight == NULL || layer->dweight == NULL || layer->bias == NULL || layer->dbias == NULL) {
        return no_memory("a linear layer");
    }
    for (int64_t i = 0; i < in * out; i++) {
        layer->weight[i] = (float)(range * (2 * random_unit(seed, 0, (uint64_t)i) - 1));
    }
    return HEDDLE_OK;
}

void dense_destroy(dense *layer)
{
    free(layer->weight);
    free(layer->dweight);
    free(layer->bias);
    free(layer->dbias);
}

heddle_status dense_forward(float *y, const dense *layer, const float *x, int64_t rows)
{
    return rows == 0 ? HEDDLE_OK
                     : heddle_dense_forward(y, x, rows, layer->in, layer->weight, layer->bias, layer->out, 1,
                                            HEDDLE_NO_STREAM);
}

heddle_status dense_backward(float *dx, dense *layer, const float *dy, const float *x, int64_t rows)
{
    return rows == 0 ? HEDDLE_OK
                     : heddle_dense_backward(dx, layer->dweight, layer->dbias, dy, x, rows, layer->in, layer->weight,
                                             layer->out, 1, HEDDLE_NO_STREAM);
}

/* y = (x - mean) * rstd; y and rstd are all that backward needs. */
void norm_forward(float *y, float *rstd, const float *x, int64_t rows, int64_t channels)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x + r * channels;
        double mean = 0, square = 0;
        for (int64_t i = 0; i < channels; i++) {
            mean += from[i];
        }
        mean /= (double)channels;
        for (int64_t i = 0; i < channels; i++) {
            square += (from[i] - mean) * (from[i] - mean);
        }
        rstd[r] = (float)(1 / sqrt(square / (double)channels + 1e-6));
        for (int64_t i = 0; i < channels; i++) {
            y[r * channels + i] = (float)(from[i] - mean) * rstd[r];
        }
    }
}

void norm_backward(float *dx, const float *dy, const float *y, const float *rstd, int64_t rows, int64_t channels)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *g = dy + r * channels, *n = y + r * channels;
        double mean = 0, along = 0; /* the parts of dy that a shift and a scale of x would make */
        for (int64_t i = 0; i < channels; i++) {
            mean += g[i];
            along += (double)g[i] * n[i];
        }
        mean /= (double)channels;
        along /= (double)channels;
        for (int64_t i = 0; i < channels; i++) {
            dx[r * channels + i] = (float)(g[i] - mean - n[i] * along) * rstd[r];
        }
    }
}

/* Where in the frame each patch of grid x grid lies, [grid * grid, c]: sines and cosines of its column in one half of
 * the channels, of its row in the other. (Its place in time comes from the rotary positions of temporal attention.) */
void position_table(float *out, int64_t grid, int64_t channels)
{
    const int64_t half = channels / 2;
    for (int64_t i = 0; i < grid * grid * channels; i++) {
        const int64_t s = i / channels, k = i % channels;
        const double at = (double)(k < half ? s % grid : s / grid);
        const double turns = at * 3.14159265358979 / pow((double)grid, (double)(k % half / 2 * 2) / (double)half);
        out[i] = (float)(k % 2 == 0 ? sin(turns) : cos(turns));
    }
}

/* --- conditioning ------------------------------------------------------------------------------------------------- */
heddle_status condition_create(condition *out, int64_t channels, int64_t samples, int ntables, uint64_t seed)
{
    const size_t six = (size_t)(ROWS_OF_VECTOR * channels), all = (size_t)ntables * six;
    out->channels = channels;
    out->samples = samples;
    out->ntables = ntables;
    out->table = calloc(all, sizeof(float));
    out->dtable = calloc(all, sizeof(float));
    out->vector = calloc(all * (size_t)samples, sizeof(float));
    out->dvector = calloc(all * (size_t)samples, sizeof(float));
    out->features = calloc((size_t)samples * TIME_FEATURES, sizeof(float));
    out->hidden = calloc((size_t)(samples * channels), sizeof(float));
    out->active = calloc((size_t)(samples * channels), sizeof(float));
    out->shared = calloc((size_t)samples * six, sizeof(float));
    out->scratch = calloc((size_t)(samples * channels), sizeof(float));
    if (out->table == NULL || out->dtable == NULL || out->vector == NULL || out->dvector == NULL ||
        out->features == NULL || out->hidden == NULL || out->active == NULL || out->shared == NULL ||
        out->scratch == NULL) {
        return no_memory("the conditioning");
    }
    for (size_t i = 0; i < all; i++) { /* gates begin small, so that the network begins close to the identity */
        const size_t row = i % six / (size_t)channels;
        out->table[i] = row % 3 == 2 ? 0.2F : 0;
    }
    heddle_status st =
        dense_create(&out->fc1, TIME_FEATURES, channels, sqrt(6.0 / (double)(TIME_FEATURES + channels)), seed);
    return st ? st : dense_create(&out->fc2, channels, (int64_t)six, 0.02, seed + 1);
}

void condition_destroy(condition *out)
{
    float *const all[] = {out->table,  out->dtable, out->vector, out->dvector, out->features,
                          out->hidden, out->active, out->shared, out->scratch};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        free(all[i]);
    }
    dense_destroy(&out->fc1);
    dense_destroy(&out->fc2);
}

/* vector = table + fc2(silu(fc1(sines of the time))) */
heddle_status condition_forward(condition *out, const double *time, int64_t lo, int64_t len)
{
    const int64_t c = out->channels, six = ROWS_OF_VECTOR * c;
    for (int64_t b = 0; b < len; b++) {
        for (int i = 0; i < TIME_FEATURES / 2; i++) {
            const double turns = 1000 * time[b] * pow(10000, -i / (TIME_FEATURES / 2.0));
            out->features[b * TIME_FEATURES + i] = (float)cos(turns);
            out->features[b * TIME_FEATURES + TIME_FEATURES / 2 + i] = (float)sin(turns);
        }
    }
    heddle_status st = dense_forward(out->hidden, &out->fc1, out->features, len);
    for (int64_t i = 0; i < len * c; i++) {
        out->active[i] = out->hidden[i] / (1 + expf(-out->hidden[i]));
    }
    st = st ? st : dense_forward(out->shared, &out->fc2, out->active, len);
    for (int64_t i = 0; i < out->ntables * len * six; i++) {
        const int64_t table = i / (len * six), b = i / six % len;
        out->vector[(table * out->samples + lo + b) * six + i % six] =
            out->table[table * six + i % six] + out->shared[b * six + i % six];
    }
    return st;
}

/* dvector holds the sum over this rank's tokens only. All that follows is linear in it, so each rank takes its own part
 * backward, and the sum of parameter gradients over the ranks, which comes anyway, completes it. */
heddle_status condition_backward(condition *out, int64_t lo, int64_t len)
{
    const int64_t c = out->channels, six = ROWS_OF_VECTOR * c;
    float *dshared = out->shared; /* no longer needed */
    memset(dshared, 0, (size_t)(len * six) * sizeof(float));
    for (int64_t i = 0; i < out->ntables * len * six; i++) {
        const int64_t table = i / (len * six), b = i / six % len;
        const float g = out->dvector[(table * out->samples + lo + b) * six + i % six];
        out->dtable[table * six + i % six] += g;
        dshared[b * six + i % six] += g;
    }
    heddle_status st = dense_backward(out->scratch, &out->fc2, dshared, out->active, len);
    for (int64_t i = 0; i < len * c; i++) {
        const float s = 1 / (1 + expf(-out->hidden[i]));
        out->scratch[i] *= s * (1 + out->hidden[i] * (1 - s));
    }
    st = st ? st : dense_backward(NULL, &out->fc1, out->scratch, out->features, len);
    memset(out->dvector, 0, (size_t)(out->ntables * out->samples * six) * sizeof(float));
    return st;
}
