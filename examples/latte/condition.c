/* What the blocks are told besides the activation: where a token lies, how noisy the sample is, what it shall show. */
#include "latte.h"

#include <math.h>
#include <stdlib.h>

/* Sines, then cosines, of a place at `channels` / 2 wavelengths from 2 pi to 10000 times that. */
static void sines(float *out, double place, int64_t channels)
{
    const int64_t half = channels / 2;
    for (int64_t i = 0; i < half; i++) {
        const double turn = place * pow(10000, -(double)i / (double)half);
        out[i] = (float)sin(turn);
        out[half + i] = (float)cos(turn);
    }
}

/* The column in the first half of a token's channels, the row in the second, in units of the latent that the model was
 * trained with: a larger one is the same picture, seen finer. */
void make_positions(network *net)
{
    const config *cfg = net->cfg;
    const int64_t c = cfg->channels, rows = net->work->rows_of_patches, columns = net->work->columns_of_patches;
    const double base = (double)(cfg->side / cfg->patch), coarse = (double)(cfg->side / 64 > 1 ? cfg->side / 64 : 1);
    for (int64_t s = 0; s < rows * columns; s++) {
        sines(net->positions + s * c, (double)(s % columns) / ((double)columns / base) / coarse, c / 2);
        sines(net->positions + s * c + c / 2, (double)(s / columns) / ((double)rows / base) / coarse, c / 2);
    }
    for (int64_t t = 0; t < net->about.shape.dim[1].extent; t++) {
        sines(net->frame_positions + t * c, (double)t, c);
    }
}

/* The same in all passes, so it is projected once. */
heddle_status project_text(network *net)
{
    const floats *text = &net->work->in.text;
    const int64_t rows = text->extent[0] * text->extent[1], count = rows * net->cfg->channels;
    const int64_t threads = net->work->opt->threads;
    float *hidden = malloc((size_t)count * sizeof(float));
    if (hidden == NULL) {
        return no_memory("the text", count);
    }
    heddle_status st = dense_forward(hidden, &net->layers.caption1, text->at, rows, threads);
    for (int64_t i = 0; st == HEDDLE_OK && i < count; i++) {
        const double v = hidden[i];
        hidden[i] = (float)(0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))));
    }
    st = st ? st : dense_forward(net->text, &net->layers.caption2, hidden, rows, threads);
    free(hidden);
    return st;
}

static void silu(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        y[i] = (float)(x[i] / (1 + exp(-(double)x[i])));
    }
}

/* All samples of a pass are at the same step. */
heddle_status embed_time(network *net, double timestep)
{
    const int64_t b = net->work->samples, count = b * net->cfg->channels, threads = net->work->opt->threads;
    const int64_t half = TIME_FEATURES / 2;
    for (int64_t i = 0; i < b * half; i++) {
        const double turn = timestep * pow(10000, -(double)(i % half) / (double)half);
        net->features[i / half * TIME_FEATURES + i % half] = (float)cos(turn);
        net->features[i / half * TIME_FEATURES + half + i % half] = (float)sin(turn);
    }
    heddle_status st = dense_forward(net->hidden, &net->layers.time1, net->features, b, threads);
    silu(net->active, net->hidden, count);
    st = st ? st : dense_forward(net->time, &net->layers.time2, net->active, b, threads);
    silu(net->active, net->time, count);
    return st ? st : dense_forward(net->shared, &net->layers.vector, net->active, b, threads);
}

void make_vector(network *net)
{
    const int64_t six = ROWS_OF_VECTOR * net->cfg->channels;
    for (int64_t i = 0; i < net->work->samples * six; i++) {
        net->vector[i] = net->shared[i] + net->table[i % six];
    }
}
