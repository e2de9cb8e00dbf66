/* The loop around the training step, from the first weights to the picture. */
#include "examples/common/program.h"
#include "train.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static heddle_status trainer_create(trainer *out, heddle_comm *comm, const job *work)
{
    const options *opt = work->opt;
    heddle_bucket_options sums;
    heddle_adamw_options adam;
    out->opt = opt;
    out->video = work->video;
    heddle_status st = network_create(&out->net, comm, opt);
    if (st != HEDDLE_OK) {
        return st;
    }
    /* The loss is one sum over all tokens of all samples, so gradients are summed over both axes of [dp sp]. */
    heddle_bucket_options_init(&sums);
    sums.sum_axes = 1U << 0 | 1U << 1;
    sums.shard_axis = opt->shard_optimizer ? 0 : -1;
    heddle_adamw_options_init(&adam);
    adam.beta2 = 0.99; /* a short training */
    adam.max_norm = 1;
    st = heddle_bucket_create(&out->bucket, comm, &out->net.mesh, out->net.parts, out->net.nparts, &sums);
    st = st ? st : heddle_adamw_create(&out->adamw, out->bucket, &adam);
    const size_t bytes = (size_t)(out->net.rows * out->net.width) * sizeof(float) + 1;
    out->ntokens = opt->batch * opt->frames * (opt->side / opt->patch) * (opt->side / opt->patch);
    out->clean = malloc(bytes);
    out->noise = malloc(bytes);
    out->noisy = malloc(bytes);
    out->velocity = malloc(bytes);
    out->token_loss = malloc((size_t)out->ntokens * sizeof(double));
    if (out->clean == NULL || out->noise == NULL || out->noisy == NULL || out->velocity == NULL ||
        out->token_loss == NULL) {
        return st ? st : heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for samples of %zu bytes", bytes);
    }
    return st;
}

static void trainer_destroy(trainer *t)
{
    heddle_adamw_destroy(t->adamw);
    heddle_bucket_destroy(t->bucket);
    network_destroy(&t->net);
    free(t->clean);
    free(t->noise);
    free(t->noisy);
    free(t->velocity);
    free(t->token_loss);
}

static heddle_status write_losses(const options *opt, const outcome *result)
{
    FILE *file = fopen(opt->loss_csv, "w");
    int failed = file == NULL || fputs("step,loss\n", file) == EOF;
    for (int64_t i = 0; !failed && i < opt->steps; i++) {
        failed = fprintf(file, "%lld,%.9g\n", (long long)i + 1, result->loss[i]) < 0;
    }
    failed |= file != NULL && fclose(file) != 0;
    return failed ? heddle_set_error(HEDDLE_ERR_IO, "%s: %s", opt->loss_csv, strerror(errno)) : HEDDLE_OK;
}

static heddle_status finish_picture(trainer *t, gallery *pictures, outcome *result)
{
    const options *opt = t->opt;
    const int64_t values = opt->frames * COLOURS * opt->side * opt->side;
    heddle_status st = gallery_finish(pictures, &t->net, t->video);
    if (st != HEDDLE_OK || t->net.rank != 0) {
        return st;
    }
    result->error_noised = mean_squared(pictures->noised, pictures->original, values);
    result->error_untrained = mean_squared(pictures->untrained, pictures->original, values);
    result->error_trained = mean_squared(pictures->trained, pictures->original, values);
    if (picture_write(opt->picture, pictures, opt->frames, opt->side) != 0) {
        return heddle_set_error(HEDDLE_ERR_IO, "%s: %s", opt->picture, strerror(errno));
    }
    return HEDDLE_OK;
}

static uint64_t sum_of_weights(const network *net)
{
    uint64_t sum = 0;
    for (int i = 0; i < net->nparts; i++) {
        for (int64_t k = 0; k < net->parts[i].elems; k++) {
            uint32_t bits;
            memcpy(&bits, &net->parts[i].param[k], sizeof(bits));
            sum = random_bits(sum, (uint64_t)i, bits);
        }
    }
    return sum;
}

heddle_status train_rank(heddle_comm *comm, void *arg)
{
    const job *work = arg;
    const options *opt = work->opt;
    trainer t = {0};
    gallery pictures = {0};
    const int speaks = heddle_comm_rank(comm) == 0;
    double loss = 0;
    heddle_status st = trainer_create(&t, comm, work);
    if (st == HEDDLE_OK && speaks && !opt->quiet) {
        network_print_plan(&t.net);
    }
    if (opt->picture != NULL) {
        st = st ? st : gallery_begin(&pictures, &t.net, work->video);
    }
    st = st ? st : count_traffic(&t.before, &t);
    const double begin = seconds_now();
    for (int64_t step = 0; st == HEDDLE_OK && step < opt->steps; step++) {
        st = train_step(&t, step, &loss);
        if (st == HEDDLE_OK && speaks) {
            work->result->loss[step] = loss;
            work->result->seconds = seconds_now() - begin;
            report_progress(opt, step, loss, work->result->seconds);
        }
    }
    st = st ? st : report_traffic(&t);
    st = st || opt->picture == NULL ? st : finish_picture(&t, &pictures, work->result);
    if (st == HEDDLE_OK && speaks) {
        work->result->weights = sum_of_weights(&t.net);
        st = opt->loss_csv == NULL ? HEDDLE_OK : write_losses(opt, work->result);
        report_end(opt, work->result);
        st = st ? st : program_printed();
    }
    gallery_free(&pictures);
    trainer_destroy(&t);
    return st;
}
