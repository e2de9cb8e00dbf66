/* A bucket at work: gradients out of their places, through the steps, and back. */
#include "runtime/move/device_image.h"
#include "runtime/parallel/parallel_internal.h"

#include <string.h>

static const char norm_name[] = "bucket norm";

int64_t hd_bucket_own(const heddle_bucket *bucket, int index, int64_t first, int64_t *lo, int64_t *at)
{
    int64_t end = first + bucket->part[index].elems, own_end = bucket->own_lo + bucket->own_elems;
    int64_t from = first > bucket->own_lo ? first : bucket->own_lo;
    int64_t to = end < own_end ? end : own_end;
    *lo = from - first;
    *at = from - bucket->own_lo;
    return to > from ? to - from : 0;
}

/* Between parts and blocks. The others wait for what a device that fails does not bring: they are told. */
static heddle_status copy(heddle_bucket *bucket, float *dst, const float *src, int64_t elems, heddle_stream stream)
{
    const hd_device *device = bucket->device;
    const int64_t bytes = elems * (int64_t)sizeof(float);
    heddle_status st = HEDDLE_OK;
    if (bytes > 0 && device == NULL) {
        memcpy(dst, src, (size_t)bytes);
    } else if (bytes > 0) {
        st = device->library->copy(dst, 0, src, 0, bytes, 1, device->number, stream);
    }
    return st == HEDDLE_OK ? st : hd_comm_abort_with(bucket->comm, st);
}

/* Every rank's parts: gradients to the flat array, or parameters from it. */
static heddle_status copy_all(heddle_bucket *bucket, int to_flat, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    float *flat = bucket->flat;
    for (int i = 0; i < bucket->nparts; i++) {
        const heddle_bucket_part *part = &bucket->part[i];
        HD_TRY(copy(bucket, to_flat ? flat : part->param, to_flat ? part->grad : flat, part->elems, stream));
        flat += part->elems;
    }
out:
    return st;
}

/* result: own block -> gradients */
static heddle_status take_result(heddle_bucket *bucket, const float *result, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    int64_t first = 0;
    for (int i = 0; i < bucket->nparts; i++) {
        int64_t lo, at, n = hd_bucket_own(bucket, i, first, &lo, &at);
        float *grad = bucket->part[i].grad;
        if (n > 0 && bucket->divisor != 1 && bucket->device != NULL) {
            HD_TRY(hd_bucket_on_divide(bucket, grad + lo, result + at, n, stream));
        } else if (n > 0 && bucket->divisor != 1) {
            bucket->kernels->divide(grad + lo, result + at, bucket->divisor, n);
        } else if (n > 0) {
            HD_TRY(copy(bucket, grad + lo, result + at, n, stream));
        }
        first += bucket->part[i].elems;
    }
out:
    return st;
}

heddle_status heddle_bucket_reduce(heddle_bucket *bucket, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(bucket));
    if (bucket->nsteps > 0) {
        HD_TRY(copy_all(bucket, 1, stream));
        for (int i = 0; i < bucket->nsteps; i++) {
            const hd_bucket_step *step = &bucket->step[i];
            HD_TRY(heddle_reshard_execute(step->reshard, step->src, step->dst, stream));
        }
        HD_TRY(take_result(bucket, bucket->step[bucket->nsteps - 1].dst, stream));
    }
    bucket->reduces++;
out:
    return bucket != NULL && bucket->nsteps > 0 ? hd_bucket_on_end(bucket, stream, st) : st;
}

heddle_status heddle_bucket_gather(heddle_bucket *bucket, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(bucket));
    if (bucket->gather != NULL) {
        int64_t first = 0, lo, at;
        for (int i = 0; i < bucket->nparts; i++) {
            int64_t n = hd_bucket_own(bucket, i, first, &lo, &at);
            HD_TRY(copy(bucket, bucket->block[0] + at, bucket->part[i].param + lo, n, stream));
            first += bucket->part[i].elems;
        }
        HD_TRY(heddle_reshard_execute(bucket->gather, bucket->block[0], bucket->flat, stream));
        HD_TRY(copy_all(bucket, 0, stream));
    }
    bucket->gathers++;
out:
    return bucket != NULL && bucket->gather != NULL ? hd_bucket_on_end(bucket, stream, st) : st;
}

/* Of gradients that lie on a device without kernels, an image of them. */
static heddle_status add_squares(hd_squares *squares, heddle_bucket *bucket, const float *grad, int64_t elems,
                                 heddle_stream stream)
{
    heddle_status st;
    hd_image image;
    HD_TRY(hd_image_open(&image, bucket->comm, grad, (size_t)elems * sizeof *grad, 1, stream, norm_name));
    bucket->kernels->add_squares(squares, image.host, elems);
out:
    hd_image_close(&image);
    return st;
}

static heddle_status host_squares(hd_squares *out, heddle_bucket *bucket, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    int64_t first = 0;
    for (int i = 0; i < bucket->nparts; i++) {
        int64_t lo, at, n = hd_bucket_own(bucket, i, first, &lo, &at);
        if (n > 0) {
            HD_TRY(add_squares(out, bucket, bucket->part[i].grad + lo, n, stream));
        }
        first += bucket->part[i].elems;
    }
    if (bucket->norm_group != NULL && heddle_comm_size(bucket->norm_group) > 1) {
        HD_TRY(heddle_comm_allreduce_sum(bucket->norm_group, out->lane, HD_SQUARES_LANES, HEDDLE_I64));
    }
out:
    return st;
}

/* Made on the device; an image of the sums is all that the host gets. */
static heddle_status device_squares(hd_squares *out, heddle_bucket *bucket, heddle_stream stream)
{
    heddle_status st;
    hd_image image = {.array = NULL};
    const hd_squares *squares = NULL;
    HD_TRY(hd_image_need_no_capture(bucket->comm, stream, norm_name, "blocks"));
    HD_TRY(hd_bucket_on_squares(&squares, bucket, stream));
    st = hd_image_open(&image, bucket->comm, squares, sizeof *squares, 1, stream, norm_name);
    if (st == HEDDLE_OK) {
        memcpy(out, image.host, sizeof *out);
    } else { /* what makes the sums may still be under way */
        st = hd_bucket_on_end(bucket, stream, st);
    }
out:
    hd_image_close(&image);
    return st;
}

heddle_status heddle_bucket_norm(double *out, heddle_bucket *bucket, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_squares squares = {{0}};
    HD_TRY(HD_NEED(out, bucket));
    HD_TRY((bucket->on.kernels != NULL ? device_squares : host_squares)(&squares, bucket, stream));
    *out = hd_squares_root(&squares);
out:
    return st;
}

/* A device without kernels gets a few zeros of the host's, and then copies what it has: as much again each time. */
static void zero(const hd_device *device, float *data, int64_t elems, heddle_stream stream)
{
    static const float zeros[1024];
    int64_t done = 0, most = (int64_t)(sizeof zeros / sizeof zeros[0]);
    heddle_status st = HEDDLE_OK;
    while (done < elems && st == HEDDLE_OK) {
        int64_t n = done == 0 ? most : done;
        n = n < elems - done ? n : elems - done;
        st = device->library->copy(data + done, 0, done == 0 ? zeros : data, 0, n * (int64_t)sizeof *data, 1,
                                   device->number, stream);
        done += n;
    }
}

void heddle_bucket_zero(heddle_bucket *bucket, heddle_stream stream)
{
    for (int i = 0; bucket != NULL && i < bucket->nparts; i++) {
        const heddle_bucket_part *part = &bucket->part[i];
        if (part->elems > 0 && bucket->on.kernels != NULL) {
            heddle_ignore(hd_bucket_on_zero(bucket, part->grad, part->elems, stream));
        } else if (part->elems > 0 && bucket->device != NULL) {
            zero(bucket->device, part->grad, part->elems, stream);
        } else if (part->elems > 0) {
            memset(part->grad, 0, (size_t)part->elems * sizeof(float));
        }
    }
}

heddle_status heddle_bucket_get_info(heddle_bucket_info *out, const heddle_bucket *bucket)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, bucket));
    heddle_bucket_info all = {.elems = bucket->elems,
                              .own_lo = bucket->own_lo,
                              .own_elems = bucket->own_elems,
                              .reduces = bucket->reduces,
                              .gathers = bucket->gathers,
                              .workspace_bytes = bucket->buffer_bytes};
    for (int i = 0; i <= bucket->nsteps; i++) {
        const heddle_reshard *reshard = i < bucket->nsteps ? bucket->step[i].reshard : bucket->gather;
        heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
        if (reshard != NULL) {
            HD_TRY(heddle_reshard_get_info(&info, reshard));
            all.planned_bytes += info.bytes_sent;
            all.measured_bytes += info.measured_bytes_sent;
            all.workspace_bytes += info.workspace_bytes;
        }
    }
    st = hd_struct_give(out, &all, HD_STRUCT(heddle_bucket_info, elems));
out:
    return st;
}
