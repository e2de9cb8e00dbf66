/* DDIM (arXiv 2010.02502), eta 0, as the published scheduler's configuration has it: a linear schedule of noise from
 * 0.0001 to 0.02 over 1000 steps, the network predicts the noise, steps are evenly spaced and end at 0. */
#include "latte.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double beta_first = 0.0001, beta_last = 0.02;

/* The share of the picture, squared, that is left at a step; before the first step all of it. */
static double kept_at(int64_t step)
{
    double kept = 1;
    for (int64_t i = 0; i <= step; i++) {
        kept *= 1 - (beta_first + (beta_last - beta_first) * (double)i / (TRAINING_STEPS - 1));
    }
    return kept;
}

/* The noise in value i of the latent: the first in_channels of the result's channels (others are its variance, which
 * DDIM does not use); with guidance away from the sample without the prompt. */
static double noise_in(const network *net, const float *result, int64_t i)
{
    const int64_t in = net->cfg->in_channels, out = net->cfg->out_channels;
    const int64_t *e = net->work->in.latent.extent;
    const int64_t plane = e[2] * e[3] * e[4], b = i / (in * plane);
    const int64_t at = (b * out + i / plane % in) * plane + i % plane;
    const double guidance = net->work->opt->guidance;
    const double with = result[guidance == 0 ? at : at + e[0] * out * plane];
    return guidance == 0 ? with : result[at] + guidance * (with - result[at]);
}

static void step_back(float *latent, const network *net, const float *result, int64_t count, int64_t step,
                      int64_t before)
{
    const double kept = kept_at(step), kept_before = kept_at(before);
    for (int64_t i = 0; i < count; i++) {
        const double noise = noise_in(net, result, i);
        const double picture = (latent[i] - sqrt(1 - kept) * noise) / sqrt(kept);
        latent[i] = (float)(sqrt(kept_before) * picture + sqrt(1 - kept_before) * noise);
    }
}

heddle_status sample(network *net, float *latent)
{
    const options *opt = net->work->opt;
    const int64_t *e = net->work->in.latent.extent, copies = net->work->samples / e[0];
    const int64_t plane = e[2] * e[3] * e[4], count = e[0] * e[1] * plane, stride = TRAINING_STEPS / opt->steps;
    float *given = malloc((size_t)(copies * count) * sizeof(float));
    float *result = malloc((size_t)(copies * e[0] * net->cfg->out_channels * plane) * sizeof(float));
    heddle_status st = given == NULL || result == NULL ? no_memory("a step", copies * count) : HEDDLE_OK;
    for (int64_t step = (opt->steps - 1) * stride; st == HEDDLE_OK && step >= 0; step -= stride) {
        for (int64_t k = 0; k < copies; k++) {
            memcpy(given + k * count, latent, (size_t)count * sizeof(float));
        }
        st = network_forward(net, result, given, (double)step);
        if (st == HEDDLE_OK) {
            step_back(latent, net, result, count, step, step - stride);
        }
    }
    free(given);
    free(result);
    return st;
}
