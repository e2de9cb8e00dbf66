/* One training step: data, forward, loss, backward, sum of gradients, AdamW. */
#include "train.h"

#include <math.h>
#include <string.h>

/* Data of one pass: every data rank its own sample. A sample's number in the whole training decides where in the clip
 * it begins, how much noise it gets and which, whoever works on it. */
static void draw(trainer *t, int64_t step, int64_t pass, double *time)
{
    const options *opt = t->opt;
    const network *net = &t->net;
    const uint64_t seed = (uint64_t)opt->seed, starts = (uint64_t)(t->video->frames - opt->frames + 1);
    const int64_t per_sample = net->box.len[0] > 0 ? net->rows / net->box.len[0] * net->width : 0;
    int64_t first[MAX_RANKS], number[MAX_RANKS];
    for (int64_t b = 0; b < net->box.len[0]; b++) {
        const int64_t n = pass * opt->dp + net->box.lo[0] + b;
        number[b] = step * opt->batch + n;
        first[b] = (int64_t)(random_bits(seed, 4, (uint64_t)number[b]) % starts);
        /* one level of noise from each of `batch` equal parts of 0 .. 1 */
        time[b] = ((double)n + random_unit(seed, 5, (uint64_t)number[b])) / (double)opt->batch;
    }
    clip_tokens(t->clean, t->video, &net->box, first, opt->patch);
    noise_tokens(t->noise, &net->box, net->width, seed, 6, number);
    for (int64_t i = 0; i < net->rows * net->width; i++) {
        const float level = (float)time[i / per_sample];
        t->noisy[i] = (1 - level) * t->clean[i] + level * t->noise[i];
    }
}

/* Squared error of every token, and velocity becomes the gradient of the mean over everything. */
static void loss_of_pass(trainer *t, int64_t pass)
{
    const network *net = &t->net;
    const int64_t frames = t->opt->frames, tokens = t->ntokens / t->opt->batch / frames, width = net->width;
    const double scale = 1 / (double)(t->ntokens * width);
    for (int64_t r = 0; r < net->rows; r++) {
        const int64_t s = net->box.lo[2] + r % net->box.len[2];
        const int64_t f = net->box.lo[1] + r / net->box.len[2] % net->box.len[1];
        const int64_t n = pass * t->opt->dp + net->box.lo[0] + r / (net->box.len[2] * net->box.len[1]);
        double sum = 0;
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            const double error = t->velocity[i] - ((double)t->noise[i] - t->clean[i]);
            sum += error * error;
            t->velocity[i] = (float)(2 * scale * error);
        }
        t->token_loss[(n * frames + f) * tokens + s] = sum * scale;
    }
}

/* The first tenth of the steps warms up, then half a cosine goes down to a fiftieth. */
static double learning_rate(const options *opt, int64_t step)
{
    const double at = ((double)step + 1) / (double)opt->steps, warm = 0.1;
    const double share = at < warm ? at / warm : 0.51 + 0.49 * cos(3.14159265358979 * (at - warm) / (1 - warm));
    return opt->learning_rate * share;
}

heddle_status train_step(trainer *t, int64_t step, double *loss)
{
    network *net = &t->net;
    heddle_status st = HEDDLE_OK;
    double time[MAX_RANKS];
    memset(t->token_loss, 0, (size_t)t->ntokens * sizeof(double));
    heddle_bucket_zero(t->bucket, HEDDLE_NO_STREAM);
    for (int64_t pass = 0; st == HEDDLE_OK && pass < t->opt->batch / t->opt->dp; pass++) {
        draw(t, step, pass, time);
        st = network_forward(net, t->velocity, t->noisy, time, 1);
        loss_of_pass(t, pass);
        st = st ? st : network_backward(net, t->velocity, t->noisy, time);
        t->passes++;
    }
    st = st ? st : heddle_bucket_reduce(t->bucket, HEDDLE_NO_STREAM);
    st = st ? st : heddle_adamw_step(t->adamw, learning_rate(t->opt, step), HEDDLE_NO_STREAM);
    st = st ? st : network_commit(net);
    /* Every token's loss is on one rank, so this only collects; the sum is in the same order for any number of ranks.
     */
    st = st ? st : heddle_comm_allreduce_sum(net->comm, t->token_loss, t->ntokens, HEDDLE_F64);
    *loss = 0;
    for (int64_t i = 0; i < t->ntokens; i++) {
        *loss += t->token_loss[i];
    }
    return st;
}
