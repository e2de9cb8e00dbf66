/* From noise to video: Euler steps along the learned velocity, forward passes only. */
#include "train.h"

#include <stdlib.h>
#include <string.h>

double mean_squared(const float *a, const float *b, int64_t elems)
{
    double sum = 0;
    for (int64_t i = 0; i < elems; i++) {
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    return sum / (double)elems;
}

/* Sample 0 of all ranks' tokens as frames, on every rank. Each value is on one rank, so the sum only collects. */
static heddle_status collect(float *frames, network *net, const float *tokens)
{
    const options *opt = net->opt;
    const int64_t plane = opt->side * opt->side, grid = opt->side / opt->patch, p = opt->patch;
    memset(frames, 0, (size_t)(opt->frames * COLOURS * plane) * sizeof(float));
    for (int64_t i = 0; i < net->rows * net->width && net->box.lo[0] == 0; i++) {
        const int64_t r = i / net->width, k = i % net->width;
        const int64_t s = net->box.lo[2] + r % net->box.len[2], t = net->box.lo[1] + r / net->box.len[2];
        const int64_t y = s / grid * p + k / p % p, x = s % grid * p + k % p;
        frames[(t * COLOURS + k / (p * p)) * plane + y * opt->side + x] = tokens[i];
    }
    return heddle_comm_allreduce_sum(net->comm, frames, opt->frames * COLOURS * plane, HEDDLE_F32);
}

/* x_t = (1 - t) x_0 + t noise, so dx/dt = noise - x_0: what the network predicts. */
static heddle_status denoise(float *frames, network *net, const float *noised)
{
    const size_t values = (size_t)(net->rows * net->width);
    const int64_t steps = net->opt->denoise_steps;
    float *x = malloc(values * sizeof(float) + 1), *velocity = malloc(values * sizeof(float) + 1);
    double *time = malloc((size_t)net->opt->dp * sizeof(double));
    heddle_status st = HEDDLE_OK;
    if (x == NULL || velocity == NULL || time == NULL) {
        st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for a sample of %zu values", values);
    } else if (values > 0) {
        memcpy(x, noised, values * sizeof(float));
    }
    for (int64_t k = 0; st == HEDDLE_OK && k < steps; k++) {
        for (int64_t b = 0; b < net->box.len[0]; b++) {
            time[b] = net->opt->noise * (double)(steps - k) / (double)steps;
        }
        st = network_forward(net, velocity, x, time, 0);
        for (size_t i = 0; st == HEDDLE_OK && i < values; i++) {
            x[i] -= (float)(net->opt->noise / (double)steps) * velocity[i];
        }
    }
    st = st ? st : collect(frames, net, x);
    free(x);
    free(velocity);
    free(time);
    return st;
}

/* This rank's tokens of the clip's beginning, and the same mixed with noise. */
static void start_tokens(float *original, float *noised, const network *net, const clip *video)
{
    int64_t first[MAX_RANKS] = {0}, sample[MAX_RANKS];
    for (int64_t b = 0; b < net->box.len[0]; b++) {
        sample[b] = net->box.lo[0] + b;
    }
    clip_tokens(original, video, &net->box, first, net->opt->patch);
    noise_tokens(noised, &net->box, net->width, (uint64_t)net->opt->seed, 7, sample);
    const float t = (float)net->opt->noise;
    for (int64_t i = 0; i < net->rows * net->width; i++) {
        noised[i] = (1 - t) * original[i] + t * noised[i];
    }
}

static heddle_status fill(gallery *out, network *net, const clip *video, int after)
{
    const size_t bytes = (size_t)(net->rows * net->width) * sizeof(float) + 1;
    float *original = malloc(bytes), *noised = malloc(bytes);
    heddle_status st = HEDDLE_OK;
    if (original == NULL || noised == NULL) {
        st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for a sample of %zu bytes", bytes);
    } else {
        start_tokens(original, noised, net, video);
        st = after ? st : collect(out->original, net, original);
        st = st || after ? st : collect(out->noised, net, noised);
        st = st ? st : denoise(after ? out->trained : out->untrained, net, noised);
    }
    free(original);
    free(noised);
    return st;
}

heddle_status gallery_begin(gallery *out, network *net, const clip *video)
{
    const size_t values = (size_t)(net->opt->frames * COLOURS * net->opt->side * net->opt->side);
    out->original = calloc(4 * values, sizeof(float));
    if (out->original == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for four clips of %zu values", values);
    }
    out->noised = out->original + values;
    out->untrained = out->noised + values;
    out->trained = out->untrained + values;
    return fill(out, net, video, 0);
}

heddle_status gallery_finish(gallery *out, network *net, const clip *video)
{
    return fill(out, net, video, 1);
}

void gallery_free(gallery *out)
{
    free(out->original);
}
