/* A bucket and its optimiser twice, with the same values: of the host, and of a device. */
#ifndef HD_TEST_ADAMW_TWIN_H
#define HD_TEST_ADAMW_TWIN_H

#include "nccl_sim.h"
#include "runtime/verify/random.h"
#include "time_limit.h"

#include <heddle/train/adamw.h>

enum { PARTS = 4, VALUES = 333 + 1002 + 5 };

static const int64_t sizes[PARTS] = {333, 0, 1002, 5};

typedef struct twin {
    heddle_comm *comm;
    heddle_stream stream;
    float param[VALUES], grad[VALUES], got[VALUES];
    float *param_there, *grad_there;
    heddle_bucket *bucket[2]; /* of the host, of the device */
    heddle_adamw *adamw[2];
} twin;

typedef struct way {
    const char *mesh;
    unsigned sum, average, norm;
    int shard;
    double max_norm;
} way;

static inline float value_of(int turn, int rank, int64_t i)
{
    return (float)(random_unit_of(random_at((uint64_t)turn, (uint64_t)rank, (uint64_t)i)));
}

/* The optimiser on the device begins in memory that one before it has left. */
static inline heddle_status again(twin *t, const heddle_adamw_options *options)
{
    heddle_status st;
    for (int64_t i = 0; i < VALUES; i++) {
        t->grad[i] = value_of(77, 0, i);
    }
    HD_TRY(device_copy_now(t->comm, t->grad_there, t->grad, sizeof t->grad));
    HD_TRY(heddle_adamw_step(t->adamw[1], 0, t->stream));
    HD_TRY(device_settle(t->comm, t->stream));
    heddle_adamw_destroy(t->adamw[1]);
    t->adamw[1] = NULL;
    st = heddle_adamw_create(&t->adamw[1], t->bucket[1], options);
out:
    return st;
}

static inline heddle_status twin_make(twin *t, heddle_comm *comm, const way *of)
{
    heddle_status st;
    heddle_mesh mesh;
    heddle_adamw_options adamw;
    const hd_device *device = hd_comm_device(comm);
    memset(t, 0, sizeof *t);
    t->comm = comm;
    HD_TRY(heddle_mesh_parse(&mesh, of->mesh));
    HD_TRY(heddle_buffer_alloc((void **)&t->param_there, comm, sizeof t->param, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_buffer_alloc((void **)&t->grad_there, comm, sizeof t->grad, HEDDLE_SPACE_DEVICE));
    HD_TRY(device->library->stream_create(&t->stream, device->number));
    for (int64_t i = 0; i < VALUES; i++) {
        t->param[i] = value_of(99, 0, i);
    }
    HD_TRY(device_copy_now(comm, t->param_there, t->param, sizeof t->param));
    for (int k = 0; k < 2; k++) {
        heddle_bucket_options options;
        heddle_bucket_part part[PARTS];
        int64_t first = 0;
        for (int i = 0; i < PARTS; first += sizes[i], i++) {
            part[i] = (heddle_bucket_part){(k == 0 ? t->param : t->param_there) + first,
                                           (k == 0 ? t->grad : t->grad_there) + first, sizes[i], i % 2 == 0};
        }
        heddle_bucket_options_init(&options);
        options.sum_axes = of->sum;
        options.average_axes = of->average;
        options.norm_axes = of->norm;
        options.shard_axis = of->shard;
        options.space = k == 0 ? HEDDLE_SPACE_HOST : HEDDLE_SPACE_DEVICE;
        options.device = k == 0 ? 0 : heddle_comm_device(comm);
        HD_TRY(heddle_bucket_create(&t->bucket[k], comm, &mesh, part, PARTS, &options));
        heddle_adamw_options_init(&adamw);
        adamw.max_norm = of->max_norm;
        HD_TRY(heddle_adamw_create(&t->adamw[k], t->bucket[k], &adamw));
    }
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(again(t, &adamw));
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static inline void twin_free(twin *t)
{
    const hd_device *device = hd_comm_device(t->comm);
    for (int k = 0; k < 2; k++) {
        heddle_adamw_destroy(t->adamw[k]);
        heddle_bucket_destroy(t->bucket[k]);
    }
    heddle_buffer_free(t->comm, t->param_there);
    heddle_buffer_free(t->comm, t->grad_there);
    device->library->stream_destroy(t->stream, device->number);
}

#endif
