/* Sends between two ranks, pipelines, sums of small data and what a dense pair moves on a device, by every wire: in the
 * order of a stream, from and to either memory. */
#include "nccl_sim.h"
#include "time_limit.h"

#include <heddle/train/dense_pair.h>
#include <heddle/train/pipeline.h>

#include <pthread.h>
#include <unistd.h>

enum { N = 2, WORDS = 5000, BYTES = WORDS * 4, DEADLINE_S = 2 /* that is missed */ };

typedef struct arrays {
    heddle_comm *comm;
    device_sim sim;
    int32_t *there[2], here[2][WORDS]; /* on the device, on the host */
    heddle_stream stream;
} arrays;

static heddle_status set_up(arrays *a, heddle_comm *comm)
{
    heddle_status st;
    const hd_device *device = hd_comm_device(comm);
    memset(a, 0, sizeof *a);
    a->comm = comm;
    HD_TRY(device_sim_get(&a->sim));
    HD_TRY(heddle_buffer_alloc((void **)&a->there[0], comm, BYTES, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_buffer_alloc((void **)&a->there[1], comm, BYTES, HEDDLE_SPACE_DEVICE));
    st = device->library->stream_create(&a->stream, device->number);
out:
    return st;
}

static void tear_down(arrays *a)
{
    const hd_device *device = hd_comm_device(a->comm);
    device->library->stream_destroy(a->stream, device->number);
    heddle_buffer_free(a->comm, a->there[0]);
    heddle_buffer_free(a->comm, a->there[1]);
}

static void fill(int32_t *x, int rank, int round)
{
    for (int i = 0; i < WORDS; i++) {
        x[i] = 100000 * rank + 10000 * round + i;
    }
}

static heddle_status came(const int32_t *x, int from, int round)
{
    for (int i = 0; i < WORDS; i++) {
        if (x[i] != 100000 * from + 10000 * round + i) {
            return heddle_set_error(HEDDLE_ERR_INTERNAL, "round %d: word %d from rank %d is %d", round, i, from, x[i]);
        }
    }
    return HEDDLE_OK;
}

/* Round by round from device or host to device or host, of which the peer knows nothing. */
static heddle_status sends(arrays *a)
{
    heddle_status st;
    heddle_comm *comm = a->comm;
    const int rank = heddle_comm_rank(comm), peer = N - 1 - rank;
    for (int round = 0; round < 8; round++) {
        const int from_host = (round + rank) % 3 == 0, to_host = (round + 2 * rank) % 4 == 0,
                  with = round < 6 ? peer : rank;
        fill(a->here[0], rank, round);
        HD_TRY(device_copy(comm, a->there[0], a->here[0], BYTES, a->stream));
        HD_TRY(device_copy(comm, a->there[1], a->here[1], BYTES, a->stream));
        HD_TRY(heddle_comm_sendrecv(comm, from_host ? a->here[0] : a->there[0], BYTES, with,
                                    to_host ? a->here[1] : a->there[1], BYTES, with, a->stream));
        HD_TRY(to_host ? HEDDLE_OK : device_copy_now(comm, a->here[1], a->there[1], BYTES));
        HD_TRY(came(a->here[1], with, round));
    }
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static void *release_later(void *arg)
{
    usleep(30000);
    ((const arrays *)arg)->sim.release();
    return NULL;
}

/* What rank 0 sends is written by what its stream has still to do. */
static heddle_status comes_behind(arrays *a)
{
    heddle_status st;
    heddle_comm *comm = a->comm;
    pthread_t later;
    const int rank = heddle_comm_rank(comm), is_sender = rank == 0;
    fill(a->here[0], rank, 1);
    HD_TRY(device_copy_now(comm, a->there[1], a->here[0], BYTES));
    if (is_sender) {
        a->sim.hold(a->stream);
        CHECK(pthread_create(&later, NULL, release_later, a) == 0);
    }
    st = is_sender ? device_copy(comm, a->there[0], a->there[1], BYTES, a->stream) : HEDDLE_OK;
    st = st != HEDDLE_OK ? st
                         : heddle_comm_sendrecv(comm, a->there[0], BYTES, is_sender ? 1 : -1, a->there[1], BYTES,
                                                is_sender ? -1 : 0, a->stream);
    if (is_sender) {
        pthread_join(later, NULL);
    }
    HD_TRY(st);
    HD_TRY(device_copy_now(comm, a->here[1], a->there[1], BYTES));
    st = came(a->here[1], 0, 1);
out:
    return st;
}

static heddle_status pipes(arrays *a)
{
    heddle_status st;
    heddle_comm *comm = a->comm;
    heddle_pipeline *pipeline = NULL;
    heddle_mesh mesh;
    const int rank = heddle_comm_rank(comm);
    HD_TRY(heddle_mesh_parse(&mesh, "[pp=2]"));
    HD_TRY(heddle_pipeline_create(&pipeline, comm, &mesh, 0));
    fill(a->here[0], rank, 3);
    HD_TRY(device_copy_now(comm, a->there[0], a->here[0], BYTES));
    if (rank == 0) {
        HD_TRY(heddle_pipeline_send_next(pipeline, a->there[0], BYTES, a->stream));
        HD_TRY(heddle_pipeline_recv_next(pipeline, a->there[1], BYTES, a->stream));
    } else {
        HD_TRY(heddle_pipeline_recv_prev(pipeline, a->there[1], BYTES, a->stream));
        HD_TRY(heddle_pipeline_send_prev(pipeline, a->there[0], BYTES, a->stream));
    }
    HD_TRY(device_copy_now(comm, a->here[1], a->there[1], BYTES));
    HD_TRY(came(a->here[1], N - 1 - rank, 3));
    st = heddle_comm_barrier(comm);
out:
    heddle_pipeline_destroy(pipeline);
    return st;
}

/* Of a device's data on one rank and the host's on the other, too. */
static heddle_status sums(arrays *a)
{
    heddle_status st;
    heddle_comm *comm = a->comm;
    const int rank = heddle_comm_rank(comm);
    double *const host = (double *)(void *)a->here[0], *const got = (double *)(void *)a->here[1];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < WORDS / 2; i++) {
            host[i] = (rank + 1) * (i + 0.1 * round);
        }
        HD_TRY(device_copy_now(comm, a->there[0], host, BYTES));
        double *data = round + rank == 2 ? host : (double *)(void *)a->there[0];
        HD_TRY(heddle_comm_allreduce_sum(comm, data, WORDS / 2, HEDDLE_F64));
        HD_TRY(data == host ? HEDDLE_OK : device_copy_now(comm, got, data, BYTES));
        for (int i = 0; i < WORDS / 2; i++) {
            CHECK((data == host ? host : got)[i] == (i + 0.1 * round) + 2 * (i + 0.1 * round));
        }
    }
    st = heddle_comm_barrier(comm);
out:
    return st;
}

/* Element i of all: i on the rank that has it, or (rank + 1) i on every rank, to be added up. */
static heddle_status gathers_or_scatters(arrays *a, const char *text, int adds)
{
    heddle_status st;
    heddle_reshard *plan = NULL;
    heddle_reshard_line line;
    heddle_reshard_options options;
    const int rank = heddle_comm_rank(a->comm), own_at = rank * WORDS / N;
    float *const src = (float *)(void *)a->here[0], *const dst = (float *)(void *)a->here[1];
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(a->comm);
    HD_TRY(heddle_reshard_parse(&line, text));
    HD_TRY(heddle_reshard_create_line(&plan, a->comm, &line, &options));
    for (int i = 0; i < WORDS; i++) {
        src[i] = (float)(adds ? (rank + 1) * i : own_at + i);
    }
    HD_TRY(device_copy(a->comm, a->there[0], src, BYTES, a->stream));
    HD_TRY(heddle_reshard_execute(plan, a->there[0], a->there[1], a->stream));
    HD_TRY(device_settle(a->comm, a->stream));
    HD_TRY(device_copy_now(a->comm, dst, a->there[1], BYTES));
    for (int i = 0; i < (adds ? WORDS / N : WORDS); i++) {
        CHECK(dst[i] == (float)(adds ? 3 * (own_at + i) : i));
    }
    st = heddle_comm_barrier(a->comm);
out:
    heddle_reshard_destroy(plan);
    return st;
}

/* Its products are the CPU's, so a pair is refused there; around them are two reshards. */
static heddle_status moves_of_a_pair(arrays *a)
{
    heddle_status st;
    heddle_dense_pair *pair = NULL;
    heddle_reshard_line line;
    heddle_dense_pair_options options;
    heddle_dense_pair_options_init(&options);
    options.hidden = 8;
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(a->comm);
    HD_TRY(heddle_reshard_parse(&line, "f32[n=50 c=100] on [tp=2]: n@tp -> *"));
    CHECK(heddle_dense_pair_create(&pair, a->comm, &line.shape, &line.mesh, &line.from, 0, &options) ==
          HEDDLE_ERR_UNSUPPORTED);
    CHECK(says("a dense pair: memory of device") || says("oneDNN"));
    HD_TRY(gathers_or_scatters(a, "f32[n=50 c=100] on [tp=2]: n@tp -> *", 0));
    st = gathers_or_scatters(a, "f32[n=50 c=100] on [tp=2]: sum@tp -> n@tp", 1);
out:
    return st;
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------- */

/* A stream that is being captured, memory of the peer's device, and other sizes: both stay usable. */
static heddle_status refuses(arrays *a)
{
    static void *place[N]; /* of the ranks, which are threads */
    heddle_status st;
    heddle_comm *comm = a->comm;
    void *graph = NULL;
    const int rank = heddle_comm_rank(comm), peer = N - 1 - rank;
    place[rank] = a->there[0];
    HD_TRY(heddle_comm_barrier(comm));
    CHECK(heddle_comm_sendrecv(comm, place[peer], BYTES, peer, a->there[1], BYTES, peer, a->stream) == HEDDLE_ERR_ARG);
    CHECK(says("sendrecv of memory of another device than"));
    CHECK(heddle_comm_allreduce_sum(comm, place[peer], WORDS / 2, HEDDLE_F64) == HEDDLE_ERR_ARG);
    CHECK(says("of memory of another device than"));
    HD_TRY(a->sim.capture(a->stream, 1));
    CHECK(heddle_comm_sendrecv(comm, a->there[0], BYTES, peer, a->there[1], BYTES, peer, a->stream) == HEDDLE_ERR_ARG);
    CHECK(says("its stream is being captured, and sendrecv blocks"));
    HD_TRY(a->sim.record(a->stream, &graph));
    a->sim.graph_free(graph);
    CHECK(heddle_comm_sendrecv(comm, a->there[0], BYTES - 8 * (size_t)rank, peer, a->there[1], BYTES, peer,
                               a->stream) == HEDDLE_ERR_MISMATCH);
    st = heddle_comm_barrier(comm);
out:
    return st;
}

/* Rank 0's stream does not come: it says so, and rank 1 is told. */
static heddle_status is_late(arrays *a)
{
    heddle_status st;
    heddle_comm *comm = a->comm;
    const int rank = heddle_comm_rank(comm), peer = N - 1 - rank;
    HD_TRY(heddle_comm_barrier(comm));
    if (rank == 0) {
        a->sim.hold(a->stream);
    }
    usleep(rank == 0 ? 0 : (useconds_t)(hd_test_missed_ns(0.3 * DEADLINE_S) / 1000)); /* its patience ends later */
    st = heddle_comm_sendrecv(comm, a->there[0], BYTES, peer, a->there[1], BYTES, peer, a->stream);
    a->sim.release();
    CHECK(st == (rank == 0 ? HEDDLE_ERR_TIMEOUT : HEDDLE_ERR_PEER));
    CHECK(says("did not come to the copies of a sendrecv before the deadline; sendrecv of 20000 bytes"));
    st = HEDDLE_OK;
out:
    return st;
}

static heddle_status no_event(void **event, int device)
{
    *event = NULL;
    return heddle_set_error(HEDDLE_ERR_DEVICE, "device cuda:%d has no event left", device);
}

/* Rank 1 cannot even begin: rank 0, which waits, is told. */
static heddle_status is_broken(arrays *a)
{
    heddle_status st;
    heddle_comm *comm = a->comm;
    hd_device *device = hd_comm_device(comm);
    const heddle_device *const library = device->library;
    heddle_device fails = *library;
    const int rank = heddle_comm_rank(comm);
    fails.event_create = no_event;
    HD_TRY(heddle_comm_barrier(comm));
    device->library = rank == 1 ? &fails : library;
    st = heddle_comm_allreduce_sum(comm, a->there[0], WORDS / 2, HEDDLE_F64);
    device->library = library;
    CHECK(st == (rank == 1 ? HEDDLE_ERR_DEVICE : HEDDLE_ERR_PEER) && says("has no event left"));
    st = HEDDLE_OK;
out:
    return st;
}

typedef heddle_status (*body)(arrays *a);

/* arg: the body. */
static heddle_status with_arrays(heddle_comm *comm, void *arg)
{
    arrays a;
    heddle_status st = set_up(&a, comm);
    st = st == HEDDLE_OK ? (*(body *)arg)(&a) : st;
    tear_down(&a);
    return st;
}

static void on_wires(body does, double deadline_s)
{
    static const heddle_wire wires[] = {HEDDLE_WIRE_PEER, HEDDLE_WIRE_NCCL, HEDDLE_WIRE_HOST};
    heddle_comm_options options = by_nccl(deadline_s);
    options.deadline_ms = does == is_late ? hd_test_missed_ns(deadline_s) / 1000000 : options.deadline_ms;
    for (int i = 0; i < 3; i++) {
        options.wire = wires[i];
        HD_OK(heddle_run_ranks_with(N, "threads", &options, with_arrays, &does));
    }
}

HD_CASE(sent_and_received)
{
    heddle_comm_options options = by_nccl(20);
    options.wire = HEDDLE_WIRE_HOST;
    body does = sends;
    HD_OK(heddle_run_ranks_with(N, "shm", &options, with_arrays,
                                &does)); /* first, as no fork may come behind the others */
    on_wires(sends, 20);
}

HD_CASE(in_the_order_of_the_stream)
{
    on_wires(comes_behind, 20);
}

HD_CASE(through_a_pipeline)
{
    on_wires(pipes, 20);
}

HD_CASE(added_up)
{
    on_wires(sums, 20);
}

HD_CASE(around_a_dense_pair)
{
    on_wires(moves_of_a_pair, 20);
}

HD_CASE(refused)
{
    on_wires(refuses, 20);
}

HD_CASE(late)
{
    on_wires(is_late, DEADLINE_S); /* attaching has it, too */
}

HD_CASE(told_of_a_device_that_fails)
{
    on_wires(is_broken, 60);
}
