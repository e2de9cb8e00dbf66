/* Buckets and AdamW: what ranks say that ask for different things, or for what cannot be. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"

#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <math.h>
#include <string.h>

/* Rank 2 asks for something else, in several ways; everybody hears of it, and the communicator works on. */
HD_RANK_CASE(mistakes, "4 threads", "4 shm")
{
    heddle_status st = HEDDLE_OK;
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"dp", 2}, {"sp", 2}}};
    const heddle_mesh small = {.naxes = 1, .axis = {{"dp", 2}}};
    int odd = heddle_comm_rank(comm) == 2;
    float param[9] = {0}, grad[9] = {0};
    heddle_bucket *bucket = NULL;
    heddle_status alone = odd ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER;
    for (int kind = 0; kind < 10; kind++) {
        heddle_bucket_part part = {param, grad, 9, 1};
        heddle_bucket_options options;
        heddle_bucket_options_init(&options);
        options.sum_axes = 3;
        heddle_status wanted = kind < 4 ? HEDDLE_ERR_MISMATCH : alone;
        const heddle_mesh *on = &mesh;
        if (odd) {
            part.elems = kind == 0 ? 8 : 9;
            part.decay = kind == 1 ? 0 : 1;
            options.sum_axes = kind == 2 ? 1 : 3;
            options.average_axes = kind == 2 ? 2 : kind == 4 ? 1 : 0;
            options.shard_axis = kind == 3 ? 0 : kind == 5 ? 2 : -1;
            part.grad = kind == 6 ? NULL : grad;
            on = kind == 7 ? &small : &mesh;
            options.struct_bytes = kind == 8 ? 4000 : sizeof options;
            options.deadline_ms = kind == 9 ? INT64_MAX : 0;
        }
        CHECK(heddle_bucket_create(&bucket, comm, on, &part, 1, &options) == wanted);
        CHECK(strstr(heddle_last_error(), odd || wanted == HEDDLE_ERR_PEER || kind > 3 ? "" : "rank 2") != NULL);
        CHECK(bucket == NULL);
    }
    heddle_bucket_part part = {param, grad, 9, 1};
    HD_TRY(heddle_bucket_create(&bucket, comm, &mesh, &part, 1, NULL)); /* sums nothing */
    grad[3] = 5;
    HD_TRY(heddle_bucket_reduce(bucket, HEDDLE_NO_STREAM));
    CHECK(grad[3] == 5);
    HD_TRY(heddle_comm_barrier(comm));
out:
    heddle_bucket_destroy(bucket);
    return st;
}

HD_CASE(arguments_are_checked)
{
    heddle_comm *self = NULL;
    heddle_bucket *bucket = NULL;
    heddle_adamw *adamw = NULL;
    heddle_bucket_info info = HEDDLE_EMPTY(heddle_bucket_info);
    double norm;
    float param = 1, grad = 2;
    heddle_bucket_part part = {&param, &grad, 1, 0};
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"dp", 1}}};
    HD_OK(heddle_comm_open(&self, "self", NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bucket_create(NULL, self, &mesh, &part, 1, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bucket_create(&bucket, NULL, &mesh, &part, 1, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bucket_create(&bucket, self, NULL, &part, 1, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bucket_create(&bucket, self, &mesh, NULL, 1, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bucket_create(&bucket, self, &mesh, &part, -1, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bucket_reduce(NULL, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bucket_gather(NULL, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bucket_norm(&norm, NULL, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bucket_get_info(&info, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_adamw_create(&adamw, NULL, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_adamw_step(NULL, 0.1, HEDDLE_NO_STREAM));
    heddle_bucket_destroy(NULL);
    heddle_adamw_destroy(NULL);
    heddle_bucket_zero(NULL, HEDDLE_NO_STREAM);
    HD_OK(heddle_bucket_create(&bucket, self, &mesh, &part, 1, NULL));
    for (int kind = 0; kind < 7; kind++) {
        heddle_adamw_options options;
        heddle_adamw_options_init(&options);
        options.beta1 = kind == 0 ? 1 : 0.9;
        options.beta2 = kind == 1 ? -0.1 : 0.999;
        options.epsilon = kind == 2 ? 0 : 1e-8;
        options.weight_decay = kind == 3 ? -1 : 0;
        options.max_norm = kind == 4 ? -1 : kind == 5 ? NAN : 0;
        options.struct_bytes = kind == 6 ? 0 : sizeof options;
        HD_FAILS(HEDDLE_ERR_ARG, heddle_adamw_create(&adamw, bucket, &options));
    }
    HD_OK(heddle_adamw_create(&adamw, bucket, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_adamw_step(adamw, -1, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_adamw_step(adamw, NAN, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_adamw_step_clipped(adamw, 0.1, -1, HEDDLE_NO_STREAM));
    assert_true(param == 1);
    HD_OK(heddle_adamw_step(adamw, 0.5, HEDDLE_NO_STREAM)); /* the first step is rate * sign */
    assert_true(fabsf(param - 0.5f) < 1e-6f);
    heddle_adamw_destroy(adamw);
    heddle_bucket_destroy(bucket);
    heddle_comm_destroy(self);
}
