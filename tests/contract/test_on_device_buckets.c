/* Gradients on a device, by every wire: summed over an axis, whole or in blocks, and what a bucket does besides. */
#include "nccl_sim.h"
#include "runtime/parallel/parallel_internal.h"
#include "time_limit.h"

#include <heddle/train/bucket.h>
#include <math.h>

enum { N = 2, PARTS = 3, MOST = 5000 };

static const int64_t sizes[PARTS] = {MOST, 0, 333};
static const int64_t all_elems = MOST + 333;

typedef struct bucket_job {
    heddle_comm *comm;
    heddle_stream stream;
    heddle_bucket_part part[PARTS]; /* on the device */
    float here[MOST];
} bucket_job;

/* Small whole numbers, so that sums of them and of their squares have no rounding. */
static float grad_of(int rank, int64_t at)
{
    return (float)((rank + 1) * (at % 97) - 40);
}

static float param_of(int rank, int64_t at)
{
    return (float)(10000 * rank + at);
}

static heddle_status set_up(bucket_job *j, heddle_comm *comm)
{
    heddle_status st;
    const hd_device *device = hd_comm_device(comm);
    memset(j, 0, sizeof *j);
    j->comm = comm;
    for (int i = 0; i < PARTS; i++) {
        void *memory[2] = {NULL, NULL};
        for (int k = 0; k < 2 && sizes[i] > 0; k++) {
            HD_TRY(heddle_buffer_alloc(&memory[k], comm, (size_t)sizes[i] * 4, HEDDLE_SPACE_DEVICE));
        }
        j->part[i] = (heddle_bucket_part){.param = memory[0], .grad = memory[1], .elems = sizes[i]};
    }
    st = device->library->stream_create(&j->stream, device->number);
out:
    return st;
}

static void tear_down(bucket_job *j)
{
    const hd_device *device = hd_comm_device(j->comm);
    device->library->stream_destroy(j->stream, device->number);
    for (int i = 0; i < PARTS; i++) {
        heddle_buffer_free(j->comm, j->part[i].param);
        heddle_buffer_free(j->comm, j->part[i].grad);
    }
}

static heddle_status fill(bucket_job *j)
{
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(j->comm);
    int64_t first = 0;
    for (int i = 0; i < PARTS; first += sizes[i], i++) {
        for (int k = 0; k < 2 && sizes[i] > 0; k++) {
            for (int64_t e = 0; e < sizes[i]; e++) {
                j->here[e] = k == 0 ? param_of(rank, first + e) : grad_of(rank, first + e);
            }
            HD_TRY(
                device_copy_now(j->comm, k == 0 ? j->part[i].param : j->part[i].grad, j->here, (size_t)sizes[i] * 4));
        }
    }
    st = heddle_comm_barrier(j->comm);
out:
    return st;
}

static heddle_status make_on(heddle_bucket **out, const bucket_job *j, const char *line, unsigned sum_axes,
                             unsigned norm_axes, int shard_axis)
{
    heddle_status st;
    heddle_mesh mesh;
    heddle_bucket_options options;
    heddle_bucket_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(j->comm);
    options.sum_axes = sum_axes;
    options.norm_axes = norm_axes;
    options.shard_axis = shard_axis;
    HD_TRY(heddle_mesh_parse(&mesh, line));
    st = heddle_bucket_create(out, j->comm, &mesh, j->part, PARTS, &options);
out:
    return st;
}

static heddle_status make(heddle_bucket **out, const bucket_job *j, int shard_axis)
{
    return make_on(out, j, "[sp=2]", 1, 0, shard_axis);
}

/* which 0: parameters, of their owners; 1: gradients, summed in the own block [lo, lo + len); 2: gradients of zeros */
static heddle_status look(bucket_job *j, int which, int64_t lo, int64_t len)
{
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(j->comm);
    int64_t first = 0;
    for (int i = 0; i < PARTS; first += sizes[i], i++) {
        HD_TRY(sizes[i] == 0 ? HEDDLE_OK
                             : device_copy_now(j->comm, j->here, which == 0 ? j->part[i].param : j->part[i].grad,
                                               (size_t)sizes[i] * 4));
        for (int64_t e = 0; e < sizes[i]; e++) {
            const int64_t at = first + e;
            const int is_own = at >= lo && at < lo + len;
            const float wanted = which == 0   ? param_of(is_own ? rank : N - 1 - rank, at)
                                 : which == 2 ? 0
                                 : is_own     ? grad_of(0, at) + grad_of(1, at)
                                              : grad_of(rank, at);
            if (j->here[e] != wanted) {
                return heddle_set_error(HEDDLE_ERR_INTERNAL, "rank %d: %d, element %d is %g, not %g", rank, which,
                                        (int)at, (double)j->here[e], (double)wanted);
            }
        }
    }
out:
    return st;
}

static double norm(void)
{
    double sum = 0;
    for (int64_t at = 0; at < all_elems; at++) {
        const double g = grad_of(0, at) + grad_of(1, at);
        sum += g * g;
    }
    return sqrt(sum);
}

static heddle_status reduces(bucket_job *j, int shard_axis)
{
    heddle_status st;
    heddle_bucket *bucket = NULL;
    heddle_bucket_info info = HEDDLE_EMPTY(heddle_bucket_info);
    double found = 0;
    HD_TRY(make(&bucket, j, shard_axis));
    for (int round = 0; round < 3; round++) {
        HD_TRY(fill(j));
        HD_TRY(heddle_bucket_reduce(bucket, j->stream));
        HD_TRY(device_settle(j->comm, j->stream));
        HD_TRY(heddle_bucket_get_info(&info, bucket));
        HD_TRY(look(j, 1, info.own_lo, info.own_elems));
        HD_TRY(heddle_bucket_norm(&found, bucket, j->stream));
        CHECK(found == norm());
        HD_TRY(heddle_bucket_gather(bucket, j->stream));
        HD_TRY(device_settle(j->comm, j->stream));
        HD_TRY(look(j, 0, info.own_lo, info.own_elems));
        heddle_bucket_zero(bucket, j->stream);
        HD_TRY(device_settle(j->comm, j->stream));
        HD_TRY(look(j, 2, 0, 0));
    }
    CHECK(info.own_elems == (shard_axis < 0 ? all_elems : heddle_comm_rank(j->comm) == 0 ? 2667 : 2666));
    HD_TRY(heddle_bucket_get_info(&info, bucket));
    CHECK(info.measured_bytes == 3 * info.planned_bytes && info.planned_bytes > 0);
    st = heddle_comm_barrier(j->comm);
out:
    heddle_bucket_destroy(bucket);
    return st;
}

static heddle_status everywhere(bucket_job *j)
{
    return reduces(j, -1);
}

static heddle_status in_blocks(bucket_job *j)
{
    return reduces(j, 0);
}

static heddle_status refuses(bucket_job *j)
{
    heddle_status st;
    heddle_bucket *bucket = NULL;
    const heddle_bucket_part kept = j->part[2];
    const int is_first = heddle_comm_rank(j->comm) == 0;
    j->part[2].grad = is_first ? j->here : kept.grad;
    CHECK(make(&bucket, j, -1) == (is_first ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER));
    CHECK(says("parts[2].grad is memory of the host on rank 0, not of cuda:"));
    j->part[2] = kept;
    HD_TRY(make(&bucket, j, -1));
    st = heddle_comm_barrier(j->comm);
out:
    heddle_bucket_destroy(bucket);
    return st;
}

typedef heddle_status (*body)(bucket_job *j);

static heddle_status with_parts(heddle_comm *comm, void *arg)
{
    bucket_job j;
    heddle_status st = set_up(&j, comm);
    st = st == HEDDLE_OK ? (*(body *)arg)(&j) : st;
    tear_down(&j);
    return st;
}

static void on_wires(body does)
{
    static const heddle_wire wires[] = {HEDDLE_WIRE_PEER, HEDDLE_WIRE_NCCL, HEDDLE_WIRE_HOST};
    heddle_comm_options options = by_nccl(20);
    for (int i = 0; i < 3; i++) {
        options.wire = wires[i];
        HD_OK(heddle_run_ranks_with(N, "threads", &options, with_parts, &does));
    }
}

HD_CASE(summed_everywhere)
{
    on_wires(everywhere);
}

HD_CASE(summed_in_blocks)
{
    on_wires(in_blocks);
}

HD_CASE(refused)
{
    on_wires(refuses);
}

/* Peers in other processes have mapped what a bucket gathers into: nothing lands in memory of a plan, to be copied. */
HD_RANK_CASE(gathers_to_its_place, "2 shm cuda peer")
{
    bucket_job j;
    heddle_bucket *bucket[2] = {NULL, NULL};
    heddle_status st = set_up(&j, comm);
    HD_TRY(st);
    for (int i = 0; i < 2; i++) {
        HD_TRY(make(&bucket[i], &j, i - 1));
        HD_TRY(fill(&j));
        HD_TRY(heddle_bucket_reduce(bucket[i], j.stream));
        HD_TRY(heddle_bucket_gather(bucket[i], j.stream));
        HD_TRY(device_settle(comm, j.stream));
        HD_TRY(says_why(i == 0 ? bucket[i]->step[bucket[i]->nsteps - 1].reshard : bucket[i]->gather, direct));
        HD_TRY(heddle_comm_barrier(comm));
    }
    st = heddle_comm_barrier(comm);
out:
    heddle_bucket_destroy(bucket[0]);
    heddle_bucket_destroy(bucket[1]);
    tear_down(&j);
    return st;
}

/* --- a stream that does not come ---------------------------------------------------------------------------------- */

/* A norm that was too late is still under way: its memory is not freed, for which the device would wait. */
static heddle_status norm_is_late(bucket_job *j)
{
    heddle_status st;
    heddle_bucket *bucket = NULL;
    device_sim sim = {0};
    double found = 0;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(make_on(&bucket, j, "[sp=1]", 0, 0, -1));
    HD_TRY(fill(j));
    sim.hold(j->stream);
    CHECK(heddle_bucket_norm(&found, bucket, j->stream) == HEDDLE_ERR_TIMEOUT);
    CHECK(says("did not come to the copies of a bucket norm before the deadline; bucket norm of "));
    const int64_t start_ns = hd_now_ns(), bytes = sim.device_bytes();
    heddle_bucket_destroy(bucket);
    bucket = NULL;
    CHECK(sim.device_bytes() == bytes && hd_now_ns() - start_ns < hd_test_limit_ns(8));
    st = HEDDLE_OK;
out:
    if (sim.release != NULL) {
        sim.release();
    }
    heddle_bucket_destroy(bucket);
    return st;
}

HD_CASE(a_norm_that_is_late)
{
    hd_leaves("memory that a stream uses which does not come to its end");
    const body does = norm_is_late;
    heddle_comm_options options = by_nccl(0.5);
    options.wire = HEDDLE_WIRE_PEER;
    HD_OK(heddle_run_ranks_with(1, "threads", &options, with_parts, (void *)&does));
}

/* --- a creation that fails on one rank ---------------------------------------------------------------------------- */

enum { STAGES = 2, ALL = STAGES * N, MOST_ALLOCATIONS = 3000 };

/* Every allocation of rank 1 fails once: all are told, also those that only share the norm with it, and the bucket that
 * is made in the end works. */
static heddle_status out_of_memory(bucket_job *j)
{
    heddle_status st = HEDDLE_OK;
    heddle_bucket *bucket = NULL;
    const int rank = heddle_comm_rank(j->comm);
    int failed = 0, all[ALL];
    double found = 0;
    for (long nth = 1; bucket == NULL && nth <= MOST_ALLOCATIONS; nth++) {
        hd_alloc_fail_at(rank == 1 ? nth : 0);
        const int made = (int)make_on(&bucket, j, "[pp=2 sp=2]", 2, 1, 1);
        hd_alloc_fail_at(0);
        HD_TRY(heddle_comm_allgather(j->comm, &made, all, sizeof made));
        for (int r = 0; r < ALL; r++) {
            const heddle_status other = r == 1 ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_PEER;
            CHECK(all[r] == (int)(all[1] == HEDDLE_OK ? HEDDLE_OK : other));
        }
        failed += made != HEDDLE_OK;
    }
    CHECK(failed > 2 && bucket != NULL);
    HD_TRY(fill(j));
    HD_TRY(heddle_bucket_reduce(bucket, j->stream));
    HD_TRY(heddle_bucket_norm(&found, bucket, j->stream));
    CHECK(found > 0);
    st = heddle_comm_barrier(j->comm);
out:
    heddle_bucket_destroy(bucket);
    return st;
}

HD_CASE(all_are_told_of_a_rank_without_memory)
{
    const body does = out_of_memory;
    heddle_comm_options options = by_nccl(5);
    options.wire = HEDDLE_WIRE_PEER;
    HD_OK(heddle_run_ranks_with(ALL, "shm", &options, with_parts, (void *)&does));
}
