/* The video: a generated clip, cut into tokens, and the noise that is mixed into them. */
#include "train.h"

#include <math.h>
#include <stdlib.h>

/* A red ball bounces and a yellow square crosses a blue sky over a green hill. x, y: 0 .. 1, time in frames. */
static void scene(float *rgb, double x, double y, double time)
{
    const double pi = 3.14159265358979;
    const double phase = time / 16, hill = 0.72 + 0.10 * sin(2 * pi * (x + phase));
    const double ball_x = 0.5 + 0.3 * cos(2 * pi * phase), ball_y = 0.62 - 0.4 * fabs(sin(2 * pi * phase));
    const double square_x = fmod(0.1 + 1.5 * phase, 1.2) - 0.1, square_y = 0.22;
    double colour[COLOURS] = {-0.5 + 0.5 * y, -0.1 + 0.5 * y, 0.7}; /* -1 .. 1 */
    if (y > hill) {
        colour[0] = -0.7;
        colour[1] = 0.3 - 0.8 * (y - hill);
        colour[2] = -0.6;
    }
    if (fabs(x - square_x) < 0.1 && fabs(y - square_y) < 0.1) {
        colour[0] = 0.9;
        colour[1] = 0.8;
        colour[2] = -0.6;
    }
    if (hypot(x - ball_x, y - ball_y) < 0.15) {
        colour[0] = 0.9;
        colour[1] = -0.5;
        colour[2] = -0.5;
    }
    for (int i = 0; i < COLOURS; i++) {
        rgb[i] += (float)colour[i];
    }
}

int clip_generate(clip *out, int64_t frames, int64_t side)
{
    enum { FINE = 3 }; /* points per pixel and direction, so that edges are smooth */
    out->frames = frames;
    out->side = side;
    out->values = malloc((size_t)(frames * COLOURS * side * side) * sizeof(float));
    for (int64_t i = 0; out->values != NULL && i < frames * side * side; i++) {
        const int64_t x = i % side, y = i / side % side, f = i / (side * side);
        float rgb[COLOURS] = {0};
        for (int k = 0; k < FINE * FINE; k++) {
            scene(rgb, ((double)x + (k % FINE + 0.5) / FINE) / (double)side,
                  ((double)y + (k / FINE + 0.5) / FINE) / (double)side, (double)f);
        }
        for (int64_t c = 0; c < COLOURS; c++) {
            out->values[((f * COLOURS + c) * side + y) * side + x] = rgb[c] / (FINE * FINE);
        }
    }
    return out->values == NULL ? -1 : 0;
}

void clip_tokens(float *out, const clip *video, const heddle_box *box, const int64_t *first, int64_t patch)
{
    const int64_t grid = video->side / patch, width = COLOURS * patch * patch;
    for (int64_t r = 0; r < box->len[0] * box->len[1] * box->len[2]; r++) {
        const int64_t s = box->lo[2] + r % box->len[2], t = box->lo[1] + r / box->len[2] % box->len[1];
        const int64_t b = r / (box->len[1] * box->len[2]);
        const float *frame = video->values + (first[b] + t) * COLOURS * video->side * video->side;
        for (int64_t i = 0; i < width; i++) {
            const int64_t y = s / grid * patch + i / patch % patch, x = s % grid * patch + i % patch;
            out[r * width + i] = frame[(i / (patch * patch) * video->side + y) * video->side + x];
        }
    }
}

void noise_tokens(float *out, const heddle_box *box, int64_t width, uint64_t seed, uint64_t stream,
                  const int64_t *sample)
{
    /* No extent of the whole activation is above 2^20, so a position is one number. */
    const double two_pi = 6.28318530717958648;
    for (int64_t r = 0; r < box->len[0] * box->len[1] * box->len[2]; r++) {
        const int64_t s = box->lo[2] + r % box->len[2], t = box->lo[1] + r / box->len[2] % box->len[1];
        const int64_t b = r / (box->len[1] * box->len[2]);
        const uint64_t token = ((uint64_t)sample[b] << 40) + ((uint64_t)t << 20) + (uint64_t)s;
        for (int64_t i = 0; i < width; i++) {
            const uint64_t bits = random_bits(random_bits(seed, stream, token), 0, (uint64_t)i);
            const double u = ((double)(bits >> 32) + 0.5) * 0x1p-32, v = (double)(bits & 0xFFFFFFFFU) * 0x1p-32;
            out[r * width + i] = (float)(sqrt(-2 * log(u)) * cos(two_pi * v));
        }
    }
}
