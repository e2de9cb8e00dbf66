/* AdamW on the own block of a bucket (decoupled weight decay, bias correction).
 *
 * Every element is computed in f64 from its own f32 numbers and rounded once, so that it does not matter who holds it.
 */
#include "runtime/parallel/parallel_internal.h"

#include <math.h>
#include <string.h>

struct heddle_adamw {
    heddle_bucket *bucket;
    heddle_adamw_options options;
    int64_t steps;
    float *mean, *square; /* [own elements] */
};

void heddle_adamw_options_init(heddle_adamw_options *options)
{
    if (options != NULL) {
        *options = (heddle_adamw_options){.struct_bytes = sizeof *options,
                                          .beta1 = 0.9,
                                          .beta2 = 0.999,
                                          .epsilon = 1e-8,
                                          .weight_decay = 0.01,
                                          .max_norm = 0};
    }
}

static heddle_status check_options(const heddle_adamw_options *o)
{
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1)) {
        return hd_fail(HEDDLE_ERR_ARG, "AdamW: beta1 %g and beta2 %g must be at least 0 and less than 1", o->beta1,
                       o->beta2);
    }
    if (!(o->epsilon > 0 && o->epsilon <= HUGE_VAL) || !(o->weight_decay >= 0 && o->weight_decay < HUGE_VAL)) {
        return hd_fail(HEDDLE_ERR_ARG, "AdamW: epsilon %g must be more than 0, weight decay %g not negative",
                       o->epsilon, o->weight_decay);
    }
    if (!(o->max_norm >= 0)) {
        return hd_fail(HEDDLE_ERR_ARG, "AdamW: max_norm %g must not be negative", o->max_norm);
    }
    return HEDDLE_OK;
}

heddle_status heddle_adamw_create(heddle_adamw **out, heddle_bucket *bucket, const heddle_adamw_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_adamw *adamw = NULL;
    heddle_adamw_options taken;
    if (out == NULL || bucket == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_adamw_create: %s is NULL", out == NULL ? "out" : "bucket");
    }
    heddle_adamw_options_init(&taken);
    HD_TRY(hd_struct_take(&taken, options, HD_STRUCT(heddle_adamw_options, beta2)));
    HD_TRY(check_options(&taken));
    HD_TRY(hd_device_host_only(bucket->options.space, bucket->options.device, "an optimiser"));
    HD_TRY(hd_alloc((void **)&adamw, 1, sizeof *adamw, "an optimiser"));
    adamw->bucket = bucket;
    adamw->options = taken;
    HD_TRY(hd_alloc((void **)&adamw->mean, (size_t)bucket->own_elems, sizeof(float), "an optimiser's state"));
    HD_TRY(hd_alloc((void **)&adamw->square, (size_t)bucket->own_elems, sizeof(float), "an optimiser's state"));
    *out = adamw;
    adamw = NULL;
out:
    heddle_adamw_destroy(adamw);
    return st;
}

void heddle_adamw_destroy(heddle_adamw *adamw)
{
    if (adamw != NULL) {
        HD_FREE_ALL(adamw->mean, adamw->square, adamw);
    }
}

heddle_status heddle_adamw_step_clipped(heddle_adamw *adamw, double learning_rate, double norm, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(adamw));
    if (!(learning_rate >= 0 && learning_rate < HUGE_VAL)) {
        return hd_fail(HEDDLE_ERR_ARG, "an AdamW step with learning rate %g", learning_rate);
    }
    if (norm < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "an AdamW step with a gradient of norm %g", norm);
    }
    heddle_bucket *bucket = adamw->bucket;
    const heddle_adamw_options *o = &adamw->options;
    adamw->steps++;
    hd_adamw_step s = {.beta1 = o->beta1,
                       .beta2 = o->beta2,
                       .epsilon = o->epsilon,
                       .clip = o->max_norm > 0 && norm > o->max_norm ? o->max_norm / norm : 1,
                       .rate = learning_rate,
                       .mean_scale = 1 / (1 - pow(o->beta1, (double)adamw->steps)),
                       .root_scale = 1 / sqrt(1 - pow(o->beta2, (double)adamw->steps))};
    int64_t first = 0;
    for (int i = 0; i < bucket->nparts; i++) {
        const heddle_bucket_part *part = &bucket->part[i];
        int64_t lo, at, n = hd_bucket_own(bucket, i, first, &lo, &at);
        s.keep = part->decay ? 1 - learning_rate * o->weight_decay : 1;
        if (n > 0) {
            bucket->kernels->adamw(&s, part->param + lo, part->grad + lo, adamw->mean + at, adamw->square + at, n);
        }
        first += part->elems;
    }
    HD_TRY(heddle_bucket_gather(bucket, stream));
out:
    return st;
}

heddle_status heddle_adamw_step(heddle_adamw *adamw, double learning_rate, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    double norm = 0;
    if (adamw == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_adamw_step: adamw is NULL");
    }
    if (adamw->options.max_norm > 0) {
        HD_TRY(heddle_bucket_norm(&norm, adamw->bucket, stream));
    }
    st = heddle_adamw_step_clipped(adamw, learning_rate, norm, stream);
out:
    return st;
}

int64_t heddle_adamw_state_bytes(const heddle_adamw *adamw)
{
    return adamw == NULL ? 0 : 2 * adamw->bucket->own_elems * (int64_t)sizeof(float);
}
