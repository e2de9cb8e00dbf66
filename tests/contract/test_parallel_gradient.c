/* Buckets over every kind of axes, and AdamW: against a reference in f64, sharded against not sharded bit for bit, and
 * bytes against the formula. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"
#include "runtime/verify/random.h"

#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 5, MAX_ELEMS = 512, STEPS = 4 };

static const char *const transports[] = {"threads", "shm"};

typedef struct problem {
    heddle_mesh mesh;
    unsigned sum, average;
    int64_t part[PARTS];
    double max_norm;
} problem;

/* What a rank brings, in [-1, 1], the same wherever it is asked for. */
static float value(int rank, int turn, int64_t i)
{
    return (float)random_unit_of(random_at((uint64_t)rank, (uint64_t)turn, (uint64_t)i));
}

static float first_value(int64_t i)
{
    return value(77, 99, i);
}

/* One copy of the model: parameters, gradients, the bucket over them. */
typedef struct copy {
    float param[MAX_ELEMS], grad[MAX_ELEMS];
    heddle_bucket_part part[PARTS];
    int64_t elems;
    heddle_bucket *bucket;
    heddle_adamw *adamw;
    heddle_bucket_info info;
} copy;

static heddle_status copy_make(copy *c, heddle_comm *comm, const problem *p, int shard_axis)
{
    heddle_status st = HEDDLE_OK;
    heddle_bucket_options options;
    heddle_adamw_options adamw;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < PARTS; i++) {
        c->part[i] = (heddle_bucket_part){c->param + c->elems, c->grad + c->elems, p->part[i], i % 2};
        c->elems += p->part[i];
    }
    for (int64_t i = 0; i < c->elems; i++) {
        c->param[i] = first_value(i);
    }
    heddle_bucket_options_init(&options);
    options.sum_axes = p->sum;
    options.average_axes = p->average;
    options.shard_axis = shard_axis;
    HD_TRY(heddle_bucket_create(&c->bucket, comm, &p->mesh, c->part, PARTS, &options));
    heddle_adamw_options_init(&adamw);
    adamw.max_norm = p->max_norm;
    adamw.epsilon = 1e-4;
    HD_TRY(heddle_adamw_create(&c->adamw, c->bucket, &adamw));
    c->info.struct_bytes = sizeof c->info;
    HD_TRY(heddle_bucket_get_info(&c->info, c->bucket));
out:
    return st;
}

static void copy_free(copy *c)
{
    heddle_adamw_destroy(c->adamw);
    heddle_bucket_destroy(c->bucket);
}

/* The sum over the ranks that share every coordinate but those of `axes`, in f64, averaged over `average`. */
static double wanted_gradient(const problem *p, int rank, int turn, int64_t i)
{
    int mine[HEDDLE_MAX_AXES], other[HEDDLE_MAX_AXES];
    double sum = 0, divisor = 1;
    heddle_ignore(heddle_mesh_coords(mine, &p->mesh, rank));
    for (int r = 0; r < heddle_mesh_size(&p->mesh); r++) {
        int same = 1;
        heddle_ignore(heddle_mesh_coords(other, &p->mesh, r));
        for (int a = 0; a < p->mesh.naxes; a++) {
            same = same && ((p->sum | p->average) >> a & 1u || mine[a] == other[a]);
        }
        sum += same ? (double)value(r, turn, i) : 0;
    }
    for (int a = 0; a < p->mesh.naxes; a++) {
        divisor *= p->average >> a & 1u ? p->mesh.axis[a].size : 1;
    }
    return sum / divisor;
}

typedef struct reference {
    double param[MAX_ELEMS], mean[MAX_ELEMS], square[MAX_ELEMS];
} reference;

static double reference_step(reference *ref, const problem *p, const copy *c, int rank, int turn, double rate)
{
    double norm = 0;
    int64_t i = 0;
    for (i = 0; i < c->elems; i++) {
        double g = wanted_gradient(p, rank, turn, i);
        norm += g * g;
    }
    norm = sqrt(norm);
    i = 0;
    for (int k = 0; k < PARTS; k++) {
        for (int64_t e = 0; e < p->part[k]; e++, i++) {
            double g = wanted_gradient(p, rank, turn, i);
            g *= p->max_norm > 0 && norm > p->max_norm ? p->max_norm / norm : 1;
            ref->mean[i] = 0.9 * ref->mean[i] + 0.1 * g;
            ref->square[i] = 0.999 * ref->square[i] + 0.001 * g * g;
            ref->param[i] -= k % 2 ? rate * 0.01 * ref->param[i] : 0;
            ref->param[i] -= rate * (ref->mean[i] / (1 - pow(0.9, turn + 1))) /
                             (sqrt(ref->square[i] / (1 - pow(0.999, turn + 1))) + 1e-4);
        }
    }
    return norm;
}

/* What this rank sends: reduce-scatter over every axis, the blocks to where they are wanted, parameters back. Blocks
 * of equal size only. */
static int64_t formula(const problem *p, const copy *c, int shard_axis)
{
    int64_t bytes = 0, block = c->elems * 4, shard = c->elems * 4;
    for (int a = 0; a < p->mesh.naxes; a++) {
        if ((p->sum | p->average) >> a & 1u) {
            bytes += block - block / p->mesh.axis[a].size;
            block /= p->mesh.axis[a].size;
        }
    }
    int64_t group = c->elems * 4 / block;
    if (shard_axis < 0) {
        return bytes + (group - 1) * block;
    }
    int64_t shards = p->mesh.axis[shard_axis].size;
    shard /= shards;
    return bytes + (group / shards - 1) * block + (shards - 1) * shard;
}

static heddle_status compare_bits(heddle_comm *comm, const problem *p, const float *values, int64_t elems)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *team = NULL;
    float *all = malloc(64 * MAX_ELEMS * sizeof *all);
    HD_TRY(heddle_comm_axes_group(&team, comm, &p->mesh, p->sum | p->average));
    HD_TRY(heddle_comm_allgather(team, values, all, (size_t)elems * sizeof(float)));
    for (int r = 1; r < heddle_comm_size(team); r++) {
        CHECK(memcmp(all, all + r * elems, (size_t)elems * sizeof(float)) == 0);
    }
out:
    heddle_comm_destroy(team);
    free(all);
    return st;
}

static heddle_status one_turn(heddle_comm *comm, const problem *p, copy *plain, copy *sharded, reference *ref, int turn)
{
    heddle_status st = HEDDLE_OK;
    int rank = heddle_comm_rank(comm);
    double norm[2];
    for (int64_t i = 0; i < plain->elems; i++) {
        plain->grad[i] = sharded->grad[i] = value(rank, turn, i);
    }
    HD_TRY(heddle_bucket_reduce(plain->bucket, HEDDLE_NO_STREAM));
    HD_TRY(heddle_bucket_reduce(sharded->bucket, HEDDLE_NO_STREAM));
    HD_TRY(compare_bits(comm, p, plain->grad, plain->elems));
    for (int64_t i = 0; i < plain->elems; i++) {
        CHECK(fabs((double)plain->grad[i] - wanted_gradient(p, rank, turn, i)) < 2e-6);
        int own = i >= sharded->info.own_lo && i < sharded->info.own_lo + sharded->info.own_elems;
        CHECK(sharded->grad[i] == (own ? plain->grad[i] : value(rank, turn, i)));
    }
    HD_TRY(heddle_bucket_norm(&norm[0], plain->bucket, HEDDLE_NO_STREAM));
    HD_TRY(heddle_bucket_norm(&norm[1], sharded->bucket, HEDDLE_NO_STREAM));
    double wanted = reference_step(ref, p, plain, rank, turn, 0.01);
    CHECK(norm[0] == norm[1] && fabs(norm[0] - wanted) <= 1e-6 * wanted);
    HD_TRY(heddle_adamw_step(plain->adamw, 0.01, HEDDLE_NO_STREAM));
    HD_TRY(heddle_adamw_step(sharded->adamw, 0.01, HEDDLE_NO_STREAM));
    CHECK(memcmp(plain->param, sharded->param, sizeof plain->param) == 0);
    HD_TRY(compare_bits(comm, p, plain->param, plain->elems));
    for (int64_t i = 0; i < plain->elems; i++) {
        CHECK(fabs((double)plain->param[i] - ref->param[i]) < 1e-5);
    }
out:
    return st;
}

static heddle_status step_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const problem *p = arg;
    copy *plain = calloc(1, sizeof *plain), *sharded = calloc(1, sizeof *sharded);
    reference *ref = calloc(1, sizeof *ref);
    for (int axis = -1; axis < p->mesh.naxes; axis++) {
        if (axis >= 0 && !((p->sum | p->average) >> axis & 1u)) {
            continue;
        }
        HD_TRY(copy_make(plain, comm, p, -1));
        HD_TRY(copy_make(sharded, comm, p, axis));
        memset(ref, 0, sizeof *ref);
        for (int64_t i = 0; i < plain->elems; i++) {
            ref->param[i] = (double)first_value(i);
        }
        for (int turn = 0; turn < STEPS; turn++) {
            HD_TRY(one_turn(comm, p, plain, sharded, ref, turn));
        }
        CHECK(heddle_adamw_state_bytes(plain->adamw) == 8 * plain->elems);
        CHECK(heddle_adamw_state_bytes(sharded->adamw) == 8 * sharded->info.own_elems);
        copy *both[2] = {plain, sharded};
        for (int i = 0; i < 2; i++) {
            heddle_bucket_info *info = &both[i]->info;
            HD_TRY(heddle_bucket_get_info(info, both[i]->bucket));
            CHECK(info->reduces == STEPS && info->gathers == STEPS && info->elems == plain->elems);
            CHECK(info->measured_bytes == STEPS * info->planned_bytes);
            int other = i == 1 && axis >= 0 && ((p->sum | p->average) & ((1u << axis) - 1)) != 0; /* inner shard axis */
            CHECK(other || plain->elems == 0 || plain->elems % 12 != 0 ||
                  info->planned_bytes == formula(p, plain, i == 0 ? -1 : axis));
        }
        copy_free(plain);
        copy_free(sharded);
        memset(plain, 0, sizeof *plain);
        memset(sharded, 0, sizeof *sharded);
    }
out:
    copy_free(plain);
    copy_free(sharded);
    free(plain);
    free(sharded);
    free(ref);
    return st;
}

static const problem problems[] = {
    {.mesh = {.naxes = 1, .axis = {{"dp", 1}}}, .sum = 1, .part = {7, 0, 1, 33, 5}},
    {.mesh = {.naxes = 1, .axis = {{"dp", 2}}}, .average = 1, .part = {7, 0, 1, 33, 5}, .max_norm = 0.5},
    {.mesh = {.naxes = 1, .axis = {{"sp", 3}}}, .sum = 1, .part = {100, 0, 3, 200, 57}},
    {.mesh = {.naxes = 1, .axis = {{"sp", 5}}}, .sum = 1, .part = {1, 0, 2, 0, 0}, .max_norm = 1}, /* empty blocks */
    {.mesh = {.naxes = 1, .axis = {{"sp", 4}}}, .sum = 1, .part = {0, 0, 0, 0, 0}},
    {.mesh = {.naxes = 2, .axis = {{"dp", 2}, {"sp", 3}}}, .sum = 2, .average = 1, .part = {7, 9, 1, 33, 5}},
    {.mesh = {.naxes = 2, .axis = {{"dp", 2}, {"sp", 2}}}, .sum = 2, .average = 1, .part = {60, 60, 60, 60, 0}},
    {.mesh = {.naxes = 2, .axis = {{"dp", 2}, {"sp", 2}}}, .sum = 2, .part = {60, 60, 60, 60, 0}, .max_norm = 2},
    {.mesh = {.naxes = 3, .axis = {{"dp", 2}, {"tp", 2}, {"sp", 2}}}, .sum = 4, .average = 1, .part = {7, 9, 1, 33, 5}},
    {.mesh = {.naxes = 4, .axis = {{"pp", 2}, {"dp", 2}, {"tp", 2}, {"sp", 2}}},
     .sum = 12,
     .average = 2,
     .part = {100, 0, 3, 200, 57},
     .max_norm = 1},
};

HD_CASE(reduces_and_steps)
{
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
            if (i % 2 != t && !hd_goes("%s %d", transports[t], (int)i)) {
                continue;
            }
            HD_OK(
                heddle_run_ranks(heddle_mesh_size(&problems[i].mesh), transports[t], step_rank, (void *)&problems[i]));
        }
        for (int hosts = 0; hosts <= 2; hosts += 2) { /* as messages, and mixed */
            heddle_comm_options options;
            heddle_comm_options_init(&options);
            options.force_messages = hosts == 0;
            options.pretend_hosts = hosts;
            HD_OK(heddle_run_ranks_with(6, transports[t], &options, step_rank, (void *)&problems[5]));
        }
    }
}

/* Element counts differ between pipeline stages and tensor ranks, whose gradients stay apart; one NaN goes to its team
 * only and to its element only; the norm over all stages. */
static heddle_status apart_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"pp", 2}, {"dp", 3}}};
    int rank = heddle_comm_rank(comm), stage = rank / 3;
    float param[8] = {0}, grad[8];
    heddle_bucket *bucket = NULL;
    double norm = 0;
    heddle_bucket_part part = {param, grad, stage == 0 ? 8 : 3, 1};
    heddle_bucket_options options;
    heddle_bucket_options_init(&options);
    options.average_axes = 2;
    options.norm_axes = 1;
    options.shard_axis = 1;
    HD_TRY(heddle_bucket_create(&bucket, comm, &mesh, &part, 1, &options));
    for (int i = 0; i < 8; i++) {
        grad[i] = (float)(1 + stage + i % 2);
    }
    HD_TRY(heddle_bucket_reduce(bucket, HEDDLE_NO_STREAM));
    HD_TRY(heddle_bucket_norm(&norm, bucket, HEDDLE_NO_STREAM));
    CHECK(norm == sqrt(4 * 1 + 4 * 4 + 2 * 4 + 9));
    heddle_bucket_zero(bucket, HEDDLE_NO_STREAM);
    CHECK(grad[0] == 0 && grad[part.elems - 1] == 0);
    heddle_bucket_destroy(bucket);
    bucket = NULL;
    options.shard_axis = -1;
    HD_TRY(heddle_bucket_create(&bucket, comm, &mesh, &part, 1, &options));
    for (int i = 0; i < 8; i++) {
        grad[i] = rank == 4 && i == 1 ? NAN : 1;
    }
    HD_TRY(heddle_bucket_reduce(bucket, HEDDLE_NO_STREAM));
    for (int i = 0; i < 8; i++) {
        CHECK(stage == 1 && i == 1 ? isnan(grad[i]) : grad[i] == 1);
    }
    HD_TRY(heddle_bucket_norm(&norm, bucket, HEDDLE_NO_STREAM));
    CHECK(isnan(norm)); /* on the other stage too */
    for (int i = 0; i < 8; i++) {
        grad[i] = rank == 1 ? INFINITY : 1e30f;
    }
    HD_TRY(heddle_bucket_norm(&norm, bucket,
                              HEDDLE_NO_STREAM)); /* infinity for the ranks that rank 1's stage sees in norm_group */
    CHECK(rank % 3 == 1 ? isinf(norm) : fabs(norm - sqrt(11) * 1e30) < 1e24);
    for (int i = 0; i < 8; i++) {
        grad[i] = 1e-42f; /* far below the smallest square of an f32 */
    }
    HD_TRY(heddle_bucket_norm(&norm, bucket, HEDDLE_NO_STREAM));
    CHECK(fabs(norm - sqrt(11) * (double)1e-42f) < 1e-56);
out:
    heddle_bucket_destroy(bucket);
    return st;
}

HD_CASE(ranks_apart)
{
    for (size_t t = 0; t < 2; t++) {
        HD_OK(heddle_run_ranks(6, transports[t], apart_rank, NULL));
    }
}
