/* heddle_comm_from_callbacks over a transport without MPI: every kind of reach, giving up, deadlines. */
#include "callbacks_run.h"
#include "case.h"
#include "fake_transport.h"
#include "switch_check.h"

#include "runtime/base/base.h"

#include <heddle/reshard.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- group operations --------------------------------------------------------------------------------------------- */

/* 2^60, -2^60 and small numbers: any other order than that of the ranks gives other bits. More than travel at a time.
 */
static int sums_in_rank_order(heddle_comm *comm, int rank, int size)
{
    enum { ELEMS = 3001 };
    static const double terms[] = {0x1p60, -0x1p60, 1.25, 2.5};
    double f64[ELEMS];
    float f32[ELEMS];
    for (int i = 0; i < ELEMS; i++) {
        f64[i] = terms[rank % 4] * (i % 7);
        f32[i] = (float)terms[rank % 4] * (float)(i % 5);
    }
    EXPECT(heddle_comm_allreduce_sum(comm, f64, ELEMS, HEDDLE_F64) == HEDDLE_OK);
    EXPECT(heddle_comm_allreduce_sum(comm, f32, ELEMS, HEDDLE_F32) == HEDDLE_OK);
    for (int i = 0; i < ELEMS; i++) {
        double wanted_f64 = terms[0] * (i % 7);
        float wanted_f32 = (float)terms[0] * (float)(i % 5);
        for (int r = 1; r < size; r++) {
            wanted_f64 += terms[r % 4] * (i % 7);
            wanted_f32 += (float)terms[r % 4] * (float)(i % 5);
        }
        EXPECT(f64[i] == wanted_f64 && f32[i] == wanted_f32);
    }
    return 0;
}

/* The way to a peer is data, and a peer that is not reached says why. */
static int peer_says_how(heddle_comm *comm, int rank, int peer, int mode)
{
    heddle_peer says = HEDDLE_EMPTY(heddle_peer);
    EXPECT(heddle_comm_get_peer(&says, comm, peer) == HEDDLE_OK);
    EXPECT(says.reaches == heddle_comm_reaches(comm, peer));
    EXPECT(says.spaces == 1u << HEDDLE_SPACE_HOST && says.stream_ordered == 0);
    if (says.reaches) {
        EXPECT(says.link == (peer == rank ? HEDDLE_LINK_SELF : HEDDLE_LINK_MEMORY));
        EXPECT(strcmp(says.why, peer == rank ? "it is this rank" : "memory of this host") == 0);
        EXPECT(says.latency_ns == 0 && says.bytes_per_s == 0);
    } else {
        EXPECT(says.link == HEDDLE_LINK_NETWORK && says.latency_ns == 25000 && says.bytes_per_s == 12500000000);
        EXPECT(strstr(says.why, "messages by fake: ") != NULL);
        EXPECT(strstr(says.why, mode == FORCED ? "they are forced (force_messages)" : "pretended host ") != NULL);
    }
    return 0;
}

static int group_operations(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    const int *mode = arg;
    int size = comm != NULL ? heddle_comm_size(comm) : 0;
    EXPECT(opened == HEDDLE_OK && heddle_comm_rank(comm) == rank);
    EXPECT(strstr(heddle_comm_describe(comm), "fake") != NULL);
    for (int peer = 0; peer < size; peer++) {
        int wanted = *mode == PLAIN || peer == rank ||
                     (*mode == TWO_HOSTS && size > 2 && (peer < (size + 1) / 2) == (rank < (size + 1) / 2));
        EXPECT(heddle_comm_reaches(comm, peer) == wanted);
        EXPECT(peer_says_how(comm, rank, peer, *mode) == 0);
    }
    int far = *mode != PLAIN && size > 1;
    EXPECT((strstr(heddle_comm_describe(comm), "messages by network 25 us 12.5 GB/s") != NULL) == far);
    for (int turn = 0; turn < 20; turn++) {
        int64_t mine[3] = {rank, turn, rank * turn};
        int64_t all[3 * 16];
        EXPECT(heddle_comm_barrier(comm) == HEDDLE_OK);
        EXPECT(heddle_comm_allgather(comm, mine, all, sizeof(mine)) == HEDDLE_OK);
        for (int r = 0; r < size; r++) {
            EXPECT(all[3 * r] == r && all[3 * r + 1] == turn && all[3 * r + 2] == r * turn);
        }
        int64_t sum[2] = {rank + 1, turn};
        EXPECT(heddle_comm_allreduce_sum(comm, sum, 2, HEDDLE_I64) == HEDDLE_OK);
        EXPECT(sum[0] == (int64_t)size * (size + 1) / 2 && sum[1] == (int64_t)turn * size);
        int out[2] = {rank, turn};
        int in[2] = {-1, -1};
        int from = (rank + size - 1) % size;
        EXPECT(heddle_comm_sendrecv(comm, out, sizeof(out), (rank + 1) % size, in, sizeof(in), from,
                                    HEDDLE_NO_STREAM) == HEDDLE_OK);
        EXPECT(in[0] == from && in[1] == turn);
    }
    EXPECT(sums_in_rank_order(comm, rank, size) == 0);
    const heddle_mesh mesh = {.naxes = 3, .axis = {{"a", 1}, {"b", size}, {"c", 1}}};
    for (unsigned axes = 0; axes < 8; axes++) {
        heddle_comm *group = NULL;
        int all[16];
        EXPECT(heddle_comm_axes_group(&group, comm, &mesh, axes) == HEDDLE_OK);
        EXPECT(heddle_comm_size(group) == (axes & 2 ? size : 1));
        EXPECT(heddle_comm_allgather(group, &rank, all, sizeof(rank)) == HEDDLE_OK);
        EXPECT(all[heddle_comm_rank(group)] == rank);
        heddle_comm_destroy(group);
    }
    return 0;
}

HD_CASE(group_operations_in_all_modes)
{
    for (int size = 1; size <= 5; size++) {
        for (int mode = 0; mode < MODES; mode++) {
            run_ranks(size, mode, 20000, group_operations, &mode);
        }
    }
}

/* --- reshards ----------------------------------------------------------------------------------------------------- */

typedef struct totals {
    int64_t to[16][16];
} totals;

static int reshards(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    totals *t = arg;
    char room[SWITCH_TEXT_BYTES];
    char text[SWITCH_TEXT_BYTES];
    EXPECT(opened == HEDDLE_OK);
    for (int i = 0; switch_line(i, heddle_comm_size(comm), room) != NULL; i++) {
        if (switch_check(comm, room, t->to[rank], text) != 0) {
            print_error("rank %d: %s\n", rank, text);
            return 1;
        }
    }
    return 0;
}

/* The transport's own count of what exchanges moved must be what we say,
 * between ranks that cannot reach each other. */
HD_CASE(reshards_in_all_modes)
{
    for (int size = 1; size <= 4; size++) {
        for (int mode = 0; mode < MODES; mode++) {
            fake_world *world = fake_world_create(size);
            fake_run run = run_with(world, mode, 20000);
            totals t = {{{0}}};
            run.fn = reshards;
            run.arg = &t;
            assert_int_equal(fake_run_ranks(&run, size), 0);
            for (int a = 0; a < size; a++) {
                for (int b = 0; b < size; b++) {
                    int messages =
                        mode == FORCED || (mode == TWO_HOSTS && (a < (size + 1) / 2) != (b < (size + 1) / 2));
                    assert_int_equal(fake_bytes(world, a, b), messages ? t.to[a][b] : 0);
                }
            }
            assert_int_equal(fake_alive(world), 0);
            fake_world_destroy(world);
        }
    }
}

/* --- giving up ---------------------------------------------------------------------------------------------------- */

static void *abort_from_outside(void *comm)
{
    usleep(20000);
    heddle_ignore(heddle_comm_abort(comm, "the oven is off"));
    return NULL;
}

static int one_gives_up(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    const int *other_thread = arg;
    EXPECT(opened == HEDDLE_OK);
    if (rank == 1 && !*other_thread) {
        usleep(20000);
        EXPECT(heddle_comm_abort(comm, "the oven is off") == HEDDLE_OK);
        return 0;
    }
    pthread_t thread;
    if (rank == 1) {
        pthread_create(&thread, NULL, abort_from_outside, comm);
        usleep(100000);
        pthread_join(thread, NULL);
        return 0; /* destroying the communicator passes it on at the latest */
    }
    EXPECT(heddle_comm_barrier(comm) == HEDDLE_ERR_PEER);
    EXPECT(strstr(heddle_last_error(), "rank 1") != NULL && strstr(heddle_last_error(), "the oven is off") != NULL);
    return 0;
}

HD_CASE(an_abort_reaches_everybody)
{
    for (int mode = 0; mode < MODES; mode++) {
        for (int other_thread = 0; other_thread < 2; other_thread++) {
            run_ranks(3, mode, 20000, one_gives_up, &other_thread);
        }
    }
}

typedef struct missed {
    int64_t deadline_ms;
    _Atomic int late, ended; /* waits, the first at their deadline */
} missed;

static int one_is_missing(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    missed *m = arg;
    const int64_t begin = now_ms();
    EXPECT(opened == HEDDLE_OK);
    if (rank != 2) {
        const heddle_status st = heddle_comm_barrier(comm);
        EXPECT(st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_PEER); /* the first may tell the other */
        EXPECT(st == HEDDLE_ERR_PEER || now_ms() - begin >= m->deadline_ms * 5 / 6);
        m->late += st == HEDDLE_ERR_TIMEOUT;
        m->ended++;
    }
    while (rank == 2 && m->ended < 2) {
        EXPECT(now_ms() - begin < 20 * m->deadline_ms); /* nobody gives up without it */
        usleep(1000);
    }
    return 0;
}

HD_CASE(a_wait_ends_at_its_deadline)
{
    for (int mode = 0; mode < MODES; mode++) {
        missed m = {.deadline_ms = hd_test_limit_ns(0.3) / 1000000};
        run_ranks(3, mode, m.deadline_ms, one_is_missing, &m);
        assert_true(m.late > 0);
    }
}

static int nobody_opens(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    (void)comm;
    const heddle_status *wanted = arg;
    EXPECT(opened == *wanted);
    return 0;
}

HD_CASE(a_rank_that_never_comes)
{
    heddle_status wanted = HEDDLE_ERR_TIMEOUT;
    fake_world *world = fake_world_create(3);
    fake_run run = run_with(world, PLAIN, 300);
    run.fn = nobody_opens;
    run.arg = &wanted;
    assert_int_equal(fake_run_ranks(&run, 2), 0); /* two of three */
    fake_world_destroy(world);
}
