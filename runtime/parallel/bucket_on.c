/* What a bucket on a device computes there, by the kernels of its library (kernels/table_device.h). */
#include "runtime/move/device_image.h"
#include "runtime/move/device_list.h"
#include "runtime/parallel/parallel_internal.h"

#include <string.h>

/* The others wait for what a device that fails does not bring: they are told. */
static heddle_status launched(const heddle_bucket *bucket, heddle_status st, int code, const char *what)
{
    const hd_device *device = bucket->device;
    st = code == 0 ? st : device->library->status(code, device->number, what);
    return st == HEDDLE_OK ? st : hd_comm_abort_with(bucket->comm, st);
}

#define LAUNCH(bucket, what, slot, ...)                                                                                \
    do {                                                                                                               \
        int before_ = 0, code_ = 0;                                                                                    \
        const heddle_status entered_ = (bucket)->device->library->enter(&before_, (bucket)->device->number);           \
        if (entered_ == HEDDLE_OK) {                                                                                   \
            code_ = (bucket)->on.kernels->slot(__VA_ARGS__);                                                           \
            (bucket)->device->library->leave(before_);                                                                 \
        }                                                                                                              \
        HD_TRY(launched(bucket, entered_, code_, what));                                                               \
    } while (0)

/* --- making ------------------------------------------------------------------------------------------------------- */

static int norm_ranks(const heddle_bucket *bucket)
{
    return bucket->norm_group != NULL ? heddle_comm_size(bucket->norm_group) : 1;
}

int hd_bucket_on_has_sum(const heddle_bucket *bucket)
{
    const int n = norm_ranks(bucket);
    return bucket->device != NULL && bucket->device->library->kernels != NULL && n > 1 && n <= HD_DEVICE_MAX_PEERS;
}

heddle_status hd_bucket_on_make_sum(heddle_bucket *bucket)
{
    heddle_reshard_options options;
    const heddle_shape shape = {.dtype = HEDDLE_I64, .ndim = 1, .dim = {{.name = "n", .extent = HD_SQUARES_LANES}}};
    const heddle_mesh mesh = {.naxes = 1, .axis = {{.name = "norm", .size = heddle_comm_size(bucket->norm_group)}}};
    const heddle_layout whole = heddle_layout_replicated();
    const heddle_layout parts = hd_layout_with(&whole, 0, HEDDLE_PARTIAL);
    heddle_reshard_options_init(&options);
    options.deadline_ms = bucket->options.deadline_ms;
    options.space = bucket->options.space;
    options.device = bucket->options.device;
    return heddle_reshard_create(&bucket->on.sum, bucket->norm_group, &shape, &mesh, &parts, &whole, &options);
}

heddle_status hd_bucket_on_make(heddle_bucket *bucket)
{
    heddle_status st = HEDDLE_OK;
    hd_bucket_on *on = &bucket->on;
    void *memory = NULL;
    if (bucket->device == NULL) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_enqueued_open(&bucket->used, bucket->device));
    bucket->used.names = (hd_enqueued_names){hd_comm_rank_name(bucket->comm, heddle_comm_rank(bucket->comm)),
                                             "last launch", "bucket", ""};
    if (bucket->device->library->kernels == NULL) {
        return HEDDLE_OK;
    }
    on->kernels = bucket->device->library->kernels;
    HD_TRY(hd_device_load_kernels(bucket->device)); /* not in a call, while kernels of other ranks may wait */
    const size_t bytes = 2 * sizeof(hd_squares) + sizeof(double) + on->kernels->add_squares_bytes();
    HD_TRY(hd_device_alloc(bucket->device, &memory, bytes, HD_DEVICE_FOR_PEERS));
    bucket->buffer_bytes += (int64_t)bytes;
    on->squares = memory;
    on->scratch = on->squares + 2;
    on->clip = (double *)((char *)memory + bytes) - 1;
out:
    return st;
}

void hd_bucket_on_free(heddle_bucket *bucket)
{
    heddle_reshard_destroy(bucket->on.sum);
    hd_bucket_on_release(bucket, bucket->on.squares);
    hd_enqueued_close(&bucket->used);
}

heddle_status hd_bucket_on_end(heddle_bucket *bucket, heddle_stream stream, heddle_status st)
{
    const hd_device *device = bucket->device;
    const hd_sentence why = hd_sentence_keep();
    int captures = 0;
    if (device == NULL) {
        return st;
    }
    heddle_status ended = device->library->stream_captures(&captures, device->number, stream);
    ended = ended == HEDDLE_OK && !captures ? hd_enqueued_order(&bucket->used, stream) : ended;
    bucket->used.is_captured |= captures;
    bucket->on.is_lost |= ended != HEDDLE_OK;
    ended = ended == HEDDLE_OK && !captures ? hd_enqueued_end(&bucket->used, stream, HEDDLE_OK) : ended;
    return st == HEDDLE_OK ? launched(bucket, ended, 0, "") : hd_sentence_say(&why, st);
}

void hd_bucket_on_release(heddle_bucket *bucket, void *memory)
{
    const hd_sentence why = hd_sentence_keep();
    const int64_t deadline_ns = hd_comm_deadline_ns(bucket->comm, 0) + HD_DEVICE_GRACE_NS;
    if (bucket->on.is_lost) {
        hd_device_leave(bucket->device);
    }
    if (memory != NULL && hd_enqueued_lets_free(&bucket->used, bucket->device, deadline_ns)) {
        hd_device_release(bucket->device, memory);
    }
    heddle_ignore(hd_sentence_say(&why, HEDDLE_OK));
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

/* Of more ranks than kernels add up. */
static heddle_status sum_by_host(heddle_bucket *bucket, heddle_stream stream)
{
    heddle_status st;
    hd_image image;
    HD_TRY(hd_image_open(&image, bucket->comm, bucket->on.squares, sizeof(hd_squares), 1, stream, "sum of norms"));
    HD_TRY(heddle_comm_allreduce_sum(bucket->norm_group, image.host, HD_SQUARES_LANES, HEDDLE_I64));
    st = hd_image_write(&image);
out:
    hd_image_close(&image);
    return st;
}

heddle_status hd_bucket_on_squares(const hd_squares **out, heddle_bucket *bucket, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_bucket_on *on = &bucket->on;
    int64_t first = 0;
    LAUNCH(bucket, "squares of gradients", add_squares, on->squares, NULL, 0, 0, on->scratch, stream);
    for (int i = 0; i < bucket->nparts; i++) {
        const heddle_bucket_part *part = &bucket->part[i];
        int64_t lo, at, n = hd_bucket_own(bucket, i, first, &lo, &at);
        if (n > 0) {
            LAUNCH(bucket, "squares of gradients", add_squares, on->squares, part->grad + lo, n, 1, on->scratch,
                   stream);
        }
        first += part->elems;
    }
    *out = on->squares;
    if (on->sum != NULL) {
        HD_TRY(heddle_reshard_execute(on->sum, on->squares, on->squares + 1, stream));
        *out = on->squares + 1;
    } else if (norm_ranks(bucket) > 1) {
        HD_TRY(sum_by_host(bucket, stream));
    }
out:
    return st == HEDDLE_OK ? st : hd_bucket_on_end(bucket, stream, st);
}

heddle_status hd_bucket_on_clip(const double **out, heddle_bucket *bucket, double max_norm, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_squares *squares = NULL;
    HD_TRY(hd_bucket_on_squares(&squares, bucket, stream));
    LAUNCH(bucket, "clipping gradients", clip, bucket->on.clip, squares, max_norm, stream);
    *out = bucket->on.clip;
out:
    return st == HEDDLE_OK ? st : hd_bucket_on_end(bucket, stream, st);
}

heddle_status hd_bucket_on_divide(heddle_bucket *bucket, float *dst, const float *src, int64_t elems,
                                  heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    LAUNCH(bucket, "averaging gradients", divide, dst, src, bucket->divisor, elems, stream);
out:
    return st;
}

heddle_status hd_bucket_on_zero(heddle_bucket *bucket, float *data, int64_t elems, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    LAUNCH(bucket, "zeros", zero, data, elems, stream);
out:
    return st;
}

heddle_status hd_bucket_on_adamw(heddle_bucket *bucket, const hd_adamw_step *step, const double *clip,
                                 const hd_adamw_part *part, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    LAUNCH(bucket, "AdamW", adamw, step, clip, part->param, part->grad, part->mean, part->square, part->elems, stream);
out:
    return st;
}
