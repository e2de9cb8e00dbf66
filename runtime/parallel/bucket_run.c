/* A bucket at work: gradients out of their places, through the steps, and back. */
#include "runtime/parallel/parallel_internal.h"

#include <string.h>

int64_t hd_bucket_own(const heddle_bucket *bucket, int index, int64_t first, int64_t *lo, int64_t *at)
{
    int64_t end = first + bucket->part[index].elems, own_end = bucket->own_lo + bucket->own_elems;
    int64_t from = first > bucket->own_lo ? first : bucket->own_lo;
    int64_t to = end < own_end ? end : own_end;
    *lo = from - first;
    *at = from - bucket->own_lo;
    return to > from ? to - from : 0;
}

/* result: own block -> gradients */
static void take_result(heddle_bucket *bucket, const float *result)
{
    int64_t first = 0;
    for (int i = 0; i < bucket->nparts; i++) {
        int64_t lo, at, n = hd_bucket_own(bucket, i, first, &lo, &at);
        float *grad = bucket->part[i].grad;
        if (n > 0 && bucket->divisor != 1) {
            bucket->kernels->divide(grad + lo, result + at, bucket->divisor, n);
        } else if (n > 0) {
            memcpy(grad + lo, result + at, (size_t)n * sizeof *grad);
        }
        first += bucket->part[i].elems;
    }
}

heddle_status heddle_bucket_reduce(heddle_bucket *bucket, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    if (bucket == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_bucket_reduce: bucket is NULL");
    }
    if (bucket->nsteps > 0) {
        float *to = bucket->flat;
        for (int i = 0; i < bucket->nparts; i++) {
            if (bucket->part[i].elems > 0) {
                memcpy(to, bucket->part[i].grad, (size_t)bucket->part[i].elems * sizeof(float));
            }
            to += bucket->part[i].elems;
        }
        for (int i = 0; i < bucket->nsteps; i++) {
            const hd_bucket_step *step = &bucket->step[i];
            HD_TRY(heddle_reshard_execute(step->reshard, step->src, step->dst, stream));
        }
        take_result(bucket, bucket->step[bucket->nsteps - 1].dst);
    }
    bucket->reduces++;
out:
    return st;
}

heddle_status heddle_bucket_gather(heddle_bucket *bucket, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    if (bucket == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_bucket_gather: bucket is NULL");
    }
    if (bucket->gather != NULL) {
        int64_t first = 0, lo, at;
        for (int i = 0; i < bucket->nparts; i++) {
            int64_t n = hd_bucket_own(bucket, i, first, &lo, &at);
            if (n > 0) {
                memcpy(bucket->block[0] + at, bucket->part[i].param + lo, (size_t)n * sizeof(float));
            }
            first += bucket->part[i].elems;
        }
        HD_TRY(heddle_reshard_execute(bucket->gather, bucket->block[0], bucket->flat, stream));
        const float *from = bucket->flat;
        for (int i = 0; i < bucket->nparts; i++) {
            if (bucket->part[i].elems > 0) {
                memcpy(bucket->part[i].param, from, (size_t)bucket->part[i].elems * sizeof(float));
            }
            from += bucket->part[i].elems;
        }
    }
    bucket->gathers++;
out:
    return st;
}

heddle_status heddle_bucket_norm(double *out, heddle_bucket *bucket, heddle_stream stream)
{
    (void)stream; /* host memory: done on return */
    heddle_status st = HEDDLE_OK;
    hd_squares squares = {{0}};
    if (out == NULL || bucket == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_bucket_norm: %s is NULL", out == NULL ? "out" : "bucket");
    }
    int64_t first = 0;
    for (int i = 0; i < bucket->nparts; i++) {
        int64_t lo, at, n = hd_bucket_own(bucket, i, first, &lo, &at);
        if (n > 0) {
            bucket->kernels->add_squares(&squares, bucket->part[i].grad + lo, n);
        }
        first += bucket->part[i].elems;
    }
    if (bucket->norm_group != NULL && heddle_comm_size(bucket->norm_group) > 1) {
        HD_TRY(heddle_comm_allreduce_sum(bucket->norm_group, squares.lane, HD_SQUARES_LANES, HEDDLE_I64));
    }
    *out = hd_squares_root(&squares);
out:
    return st;
}

void heddle_bucket_zero(heddle_bucket *bucket, heddle_stream stream)
{
    (void)stream; /* host memory: done on return */
    for (int i = 0; bucket != NULL && i < bucket->nparts; i++) {
        if (bucket->part[i].elems > 0) {
            memset(bucket->part[i].grad, 0, (size_t)bucket->part[i].elems * sizeof(float));
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
