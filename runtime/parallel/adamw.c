/* AdamW on the own block of a bucket (decoupled weight decay, bias correction).
 *
 * Every element is computed in f64 from its own f32 numbers and rounded once, so that it does not matter who holds it.
 */
#include "runtime/move/device_image.h"
#include "runtime/parallel/parallel_internal.h"

#include <math.h>
#include <string.h>

struct heddle_adamw {
    heddle_bucket *bucket;
    heddle_adamw_options options;
    int64_t steps;
    float *mean, *square; /* of the own elements, where the bucket's parts are; each part's by place_of */
};

enum { PLACES = 4 }; /* numbers of 16 bytes */

/* State of elements from lo on of a part, behind `end`: it lies in its 16 bytes as the parameters do in theirs. */
static int64_t place_of(int64_t end, int64_t lo)
{
    return (end + PLACES - 1) / PLACES * PLACES + lo % PLACES;
}

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

/* Of a device: zeroed in the first step, whose stream says when. */
static heddle_status make_state(float **out, heddle_bucket *bucket)
{
    void *memory = NULL;
    const size_t elems = (size_t)bucket->own_elems + 2 * PLACES * (size_t)bucket->nparts + 1;
    heddle_status st = bucket->device == NULL
                           ? hd_alloc(&memory, elems, sizeof(float), "an optimiser's state")
                           : hd_device_alloc(bucket->device, &memory, elems * sizeof(float), HD_DEVICE_FOR_OWN);
    *out = memory;
    return st;
}

static void free_state(heddle_bucket *bucket, float *state)
{
    if (bucket->device != NULL) {
        hd_bucket_on_release(bucket, state);
    } else {
        hd_free(state);
    }
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
    if (bucket->device != NULL && bucket->on.kernels == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "an optimiser: device %s has no kernels", bucket->device->name);
    }
    HD_TRY(hd_alloc((void **)&adamw, 1, sizeof *adamw, "an optimiser"));
    adamw->bucket = bucket;
    adamw->options = taken;
    HD_TRY(make_state(&adamw->mean, bucket));
    HD_TRY(make_state(&adamw->square, bucket));
    *out = adamw;
    adamw = NULL;
out:
    heddle_adamw_destroy(adamw);
    return st;
}

void heddle_adamw_destroy(heddle_adamw *adamw)
{
    if (adamw != NULL) {
        free_state(adamw->bucket, adamw->mean);
        free_state(adamw->bucket, adamw->square);
        hd_free(adamw);
    }
}

static heddle_status check_rate(const heddle_adamw *adamw, double learning_rate, heddle_stream stream)
{
    if (!(learning_rate >= 0 && learning_rate < HUGE_VAL)) {
        return hd_fail(HEDDLE_ERR_ARG, "an AdamW step with learning rate %g", learning_rate);
    }
    return adamw->bucket->device == NULL
               ? HEDDLE_OK
               : hd_image_need_no_capture(adamw->bucket->comm, stream, "an AdamW step", "counts steps on the host");
}

static heddle_status clear_state(heddle_adamw *adamw, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    heddle_bucket *bucket = adamw->bucket;
    const int64_t elems = bucket->own_elems + 2 * PLACES * (int64_t)bucket->nparts;
    HD_TRY(hd_bucket_on_zero(bucket, adamw->mean, elems, stream));
    st = hd_bucket_on_zero(bucket, adamw->square, elems, stream);
out:
    return st;
}

/* clip: a factor; clip_there: NULL, or where it is on the device. */
static heddle_status step(heddle_adamw *adamw, double learning_rate, double clip, const double *clip_there,
                          heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    heddle_bucket *bucket = adamw->bucket;
    const heddle_adamw_options *o = &adamw->options;
    int64_t first = 0, end = 0;
    HD_TRY(bucket->device != NULL && adamw->steps == 0 ? clear_state(adamw, stream) : HEDDLE_OK);
    adamw->steps++;
    hd_adamw_step s = {.beta1 = o->beta1,
                       .beta2 = o->beta2,
                       .epsilon = o->epsilon,
                       .clip = clip,
                       .rate = learning_rate,
                       .mean_scale = 1 / (1 - pow(o->beta1, (double)adamw->steps)),
                       .root_scale = 1 / sqrt(1 - pow(o->beta2, (double)adamw->steps))};
    for (int i = 0; i < bucket->nparts; i++) {
        const heddle_bucket_part *part = &bucket->part[i];
        int64_t lo, at, n = hd_bucket_own(bucket, i, first, &lo, &at);
        first += part->elems;
        if (n == 0) {
            continue;
        }
        at = place_of(end, lo);
        end = at + n;
        const hd_adamw_part own = {part->param + lo, part->grad + lo, adamw->mean + at, adamw->square + at, n};
        s.keep = part->decay ? 1 - learning_rate * o->weight_decay : 1;
        if (bucket->device != NULL) {
            HD_TRY(hd_bucket_on_adamw(bucket, &s, clip_there, &own, stream));
        } else {
            bucket->kernels->adamw(&s, own.param, own.grad, own.mean, own.square, n);
        }
    }
out:
    if (st == HEDDLE_OK) {
        st = heddle_bucket_gather(bucket, stream);
    }
    return st == HEDDLE_OK && bucket->gather != NULL ? st : hd_bucket_on_end(bucket, stream, st);
}

heddle_status heddle_adamw_step_clipped(heddle_adamw *adamw, double learning_rate, double norm, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(adamw));
    HD_TRY(check_rate(adamw, learning_rate, stream));
    if (norm < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "an AdamW step with a gradient of norm %g", norm);
    }
    const double most = adamw->options.max_norm;
    st = step(adamw, learning_rate, most > 0 && norm > most ? most / norm : 1, NULL, stream);
out:
    return st;
}

heddle_status heddle_adamw_step(heddle_adamw *adamw, double learning_rate, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    double norm = 0;
    const double *clip = NULL;
    if (adamw == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_adamw_step: adamw is NULL");
    }
    const double most = adamw->options.max_norm;
    if (most > 0 && adamw->bucket->device != NULL) { /* the norm stays there, and nobody waits for it */
        HD_TRY(check_rate(adamw, learning_rate, stream));
        HD_TRY(hd_bucket_on_clip(&clip, adamw->bucket, most, stream));
        return step(adamw, learning_rate, 1, clip, stream);
    }
    if (most > 0) {
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
